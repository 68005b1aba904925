/* A transport made of whole ones of one kind, its rails, each with a data thread of its own. A link has a part in each
 * rail; it is up when all of them are, and fails with the first of them. A read goes to the rail that has the fewest.
 * A peer need not have as many rails as we: ours share its, or do without some.
 */
#ifndef KVF_TRANSPORT_TCP_RAILS_H
#define KVF_TRANSPORT_TCP_RAILS_H

#include "transport/transport.h"
#include "wire/rails_description.h" /* KVF_RAILS_MAX */

/* What kvf_transport_tcp.open() does: opens `count` (1 to KVF_RAILS_MAX) transports of the kind `each`, which must have
 * an assist(), and makes one of them; as kvf_transport_ops.open. */
KVF_MUST_USE kvf_status kvf_rails_open(const kvf_transport_ops *each, uint32_t count,
                                       const kvf_transport_config *config, const kvf_transport_host *host,
                                       kvf_transport **out, char *message);

#endif
