/* What the parts of the fake share: one lock around all of it, and objects behind UCX's handles. */
#ifndef KVF_TESTS_FAKE_UCP_STATE_H
#define KVF_TESTS_FAKE_UCP_STATE_H

#include <pthread.h>
#include <sys/types.h>

#include "base/list.h"
#include "base/prng.h"
#include "fake_ucp.h"

/* The declarations of UCX's functions are those of the struct that they are found for. */
#define FAKE_UCP_SYMBOL(symbol, field) FAKE_UCP_API extern __typeof__ (*((kvf_ucx_api *)0)->field)(symbol);
FAKE_UCP_SYMBOL(ucp_get_version, get_version)
FAKE_UCP_SYMBOL(ucs_status_string, status_string)
FAKE_UCP_SYMBOL(ucp_config_read, config_read)
FAKE_UCP_SYMBOL(ucp_config_modify, config_modify)
FAKE_UCP_SYMBOL(ucp_config_release, config_release)
FAKE_UCP_SYMBOL(ucp_init_version, init_version)
FAKE_UCP_SYMBOL(ucp_cleanup, cleanup)
FAKE_UCP_SYMBOL(ucp_context_query, context_query)
FAKE_UCP_SYMBOL(ucp_worker_create, worker_create)
FAKE_UCP_SYMBOL(ucp_worker_destroy, worker_destroy)
FAKE_UCP_SYMBOL(ucp_worker_progress, worker_progress)
FAKE_UCP_SYMBOL(ucp_worker_get_efd, worker_get_efd)
FAKE_UCP_SYMBOL(ucp_worker_arm, worker_arm)
FAKE_UCP_SYMBOL(ucp_worker_get_address, worker_get_address)
FAKE_UCP_SYMBOL(ucp_worker_release_address, worker_release_address)
FAKE_UCP_SYMBOL(ucp_ep_create, ep_create)
FAKE_UCP_SYMBOL(ucp_ep_close_nbx, ep_close_nbx)
FAKE_UCP_SYMBOL(ucp_mem_map, mem_map)
FAKE_UCP_SYMBOL(ucp_mem_unmap, mem_unmap)
FAKE_UCP_SYMBOL(ucp_rkey_pack, rkey_pack)
FAKE_UCP_SYMBOL(ucp_rkey_buffer_release, rkey_buffer_release)
FAKE_UCP_SYMBOL(ucp_ep_rkey_unpack, ep_rkey_unpack)
FAKE_UCP_SYMBOL(ucp_rkey_destroy, rkey_destroy)
FAKE_UCP_SYMBOL(ucp_get_nbx, get_nbx)
FAKE_UCP_SYMBOL(ucp_request_free, request_free)
FAKE_UCP_SYMBOL(ucp_worker_set_am_recv_handler, worker_set_am_recv_handler)
FAKE_UCP_SYMBOL(ucp_am_send_nbx, am_send_nbx)
FAKE_UCP_SYMBOL(ucp_dt_create_generic, dt_create_generic)
FAKE_UCP_SYMBOL(ucp_dt_destroy, dt_destroy)
FAKE_UCP_SYMBOL(ucp_ep_print_info, ep_print_info)
#undef FAKE_UCP_SYMBOL

#define PIECE_BYTES ((size_t)65536)

/* Of this process; where it is there, it reads so. Others look at it with process_vm_readv. */
typedef struct sign {
  pid_t pid;
  uint64_t nonce;
  const uint64_t *at;
} sign;

typedef struct memory {
  uint64_t nonce; /* 0: given up */
  uint64_t base;
  size_t bytes;
  int type;
  const uint8_t *bytes_at; /* where this process can read them */
  unsigned written_by;     /* gets */
} memory;

/* What a key holds. */
typedef struct key {
  sign of;
  uint64_t base;
  size_t bytes;
  const uint8_t *bytes_at;
} key;

typedef struct worker {
  uint64_t nonce; /* 0: destroyed */
  kvf_list asked; /* requests */
  kvf_list ended; /* requests, to be told of by progress */
  kvf_list endpoints;
  pthread_t thread;
  pthread_cond_t changed;
  int event_fd;
  bool is_closing;
  kvf_prng prng;
  uint64_t delay_ns;
} worker;

typedef struct endpoint {
  kvf_list in_worker;
  worker *worker;
  sign peer;
  void (*on_error)(void *arg, kvf_ucp_ep ep, kvf_ucs_status status);
  void *argument;
  bool has_failed;
  bool is_told; /* of that */
} endpoint;

typedef struct request {
  kvf_list in_worker;
  endpoint *endpoint; /* to be freed with it, if it is the endpoint's end */
  bool is_close;
  key from;
  uint64_t remote;
  uint8_t *to;
  memory *into;
  size_t bytes;
  size_t done;
  kvf_ucs_status status;
  void (*send)(void *request, kvf_ucs_status status, void *user_data);
  void *user_data;
} request;

extern pthread_mutex_t fake_ucp_lock; /* guards all that follows, and all objects */
extern kvf_prng fake_ucp_prng;

/* With the lock. */
void violation(const char *what);
void trace(fake_ucp_what what, int type, uint64_t local, uint64_t remote, size_t bytes);
/* Whether what the sign is of is there. */
bool sign_stands(const sign *looked_at);

void *worker_main(void *argument); /* its thread: get.c */
/* With the lock: a piece of it. False: it has ended, by whatever status. */
bool request_step(request *stepped, size_t bytes_max);
void request_end(request *ended, kvf_ucs_status status);

#endif
