/* What the machine can do at best: the same blocks without kvferry. */
#include <arpa/inet.h>
#include <assert.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

typedef struct worker {
  pthread_t thread;
  struct crew *crew;
  const bench_shape *shape;
  const bench_offer *offer;
  uint8_t *pool;
  const uint32_t *local_ids;
  uint32_t first;
  uint32_t count;
  int fd; /* receivers */
} worker;

static_assert(BENCH_STREAMS <= BENCH_THREADS, "a crew has room for either");

/* Threads that wait for a round, do their share, and report. */
typedef struct crew {
  pthread_barrier_t begin;
  pthread_barrier_t end;
  atomic_bool stopping;
  uint32_t size;
  worker workers[BENCH_THREADS];
} crew;

struct bench_reader {
  crew crew;
};

struct bench_receiver {
  crew crew;
};

static void read_share(const worker *w)
{
  struct iovec local[BENCH_IOVECS];
  struct iovec remote[BENCH_IOVECS];
  for (uint32_t done = 0; done < w->count;) {
    size_t count = 0;
    size_t bytes = 0;
    while (done < w->count && count < BENCH_IOVECS) {
      size_t block_bytes = w->shape->block_bytes;
      size_t theirs = w->offer->ids[w->first + done];
      size_t ours = w->local_ids[w->first + done++];
      remote[count] = (struct iovec){(void *)(uintptr_t)(w->offer->pool + theirs * block_bytes), block_bytes};
      local[count++] = (struct iovec){w->pool + ours * block_bytes, block_bytes};
      bytes += block_bytes;
    }
    bench_must(process_vm_readv(w->offer->pid, local, count, remote, count, 0) == (ssize_t)bytes,
               "process_vm_readv is not allowed here");
  }
}

static void receive_share(const worker *w)
{
  struct iovec iov[BENCH_IOVECS];
  uint8_t go = 1;
  bench_must(send(w->fd, &go, 1, MSG_NOSIGNAL) == 1, "the bare sender is gone");
  for (uint32_t done = 0; done < w->count;) {
    size_t count = 0;
    size_t bytes = 0;
    while (done < w->count && count < BENCH_IOVECS) {
      size_t ours = w->local_ids[w->first + done++];
      iov[count++] = (struct iovec){w->pool + ours * w->shape->block_bytes, w->shape->block_bytes};
      bytes += w->shape->block_bytes;
    }
    struct iovec *next = iov;
    while (bytes > 0) {
      struct msghdr message = {.msg_iov = next, .msg_iovlen = count};
      ssize_t got = recvmsg(w->fd, &message, 0);
      bench_must(got > 0, "the bare sender is gone");
      bytes -= (size_t)got;
      while (count > 0 && (size_t)got >= next->iov_len) {
        got -= (ssize_t)next->iov_len;
        next++;
        count--;
      }
      if (count > 0) {
        next->iov_base = (uint8_t *)next->iov_base + got;
        next->iov_len -= (size_t)got;
      }
    }
  }
}

static void *run_worker(void *context)
{
  worker *w = context;
  for (;;) {
    (void)pthread_barrier_wait(&w->crew->begin);
    if (atomic_load(&w->crew->stopping)) {
      return NULL;
    }
    if (w->fd < 0) {
      read_share(w);
    } else {
      receive_share(w);
    }
    (void)pthread_barrier_wait(&w->crew->end);
  }
}

static void start(crew *c, uint32_t size, const bench_shape *shape, const bench_offer *offer, uint8_t *pool,
                  const uint32_t *local_ids)
{
  c->size = size;
  (void)pthread_barrier_init(&c->begin, NULL, size + 1);
  (void)pthread_barrier_init(&c->end, NULL, size + 1);
  for (uint32_t i = 0; i < size; i++) {
    worker *w = &c->workers[i];
    w->crew = c;
    w->shape = shape;
    w->offer = offer;
    w->pool = pool;
    w->local_ids = local_ids;
    bench_share(shape->blocks, i, size, &w->first, &w->count);
    bench_must(size == 1 || pthread_create(&w->thread, NULL, run_worker, w) == 0, "cannot start a thread");
  }
}

static void run(crew *c)
{
  if (c->size == 1) {
    (c->workers[0].fd < 0 ? read_share : receive_share)(&c->workers[0]);
    return;
  }
  (void)pthread_barrier_wait(&c->begin);
  (void)pthread_barrier_wait(&c->end);
}

static void stop(crew *c)
{
  atomic_store(&c->stopping, true);
  if (c->size > 1) {
    (void)pthread_barrier_wait(&c->begin);
  }
  for (uint32_t i = 0; i < c->size; i++) {
    if (c->size > 1) {
      (void)pthread_join(c->workers[i].thread, NULL);
    }
    if (c->workers[i].fd >= 0) {
      (void)close(c->workers[i].fd);
    }
  }
}

bench_reader *bench_reader_open(const bench_shape *shape, const bench_offer *offer, uint8_t *pool,
                                const uint32_t *local_ids)
{
  bench_reader *reader = calloc(1, sizeof(*reader));
  bench_must(reader != NULL, "no memory");
  for (uint32_t i = 0; i < BENCH_THREADS; i++) {
    reader->crew.workers[i].fd = -1;
  }
  start(&reader->crew, shape->blocks == 1 ? 1 : BENCH_THREADS, shape, offer, pool, local_ids);
  return reader;
}

void bench_reader_run(bench_reader *reader)
{
  run(&reader->crew);
}

void bench_reader_close(bench_reader *reader)
{
  stop(&reader->crew);
  free(reader);
}

static int connect_to(uint16_t port)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int one = 1;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bench_must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0,
             "cannot connect to the bare sender");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

bench_receiver *bench_receiver_open(const bench_shape *shape, const bench_offer *offer, uint8_t *pool,
                                    const uint32_t *local_ids)
{
  bench_receiver *receiver = calloc(1, sizeof(*receiver));
  bench_must(receiver != NULL, "no memory");
  for (uint32_t i = 0; i < BENCH_STREAMS; i++) {
    receiver->crew.workers[i].fd = connect_to(offer->sender_port);
  }
  start(&receiver->crew, BENCH_STREAMS, shape, offer, pool, local_ids);
  return receiver;
}

void bench_receiver_run(bench_receiver *receiver)
{
  run(&receiver->crew);
}

void bench_receiver_close(bench_receiver *receiver)
{
  stop(&receiver->crew);
  free(receiver);
}
