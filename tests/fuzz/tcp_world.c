/* The tcp transport, one event after the other. */
#include "tcp_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "transport/fence_memory.h"

#define SOCKET_BUFFER_BYTES 4096
#define READ_BYTES 65536

tcp_world tcp;
static bool is_running;
static void *(*thread_main)(void *argument);
static void *thread_argument;
static int accepting = -1; /* what kvf_socket_accept() gives next */
static int listener = -1;

int __real_epoll_wait(int fd, struct epoll_event *events, int capacity, int timeout);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int capacity, int timeout);
int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument);
int __real_pthread_join(pthread_t thread, void **result);
int __wrap_pthread_join(pthread_t thread, void **result);
int __real_clock_gettime(clockid_t clock, struct timespec *out);
int __wrap_clock_gettime(clockid_t clock, struct timespec *out);
kvf_status __wrap_kvf_socket_listen_first(const kvf_address *address, uint16_t last, uint32_t handshake_timeout_ms,
                                          int *out_fd, kvf_address *bound, char *message);
int __wrap_kvf_socket_accept(int from, kvf_address *peer);
int __wrap_kvf_socket_connect(const kvf_address *peer, uint32_t handshake_timeout_ms, uint32_t buffer_bytes);

/* ---- what is replaced; libFuzzer's own threads and clocks are left alone ---- */

int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*main)(void *), void *argument)
{
  if (!is_running) {
    return __real_pthread_create(thread, attributes, main, argument);
  }
  thread_main = main;
  thread_argument = argument;
  *thread = pthread_self();
  return 0;
}

int __wrap_pthread_join(pthread_t thread, void **result)
{
  return is_running ? 0 : __real_pthread_join(thread, result);
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *out)
{
  if (!is_running || clock != CLOCK_MONOTONIC) {
    return __real_clock_gettime(clock, out);
  }
  out->tv_sec = (time_t)(tcp.now_ns / KVF_NS_PER_S);
  out->tv_nsec = (long)(tcp.now_ns % KVF_NS_PER_S);
  return 0;
}

kvf_status __wrap_kvf_socket_listen_first(const kvf_address *address, uint16_t last, uint32_t handshake_timeout_ms,
                                          int *out_fd, kvf_address *bound, char *message)
{
  (void)last;
  (void)handshake_timeout_ms;
  (void)message;
  *bound = *address;
  bound->port = 4000;
  listener = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  *out_fd = listener;
  return KVF_OK;
}

int __wrap_kvf_socket_accept(int from, kvf_address *peer)
{
  uint64_t count;
  int fd = accepting;
  *peer = (kvf_address){.ip = {[15] = 1}, .port = 9};
  accepting = -1;
  ssize_t got = read(from, &count, sizeof(count));
  errno = EAGAIN;
  return got < 0 ? -1 : fd;
}

/* ---- ends ---- */

static tcp_end *free_end(void)
{
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    if (tcp.ends[i].fd < 0) {
      return &tcp.ends[i];
    }
  }
  return NULL;
}

static tcp_end *open_end(void)
{
  int fds[2];
  int bytes = SOCKET_BUFFER_BYTES;
  tcp_end *end = free_end();
  if (end != NULL) {
    fuzz_check(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
    fuzz_check(setsockopt(fds[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof(bytes)) == 0);
    for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
      if (tcp.ends[i].product_fd == fds[1]) {
        tcp.ends[i].product_fd = -1; /* of a connection that the transport has closed */
      }
    }
    memset(end, 0, sizeof(*end));
    end->fd = fds[0];
    end->product_fd = fds[1];
  }
  return end;
}

int __wrap_kvf_socket_connect(const kvf_address *peer, uint32_t handshake_timeout_ms, uint32_t buffer_bytes)
{
  (void)peer;
  (void)handshake_timeout_ms;
  (void)buffer_bytes;
  tcp_end *end = tcp.refuse_connects ? NULL : open_end();
  if (end == NULL) {
    errno = ECONNREFUSED;
    return -1;
  }
  tcp.on_connect(end);
  return end->product_fd;
}

tcp_end *tcp_dial(void)
{
  uint64_t one = 1;
  tcp_end *end = accepting < 0 ? open_end() : NULL;
  if (end != NULL) {
    accepting = end->product_fd;
    fuzz_check(write(listener, &one, sizeof(one)) == (ssize_t)sizeof(one));
  }
  return end;
}

tcp_end *tcp_end_of(int product_fd)
{
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    if (tcp.ends[i].fd >= 0 && tcp.ends[i].product_fd == product_fd) {
      return &tcp.ends[i];
    }
  }
  return NULL;
}

