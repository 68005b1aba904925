/* Where a node takes connections. */
#ifndef KVF_RUNTIME_LISTENER_H
#define KVF_RUNTIME_LISTENER_H

#include "runtime/pump.h"

/* Listens where the options listen and advertise say, sets node->address and node->listens_on, and logs a line of it if
 * the node's address was chosen (kvf_address_choose()). The descriptor is the caller's. On failure it is -1 and
 * `message` says what to change: KVF_INVALID, KVF_ADDRESS_IN_USE, KVF_SYSTEM. */
KVF_MUST_USE kvf_status kvf_listener_open(kvf_node *node, int *out_fd, char *message);

#endif
