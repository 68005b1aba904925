/* UCX alone: gets of all segments, straight into their places, then the wait for the last of them. VARIANT says how
 * both sides wait: "event" (as kvferry's transport does with spin_us=0) or "spin". Option ucx_library as
 * kvferry's. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/types.h"
#include "peer.h"
#include "transport/ucx/libucp.h"

#define TEXT_BYTES_MAX 65536

static const kvf_ucx_api *api;
static kvf_ucp_context context;
static kvf_ucp_worker worker;
static kvf_ucp_mem memory;
static kvf_ucp_ep endpoint;
static kvf_ucp_rkey remote_key;
static uint64_t remote_pool;
static const char *offered;
static uint32_t gets_busy;
static kvf_ucs_status failure;
static bool waits;
static pthread_t server;
static atomic_bool server_ends;

static void good(kvf_ucs_status status, const char *what)
{
  if (status != KVF_UCS_OK) {
    (void)fprintf(stderr, "%s: %s\n", what, api->status_string(status));
    exit(1);
  }
}

static void load(const peer_job *job)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  if (api == NULL) {
    bench_must(kvf_ucx_load(peer_option(job, "ucx_library", ""), &api, message) == KVF_OK, message);
  }
}

static void version(const peer_job *job, FILE *out)
{
  load(job);
  (void)fprintf(out, "UCX %u.%u.%u", api->major, api->minor, api->release);
}

static void open_worker(const peer_job *job, uint8_t *pool)
{
  const kvf_ucp_params params = {.field_mask = KVF_UCP_PARAM_FIELD_FEATURES,
                                 .features = KVF_UCP_FEATURE_RMA | KVF_UCP_FEATURE_WAKEUP};
  const kvf_ucp_worker_params worker_params = {.field_mask = KVF_UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                               .thread_mode = KVF_UCS_THREAD_MODE_SINGLE};
  const kvf_ucp_mem_map_params map_params = {.field_mask = KVF_UCP_MEM_MAP_PARAM_FIELD_ADDRESS |
                                                           KVF_UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                           KVF_UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
                                             .address = pool,
                                             .length = job->pool_bytes,
                                             .memory_type = KVF_UCS_MEMORY_TYPE_HOST};
  kvf_ucp_config config = NULL;
  load(job);
  bench_must(job->parts == 1, "one producer only");
  waits = strcmp(job->variant, "event") == 0;
  good(api->config_read(NULL, NULL, &config), "ucp_config_read");
  good(api->init_version(KVF_UCX_MAJOR, KVF_UCX_MINOR, &params, config, &context), "ucp_init");
  api->config_release(config);
  good(api->worker_create(context, &worker_params, &worker), "ucp_worker_create");
  good(api->mem_map(context, &map_params, &memory), "ucp_mem_map");
}

static void close_worker(void)
{
  (void)api->mem_unmap(context, memory);
  api->worker_destroy(worker);
  api->cleanup(context);
}

/* Sleeps until there may be something to do. */
static void wait_event(int timeout_ms)
{
  int fd = -1;
  if (waits && api->worker_arm(worker) == KVF_UCS_OK) {
    good(api->worker_get_efd(worker, &fd), "ucp_worker_get_efd");
    struct pollfd event = {.fd = fd, .events = POLLIN};
    (void)poll(&event, 1, timeout_ms);
  }
}

/* ---- producer ---- */

static void *serve(void *argument)
{
  (void)argument;
  while (!atomic_load(&server_ends)) {
    if (api->worker_progress(worker) == 0) {
      wait_event(20);
    }
  }
  return NULL;
}

static void print_hex(FILE *out, const void *bytes, size_t count)
{
  (void)fprintf(out, " ");
  for (size_t i = 0; i < count; i++) {
    (void)fprintf(out, "%02x", ((const uint8_t *)bytes)[i]);
  }
}

static void hold(const peer_job *job, FILE *offer)
{
  void *address = NULL;
  void *key = NULL;
  size_t bytes = 0;
  open_worker(job, job->source);
  (void)fprintf(offer, "%llx", (unsigned long long)(uintptr_t)job->source);
  good(api->worker_get_address(worker, &address, &bytes), "ucp_worker_get_address");
  print_hex(offer, address, bytes);
  api->worker_release_address(worker, address);
  good(api->rkey_pack(context, memory, &key, &bytes), "ucp_rkey_pack");
  print_hex(offer, key, bytes);
  api->rkey_buffer_release(key);
  atomic_store(&server_ends, false);
  bench_must(pthread_create(&server, NULL, serve, NULL) == 0, "cannot start a thread");
}

