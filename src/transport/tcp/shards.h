/* A transport made of whole ones of one kind, its shards, each with a data thread of its own. A link has a part in each
 * shard; it is up when all of them are, and fails with the first of them. A read goes to the shard that has the fewest.
 * A peer need not have as many shards as we: ours share its, or do without some.
 */
#ifndef KVF_TRANSPORT_TCP_SHARDS_H
#define KVF_TRANSPORT_TCP_SHARDS_H

#include "transport/transport.h"
#include "wire/shards_description.h" /* KVF_SHARDS_MAX */

/* Opens `count` (1 to KVF_SHARDS_MAX) transports of the kind `each` and makes one of them, with these operations; as
 * kvf_transport_ops.open. They must have an assist(). */
KVF_MUST_USE kvf_status kvf_shards_open(const kvf_transport_ops *ops, const kvf_transport_ops *each, uint32_t count,
                                        const kvf_transport_config *config, const kvf_transport_host *host,
                                        kvf_transport **out, char *message);

/* The other operations. */
void kvf_shards_close(kvf_transport *transport);
kvf_status kvf_shards_set_memory(kvf_transport *transport, const kvf_transport_memory *memory);
void kvf_shards_clear_memory(kvf_transport *transport);
kvf_status kvf_shards_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes);
kvf_status kvf_shards_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out);
void kvf_shards_disconnect(kvf_link *base);
void kvf_shards_read(kvf_link *base, const kvf_transfer *read);
void kvf_shards_cancel(kvf_link *base, uint64_t read_id);
bool kvf_shards_assist(kvf_transport *transport);

#endif
