/* Where a node takes connections. */
#ifndef KVF_RUNTIME_LISTENER_H
#define KVF_RUNTIME_LISTENER_H

#include "runtime/pump.h"

/* Listens where the options listen and advertise say, and at config.listen_other, sets node->address, ->listens_on and
 * ->other, and logs a line of each if the node's address was chosen (kvf_address_choose()). The descriptors are the
 * caller's; *other_fd is -1 where there is one address. On failure both are, and `message` says what to change:
 * KVF_INVALID, KVF_ADDRESS_IN_USE, KVF_SYSTEM. */
KVF_MUST_USE kvf_status kvf_listener_open(kvf_node *node, int *out_fd, int *other_fd, char *message);

#endif
