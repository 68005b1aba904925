/* The consumer's side of the tcp transport. A link is one socket; it is up when both ends have proved the session's key
 * there, and fails with it. Reads are answered in the order in which they were sent.
 */
#ifndef KVF_TRANSPORT_TCP_TCP_LINK_H
#define KVF_TRANSPORT_TCP_TCP_LINK_H

#include "transport/tcp/tcp_common.h"

/* Operations, from any thread. */
kvf_status kvf_tcp_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out);
kvf_status kvf_tcp_read_start(kvf_link *base, const kvf_transfer *request);
/* In the data thread: of kvf_data_thread. */
void kvf_tcp_link_close(kvf_data_thread *data_thread, kvf_data_thread_link *base, kvf_status status);
/* The memory goes away: all reads are cancelled. */
void kvf_tcp_links_clear(kvf_tcp *tcp);

#endif
