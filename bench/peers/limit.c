/* What the machine can do at best with the same blocks: VARIANT is "readv:N" (process_vm_readv by N threads),
 * "memcpy:N" (within one process, N threads) or "streams:N" (bare TCP sockets, a thread each on both sides). A shape of
 * one block has one thread. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "peer.h"

#define THREADS_MAX 16
#define IOVECS 512 /* of one call: below IOV_MAX */

typedef struct worker {
  pthread_t thread;
  const peer_job *job;
  uint32_t first; /* of the segments */
  uint32_t count;
  int fd;
} worker;

static worker workers[THREADS_MAX];
static uint32_t workers_count;
static void (*copy)(const worker *w);
static pthread_barrier_t begins;
static pthread_barrier_t ends;
static atomic_bool stopping;
static int listener = -1;
static pid_t remote_pid;
static uint64_t remote_pool;

static bool has_streams(const peer_job *job)
{
  return strncmp(job->variant, "streams", 7) == 0;
}

static void share_out(const peer_job *job)
{
  const char *colon = strchr(job->variant, ':');
  uint32_t total = peer_segments(&job->shape);
  uint32_t wanted = colon == NULL ? 1 : (uint32_t)strtoul(colon + 1, NULL, 10);
  peer_must(wanted >= 1 && wanted <= THREADS_MAX, "variant: readv:N, memcpy:N or streams:N");
  peer_must(job->parts == 1, "one producer only");
  workers_count = wanted < total ? wanted : total;
  for (uint32_t i = 0; i < workers_count; i++) {
    uint32_t first = (uint32_t)((uint64_t)total * i / workers_count);
    uint32_t next = (uint32_t)((uint64_t)total * (i + 1) / workers_count);
    workers[i] = (worker){.job = job, .first = first, .count = next - first, .fd = -1};
  }
}

/* Fills up to IOVECS iovecs with the segments from the `done`-th of a worker's on; returns how many. */
static uint32_t fill(const worker *w, uint32_t done, uint8_t *base, const uint32_t *ids, struct iovec *iov)
{
  uint32_t count = w->count - done < IOVECS ? w->count - done : IOVECS;
  for (uint32_t i = 0; i < count; i++) {
    iov[i].iov_base = base + peer_segment_at(&w->job->shape, ids, w->first + done + i);
    iov[i].iov_len = w->job->shape.block_bytes;
  }
  return count;
}

/* What is left of a message of which `bytes` have gone. */
static void advance(struct msghdr *message, size_t bytes)
{
  while (message->msg_iovlen > 0 && bytes >= message->msg_iov->iov_len) {
    bytes -= message->msg_iov->iov_len;
    message->msg_iov++;
    message->msg_iovlen--;
  }
  if (message->msg_iovlen > 0) {
    message->msg_iov->iov_base = (uint8_t *)message->msg_iov->iov_base + bytes;
    message->msg_iov->iov_len -= bytes;
  }
}

/* ---- the consumer's three ways ---- */

static void copy_readv(const worker *w)
{
  struct iovec local[IOVECS];
  struct iovec remote[IOVECS];
  uint32_t count;
  for (uint32_t done = 0; done < w->count; done += count) {
    count = fill(w, done, w->job->destination, w->job->local_ids, local);
    (void)fill(w, done, (uint8_t *)(uintptr_t)remote_pool, w->job->remote_ids,
               remote);  // NOLINT(performance-no-int-to-ptr)
    peer_must(process_vm_readv(remote_pid, local, count, remote, count, 0) ==
                  (ssize_t)((size_t)count * w->job->shape.block_bytes),
              "process_vm_readv is not allowed here");
  }
}

static void copy_memcpy(const worker *w)
{
  const peer_shape *shape = &w->job->shape;
  for (uint32_t i = w->first; i < w->first + w->count; i++) {
    memcpy(w->job->destination + peer_segment_at(shape, w->job->local_ids, i),
           w->job->source + peer_segment_at(shape, w->job->remote_ids, i), shape->block_bytes);
  }
}

static void copy_stream(const worker *w)
{
  struct iovec iov[IOVECS];
  uint8_t go = (uint8_t)(w - workers); /* whose share it is: the order of connections says nothing */
  uint32_t count;
  peer_must(send(w->fd, &go, 1, MSG_NOSIGNAL) == 1, "the sender is gone");
  for (uint32_t done = 0; done < w->count; done += count) {
    count = fill(w, done, w->job->destination, w->job->local_ids, iov);
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
    while (message.msg_iovlen > 0) {
      ssize_t bytes = recvmsg(w->fd, &message, 0);
      peer_must(bytes > 0, "the sender is gone");
      advance(&message, (size_t)bytes);
    }
  }
}

