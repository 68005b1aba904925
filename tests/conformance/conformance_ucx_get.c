/* UCX's own get, as over a network that reads memory by itself, of which there is none here: over TCP, where UCX
 * answers in the producer's data thread. Not the cases of peers that go away, which those answers do not bear
 * (src/transport/ucx_path.c).
 * Not under the thread sanitizer: UCX reads the fence table as a network would, with no regard to who writes it.
 */
#include "../sanitizer.h"
#include "../with_ucx.h"
#include "suite.h"
#include "transport/ucx.h"

bool __wrap_kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep);
bool __wrap_kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep)
{
  (void)api;
  (void)ep;
  return true;
}

int main(int argc, char **argv)
{
  static const conformance_traits traits = {.ops = &kvf_transport_ucx, .is_slow = true, .has_no_peers = true};
  int skipped = SANITIZED_THREADS ? WITHOUT_UCX : with_ucx();
  return skipped != 0 ? skipped : conformance_main(&traits, argc, argv);
}
