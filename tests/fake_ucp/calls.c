/* UCX's calls. */
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "state.h"

#define AT_ONCE_ONE_OF 16 /* gets that are done before the call returns */

enum { ERR_INVALID_PARAM = -5, ERR_IO = -3, ERR_UNSUPPORTED = -22, ERR_RESET = -25 };

pthread_mutex_t fake_ucp_lock = PTHREAD_MUTEX_INITIALIZER;
kvf_prng fake_ucp_prng;
static fake_ucp_event events[FAKE_UCP_TRACE_MAX];
static size_t events_count;
static unsigned violations;

/* ---- what was seen ---- */

void violation(const char *what)
{
  (void)fprintf(stderr, "fake UCX: %s\n", what);
  violations++;
}

void trace(fake_ucp_what what, int type, uint64_t local, uint64_t remote, size_t bytes)
{
  if (events_count < FAKE_UCP_TRACE_MAX) {
    events[events_count++] = (fake_ucp_event){what, type, local, remote, bytes};
  }
}

unsigned fake_ucp_violations(void)
{
  (void)pthread_mutex_lock(&fake_ucp_lock);
  const unsigned seen = violations;
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  return seen;
}

size_t fake_ucp_trace(fake_ucp_event out[FAKE_UCP_TRACE_MAX])
{
  (void)pthread_mutex_lock(&fake_ucp_lock);
  const size_t count = events_count;
  memcpy(out, events, count * sizeof(*out));
  events_count = 0;
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  return count;
}

static uint64_t number_of(const char *name, uint64_t otherwise)
{
  const char *text = getenv(name);
  return text == NULL ? otherwise : strtoull(text, NULL, 0);
}

static void *allocate(size_t bytes)
{
  void *made = calloc(1, bytes);
  if (made == NULL) {
    abort();
  }
  return made;
}

/* Of this process and no other. */
static uint64_t next_nonce(void)
{
  if (fake_ucp_prng.state == 0) {
    struct timespec now;
    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    fake_ucp_prng.state = (uint64_t)now.tv_nsec + ((uint64_t)getpid() << 32);
  }
  return kvf_prng_next(&fake_ucp_prng) | 1;
}

static sign sign_of(const uint64_t *nonce)
{
  return (sign){getpid(), *nonce, nonce};
}

/* ---- the library, configurations, contexts ---- */

void ucp_get_version(unsigned *major, unsigned *minor, unsigned *release)
{
  *major = KVF_UCX_MAJOR;
  *minor = 16; /* the first that minds the types of memory by itself */
  *release = 0;
}

const char *ucs_status_string(kvf_ucs_status status)
{
  return status == KVF_UCS_OK                ? "Success"
         : status == ERR_INVALID_PARAM       ? "Invalid parameter"
         : status == KVF_UCS_ERR_UNREACHABLE ? "Destination is unreachable"
         : status == KVF_UCS_ERR_CANCELED    ? "Request canceled"
         : status == ERR_RESET               ? "Connection reset by remote peer"
                                             : "Another error";
}

kvf_ucs_status ucp_config_read(const char *env_prefix, const char *file, kvf_ucp_config *out)
{
  (void)env_prefix;
  (void)file;
  *out = allocate(1);
  return KVF_UCS_OK;
}

kvf_ucs_status ucp_config_modify(kvf_ucp_config config, const char *name, const char *value)
{
  (void)config;
  (void)name;
  (void)value;
  return KVF_UCS_OK;
}

void ucp_config_release(kvf_ucp_config config)
{
  free(config);
}

kvf_ucs_status ucp_init_version(unsigned major, unsigned minor, const kvf_ucp_params *params, const void *config,
                                kvf_ucp_context *out)
{
  (void)config;
  if (major != KVF_UCX_MAJOR || minor != KVF_UCX_MINOR || (params->features & KVF_UCP_FEATURE_RMA) == 0) {
    return ERR_INVALID_PARAM;
  }
  bool *has_cuda = allocate(sizeof(*has_cuda));
  *has_cuda = number_of("KVFERRY_FAKE_UCP_CUDA", 1) != 0;
  *out = has_cuda;
  return KVF_UCS_OK;
}

void ucp_cleanup(kvf_ucp_context context)
{
  free(context);
}

kvf_ucs_status ucp_context_query(kvf_ucp_context context, kvf_ucp_context_attr *attr)
{
  const bool *has_cuda = context;
  if (attr->field_mask != KVF_UCP_ATTR_FIELD_MEMORY_TYPES) {
    return ERR_INVALID_PARAM;
  }
  attr->memory_types = UINT64_C(1) << KVF_UCS_MEMORY_TYPE_HOST | (uint64_t)*has_cuda << KVF_UCS_MEMORY_TYPE_CUDA;
  return KVF_UCS_OK;
}