size_t tcp_send_bytes(tcp_end *end, const void *data, size_t bytes)
{
  ssize_t sent = bytes == 0 ? 0 : send(end->fd, data, bytes, MSG_NOSIGNAL);
  return sent < 0 ? 0 : (size_t)sent;
}

size_t tcp_send_frame(tcp_end *end, kvf_frame_type type, const void *body, size_t bytes)
{
  uint8_t *frame = malloc(KVF_FRAME_HEADER_BYTES + bytes);
  fuzz_check(frame != NULL);
  kvf_frame_header_encode(type, (uint32_t)bytes, frame);
  if (bytes > 0) {
    memcpy(frame + KVF_FRAME_HEADER_BYTES, body, bytes);
  }
  size_t sent = tcp_send_bytes(end, frame, KVF_FRAME_HEADER_BYTES + bytes);
  free(frame);
  return sent;
}

void tcp_hang_up(tcp_end *end)
{
  if (end->fd >= 0) {
    (void)close(end->fd);
    end->fd = -1;
  }
}

static void take(tcp_end *end, const uint8_t *data, size_t bytes)
{
  for (size_t taken; bytes > 0; data += taken, bytes -= taken) {
    kvf_frame_header header;
    taken = tcp.on_payload == NULL ? 0 : tcp.on_payload(end, data, bytes);
    if (taken > 0) {
      continue;
    }
    taken = 1;
    end->received[end->received_bytes++] = *data;
    if (end->received_bytes < KVF_FRAME_HEADER_BYTES) {
      continue;
    }
    fuzz_check(kvf_frame_header_decode(end->received, TCP_FRAME_BYTES_MAX - KVF_FRAME_HEADER_BYTES, &header) == KVF_OK);
    if (end->received_bytes == KVF_FRAME_HEADER_BYTES + header.body_bytes) {
      end->received_bytes = 0;
      tcp.on_frame(end, header.type, end->received + KVF_FRAME_HEADER_BYTES, header.body_bytes);
    }
  }
}

/* Reads what the transport has sent. Returns whether there was anything. */
static bool drain(tcp_end *end)
{
  static uint8_t data[READ_BYTES];
  bool any = false;
  while (end->fd >= 0 && !end->is_deaf && !end->is_closed) {
    ssize_t got = recv(end->fd, data, sizeof(data), 0);
    if (got < 0 && errno == EAGAIN) {
      return any;
    }
    any = true;
    if (got <= 0) {
      end->is_closed = true;
    } else {
      take(end, data, (size_t)got);
    }
  }
  return any;
}

int __wrap_epoll_wait(int fd, struct epoll_event *events, int capacity, int timeout)
{
  static bool idle;
  if (!is_running) {
    return __real_epoll_wait(fd, events, capacity, timeout);
  }
  bool any = false;
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    any = drain(&tcp.ends[i]) || any;
  }
  if (!tcp.tcp->driven.commands.closing) {
    tcp.tcp->driven.commands.closing = !tcp.turn(idle && !any);
  }
  int count = __real_epoll_wait(fd, events, capacity, 0);
  idle = count == 0;
  return count;
}

/* ---- the transport ---- */

uint8_t tcp_pattern(uint32_t region, size_t offset)
{
  return (uint8_t)(1 + ((size_t)region * 101 + offset * 7 + offset / 256) % 251);
}

