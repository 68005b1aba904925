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

/* What the option listen names, without its range of ports: an address; an interface, whose IPv4 address it is, or
 * where it has none the IPv6 one; a network (10.0.0.0/8), for the one address in it; or a name, as
 * kvf_address_resolve() takes it. An interface goes before a host of the same name. On failure *out is unchanged and
 * `message` (KVF_MESSAGE_BYTES_MAX bytes) says what there is instead. KVF_INVALID. */
KVF_MUST_USE kvf_status kvf_own_address_find(const char *text, kvf_address *out, char *message);

/* The interface that has the address; "" if none has. */
void kvf_own_address_interface(const kvf_address *address, char out[IF_NAMESIZE]);

/* The address that this machine would show to hosts that no other route than the default one leads to. Where IPv6 has
 * several, it is not one of those that are given up after a while (RFC 8981). False: there is no such route, or all
 * that it has is loopback. */
bool kvf_own_address_of_route(bool is_v4, kvf_address *out);

#endif