/* ---- workers ---- */

kvf_ucs_status ucp_worker_create(kvf_ucp_context context, const kvf_ucp_worker_params *params, kvf_ucp_worker *out)
{
  (void)context;
  (void)params;
  worker *made = allocate(sizeof(*made));
  pthread_condattr_t monotonic;
  (void)pthread_condattr_init(&monotonic);
  (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&made->changed, &monotonic);
  (void)pthread_condattr_destroy(&monotonic);
  kvf_list_init(&made->asked);
  kvf_list_init(&made->ended);
  kvf_list_init(&made->endpoints);
  made->event_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  made->delay_ns = number_of("KVFERRY_FAKE_UCP_DELAY_NS", 20000);
  made->prng = (kvf_prng){number_of("KVFERRY_FAKE_UCP_SEED", 1)};
  (void)pthread_mutex_lock(&fake_ucp_lock);
  made->nonce = next_nonce();
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  if (made->event_fd < 0 || pthread_create(&made->thread, NULL, worker_main, made) != 0) {
    abort();
  }
  *out = made;
  return KVF_UCS_OK;
}

static void drop_requests(kvf_list *list)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(list)) != NULL) {
    request *dropped = KVF_CONTAINER_OF(node, request, in_worker);
    free(dropped->is_close ? dropped->endpoint : NULL);
    free(dropped);
  }
}

void ucp_worker_destroy(kvf_ucp_worker destroyed)
{
  worker *of = destroyed;
  (void)pthread_mutex_lock(&fake_ucp_lock);
  of->nonce = 0;
  of->is_closing = true;
  (void)pthread_cond_broadcast(&of->changed);
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  (void)pthread_join(of->thread, NULL);
  drop_requests(&of->asked);
  drop_requests(&of->ended);
  kvf_list *node;
  while ((node = kvf_list_pop_front(&of->endpoints)) != NULL) {
    free(KVF_CONTAINER_OF(node, endpoint, in_worker));
  }
  (void)close(of->event_fd);
  (void)pthread_cond_destroy(&of->changed);
  free(of);
}

/* One that is to be told; NULL: none. */
static endpoint *next_failed(const worker *of)
{
  for (kvf_list *node = of->endpoints.next; node != &of->endpoints; node = node->next) {
    endpoint *one = KVF_CONTAINER_OF(node, endpoint, in_worker);
    if (one->has_failed && !one->is_told) {
      one->is_told = true;
      return one;
    }
  }
  return NULL;
}

/* The callback gives the request back. */
static void tell(request *ended)
{
  if (ended->is_close) {
    free(ended->endpoint);
  }
  ended->send(ended, ended->status, ended->user_data);
}

unsigned ucp_worker_progress(kvf_ucp_worker progressed)
{
  worker *of = progressed;
  (void)pthread_mutex_lock(&fake_ucp_lock);
  endpoint *failed = next_failed(of);
  kvf_list *node = failed == NULL ? kvf_list_pop_front(&of->ended) : NULL;
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  if (failed != NULL) {
    failed->on_error(failed->argument, failed, ERR_RESET);
  } else if (node != NULL) {
    tell(KVF_CONTAINER_OF(node, request, in_worker));
  }
  return failed != NULL || node != NULL;
}

kvf_ucs_status ucp_worker_get_efd(kvf_ucp_worker asked, int *fd)
{
  *fd = ((const worker *)asked)->event_fd;
  return KVF_UCS_OK;
}

kvf_ucs_status ucp_worker_arm(kvf_ucp_worker armed)
{
  worker *of = armed;
  uint64_t count;
  (void)!read(of->event_fd, &count, sizeof(count));
  (void)pthread_mutex_lock(&fake_ucp_lock);
  bool is_busy = !kvf_list_is_empty(&of->ended);
  for (kvf_list *node = of->endpoints.next; node != &of->endpoints; node = node->next) {
    const endpoint *one = KVF_CONTAINER_OF(node, endpoint, in_worker);
    is_busy = is_busy || (one->has_failed && !one->is_told);
  }
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  return is_busy ? KVF_UCS_ERR_BUSY : KVF_UCS_OK;
}

kvf_ucs_status ucp_worker_get_address(kvf_ucp_worker asked, void **address, size_t *bytes)
{
  sign *made = allocate(sizeof(*made));
  *made = sign_of(&((worker *)asked)->nonce);
  *address = made;
  *bytes = sizeof(*made);
  return KVF_UCS_OK;
}

