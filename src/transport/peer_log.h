/* Log lines about peers, as a transport writes them. */
#ifndef KVF_TRANSPORT_PEER_LOG_H
#define KVF_TRANSPORT_PEER_LOG_H

#include "base/log.h"
#include "transport/transport.h"

/* "NAME: peer ADDRESS: …", unless `limit` has had enough of this `why`; then the next line says how many are missing.
 */
void kvf_peer_log(const kvf_transport_host *host, const char *name, kvf_log_limit *limit, uint64_t now_ns,
                  kvf_log_level level, kvf_status why, const kvf_address *peer, const char *format, va_list arguments)
    __attribute__((format(printf, 8, 0)));

#endif
