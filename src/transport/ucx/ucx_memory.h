/* The rank's memory: registered, described, given up. */
#ifndef KVF_TRANSPORT_UCX_UCX_MEMORY_H
#define KVF_TRANSPORT_UCX_UCX_MEMORY_H

#include "transport/ucx/ucx_common.h"

kvf_status kvf_ucx_set_memory(kvf_transport *transport, const kvf_transport_memory *given);
void kvf_ucx_clear_memory(kvf_transport *transport);
kvf_status kvf_ucx_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes);
/* In the data thread, at its end. */
void kvf_ucx_memory_close(kvf_ucx *ucx);

#endif
