/* For the programs that test the transport `ucx`: what they need of the machine, and of UCX's settings. */
#ifndef KVF_TESTS_WITH_UCX_H
#define KVF_TESTS_WITH_UCX_H

#include <stdio.h>
#include <stdlib.h>

#include "sanitizer.h"
#include "transport/ucx/libucp.h"

#define WITHOUT_UCX 77 /* the exit status of a test that was skipped */

/* Loads UCX, or the one that $KVFERRY_TEST_UCX_LIBRARY names, over TCP unless $UCX_TLS says otherwise; its complaints
 * about peers that have been killed are not shown. 0, or WITHOUT_UCX and a line that says why. First of all in main().
 */
static inline int with_ucx(void)
{
  const kvf_ucx_api *api;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  (void)setenv("UCX_TLS", "tcp", 0);
  (void)setenv("UCX_LOG_LEVEL", "fatal", 0);
  if (SANITIZED) { /* UCX's hook of madvise() runs in threads that the thread sanitizer has forgotten already */
    (void)setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
  }
  const char *library = getenv("KVFERRY_TEST_UCX_LIBRARY");
  if (kvf_ucx_load(library == NULL ? "" : library, &api, message) == KVF_OK) {
    return 0;
  }
  (void)printf("skipped: %s\n", message);
  return WITHOUT_UCX;
}

#endif
