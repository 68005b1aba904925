/* Where a node takes connections. */
#ifndef KVF_RUNTIME_LISTENER_H
#define KVF_RUNTIME_LISTENER_H

#include "runtime/pump.h"

/* Listens as the options listen and advertise say, and at config.listen_other. Sets node->address, ->listens_on and
 * ->other. If the node's address was chosen (kvf_address_choose()), logs a line for each. The descriptors are the
 * caller's; *other_fd is -1 if there is one address. On failure both are -1, and `message` says what to change:
 * KVF_INVALID, KVF_ADDRESS_IN_USE, KVF_SYSTEM. */
KVF_MUST_USE kvf_status kvf_listener_open(kvf_node *node, int *out_fd, int *other_fd, char *message);

#endif