static void init_memory(void)
{
  for (uint32_t i = 0; i < TCP_REGIONS; i++) {
    tcp.regions[i] = (kvf_region){.base = tcp.memory[i],
                                  .stride_bytes = TCP_STRIDE_BYTES,
                                  .block_bytes = TCP_BLOCK_BYTES,
                                  .blocks = TCP_BLOCKS,
                                  .heads = TCP_HEADS,
                                  .heads_total = TCP_HEADS,
                                  .group = i / 2};
    tcp.layouts[i] = kvf_region_layout_of(&tcp.regions[i]);
    for (size_t at = 0; at < sizeof(tcp.memory[i]); at++) {
      tcp.memory[i][at] = tcp_pattern(i, at);
    }
  }
}

static bool session_key(void *context, uint64_t session_id, kvf_key *out)
{
  (void)context;
  *out = tcp.session_key;
  return session_id == TCP_SESSION_ID;
}

static void take_connection(void *context, kvf_status why)
{
  (void)context;
  fuzz_check(kvf_status_name(why)[0] != '\0');
}

static void take_log(void *context, kvf_log_level level, const char *line)
{
  (void)context;
  (void)level;
  fuzz_check(strlen(line) < KVF_LOG_LINE_BYTES_MAX);
}

static int lowest_fd(void)
{
  int fd = eventfd(0, EFD_CLOEXEC);
  (void)close(fd);
  return fd;
}

static void run(bool listens, const kvf_transport_host *given)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_transport_config config = {.connections_max = 4,
                                 .handshake_timeout_ms = 100,
                                 .copy_threads = 1,
                                 .incarnation = {{'p'}},
                                 .listen = "127.0.0.1"};
  kvf_transport_host host = *given;
  host.session_key = session_key;
  host.connection = take_connection;
  host.log = take_log;
  config.listen[0] = listens ? '1' : '\0';
  tcp.session_key.bytes = 32;
  memset(tcp.session_key.data, 'k', tcp.session_key.bytes);
  init_memory();
  fuzz_check(kvf_fence_table_open(TCP_SLOTS, &config.incarnation, &tcp.table, NULL) == KVF_OK);
  is_running = true;
  fuzz_check(kvf_transport_tcp.open(&config, &host, &tcp.transport, message) == KVF_OK);
  tcp.tcp = kvf_tcp_of(tcp.transport);
  kvf_transport_memory memory = {.regions = tcp.regions,
                                 .regions_count = TCP_REGIONS,
                                 .table = tcp.table,
                                 .table_slots = TCP_SLOTS,
                                 .table_fd = -1};
  fuzz_check(kvf_transport_tcp.set_memory(tcp.transport, &memory) == KVF_OK);
  (void)thread_main(thread_argument);
  kvf_transport_tcp.close(tcp.transport);
  is_running = false;
  kvf_fence_table_close(tcp.table, TCP_SLOTS);
}

/* What OpenSSL allocates once. */
static void warm_up(void)
{
  uint8_t digest[KVF_HASH_BYTES];
  const kvf_span span = {"", 0};
  const kvf_key key = {.data = "k", .bytes = 1};
  fuzz_check(kvf_hmac(&key, &span, 1, digest) == KVF_OK && kvf_sha256(&span, 1, digest) == KVF_OK);
}

void tcp_world_run(bool listens, const kvf_transport_host *host)
{
  static bool is_warm;
  if (!is_warm) {
    warm_up();
    is_warm = true;
  }
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    tcp.ends[i].fd = -1;
    tcp.ends[i].product_fd = -1;
  }
  tcp.now_ns = KVF_NS_PER_S;
  accepting = -1;
  int first_fd = lowest_fd();
  size_t heap = fuzz_heap_bytes();
  run(listens, host);
  if (accepting >= 0) {
    (void)close(accepting);
  }
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    tcp_hang_up(&tcp.ends[i]);
  }
  fuzz_check(fuzz_heap_bytes() == heap);
  fuzz_check(lowest_fd() == first_fd);
}
