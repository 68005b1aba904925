/* What the network between two endpoints can do. */
#ifndef KVF_TRANSPORT_UCX_PATH_H
#define KVF_TRANSPORT_UCX_PATH_H

#include "transport/ucx/load.h"

/* Whether the endpoint's network reads memory by itself. */
bool kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep);

#endif
