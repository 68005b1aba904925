/* The transports of one kind that a node has: one, or for some kinds tcp_streams. These are its rails, each with its
 * own data thread. They share the node's memory, and a link has a part in each of them. The core knows which parts are
 * up, and gives each read to one. A peer may have another number of rails: ours share its rails, or leave some out. */
#ifndef KVF_TRANSPORT_RAILS_H
#define KVF_TRANSPORT_RAILS_H

#include "transport/transport.h"
#include "wire/rails_description.h" /* KVF_RAILS_MAX */

typedef struct kvf_rails {
  const kvf_transport_ops *ops;
  uint32_t count;
  kvf_transport *each[KVF_RAILS_MAX];
} kvf_rails;

/* These do with all what the operation of this name in kvf_transport_ops does with one: if it fails, it has been done
 * with none. */
KVF_MUST_USE kvf_status kvf_rails_open(const kvf_transport_ops *ops, const kvf_transport_config *config,
                                       const kvf_transport_host *host, kvf_rails *out, char *message);
void kvf_rails_close(kvf_rails *rails);
KVF_MUST_USE kvf_status kvf_rails_set_memory(const kvf_rails *rails, const kvf_transport_memory *memory);
void kvf_rails_clear_memory(const kvf_rails *rails);
KVF_MUST_USE kvf_status kvf_rails_describe(const kvf_rails *rails, void *out, size_t capacity, size_t *out_bytes);
/* Under a lock that link_up() takes: no part tells of itself before all are there. */
KVF_MUST_USE kvf_status kvf_rails_connect(const kvf_rails *rails, const kvf_link_spec *spec,
                                          kvf_link *parts[KVF_RAILS_MAX]);
void kvf_rails_disconnect(const kvf_rails *rails, kvf_link *const parts[KVF_RAILS_MAX]);
bool kvf_rails_assist(const kvf_rails *rails);

#endif