void ucp_worker_release_address(kvf_ucp_worker asked, void *address)
{
  (void)asked;
  free(address);
}

/* ---- endpoints ---- */

kvf_ucs_status ucp_ep_create(kvf_ucp_worker of, const kvf_ucp_ep_params *params, kvf_ucp_ep *out)
{
  endpoint *made = allocate(sizeof(*made));
  made->worker = of;
  made->on_error = params->err_handler.cb;
  made->argument = params->err_handler.arg;
  memcpy(&made->peer, params->address, sizeof(made->peer));
  (void)pthread_mutex_lock(&fake_ucp_lock);
  kvf_list_push_back(&made->worker->endpoints, &made->in_worker);
  (void)pthread_cond_broadcast(&made->worker->changed);
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  *out = made;
  return KVF_UCS_OK;
}

/* By force: its gets end, each with a word of its own, and then it. */
kvf_ucs_pointer ucp_ep_close_nbx(kvf_ucp_ep closed, const kvf_ucp_request_param *param)
{
  endpoint *one = closed;
  worker *of = one->worker;
  request *closing = allocate(sizeof(*closing));
  *closing = (request){.endpoint = one, .is_close = true, .send = param->send, .user_data = param->user_data};
  (void)pthread_mutex_lock(&fake_ucp_lock);
  kvf_list *next;
  for (kvf_list *node = of->asked.next; node != &of->asked; node = next) {
    request *cancelled = KVF_CONTAINER_OF(node, request, in_worker);
    next = node->next;
    if (cancelled->endpoint == one) {
      kvf_list_remove(node);
      request_end(cancelled, KVF_UCS_ERR_CANCELED);
      kvf_list_push_back(&of->ended, node);
    }
  }
  kvf_list_remove(&one->in_worker);
  kvf_list_push_back(&of->ended, &closing->in_worker);
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  return closing;
}

void ucp_ep_print_info(kvf_ucp_ep asked, FILE *stream)
{
  const char *path = getenv("KVFERRY_FAKE_UCP_PATH");
  (void)asked;
  (void)fprintf(stream, "#   lane[0]:  1:%s.0 md[1]\n", path == NULL ? "rc_mlx5/mlx5_0:1" : path);
}

/* ---- memory ---- */

static bool is_of_its_type(const kvf_ucp_mem_map_params *params)
{
  const bool is_cuda = fake_cuda_view((uintptr_t)params->address) != NULL;
  return is_cuda == (params->memory_type == KVF_UCS_MEMORY_TYPE_CUDA);
}

static bool has_context(void)
{
  kvf_cu_context current = NULL;
  return cuCtxGetCurrent(&current) == KVF_CUDA_SUCCESS && current != NULL;
}

kvf_ucs_status ucp_mem_map(kvf_ucp_context context, const kvf_ucp_mem_map_params *params, kvf_ucp_mem *out)
{
  const uint64_t fields = KVF_UCP_MEM_MAP_PARAM_FIELD_ADDRESS | KVF_UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                          KVF_UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE;
  const bool is_cuda = params->memory_type == KVF_UCS_MEMORY_TYPE_CUDA;
  kvf_ucs_status status = params->field_mask == fields ? KVF_UCS_OK : ERR_INVALID_PARAM;
  memory *made = allocate(sizeof(*made));
  (void)pthread_mutex_lock(&fake_ucp_lock);
  if (status == KVF_UCS_OK && !is_of_its_type(params)) {
    violation("memory is registered as what it is not");
    status = ERR_INVALID_PARAM;
  } else if (is_cuda && (!*(const bool *)context || !has_context())) {
    violation("a device's memory is registered without its module, or its context");
    status = ERR_IO;
  }
  *made = (memory){.nonce = next_nonce(),
                   .base = (uintptr_t)params->address,
                   .bytes = params->length,
                   .type = params->memory_type,
                   .bytes_at = is_cuda ? fake_cuda_view((uintptr_t)params->address) : params->address};
  trace(FAKE_UCP_MAPPED, made->type, made->base, 0, made->bytes);
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  *out = made;
  if (status != KVF_UCS_OK) {
    free(made);
    *out = NULL;
  }
  return status;
}

kvf_ucs_status ucp_mem_unmap(kvf_ucp_context context, kvf_ucp_mem mem)
{
  memory *gone = mem;
  (void)context;
  (void)pthread_mutex_lock(&fake_ucp_lock);
  if (gone->written_by > 0) {
    violation("memory is given up while gets write to it");
  }
  gone->nonce = 0;
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  free(gone);
  return KVF_UCS_OK;
}

