/* Loads through the public API between two processes, fence checks on, beside what the machine can do at best: the same
 * blocks, interleaved round by round; with checksums as well (+checksums), and inside TLS (+tls), whose limit stays the
 * bare one. One JSON object a line; bench/bench.py makes the table. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define ROUNDS 41
#define LATENCY_ROUNDS 2001
#define WARM_UP 5
#define POLLS 1000

static const bench_shape shapes[] = {
    {"1x4KiB", "local", 1, 4096, false, false},
    {"64x16KiB", "local", 64, 16384, false, false},
    {"1024x16KiB", "local", 1024, 16384, false, false},
    {"64x1MiB", "local", 64, 1 << 20, false, false},
    {"1x4KiB+checksums", "local", 1, 4096, true, false},
    {"64x16KiB+checksums", "local", 64, 16384, true, false},
    {"1024x16KiB+checksums", "local", 1024, 16384, true, false},
    {"64x1MiB+checksums", "local", 64, 1 << 20, true, false},
    {"1x4KiB", "tcp", 1, 4096, false, false},
    {"64x16KiB", "tcp", 64, 16384, false, false},
    {"1024x16KiB", "tcp", 1024, 16384, false, false},
    {"64x1MiB", "tcp", 64, 1 << 20, false, false},
    {"1x4KiB+checksums", "tcp", 1, 4096, true, false},
    {"64x16KiB+checksums", "tcp", 64, 16384, true, false},
    {"1024x16KiB+checksums", "tcp", 1024, 16384, true, false},
    {"64x1MiB+checksums", "tcp", 64, 1 << 20, true, false},
    {"1x4KiB+tls", "tcp", 1, 4096, false, true},
    {"64x16KiB+tls", "tcp", 64, 16384, false, true},
    {"1024x16KiB+tls", "tcp", 1024, 16384, false, true},
    {"64x1MiB+tls", "tcp", 64, 1 << 20, false, true},
};

typedef struct consumer {
  kvf_node *node;
  uint64_t next_request;
  const bench_offer *offer;
  const uint32_t *local_ids;
  const bench_shape *shape;
} consumer;

static void load_once(consumer *c)
{
  kvf_load_params load = {.request_id = ++c->next_request,
                          .ticket = c->offer->ticket,
                          .ticket_bytes = c->offer->ticket_bytes,
                          .prompt = c->offer->prompt,
                          .destination = {.ids = c->local_ids, .counts = &c->shape->blocks, .groups = 1}};
  bench_must(kvf_load_start(c->node, &load) == KVF_OK, "cannot start a load");
  bool released = false;
  while (!released) {
    kvf_event events[4];
    size_t count = kvf_node_poll(c->node, events, 4);
    for (size_t i = 0; i < count; i++) {
      bench_must(events[i].kind != KVF_EVENT_LOAD || events[i].u.report.status == KVF_OK, "a load has failed");
      released = released || events[i].kind == KVF_EVENT_RELEASED;
    }
    if (count == 0) { /* sleeps, so that the poller takes no core from the copiers */
      struct pollfd wait = {.fd = kvf_node_event_fd(c->node), .events = POLLIN};
      (void)poll(&wait, 1, 10000);
    }
  }
}

static int compare(const void *a, const void *b)
{
  double x = *(const double *)a;
  double y = *(const double *)b;
  return (x > y) - (x < y);
}

static void print_case(const char *name, const char *impl, const char *unit, double *samples, size_t count,
                       bool more_is_better)
{
  qsort(samples, count, sizeof(samples[0]), compare);
  double tail = more_is_better ? samples[count / 100] : samples[count * 99 / 100];
  printf("{\"case\":\"%s\",\"impl\":\"%s\",\"unit\":\"%s\",\"median\":%.4g,\"p99\":%.4g,\"runs\":%zu}\n", name, impl,
         unit, samples[count / 2], tail, count);
  (void)fflush(stdout);
}

/* Turns the times of rounds into what the shape is measured in. */
static void print_rounds(const bench_shape *shape, const char *impl, double *ns, size_t count)
{
  char name[64];
  (void)snprintf(name, sizeof(name), "%s/%s", shape->transport, shape->name);
  bool latency = shape->blocks == 1;
  for (size_t i = 0; i < count; i++) {
    ns[i] = latency ? ns[i] / 1000.0 : (double)shape->blocks * shape->block_bytes / ns[i];
  }
  print_case(name, impl, latency ? "us" : "GB/s", ns, count, !latency);
}

