/* kvf_check_node(): against a node, and against those who are none or do not trust us. kvf_check_memory() and
 * kvf_check_device(): on the fake driver. */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "core/session.h"
#include "fake_cuda.h"
#include "kvferry/check.h"
#include "memory/cuda/driver.h"
#include "pair.h"
#include "test.h"
#include "transport/socket.h"
#include "wire/frame.h"

#define KEY "a key of sixteen"
#define OTHER_KEY "a key of 16, too"

static char key_path[64];
static char other_key_path[64];

static kvf_check_result found;
static char message[KVF_MESSAGE_BYTES_MAX];

static kvf_status check(const char *address, const char *key_file, const char *tls)
{
  kvf_config config;
  kvf_config_init(&config);
  assert_int_equal(kvf_config_set(&config, "key_file", key_file, message), KVF_OK);
  assert_int_equal(kvf_config_set(&config, "tls", tls, message), KVF_OK);
  assert_int_equal(kvf_config_set(&config, "handshake_timeout_ms", "2000", message), KVF_OK);
  return kvf_check_node(&config, address, &found, message);
}

static const char *name(const struct sockaddr_storage *storage)
{
  static char text[KVF_ADDRESS_TEXT_BYTES];
  kvf_address address;
  assert_true(kvf_address_from_sockaddr(storage, &address));
  kvf_address_format(&address, text);
  return text;
}

static const char *name_of(int fd)
{
  struct sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  assert_int_equal(getsockname(fd, (struct sockaddr *)&storage, &length), 0);
  return name(&storage);
}

/* The node's control address. */
static const char *where(const pair_node *n)
{
  struct sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  int fd = stranger_dial(pair_record(n->node).address);
  assert_int_equal(getpeername(fd, (struct sockaddr *)&storage, &length), 0);
  (void)close(fd);
  return name(&storage);
}

static void open_node(const char *tls)
{
  const pair_option options[] = {{"key_file", key_path},
                                 {"tls", tls},
                                 {"transports", "local,tcp"},
                                 {"handshake_timeout_ms", "2000"},
                                 {NULL, NULL}};
  pair_open_node(&p.producer, options);
}

PAIR_TEST(a_node_is_described_and_measured)
{
  static const char *const tls[] = {"never", "always"};
  for (size_t i = 0; i < 2; i++) {
    open_node(tls[i]);
    assert_int_equal(check(where(&p.producer), key_path, tls[i]), KVF_OK);
    assert_string_equal(found.address, where(&p.producer));
    assert_string_equal(found.version, kvf_version());
    assert_string_equal(found.transports, "local,tcp");
    assert_int_equal(found.protocol_min, KVF_PROTOCOL_VERSION_MIN);
    assert_int_equal(found.protocol_max, KVF_PROTOCOL_VERSION);
    assert_int_equal(found.own_protocol, KVF_PROTOCOL_VERSION);
    assert_int_equal(found.encrypted, i);
    assert_true(found.connect_ns > 0 && found.handshake_ns > 0 && found.round_trip_ns > 0);
    assert_true(found.bytes > 0 && found.bytes_per_s > 0);
    assert_true(pair_wait_stat(&p.producer, "sessions_accepted", "", 1, 10000));
    assert_int_equal(pair_stat(&p.producer, "sessions_refused", "handshake_refused"), 0);
    pair_close_node(&p.producer);
  }
}

/* P6: however often it is asked. What it does not give is not waited for. */
PAIR_TEST(a_node_makes_up_so_much_a_second)
{
  open_node("never");
  uint64_t bytes = 0;
  uint64_t began_ms = now_ms();
  for (int i = 0; i < 5; i++) {
    assert_int_equal(check(where(&p.producer), key_path, "never"), KVF_OK);
    assert_true(found.round_trip_ns > 0);
    bytes += found.bytes;
  }
  assert_true(bytes <= KVF_CHECK_BYTES_PER_S / 1000 * (1001 + now_ms() - began_ms));
}

PAIR_TEST(another_key_or_another_tls_is_refused)
{
  static const struct {
    const char *node_tls, *key, *tls, *why;
  } rows[] = {{"never", other_key_path, "never", "the two nodes do not have the same key (option key_file)"},
              {"always", other_key_path, "always", "TLS: it refused our key (option key_file)"},
              {"never", key_path, "always", "TLS: it does not speak TLS (option tls)"},
              {"always", key_path, "never", "it speaks TLS, which this node does not (option tls)"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    open_node(rows[i].node_tls);
    assert_int_equal(check(where(&p.producer), rows[i].key, rows[i].tls), KVF_HANDSHAKE_REFUSED);
    assert_string_equal(message, rows[i].why);
    assert_true(found.connect_ns > 0 && found.handshake_ns == 0);
    pair_close_node(&p.producer);
  }
}

/* ---- who is no node ---- */

/* A socket on a port that the system has chosen; nobody is at it, unless it listens. */
static int open_port(bool listens)
{
  struct sockaddr_storage storage;
  const kvf_address any = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}};
  socklen_t length = kvf_address_to_sockaddr(&any, &storage);
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_int_equal(bind(fd, (const struct sockaddr *)&storage, length), 0);
  assert_int_equal(listens ? listen(fd, 1) : 0, 0);
  return fd;
}

