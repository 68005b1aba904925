/* D: starts P, loads through the public interface. */
#include <poll.h>
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gpu_bench.h"

#define SPINNERS_CPUS_MIN 4

/* ---- loads ---- */

static bool is_over(const kvf_event *event)
{
  if (event->kind == KVF_EVENT_LOAD && event->u.report.status != KVF_OK) {
    bench_give_up("a load has failed: %s", kvf_status_name(event->u.report.status));
  }
  return event->kind == KVF_EVENT_RELEASED;
}

static void wait_for_release(kvf_node *node, bool spins)
{
  bool released = false;
  while (!released) {
    kvf_event events[4];
    const size_t count = kvf_node_poll(node, events, 4);
    for (size_t i = 0; i < count; i++) {
      released = is_over(&events[i]) || released;
    }
    if (count == 0 && !spins) {
      struct pollfd wait = {.fd = kvf_node_event_fd(node), .events = POLLIN};
      (void)poll(&wait, 1, 10000);
    }
  }
}

void bench_load(bench_pair *pair, bool spins, const kvf_ordering_point *after)
{
  const uint64_t begin_ns = bench_now_ns();
  bench_start(pair->node, ++pair->last_request, &pair->offer.ticket, pair->local_ids, pair->geometry.blocks, after);
  pair->start_ns = bench_now_ns() - begin_ns;
  wait_for_release(pair->node, spins);
}

uint64_t bench_stat(kvf_node *node, const char *name)
{
  kvf_stat stats[KVF_STATS_MAX];
  const size_t count = kvf_node_stats(node, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(stats[i].name, name) == 0) {
      return stats[i].value;
    }
  }
  bench_give_up("there is no number %s", name);
}

/* ---- P ---- */

static void ask(const bench_pair *pair, char what)
{
  bench_send(pair->fd, &what, 1);
}

double bench_producer_cpu_s(bench_pair *pair)
{
  double cpu_s = 0;
  ask(pair, BENCH_ASK_CPU);
  bench_receive(pair->fd, &cpu_s, sizeof(cpu_s));
  return cpu_s;
}

void bench_ask_work(bench_pair *pair, bool works)
{
  char done;
  ask(pair, works ? BENCH_ASK_WORK : BENCH_ASK_IDLE);
  bench_receive(pair->fd, &done, sizeof(done));
}

void bench_ask_node(bench_pair *pair)
{
  ask(pair, BENCH_ASK_NODE);
  bench_receive(pair->fd, &pair->offer, sizeof(pair->offer));
}

/* The library opens it as well, and gets the same mapping. */
void bench_open_source(bench_pair *pair)
{
  const kvf_cuda_api *api = &pair->driver->cuda->api;
  bench_must(pair->offer.has_handle, "P's memory has no handle");
  bench_cuda(pair->driver,
             api->ipc_open_mem_handle(&pair->source_base, pair->offer.handle, KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS),
             "cuIpcOpenMemHandle");
  pair->source = pair->source_base + pair->offer.offset;
}

void bench_pin(bench_pair *pair)
{
  void *pinned = NULL;
  const uint64_t bytes = bench_bytes(&pair->geometry);
  bench_cuda(pair->driver, pair->driver->cuda->api.mem_host_alloc(&pinned, bytes, 0), "cuMemHostAlloc");
  memset(pinned, 1, bytes);
  pair->pinned = pinned;
}

/* ---- the process ---- */

/* Whether there is a driver, before a call that ends the process by a signal where there is none. */
static const cuda_driver *enter_driver(void)
{
  const kvf_cuda *cuda;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  bench_must(kvf_cuda_load(cuda_driver_library(), &cuda, message) == KVF_OK, message);
  return cuda_driver_enter();
}

static bool has_cpus_to_spin(void)
{
  cpu_set_t cpus;
  return sched_getaffinity(0, sizeof(cpus), &cpus) == 0 && CPU_COUNT(&cpus) >= SPINNERS_CPUS_MIN;
}

/* P's pool, and D's, are a quarter of the memory each at most. */
static void agree_on_memory(bench_pair *pair)
{
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  bench_cuda(pair->driver, pair->driver->mem_get_info(&free_bytes, &total_bytes), "cuMemGetInfo");
  if (pair->settings->tells_machine) {
    bench_print_machine(pair, free_bytes);
  }
  const uint64_t budget_bytes = free_bytes / 4;
  bench_send(pair->fd, &budget_bytes, sizeof(budget_bytes));
  bench_fit(&pair->of->shape, pair->settings, budget_bytes, &pair->geometry);
}

static void begin(bench_pair *pair)
{
  const kvf_cuda_api *api = &pair->driver->cuda->api;
  agree_on_memory(pair);
  pair->remote_ids = bench_choose(pair->geometry.pool_blocks, 7);
  pair->local_ids = bench_choose(pair->geometry.pool_blocks, 8);
  pair->pool = bench_allocate(pair->of->destination_is_host, pair->geometry.pool_bytes);
  pair->tile = bench_tile(pair->geometry.pool_bytes);
  bench_cuda(pair->driver, api->stream_create_with_priority(&pair->stream, KVF_CU_STREAM_NON_BLOCKING, 0),
             "cuStreamCreateWithPriority");
  bench_cuda(pair->driver, api->event_create(&pair->event, KVF_CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  bench_receive(pair->fd, &pair->offer, sizeof(pair->offer));
  pair->node = bench_pool_node(pair->of, pair->settings, &pair->geometry, pair->of->destination_is_host, pair->pool);
  bench_print_shape(pair);
  bench_warm(pair, pair->settings->warm_s);
}

/* The memory that P has given goes before P does. */
static void end(bench_pair *pair, pid_t child)
{
  kvf_node_close(pair->node);
  if (pair->source_base != 0) {
    bench_cuda(pair->driver, pair->driver->cuda->api.ipc_close_mem_handle(pair->source_base), "cuIpcCloseMemHandle");
  }
  (void)close(pair->fd);
  (void)waitpid(child, NULL, 0);
}

void bench_consumer(const bench_case *of, const bench_settings *settings)
{
  static bench_pair pair;
  int fds[2];
  bench_must(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0, "no socket pair");
  const pid_t child = fork(); /* before any call of CUDA's, which a fork does not survive */
  bench_must(child >= 0, "cannot fork");
  if (child == 0) {
    (void)close(fds[0]);
    bench_producer(of, settings, fds[1]);
    _exit(0);
  }
  (void)close(fds[1]);
  pair =
      (bench_pair){.of = of, .settings = settings, .fd = fds[0], .spins = has_cpus_to_spin(), .driver = enter_driver()};
  begin(&pair);
  of->run(&pair);
  const bench_clocks clocks = bench_clocks_now(&pair);
  bench_print_clocks(&pair, &clocks);
  end(&pair, child);
}