static void hold_end(const peer_job *job)
{
  (void)job;
  atomic_store(&server_ends, true);
  (void)pthread_join(server, NULL);
  close_worker();
}

/* ---- consumer ---- */

static uint32_t hex_digit(char c)
{
  return (uint32_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

/* Skips the spaces before it. */
static const char *parse_hex(const char *text, uint8_t *out)
{
  text += strspn(text, " ");
  for (size_t i = 0; text[0] != '\0' && text[0] != ' '; i++) {
    bench_must(i < TEXT_BYTES_MAX && text[1] != '\0', "not an offer of UCX");
    out[i] = (uint8_t)(hex_digit(text[0]) << 4 | hex_digit(text[1]));
    text += 2;
  }
  return text;
}

static void on_error(void *argument, kvf_ucp_ep ep, kvf_ucs_status status)
{
  (void)argument;
  (void)ep;
  failure = status;
}

static void read_begin(const peer_job *job, const char *offer)
{
  open_worker(job, job->destination);
  offered = strdup(offer);
  bench_must(offered != NULL, "no memory");
}

static void connect_endpoint(void)
{
  static uint8_t bytes[TEXT_BYTES_MAX];
  char *at = NULL;
  remote_pool = strtoull(offered, &at, 16);
  const char *key = parse_hex(at, bytes);
  const kvf_ucp_ep_params params = {.field_mask = KVF_UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                  KVF_UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                  KVF_UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                    .address = bytes,
                                    .err_mode = KVF_UCP_ERR_HANDLING_MODE_PEER,
                                    .err_handler = {.cb = on_error}};
  good(api->ep_create(worker, &params, &endpoint), "ucp_ep_create");
  (void)parse_hex(key, bytes);
  good(api->ep_rkey_unpack(endpoint, bytes, &remote_key), "ucp_ep_rkey_unpack");
}

static void got(void *request, kvf_ucs_status status, void *user_data)
{
  (void)user_data;
  if (status != KVF_UCS_OK) {
    failure = status;
  }
  gets_busy--;
  api->request_free(request);
}

static const char *read_once(const peer_job *job)
{
  const peer_shape *shape = &job->shape;
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_MEMORY_TYPE | KVF_UCP_OP_ATTR_FIELD_MEMH,
      .send = got,
      .memory_type = KVF_UCS_MEMORY_TYPE_HOST,
      .memh = memory};
  if (endpoint == NULL) {
    connect_endpoint();
  }
  for (uint32_t i = 0; i < peer_segments(shape); i++) {
    void *request =
        api->get_nbx(endpoint, job->destination + peer_segment_at(shape, job->local_ids, i), shape->block_bytes,
                     remote_pool + peer_segment_at(shape, job->remote_ids, i), remote_key, &param);
    if (kvf_ucs_is_error(request)) {
      return api->status_string(kvf_ucs_error(request));
    }
    gets_busy += request != NULL;
  }
  while (gets_busy > 0) {
    if (api->worker_progress(worker) == 0) {
      wait_event(1000);
    }
  }
  return failure == KVF_UCS_OK ? NULL : api->status_string(failure);
}

static void read_end(const peer_job *job)
{
  static const kvf_ucp_request_param param = {.op_attr_mask = KVF_UCP_OP_ATTR_FIELD_FLAGS,
                                              .flags = KVF_UCP_EP_CLOSE_FLAG_FORCE};
  (void)job;
  api->rkey_destroy(remote_key);
  (void)api->ep_close_nbx(endpoint, &param);
  endpoint = NULL;
  close_worker();
}

int main(int argc, char **argv)
{
  static const peer_driver driver = {.version = version,
                                     .hold = hold,
                                     .hold_end = hold_end,
                                     .read = read_begin,
                                     .read_once = read_once,
                                     .read_end = read_end};
  return peer_main(argc, argv, &driver);
}