kvf_ucs_status ucp_rkey_pack(kvf_ucp_context context, kvf_ucp_mem mem, void **rkey, size_t *bytes)
{
  memory *of = mem;
  key *made = allocate(sizeof(*made));
  (void)context;
  *made = (key){.of = sign_of(&of->nonce), .base = of->base, .bytes = of->bytes, .bytes_at = of->bytes_at};
  *rkey = made;
  *bytes = sizeof(*made);
  return KVF_UCS_OK;
}

void ucp_rkey_buffer_release(void *rkey)
{
  free(rkey);
}

kvf_ucs_status ucp_ep_rkey_unpack(kvf_ucp_ep ep, const void *rkey, kvf_ucp_rkey *out)
{
  (void)ep;
  *out = memcpy(allocate(sizeof(key)), rkey, sizeof(key));
  return KVF_UCS_OK;
}

void ucp_rkey_destroy(kvf_ucp_rkey rkey)
{
  free(rkey);
}

/* ---- gets ---- */

static bool is_inside(uint64_t at, size_t bytes, uint64_t base, size_t all)
{
  return at >= base && at - base <= all && bytes <= all - (at - base);
}

static bool is_allowed(const request *asked, const kvf_ucp_request_param *param)
{
  const uint32_t fields = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA |
                          KVF_UCP_OP_ATTR_FIELD_MEMORY_TYPE | KVF_UCP_OP_ATTR_FIELD_MEMH;
  const memory *into = asked->into;
  const bool is = param->op_attr_mask == fields && param->memory_type == into->type &&
                  is_inside((uintptr_t)asked->to, asked->bytes, into->base, into->bytes);
  if (!is) {
    violation("a get's memory is not what it was registered as");
  }
  return is && is_inside(asked->remote, asked->bytes, asked->from.base, asked->from.bytes);
}

/* Done at once, by an adapter that is fast, or UCX itself. */
static kvf_ucs_pointer do_now(request *asked)
{
  while (request_step(asked, PIECE_BYTES)) {
  }
  const kvf_ucs_status status = asked->status;
  free(asked);
  return (kvf_ucs_pointer)(intptr_t)status;
}

kvf_ucs_pointer ucp_get_nbx(kvf_ucp_ep ep, void *buffer, size_t count, uint64_t remote_address, kvf_ucp_rkey rkey,
                            const kvf_ucp_request_param *param)
{
  endpoint *over = ep;
  worker *of = over->worker;
  request *asked = allocate(sizeof(*asked));
  *asked = (request){.endpoint = over,
                     .from = *(const key *)rkey,
                     .remote = remote_address,
                     .to = buffer,
                     .into = param->memh,
                     .bytes = count,
                     .send = param->send,
                     .user_data = param->user_data};
  (void)pthread_mutex_lock(&fake_ucp_lock);
  kvf_ucs_pointer result = asked;
  if (!is_allowed(asked, param) || over->has_failed) {
    free(asked);
    result = (kvf_ucs_pointer)(intptr_t)(over->has_failed ? ERR_RESET : ERR_INVALID_PARAM);
  } else {
    asked->into->written_by++;
    trace(FAKE_UCP_ASKED, asked->into->type, (uintptr_t)buffer, remote_address, count);
    if (kvf_prng_below(&of->prng, AT_ONCE_ONE_OF) == 0) {
      result = do_now(asked);
    } else {
      kvf_list_push_back(&of->asked, &asked->in_worker);
      (void)pthread_cond_broadcast(&of->changed);
    }
  }
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  return result;
}

void ucp_request_free(void *freed)
{
  free(freed);
}

/* ---- active messages, which have no use here ---- */

kvf_ucs_status ucp_worker_set_am_recv_handler(kvf_ucp_worker of, const kvf_ucp_am_handler_param *param)
{
  (void)of;
  (void)param;
  return KVF_UCS_OK;
}

kvf_ucs_pointer ucp_am_send_nbx(kvf_ucp_ep ep, unsigned id, const void *header, size_t header_bytes, const void *buffer,
                                size_t count, const kvf_ucp_request_param *param)
{
  (void)ep;
  (void)id;
  (void)header;
  (void)header_bytes;
  (void)buffer;
  (void)count;
  (void)param;
  return (kvf_ucs_pointer)(intptr_t)ERR_UNSUPPORTED;
}

kvf_ucs_status ucp_dt_create_generic(const kvf_ucp_generic_dt_ops *ops, void *context, uint64_t *out)
{
  (void)ops;
  (void)context;
  *out = 7;
  return KVF_UCS_OK;
}

void ucp_dt_destroy(uint64_t datatype)
{
  (void)datatype;
}
