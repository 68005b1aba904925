/* Whether gets are UCX's own, or messages.
 *
 * Where a network cannot read memory by itself (TCP), UCX's get is a message that the peer's UCX answers, and those
 * answers do not bear that the one who asked goes away: UCX ends the producer's whole process, since the function that
 * sends them (ucp_progress_get_reply) hands errors up to one that knows none, or since an answer that still waits is
 * given up with fields that were never set (ucp_request_memory_dereg). The first was seen with 1.13 and 1.22, the
 * second with 1.13. Active messages of ours do the same work in a part of UCX that deals with failed peers.
 */
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/path.h"

/* The transports of UCX whose hardware reads memory, as UCX names them. */
static const char *const reading[] = {"rc_verbs/", "rc_mlx5/", "dc_mlx5/", "gga_mlx5/", "ugni_rdma/"};

bool kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep)
{
  char *text = NULL;
  size_t bytes = 0;
  bool found = false;
  FILE *stream = open_memstream(&text, &bytes);
  if (stream == NULL) {
    return false;
  }
  api->ep_print_info(ep, stream); /* in all versions the only thing that tells */
  if (fclose(stream) == 0) {
    for (size_t i = 0; !found && i < sizeof(reading) / sizeof(reading[0]); i++) {
      found = strstr(text, reading[i]) != NULL;
    }
  }
  free(text);
  return found;
}