static void run_shape(const bench_shape *shape, uint8_t *pool, const bench_offer *offer)
{
  static uint32_t local_ids[BENCH_BLOCKS_MAX];
  static double ours[LATENCY_ROUNDS];
  static double limit[LATENCY_ROUNDS];
  bool tcp = strcmp(shape->transport, "tcp") == 0;
  size_t rounds = shape->blocks == 1 ? LATENCY_ROUNDS : ROUNDS;
  bench_choose(local_ids, shape->blocks, (uint32_t)(BENCH_POOL_BYTES / shape->block_bytes), 8);
  bench_receiver *receiver = tcp ? bench_receiver_open(shape, offer, pool, local_ids) : NULL;
  bench_reader *reader = tcp ? NULL : bench_reader_open(shape, offer, pool, local_ids);
  consumer c = {.node = bench_node(shape, pool), .offer = offer, .local_ids = local_ids, .shape = shape};
  for (size_t i = 0; i < rounds + WARM_UP; i++) {
    uint64_t begin_ns = bench_now_ns();
    load_once(&c);
    uint64_t middle_ns = bench_now_ns();
    if (tcp) {
      bench_receiver_run(receiver);
    } else {
      bench_reader_run(reader);
    }
    uint64_t end_ns = bench_now_ns();
    if (i >= WARM_UP) {
      ours[i - WARM_UP] = (double)(middle_ns - begin_ns);
      limit[i - WARM_UP] = (double)(end_ns - middle_ns);
    }
  }
  print_rounds(shape, "kvferry", ours, rounds);
  print_rounds(shape, "limit", limit, rounds);
  if (tcp) {
    bench_receiver_close(receiver);
  } else {
    bench_reader_close(reader);
  }
  kvf_node_close(c.node);
}

static void run_poll(uint8_t *pool)
{
  static double ns[ROUNDS];
  kvf_node *node = bench_node(&shapes[0], pool);
  for (size_t i = 0; i < ROUNDS; i++) {
    kvf_event event;
    uint64_t begin_ns = bench_now_ns();
    for (int j = 0; j < POLLS; j++) {
      (void)kvf_node_poll(node, &event, 1);
    }
    ns[i] = (double)(bench_now_ns() - begin_ns) / POLLS;
  }
  print_case("poll/nothing", "kvferry", "ns", ns, ROUNDS, false);
  kvf_node_close(node);
}

static void ask(int pipe_fd, const bench_shape *shape, bench_offer *offer)
{
  struct {
    bench_shape shape;
    char transport[16];
  } order;
  memset(&order, 0, sizeof(order));
  order.shape = *shape;
  (void)snprintf(order.transport, sizeof(order.transport), "%s", shape->transport);
  bench_must(write(pipe_fd, &order, sizeof(order)) == (ssize_t)sizeof(order) &&
                 recv(pipe_fd, offer, sizeof(*offer), MSG_WAITALL) == (ssize_t)sizeof(*offer),
             "the producer process is gone");
}

int main(int argc, char **argv)
{
  static bench_offer offer;
  const char *only = argc > 1 ? argv[1] : "";
  int pipe_fds[2];
  bench_must(socketpair(AF_UNIX, SOCK_STREAM, 0, pipe_fds) == 0, "no socket pair");
  bench_key_make();
  pid_t child = fork();
  bench_must(child >= 0, "cannot fork");
  if (child == 0) {
    (void)close(pipe_fds[0]);
    bench_producer(pipe_fds[1]);
    return 0;
  }
  (void)close(pipe_fds[1]);
  uint8_t *pool = bench_pool();
  for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
    char name[64];
    uint8_t done = 1;
    (void)snprintf(name, sizeof(name), "%s/%s", shapes[i].transport, shapes[i].name);
    if (strstr(name, only) != NULL) {
      ask(pipe_fds[0], &shapes[i], &offer);
      run_shape(&shapes[i], pool, &offer);
      bench_must(write(pipe_fds[0], &done, 1) == 1, "the producer process is gone");
    }
  }
  if (strstr("poll/nothing", only) != NULL) {
    run_poll(pool);
  }
  (void)close(pipe_fds[0]);
  (void)waitpid(child, NULL, 0);
  bench_key_remove();
  return 0;
}
