/* The node's own thread: control connections (accepted and dialed) and the clock. */
#ifndef KVF_RUNTIME_CONTROL_H
#define KVF_RUNTIME_CONTROL_H

#include "runtime/pump.h"

/* Listens on node->config.listen (if not empty), sets node->address and node->listens_on; makes no thread yet. On
 * failure `message` says what to change, and nothing is left. */
KVF_MUST_USE kvf_status kvf_control_open(kvf_node *node, kvf_control **out, char *message);
/* Starts the thread: the node must be complete. */
KVF_MUST_USE kvf_status kvf_control_start(kvf_control *control);
/* Stops the thread, closes all connections. kvf_node_wake() goes on to be legal, since transports still report. */
void kvf_control_stop(kvf_control *control);
/* Stops it, and frees it. NULL is allowed. */
void kvf_control_close(kvf_control *control);

#endif
