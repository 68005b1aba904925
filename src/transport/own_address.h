/* Addresses that this machine has, as its interfaces have them now: of those that are up, and in this process' network
 * namespace. Link-local ones of IPv6 are left out: without their interface they name nothing. No packet is sent, and
 * nothing blocks but the resolving of a name. No state; any thread.
 */
#ifndef KVF_TRANSPORT_OWN_ADDRESS_H
#define KVF_TRANSPORT_OWN_ADDRESS_H

#include <net/if.h>
#include <stdbool.h>

#include "kvferry/types.h"
#include "wire/address.h"

/* Resolves the option listen, without its range of ports. It names an address, an interface, a network, or a name as
 * for kvf_address_resolve(). Of an interface the IPv4 address is taken, or without one the IPv6 address; of a network
 * (10.0.0.0/8) the one address in it. An interface takes precedence over a host of the same name. On failure *out is
 * unchanged, and `message` (KVF_MESSAGE_BYTES_MAX bytes) lists the addresses that exist. KVF_INVALID. */
KVF_MUST_USE kvf_status kvf_own_address_find(const char *text, kvf_address *out, char *message);

/* The interface that has the address; "" if none has. */
void kvf_own_address_interface(const kvf_address *address, char out[IF_NAMESIZE]);

/* The address that this machine would show to hosts that no other route than the default one leads to. Where IPv6 has
 * several, it is not one of those that are given up after a while (RFC 8981). False: there is no such route, or all
 * that it has is loopback. */
bool kvf_own_address_of_route(bool is_v4, kvf_address *out);

#endif
