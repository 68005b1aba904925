/* P: holds blocks, and does as it is asked for. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "gpu_bench.h"

#define PUBLISHES 200
#define PUBLISHES_QUICK 5
#define FILL_BYTES 65536

typedef struct producer {
  const bench_case *of;
  const bench_settings *settings;
  int fd;
  bench_geometry geometry;
  uint8_t *pool;
  uint32_t *ids;
  kvf_node *node;
  bench_source offer;
  bench_worker *worker; /* NULL: it computes nothing */
} producer;

/* ---- the socket ---- */

void bench_send(int fd, const void *what, size_t bytes)
{
  const uint8_t *at = what;
  while (bytes > 0) {
    const ssize_t sent = send(fd, at, bytes, MSG_NOSIGNAL);
    bench_must(sent > 0, "the other process is gone: standard error may say why");
    at += sent;
    bytes -= (size_t)sent;
  }
}

void bench_receive(int fd, void *what, size_t bytes)
{
  const ssize_t got = recv(fd, what, bytes, MSG_WAITALL);
  bench_must(got == (ssize_t)bytes, "the other process is gone: standard error may say why");
}

/* ---- of both sides ---- */

bool bench_set_options(kvf_config *config, const bench_settings *settings, char *message)
{
  for (size_t i = 0; i < settings->options_count; i++) {
    if (!bench_set_option(config, settings->options[i], message)) {
      return false;
    }
  }
  return true;
}

kvf_node *bench_pool_node(const bench_case *of, const bench_settings *settings, const bench_geometry *geometry,
                          bool is_host, uint8_t *pool)
{
  const uint32_t count = geometry->layers * geometry->parts;
  kvf_region *regions = calloc(count, sizeof(*regions));
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  bench_config(&config, of->transport);
  bench_set(&config, "checksum", of->has_checksums ? "on" : "off");
  bench_set(&config, "cuda_library", cuda_driver_library());
  bench_set(&config, "load_timeout_ms", "30000");
  bench_set(&config, "stall_timeout_ms", "10000");
  bench_must(bench_set_options(&config, settings, message), message);
  bench_must(regions != NULL, "no memory");
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t bytes = bench_region_bytes(geometry, i);
    regions[i] = (kvf_region){.base = pool + bench_region_at(geometry, i),
                              .stride_bytes = bytes,
                              .block_bytes = bytes,
                              .blocks = geometry->pool_blocks,
                              .heads = 1,
                              .heads_total = 1,
                              .memory = is_host ? KVF_MEMORY_HOST : KVF_MEMORY_CUDA};
  }
  kvf_node *node = bench_node(&config, regions, count);
  free(regions);
  return node;
}

/* ---- blocks ---- */

/* A thread of the engine's names no stream here: the pool is filled. */
static void offer_blocks(producer *p)
{
  p->node = bench_pool_node(p->of, p->settings, &p->geometry, p->of->source_is_host, p->pool);
  bench_offer(p->node, p->ids, p->geometry.blocks, &p->offer.ticket);
}

static void export_pool(producer *p)
{
  const cuda_driver *driver = cuda_driver_enter();
  const kvf_cu_memory address = (uintptr_t)p->pool;
  kvf_cu_memory base = 0;
  bench_cuda(driver, driver->cuda->api.mem_get_address_range(&base, NULL, address), "cuMemGetAddressRange");
  bench_cuda(driver, driver->cuda->api.ipc_get_mem_handle(&p->offer.handle, address), "cuIpcGetMemHandle");
  p->offer.offset = address - base;
  p->offer.has_handle = true;
}

/* ---- what publishing costs the engine's thread ---- */

static void end_lease(kvf_node *node, const kvf_lease *lease)
{
  bool ended = false;
  bench_expect(kvf_lease_end(node, lease), "kvf_lease_end");
  while (!ended) {
    kvf_event event;
    struct pollfd wait = {.fd = kvf_node_event_fd(node), .events = POLLIN};
    if (kvf_node_poll(node, &event, 1) == 0) {
      (void)poll(&wait, 1, 1000);
    } else {
      ended = event.kind == KVF_EVENT_LEASE_ENDED && event.id == lease->id;
    }
  }
  bench_expect(kvf_lease_release(node, lease->id), "kvf_lease_release");
}

