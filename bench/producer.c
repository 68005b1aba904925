#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "bench.h"

/* ---- the bare sender: one thread a stream; a byte from the receiver asks for one round ---- */

typedef struct sender {
  pthread_t thread;
  int fd;
  const bench_shape *shape;
  const bench_offer *offer;
  uint8_t *pool;
  uint32_t first;
  uint32_t count;
} sender;

static void send_all(int fd, struct iovec *iov, int count)
{
  while (count > 0) {
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = (size_t)count};
    ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL);
    bench_must(sent > 0, "the bare sender cannot send");
    while (count > 0 && (size_t)sent >= iov->iov_len) {
      sent -= (ssize_t)iov->iov_len;
      iov++;
      count--;
    }
    if (count > 0) {
      iov->iov_base = (uint8_t *)iov->iov_base + sent;
      iov->iov_len -= (size_t)sent;
    }
  }
}

static void *run_sender(void *context)
{
  sender *s = context;
  struct iovec iov[BENCH_IOVECS];
  uint8_t go;
  while (recv(s->fd, &go, 1, 0) == 1) {
    for (uint32_t done = 0; done < s->count;) {
      int count = 0;
      while (done < s->count && count < BENCH_IOVECS) {
        size_t block = s->offer->ids[s->first + done++];
        iov[count++] = (struct iovec){s->pool + block * s->shape->block_bytes, s->shape->block_bytes};
      }
      send_all(s->fd, iov, count);
    }
  }
  (void)close(s->fd);
  return NULL;
}

static int listen_anywhere(uint16_t *port)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t bytes = sizeof(address);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bench_must(fd >= 0 && bind(fd, (struct sockaddr *)&address, sizeof(address)) == 0 && listen(fd, 8) == 0 &&
                 getsockname(fd, (struct sockaddr *)&address, &bytes) == 0,
             "the bare sender cannot listen");
  *port = ntohs(address.sin_port);
  return fd;
}

static void accept_streams(int listener, sender *senders, const bench_shape *shape, const bench_offer *offer,
                           uint8_t *pool)
{
  for (uint32_t i = 0; i < BENCH_STREAMS; i++) {
    int one = 1;
    senders[i] = (sender){.shape = shape, .offer = offer, .pool = pool};
    senders[i].fd = accept(listener, NULL, NULL);
    bench_must(senders[i].fd >= 0, "the bare sender cannot accept");
    (void)setsockopt(senders[i].fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    bench_share(shape->blocks, i, BENCH_STREAMS, &senders[i].first, &senders[i].count);
    bench_must(pthread_create(&senders[i].thread, NULL, run_sender, &senders[i]) == 0, "cannot start a thread");
  }
}

/* ---- the producer ---- */

static void offer_blocks(kvf_node *node, const bench_shape *shape, bench_offer *offer)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t record_bytes = 0;
  uint32_t tokens[16 * BENCH_BLOCKS_MAX];
  kvf_lease lease;
  kvf_blocks blocks = {.ids = offer->ids, .counts = &shape->blocks, .groups = 1};
  memset(tokens, 0, sizeof(tokens));
  bench_choose(offer->ids, shape->blocks, (uint32_t)(BENCH_POOL_BYTES / shape->block_bytes), 7);
  bench_must(kvf_node_address(node, record, sizeof(record), &record_bytes) == KVF_OK &&
                 kvf_node_set_ranks(node, record, &record_bytes, 1) == KVF_OK &&
                 kvf_prompt_hash(tokens, shape->blocks * 16, NULL, 0, &offer->prompt) == KVF_OK &&
                 kvf_lease_reserve(node, shape->blocks, 0, &lease) == KVF_OK &&
                 kvf_lease_publish(node, &lease, &blocks, &offer->prompt, NULL, 0) == KVF_OK &&
                 kvf_ticket_make(node, &lease, &blocks, &offer->prompt, offer->ticket, sizeof(offer->ticket),
                                 &offer->ticket_bytes) == KVF_OK,
             "cannot offer the blocks");
}

static void serve(int pipe_fd, const bench_shape *shape, const char *transport, uint8_t *pool)
{
  static bench_offer offer;
  bench_shape named = *shape;
  sender senders[BENCH_STREAMS];
  uint8_t done;
  named.transport = transport;
  memset(&offer, 0, sizeof(offer));
  kvf_node *node = bench_node(&named, pool);
  offer_blocks(node, &named, &offer);
  offer.pid = getpid();
  offer.pool = (uint64_t)(uintptr_t)pool;
  int listener = listen_anywhere(&offer.sender_port);
  bool bare_streams = strcmp(transport, "tcp") == 0;
  bench_must(write(pipe_fd, &offer, sizeof(offer)) == (ssize_t)sizeof(offer), "the parent is gone");
  if (bare_streams) {
    accept_streams(listener, senders, &named, &offer, pool);
  }
  bench_must(read(pipe_fd, &done, 1) == 1, "the parent is gone");
  for (uint32_t i = 0; bare_streams && i < BENCH_STREAMS; i++) {
    (void)pthread_join(senders[i].thread, NULL);
  }
  (void)close(listener);
  kvf_node_close(node);
}

void bench_producer(int pipe_fd)
{
  struct {
    bench_shape shape;
    char transport[16];
  } order;
  uint8_t *pool = bench_pool();
  while (recv(pipe_fd, &order, sizeof(order), MSG_WAITALL) == (ssize_t)sizeof(order)) {
    serve(pipe_fd, &order.shape, order.transport, pool);
  }
}
