/* What the machine can do at best with the same blocks: VARIANT is "readv:N" (process_vm_readv by N threads),
 * "memcpy:N" (within one process, N threads), "streams:N" (bare TCP sockets, a thread each on both sides) or "tls:N"
 * (the same inside TLS as OpenSSL does it: the protocol, suite and records are kvferry's). A shape of one block has one
 * thread. */
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

#include <openssl/ssl.h>

#include "peer.h"

#define THREADS_MAX 16
#define IOVECS 512 /* of one call: below IOV_MAX */
#define RECORD_BYTES 16384

typedef struct worker {
  pthread_t thread;
  const peer_job *job;
  uint32_t first; /* of the segments */
  uint32_t count;
  int fd;
  SSL *ssl;
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
static SSL_CTX *tls;

static bool has_tls(const peer_job *job)
{
  return strncmp(job->variant, "tls", 3) == 0;
}

static bool has_streams(const peer_job *job)
{
  return strncmp(job->variant, "streams", 7) == 0 || has_tls(job);
}

static void share_out(const peer_job *job)
{
  const char *colon = strchr(job->variant, ':');
  uint32_t total = peer_segments(&job->shape);
  uint32_t wanted = colon == NULL ? 1 : (uint32_t)strtoul(colon + 1, NULL, 10);
  bench_must(wanted >= 1 && wanted <= THREADS_MAX, "variant: readv:N, memcpy:N, streams:N or tls:N");
  bench_must(job->parts == 1, "one producer only");
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

/* A worker's share, by one end of a connection or the other. */
static void stream(const worker *w, int fd, bool sends)
{
  struct iovec iov[IOVECS];
  uint8_t *base = sends ? w->job->source : w->job->destination;
  const uint32_t *ids = sends ? w->job->remote_ids : w->job->local_ids;
  uint32_t count;
  for (uint32_t done = 0; done < w->count; done += count) {
    count = fill(w, done, base, ids, iov);
    struct msghdr message = {.msg_iov = iov, .msg_iovlen = count};
    while (message.msg_iovlen > 0) {
      ssize_t bytes = sends ? sendmsg(fd, &message, MSG_NOSIGNAL) : recvmsg(fd, &message, 0);
      bench_must(bytes > 0, sends ? "the sender cannot send" : "the sender is gone");
      advance(&message, (size_t)bytes);
    }
  }
}

/* ---- TLS 1.3 with a key that both have ---- */

static SSL_SESSION *session_of(SSL *ssl)
{
  static const unsigned char suite[] = {0x13, 0x01};
  static const unsigned char secret[32] = {1, 2, 3};
  SSL_SESSION *session = SSL_SESSION_new();
  bench_must(session != NULL && SSL_SESSION_set1_master_key(session, secret, sizeof(secret)) == 1 &&
                 SSL_SESSION_set_cipher(session, SSL_CIPHER_find(ssl, suite)) == 1 &&
                 SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1,
             "no session");
  return session;
}

static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_bytes, SSL_SESSION **session)
{
  (void)digest;
  *id = (const unsigned char *)"key";
  *id_bytes = 3;
  *session = session_of(ssl);
  return 1;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **session)
{
  (void)id;
  (void)id_bytes;
  *session = session_of(ssl);
  return 1;
}

static void tls_begin(void)
{
  tls = SSL_CTX_new(TLS_method());
  bench_must(tls != NULL && SSL_CTX_set_min_proto_version(tls, TLS1_3_VERSION) == 1 &&
                 SSL_CTX_set_ciphersuites(tls, "TLS_AES_128_GCM_SHA256") == 1 && SSL_CTX_set_num_tickets(tls, 0) == 1,
             "no TLS");
  SSL_CTX_set_read_ahead(tls, 1); /* else two system calls a record */
  SSL_CTX_set_psk_use_session_callback(tls, offer_key);
  SSL_CTX_set_psk_find_session_callback(tls, find_key);
}

static SSL *tls_on(int fd, bool is_client)
{
  SSL *ssl = SSL_new(tls);
  bench_must(ssl != NULL && SSL_set_fd(ssl, fd) == 1, "no TLS session");
  bench_must((is_client ? SSL_connect(ssl) : SSL_accept(ssl)) == 1, "no TLS handshake");
  return ssl;
}

static void tls_read(SSL *ssl, uint8_t *to, size_t bytes)
{
  for (size_t got = 0; bytes > 0; bytes -= got, to += got) {
    bench_must(SSL_read_ex(ssl, to, bytes, &got) == 1, "the sender is gone");
  }
}

static void tls_write(SSL *ssl, const uint8_t *from, size_t bytes)
{
  for (size_t some; bytes > 0; bytes -= some, from += some) {
    some = bytes < RECORD_BYTES ? bytes : RECORD_BYTES;
    bench_must(SSL_write_ex(ssl, from, some, &some) == 1, "the sender cannot send");
  }
}

/* ---- the consumer's four ways ---- */

static void copy_readv(const worker *w)
{
  struct iovec local[IOVECS];
  struct iovec remote[IOVECS];
  uint32_t count;
  for (uint32_t done = 0; done < w->count; done += count) {
    count = fill(w, done, w->job->destination, w->job->local_ids, local);
    (void)fill(w, done, (uint8_t *)(uintptr_t)remote_pool, w->job->remote_ids,
               remote);  // NOLINT(performance-no-int-to-ptr)
    bench_must(process_vm_readv(remote_pid, local, count, remote, count, 0) ==
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
  uint8_t go = (uint8_t)(w - workers); /* whose share it is: the order of connections says nothing */
  bench_must(send(w->fd, &go, 1, MSG_NOSIGNAL) == 1, "the sender is gone");
  stream(w, w->fd, false);
}

static void copy_tls(const worker *w)
{
  const peer_shape *shape = &w->job->shape;
  uint8_t go = (uint8_t)(w - workers);
  tls_write(w->ssl, &go, 1);
  for (uint32_t i = w->first; i < w->first + w->count; i++) {
    tls_read(w->ssl, w->job->destination + peer_segment_at(shape, w->job->local_ids, i), shape->block_bytes);
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
  bench_must(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0, "cannot connect to the sender");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

static void read_begin(const peer_job *job, const char *offer)
{
  char *at = NULL;
  remote_pid = (pid_t)strtol(offer, &at, 10);
  remote_pool = strtoull(at, &at, 16);
  uint16_t port = (uint16_t)strtoul(at, NULL, 10);
  copy = has_tls(job) ? copy_tls : has_streams(job) ? copy_stream : job->variant[0] == 'm' ? copy_memcpy : copy_readv;
  share_out(job);
  if (has_tls(job)) {
    tls_begin();
  }
  atomic_store(&stopping, false);
  (void)pthread_barrier_init(&begins, NULL, workers_count);
  (void)pthread_barrier_init(&ends, NULL, workers_count);
  for (uint32_t i = 0; i < workers_count; i++) {
    workers[i].fd = has_streams(job) ? connect_to(port) : -1;
    workers[i].ssl = has_tls(job) ? tls_on(workers[i].fd, true) : NULL;
    bench_must(i == 0 || pthread_create(&workers[i].thread, NULL, run_worker, &workers[i]) == 0,
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
    SSL_free(workers[i].ssl);
    if (workers[i].fd >= 0) {
      (void)close(workers[i].fd);
    }
  }
  SSL_CTX_free(tls);
  tls = NULL;
  (void)pthread_barrier_destroy(&begins);
  (void)pthread_barrier_destroy(&ends);
}

/* ---- the producer: nothing but its memory, or senders: a byte from the consumer asks for one round ---- */

static int accept_one(void)
{
  int fd = accept(listener, NULL, NULL);
  int one = 1;
  bench_must(fd >= 0, "the sender cannot accept");
  (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  return fd;
}

static void *run_tls_sender(void *context)
{
  const peer_job *job = ((const worker *)context)->job;
  int fd = accept_one();
  SSL *ssl = tls_on(fd, false);
  uint8_t go;
  size_t got;
  while (SSL_read_ex(ssl, &go, 1, &got) == 1) {
    bench_must(go < workers_count, "a share that is none");
    const worker *w = &workers[go];
    for (uint32_t i = w->first; i < w->first + w->count; i++) {
      tls_write(ssl, job->source + peer_segment_at(&job->shape, job->remote_ids, i), job->shape.block_bytes);
    }
  }
  SSL_free(ssl);
  (void)close(fd);
  return NULL;
}

static void *run_sender(void *context)
{
  (void)context;
  uint8_t go;
  int fd = accept_one();
  while (recv(fd, &go, 1, 0) == 1) {
    bench_must(go < workers_count, "a share that is none");
    stream(&workers[go], fd, true);
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
  bench_must(listener >= 0 && bind(listener, (struct sockaddr *)&address, sizeof(address)) == 0 &&
                 listen(listener, THREADS_MAX) == 0 && getsockname(listener, (struct sockaddr *)&address, &bytes) == 0,
             "the sender cannot listen");
  if (has_tls(job)) {
    tls_begin();
  }
  void *(*run)(void *) = has_tls(job) ? run_tls_sender : run_sender;
  for (uint32_t i = 0; has_streams(job) && i < workers_count; i++) {
    bench_must(pthread_create(&workers[i].thread, NULL, run, &workers[i]) == 0, "cannot start a thread");
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
  SSL_CTX_free(tls);
}

static void version(const peer_job *job, FILE *out)
{
  struct utsname name;
  (void)job;
  bench_must(uname(&name) == 0, "uname");
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