static void *run_worker(void *context)
{
  const worker *w = context;
  for (;;) {
    (void)pthread_barrier_wait(&begins);
    if (atomic_load(&stopping)) {
      return NULL;
    }
    copy(w);
    (void)pthread_barrier_wait(&ends);
  }
}

static int connect_to(uint16_t port)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int one = 1;
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  peer_must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "cannot connect to the sender");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

static void read_begin(const peer_job *job, const char *offer)
{
  char *at = NULL;
  remote_pid = (pid_t)strtol(offer, &at, 10);
  remote_pool = strtoull(at, &at, 16);
  uint16_t port = (uint16_t)strtoul(at, NULL, 10);
  copy = has_streams(job) ? copy_stream : job->variant[0] == 'm' ? copy_memcpy : copy_readv;
  share_out(job);
  atomic_store(&stopping, false);
  (void)pthread_barrier_init(&begins, NULL, workers_count);
  (void)pthread_barrier_init(&ends, NULL, workers_count);
  for (uint32_t i = 0; i < workers_count; i++) {
    workers[i].fd = has_streams(job) ? connect_to(port) : -1;
    peer_must(i == 0 || pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0,
              "cannot start a thread");
  }
}

/* The caller is the first worker. */
static const char *read_once(const peer_job *job)
{
  (void)job;
  (void)pthread_barrier_wait(&begins);
  copy(&workers[0]);
  (void)pthread_barrier_wait(&ends);
  return NULL;
}

static void read_end(const peer_job *job)
{
  (void)job;
  atomic_store(&stopping, true);
  (void)pthread_barrier_wait(&begins);
  for (uint32_t i = 0; i < workers_count; i++) {
    if (i > 0) {
      (void)pthread_join(workers[i].thread, NULL);
    }
    if (workers[i].fd >= 0) {
      (void)close(workers[i].fd);
    }
  }
  (void)pthread_barrier_destroy(&begins);
  (void)pthread_barrier_destroy(&ends);
}

/* ---- the producer: nothing but its memory, or senders: a byte from the consumer asks for one round ---- */

static void *run_sender(void *context)
{
  const worker *w = context;
  struct iovec iov[IOVECS];
  uint8_t go;
  uint32_t count;
  int fd = accept(listener, NULL, NULL);
  int one = 1;
  peer_must(fd >= 0, "the sender cannot accept");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  while (recv(fd, &go, 1, 0) == 1) {
    peer_must(go < workers_count, "a share that is none");
    w = &workers[go];
    for (uint32_t done = 0; done < w->count; done += count) {
      count = fill(w, done, w->job->source, w->job->remote_ids, iov);
      struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
      while (message.msg_iovlen > 0) {
        ssize_t bytes = sendmsg(fd, &message, MSG_NOSIGNAL);
        peer_must(bytes > 0, "the sender cannot send");
        advance(&message, (size_t)bytes);
      }
    }
  }
  (void)close(fd);
  return NULL;
}

static void hold(const peer_job *job, FILE *offer)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t bytes = sizeof(address);
  share_out(job);
  listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  peer_must(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
                listen(listener, THREADS_MAX) == 0 && getsockname(listener, (struct sockaddr *)&address, &bytes) == 0,
            "the sender cannot listen");
  for (uint32_t i = 0; has_streams(job) && i < workers_count; i++) {
    peer_must(pthread_create(&workers[i].thread, NULL, run_sender, &workers[i]) == 0, "cannot start a thread");
  }
  (void)fprintf(offer, "%ld %llx %u", (long)getpid(), (unsigned long long)(uintptr_t)job->source,
                (unsigned)ntohs(address.sin_port));
}

static void hold_end(const peer_job *job)
{
  for (uint32_t i = 0; has_streams(job) && i < workers_count; i++) {
    (void)pthread_join(workers[i].thread, NULL);
  }
  (void)close(listener);
}

static void version(const peer_job *job, FILE *out)
{
  struct utsname name;
  (void)job;
  peer_must(uname(&name) == 0, "uname");
  (void)fprintf(out, "%s %s", name.sysname, name.release);
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
