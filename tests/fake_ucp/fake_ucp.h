/* A library that stands for libucp.so.0 in tests: the calls of transport/ucx/ucx_api.h, over a network that reads
 * memory by itself, of hosts and of the fake CUDA's devices, in this process and in others of this machine.
 *
 * What it does is what UCX allows, as late and as much out of order as it allows it: gets are carried out by a thread
 * of the worker that asked, in pieces, those of several in any order, and are told of by its progress alone; what they
 * write to a device is not there before it is flushed (fake_cuda.h). It is never kinder than UCX: memory is what it was
 * said to be when it was registered, a key is good until its memory is given up, registering a device's memory needs
 * its context in the calling thread, and active messages come nowhere.
 *
 * Programs that are linked with it see the same library as those that load it by its path. Of the environment, whenever
 * a context or an endpoint is made: KVFERRY_FAKE_UCP_SEED (1), _DELAY_NS (20000: what the thread may wait between two
 * pieces), _CUDA (1; 0: UCX has no module for it) and _PATH ("rc_mlx5/mlx5_0:1", what endpoints say they use).
 */
#ifndef KVF_TESTS_FAKE_UCP_H
#define KVF_TESTS_FAKE_UCP_H

#include <stdbool.h>

#include "transport/ucx/ucx_api.h"

#define FAKE_UCP_API __attribute__((visibility("default")))
#define FAKE_UCP_TRACE_MAX 4096

/* Calls that UCX's documents forbid: memory given as another type than it was registered as, or given up while a get
 * writes to it, a device's without its context. Each fails, too, where the call can. */
FAKE_UCP_API unsigned fake_ucp_violations(void);

typedef enum fake_ucp_what { FAKE_UCP_MAPPED, FAKE_UCP_ASKED, FAKE_UCP_ENDED } fake_ucp_what;

typedef struct fake_ucp_event {
  fake_ucp_what what;
  int type;       /* of the memory, that a get writes to */
  uint64_t local; /* addresses */
  uint64_t remote;
  size_t bytes;
} fake_ucp_event;

/* What has happened since the last call, oldest first, and no more than the first FAKE_UCP_TRACE_MAX. */
FAKE_UCP_API size_t fake_ucp_trace(fake_ucp_event out[FAKE_UCP_TRACE_MAX]);

#endif