TEST(nobody_listens)
{
  int fd = open_port(false);
  assert_int_equal(check(name_of(fd), "", "never"), KVF_PEER_DOWN);
  assert_string_equal(message, "Connection refused");
  assert_int_equal(found.connect_ns, 0);
  (void)close(fd);
}

TEST(a_silent_listener_costs_a_handshake_timeout)
{
  int fd = open_port(true);
  uint64_t began_ms = now_ms();
  assert_int_equal(check(name_of(fd), "", "never"), KVF_HANDSHAKE_TIMEOUT);
  assert_in_range(now_ms() - began_ms, 1999, 2000 + PAIR_LATE_MS);
  assert_true(found.connect_ns > 0);
  (void)close(fd);
}

/* Says `data` to the first who connects. */
typedef struct talker {
  int listener;
  const void *data;
  size_t bytes;
} talker;

static void *talk(void *context)
{
  const talker *t = context;
  int fd = accept(t->listener, NULL, NULL);
  char drop[256];
  (void)send(fd, t->data, t->bytes, MSG_NOSIGNAL);
  (void)shutdown(fd, SHUT_WR);
  while (recv(fd, drop, sizeof(drop), 0) > 0) {
  }
  (void)close(fd);
  return NULL;
}

static kvf_status check_talker(const void *data, size_t bytes)
{
  talker t = {open_port(true), data, bytes};
  pthread_t thread;
  assert_int_equal(pthread_create(&thread, NULL, talk, &t), 0);
  kvf_status status = check(name_of(t.listener), "", "never");
  (void)pthread_join(thread, NULL);
  (void)close(t.listener);
  return status;
}

static kvf_status check_frame(kvf_frame_type type, const void *body, size_t bytes)
{
  uint8_t frame[KVF_FRAME_HEADER_BYTES + 1024];
  kvf_frame_header_encode(type, (uint32_t)bytes, frame);
  memcpy(frame + KVF_FRAME_HEADER_BYTES, body, bytes);
  return check_talker(frame, KVF_FRAME_HEADER_BYTES + bytes);
}

TEST(something_else_listens)
{
  const kvf_challenge challenge = {.version = KVF_PROTOCOL_VERSION};
  const kvf_refused refused = {.status = KVF_INCOMPATIBLE, .message = "another version"};
  uint8_t body[1024];
  size_t bytes = 0;
  assert_int_equal(check_talker("HTTP/1.1 400 Bad Request\r\n", 26), KVF_PROTOCOL);
  assert_int_equal(check_talker("", 0), KVF_PEER_DOWN);
  static const kvf_frame_type types[] = {KVF_FRAME_WELCOME, KVF_FRAME_REFUSED, KVF_FRAME_CHALLENGE};
  for (size_t i = 0; i < 3; i++) {
    assert_int_equal(check_frame(types[i], body, 0), KVF_PROTOCOL);
  }
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(check_frame(KVF_FRAME_REFUSED, body, bytes), KVF_INCOMPATIBLE);
  assert_string_equal(message, refused.message);
  assert_int_equal(kvf_challenge_encode(&challenge, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(check_frame(KVF_FRAME_CHALLENGE, body, bytes), KVF_HANDSHAKE_REFUSED); /* it cannot have our key */
}

TEST(what_cannot_be_checked)
{
  assert_int_equal(check("127.0.0.1", "", "never"), KVF_INVALID);
  assert_int_equal(check("127.0.0.1:x", "", "never"), KVF_INVALID);
  assert_int_equal(check("127.0.0.1:1", "no such file", "never"), KVF_INVALID);
  assert_int_equal(check("127.0.0.1:1", "", "always"), KVF_INVALID);
}

/* ---- memory ---- */

TEST(a_kind_without_needs_has_no_devices)
{
  assert_int_equal(kvf_check_memory(KVF_MEMORY_HOST, "", message), KVF_OK);
  assert_string_equal(message, "host memory needs nothing");
  assert_int_equal(kvf_check_device(KVF_MEMORY_HOST, 0, message), KVF_NOT_FOUND);
  assert_int_equal(kvf_check_memory((kvf_memory_kind)KVF_MEMORY_KINDS_MAX, "", message), KVF_INVALID);
  assert_int_equal(kvf_check_device((kvf_memory_kind)KVF_MEMORY_KINDS_MAX, 0, message), KVF_INVALID);
}

/* One library serves the process: the one that is not there comes first. */
TEST(the_driver_of_gpus_is_looked_for)
{
  assert_int_equal(kvf_check_memory(KVF_MEMORY_CUDA, "/nowhere/libcuda.so.1", message), KVF_TRANSFER_SETUP);
  assert_non_null(strstr(message, "/nowhere/libcuda.so.1: cannot open shared object file"));
  assert_int_equal(kvf_check_memory(KVF_MEMORY_CUDA, FAKE_CUDA_LIBRARY, message), KVF_OK);
  assert_non_null(strstr(message, "CUDA 12.8, 2 devices: 0 Fake GPU 0 GPU-fa4ecda0-"));
}

TEST(each_gpu_is_described)
{
  assert_int_equal(kvf_check_memory(KVF_MEMORY_CUDA, FAKE_CUDA_LIBRARY, message), KVF_OK);
  assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 0, message), KVF_OK);
  assert_string_equal(message,
                      "0 Fake GPU 0: other processes map its memory by IPC handle (cudaMalloc): yes, by file "
                      "descriptor (cuMemMap): yes; it reads 1 of 1 other devices; GPUDirect RDMA: no; kernels: yes");
  assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 1, message), KVF_OK);
  assert_non_null(strstr(message, "1 Fake GPU 1: "));
  assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 2, message), KVF_NOT_FOUND);
  assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, UINT32_MAX, message), KVF_NOT_FOUND);
  assert_int_equal(fake_cuda_count().contexts, 0); /* they take memory of the device */
}

