/* UCX's own get, as over a network that reads memory by itself, of which there is none here: over TCP, where UCX
 * answers in the producer's data thread. Not the cases of peers that go away, which those answers do not bear
 * (src/transport/ucx/libucp.h).
 */
#include "transport/ucx/libucp.h"

bool __wrap_kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep);
bool __wrap_kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep)
{
  (void)api;
  (void)ep;
  return true;
}
