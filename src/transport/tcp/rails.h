/* A transport made of whole ones of one kind, its rails, each with a data thread of its own. A link has a part in each
 * rail; it is up when all of them are, and fails with the first of them. A read goes to the rail that has the fewest.
 * A peer need not have as many rails as we: ours share its, or do without some.
 */
#ifndef KVF_TRANSPORT_TCP_RAILS_H
#define KVF_TRANSPORT_TCP_RAILS_H

#include "transport/transport.h"
#include "wire/rails_description.h" /* KVF_RAILS_MAX */

/* Opens `count` (1 to KVF_RAILS_MAX) transports of the kind `each` and makes one of them, with these operations; as
 * kvf_transport_ops.open. They must have an assist(). */
KVF_MUST_USE kvf_status kvf_rails_open(const kvf_transport_ops *ops, const kvf_transport_ops *each, uint32_t count,
                                       const kvf_transport_config *config, const kvf_transport_host *host,
                                       kvf_transport **out, char *message);

/* The other operations. */
void kvf_rails_close(kvf_transport *transport);
kvf_status kvf_rails_set_memory(kvf_transport *transport, const kvf_transport_memory *memory);
void kvf_rails_clear_memory(kvf_transport *transport);
kvf_status kvf_rails_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes);
kvf_status kvf_rails_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out);
void kvf_rails_disconnect(kvf_link *base);
kvf_status kvf_rails_read(kvf_link *base, const kvf_transfer *read);
void kvf_rails_cancel(kvf_link *base, uint64_t read_id);
bool kvf_rails_assist(kvf_transport *transport);

#endif