/* By whichever call: it is named, and nothing is left of what was tried. */
TEST(a_gpu_that_takes_no_kernels)
{
  static const struct {
    const char *call;
    unsigned after;
  } rows[] = {{"cuDevicePrimaryCtxRetain", 0},
              {"cuModuleLoadData", 0},
              {"cuModuleGetFunction", 1},
              {"cuStreamCreateWithPriority", 0},
              {"cuLaunchKernel", 0},
              {"cuLaunchKernel", 1},
              {"cuEventCreate", 0},
              {"cuEventRecord", 0},
              {"cuEventSynchronize", 0}};
  assert_int_equal(kvf_check_memory(KVF_MEMORY_CUDA, FAKE_CUDA_LIBRARY, message), KVF_OK);
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    fake_cuda_fail(rows[i].call, KVF_CUDA_ERROR_JIT_COMPILER_NOT_FOUND, rows[i].after, 1);
    assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 0, message), KVF_TRANSFER_FAILED);
    assert_non_null(strstr(message, "GPUDirect RDMA: no; kernels: CUDA_ERROR_JIT_COMPILER_NOT_FOUND"));
    const fake_cuda_open left = fake_cuda_count();
    assert_int_equal(left.contexts + left.modules + left.streams + left.events + left.works, 0);
    assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 0, message), KVF_OK);
  }
}

/* As an engine has it: its own context stays, and nothing of ours is left there. */
TEST(a_gpu_that_this_process_uses_is_described)
{
  const kvf_cuda *loaded;
  kvf_cu_context context;
  assert_int_equal(kvf_cuda_load(FAKE_CUDA_LIBRARY, &loaded, message), KVF_OK);
  assert_int_equal(kvf_cuda_context_retain(loaded, &loaded->devices[0], &context, message), KVF_OK);
  assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 0, message), KVF_OK);
  const fake_cuda_open left = fake_cuda_count();
  assert_int_equal(left.contexts, 1);
  assert_int_equal(left.modules + left.streams + left.events + left.works, 0);
  kvf_cuda_context_release(loaded, &loaded->devices[0]);
}

TEST(a_gpu_that_can_do_less)
{
  assert_int_equal(kvf_check_memory(KVF_MEMORY_CUDA, FAKE_CUDA_LIBRARY, message), KVF_OK);
  fake_cuda_fail("cuDeviceGetAttribute", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 2);
  fake_cuda_fail("cuDeviceCanAccessPeer", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 1);
  assert_int_equal(kvf_check_device(KVF_MEMORY_CUDA, 0, message), KVF_TRANSFER_SETUP);
  assert_non_null(
      strstr(message, "(cudaMalloc): no, by file descriptor (cuMemMap): no; it reads 0 of 1 other devices"));
}

int main(void)
{
  stranger_key_file(KEY, key_path);
  stranger_key_file(OTHER_KEY, other_key_path);
  int failed = test_run(NULL);
  (void)unlink(key_path);
  (void)unlink(other_key_path);
  return failed;
}
