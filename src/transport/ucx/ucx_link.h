/* Links and their reads. Operations from any thread; the rest in the data thread. */
#ifndef KVF_TRANSPORT_UCX_UCX_LINK_H
#define KVF_TRANSPORT_UCX_UCX_LINK_H

#include "transport/ucx/ucx_common.h"

kvf_status kvf_ucx_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out);
/* Of kvf_data_thread. */
void kvf_ucx_link_close(kvf_data_thread *data_thread, kvf_data_thread_link *base, kvf_status status);
/* Acts on what UCX has said of endpoints. False: it had said nothing. */
bool kvf_ucx_links_run(kvf_ucx *ucx);
/* Ends links that are too slow to leave. Returns when to call again. */
uint64_t kvf_ucx_links_tick(kvf_ucx *ucx);

kvf_status kvf_ucx_read_start(kvf_link *base, const kvf_transfer *request);
/* The link is down, or its memory goes away: its reads end as `status` as soon as nothing writes for them. */
void kvf_ucx_reads_stop(kvf_ucx *ucx, kvf_ucx_link *link, kvf_status status);
/* Closes endpoints whose cancelled reads are still being written for. Returns when to call again. */
uint64_t kvf_ucx_reads_tick(kvf_ucx *ucx);

#endif