static double publish_once(producer *p, const cuda_driver *driver, void *scratch)
{
  const kvf_ordering_point after = {.memory = KVF_MEMORY_CUDA, .device = 0, .handle = driver->stream};
  const kvf_blocks blocks = {.ids = p->ids, .counts = &p->geometry.blocks, .groups = 1};
  kvf_lease lease;
  bench_expect(kvf_lease_reserve(p->node, p->geometry.blocks, 0, &lease), "kvf_lease_reserve");
  if (driver->fill != NULL) { /* the engine's work */
    cuda_driver_fill(driver->stream, scratch, FILL_BYTES, 1, 0);
  }
  const uint64_t begin_ns = bench_now_ns();
  const kvf_status status = kvf_lease_publish(p->node, &lease, &blocks, &p->offer.ticket.prompt, &after, 0);
  const uint64_t end_ns = bench_now_ns();
  bench_expect(status, "kvf_lease_publish");
  end_lease(p->node, &lease);
  return (double)(end_ns - begin_ns) / 1e3;
}

static void publish(producer *p, bool is_quick)
{
  double us[PUBLISHES];
  const cuda_driver *driver = cuda_driver_enter();
  void *scratch = cuda_driver_allocate(FILL_BYTES);
  const size_t count = is_quick ? PUBLISHES_QUICK : PUBLISHES;
  (void)publish_once(p, driver, scratch);
  for (size_t i = 0; i < count; i++) {
    us[i] = publish_once(p, driver, scratch);
  }
  bench_cuda(driver, driver->stream_synchronize(driver->stream), "cuStreamSynchronize");
  cuda_driver_free(scratch);
  bench_send(p->fd, &count, sizeof(count));
  bench_send(p->fd, us, count * sizeof(us[0]));
}

/* ---- the process ---- */

/* Of a device that somebody uses, or of an idle one. */
static void compute(producer *p, bool works)
{
  if (works) {
    p->worker = bench_worker_make(cuda_driver_enter(), p->settings->multiply_n, BENCH_MULTIPLY);
    bench_must(p->worker != NULL, "this driver takes no kernels");
    bench_worker_begin(p->worker);
  } else if (p->worker != NULL) {
    bench_worker_end(p->worker);
    bench_worker_free(p->worker);
    p->worker = NULL;
  }
  bench_send(p->fd, "", 1);
}

static void answer(producer *p, bool is_quick, char asked)
{
  if (asked == BENCH_ASK_CPU) {
    const double cpu_s = bench_cpu_s();
    bench_send(p->fd, &cpu_s, sizeof(cpu_s));
  } else if (asked == BENCH_ASK_PUBLISH) {
    publish(p, is_quick);
  } else if (asked == BENCH_ASK_WORK || asked == BENCH_ASK_IDLE) {
    compute(p, asked == BENCH_ASK_WORK);
  } else {
    kvf_node_close(p->node);
    offer_blocks(p);
    bench_send(p->fd, &p->offer, sizeof(p->offer));
  }
}

void bench_producer(const bench_case *of, const bench_settings *settings, int fd)
{
  static producer p;
  uint64_t budget_bytes = 0;
  char asked;
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  p = (producer){.of = of, .settings = settings, .fd = fd};
  bench_receive(fd, &budget_bytes, sizeof(budget_bytes));
  bench_fit(&of->shape, settings, budget_bytes, &p.geometry);
  p.ids = bench_choose(p.geometry.pool_blocks, 7);
  p.pool = bench_allocate(of->source_is_host, p.geometry.pool_bytes);
  uint8_t *tile = bench_tile(p.geometry.pool_bytes);
  bench_fill(of->source_is_host, p.pool, p.geometry.pool_bytes, tile);
  free(tile);
  offer_blocks(&p);
  if (!of->source_is_host) {
    export_pool(&p);
  }
  bench_send(fd, &p.offer, sizeof(p.offer));
  while (recv(fd, &asked, 1, 0) == 1) {
    answer(&p, settings->is_quick, asked);
  }
  kvf_node_close(p.node);
}
