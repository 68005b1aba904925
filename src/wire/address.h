/* Network addresses as plain data: no sockets and no names here. Any thread. */
#ifndef KVF_WIRE_ADDRESS_H
#define KVF_WIRE_ADDRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/crowd.h"
#include "base/fence.h"

/* An IPv6 address, or an IPv4 one in its mapped form (::ffff:a.b.c.d), in network order. */
typedef struct kvf_address {
  uint8_t ip[16];
  uint16_t port; /* host order */
} kvf_address;

#define KVF_ADDRESS_TEXT_BYTES 56 /* "[v6 address]:65535" with its terminating zero, and to spare */

/* Reads "127.0.0.1:80", "[::1]:80", or the address alone ("127.0.0.1", "::1", "[::1]"): then the port is
 * `default_port`. Numbers only; a name is the caller's to resolve. KVF_INVALID: anything else; *out is unchanged. */
KVF_MUST_USE kvf_status kvf_address_parse(const char *text, uint16_t default_port, kvf_address *out);

/* "127.0.0.1:80", "[::1]:80". */
void kvf_address_format(const kvf_address *address, char out[KVF_ADDRESS_TEXT_BYTES]);
/* "127.0.0.1", "::1". */
void kvf_address_format_host(const kvf_address *address, char out[KVF_ADDRESS_TEXT_BYTES]);

bool kvf_address_is_v4(const kvf_address *address);
/* 127.0.0.0/8 or ::1. */
bool kvf_address_is_loopback(const kvf_address *address);
/* Whose it is: an IPv4 address, or the /64 of an IPv6 one, in which a host has as many addresses as it likes. */
kvf_host kvf_address_host(const kvf_address *address);
/* 0.0.0.0 or ::. */
bool kvf_address_is_any(const kvf_address *address);

#endif
