/* The injector is linked in, and so stands before the calls of this program as it does with LD_PRELOAD. */
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "draw.h"
#include "test.h"

#define BLOCK_BYTES 4096u
#define DELAY_MS 30u
#define DRAWS 2000u

static chaos_control *control;
static char path[] = "/tmp/kvferry-chaos-test-XXXXXX";
static void *ucp;

static uint8_t source[BLOCK_BYTES];
static uint8_t target[BLOCK_BYTES];
static int pair[2];

static void rule(chaos_call call, chaos_kind kind, uint32_t per_million, uint32_t value)
{
  atomic_store(&control->rules[call][kind], (uint64_t)value << 32 | per_million);
}

static void always(chaos_call call, chaos_kind kind, uint32_t value)
{
  rule(call, kind, CHAOS_PER_MILLION, value);
}

static uint64_t done(chaos_call call, chaos_kind kind)
{
  return atomic_load(&control->injected[call][kind]);
}

static int begin(void **state)
{
  (void)state;
  memset((void *)control->rules, 0, sizeof(control->rules));
  memset((void *)control->seen, 0, sizeof(control->seen));
  memset((void *)control->injected, 0, sizeof(control->injected));
  atomic_store(&control->seed, 7);
  atomic_store(&control->on, 1);
  memset(source, 0x5a, sizeof(source));
  memset(target, 0, sizeof(target));
  (void)prctl(PR_SET_NAME, "kvf-tcp", 0, 0, 0);
  return socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair);
}

static int end(void **state)
{
  (void)state;
  (void)close(pair[0]);
  (void)close(pair[1]);
  return 0;
}

/* ---- each call, done once ---- */

static ssize_t read_memory(void)
{
  const struct iovec local = {target, sizeof(target)};
  const struct iovec remote = {source, sizeof(source)};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0);
}

static ssize_t send_message(void)
{
  struct iovec iov[] = {{source, sizeof(source) / 2}, {source + sizeof(source) / 2, sizeof(source) / 2}};
  const struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
  return sendmsg(pair[0], &message, 0);
}

static ssize_t receive_message(void)
{
  struct iovec iov[] = {{target, sizeof(target) / 2}, {target + sizeof(target) / 2, sizeof(target) / 2}};
  struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
  if (write(pair[0], source, sizeof(source)) != (ssize_t)sizeof(source)) {
    return 0;
  }
  ssize_t got = recvmsg(pair[1], &message, 0);
  assert_ptr_equal(message.msg_iov, iov);
  assert_int_equal(message.msg_iovlen, 2);
  return got;
}

static ssize_t send_bytes(void)
{
  return send(pair[0], source, sizeof(source), 0);
}

static ssize_t receive_bytes(void)
{
  if (write(pair[0], source, sizeof(source)) != (ssize_t)sizeof(source)) {
    return 0;
  }
  return recv(pair[1], target, sizeof(target), 0);
}

/* To a listener of its own. Like the others: what was asked for when it goes well, -1 when not. */
static ssize_t connect_once(void)
{
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t bytes = sizeof(address);
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  int dialler = socket(AF_INET, SOCK_STREAM, 0);
  int failed = bind(listener, (struct sockaddr *)&address, bytes) != 0 || listen(listener, 1) != 0 ||
               getsockname(listener, (struct sockaddr *)&address, &bytes) != 0;
  ssize_t result = failed || connect(dialler, (struct sockaddr *)&address, bytes) != 0 ? -1 : (ssize_t)BLOCK_BYTES;
  int error = errno;
  (void)close(listener);
  (void)close(dialler);
  errno = error;
  return result;
}

static const struct {
  chaos_call call;
  ssize_t (*once)(void);
  bool receives; /* into target */
  bool can_be_short;
} calls[] = {
    {CHAOS_PROCESS_VM_READV, read_memory, true, true}, {CHAOS_SENDMSG, send_message, false, true},
    {CHAOS_RECVMSG, receive_message, true, true},      {CHAOS_SEND, send_bytes, false, true},
    {CHAOS_RECV, receive_bytes, false, true},          {CHAOS_CONNECT, connect_once, false, false},
};
#define CALLS (sizeof(calls) / sizeof(calls[0]))

static uint64_t now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static void anew(void)
{
  (void)end(NULL);
  assert_int_equal(begin(NULL), 0);
}

TEST_WITH(without_a_rule_all_goes_well, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    assert_int_equal(calls[i].once(), BLOCK_BYTES);
    assert_int_equal(atomic_load(&control->seen[calls[i].call]), 1);
    if (calls[i].receives) {
      assert_memory_equal(source, target, BLOCK_BYTES);
    }
  }
}

TEST_WITH(each_fails_with_the_rules_errno, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    always(calls[i].call, CHAOS_FAIL, EHOSTUNREACH);
    errno = 0;
    assert_int_equal(calls[i].once(), -1);
    assert_int_equal(errno, EHOSTUNREACH);
    assert_int_equal(done(calls[i].call, CHAOS_FAIL), 1);
  }
}

TEST_WITH(each_is_delayed_and_then_goes_through, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    always(calls[i].call, CHAOS_DELAY, DELAY_MS);
    uint64_t began_ms = now_ms();
    assert_int_equal(calls[i].once(), BLOCK_BYTES);
    assert_true(now_ms() - began_ms >= DELAY_MS - 1);
    assert_int_equal(done(calls[i].call, CHAOS_DELAY), 1);
  }
}

TEST_WITH(each_is_shortened_to_a_beginning, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    always(calls[i].call, CHAOS_SHORTEN, 0);
    ssize_t got = calls[i].once();
    if (calls[i].can_be_short) {
      assert_in_range(got, 1, BLOCK_BYTES - 1);
    } else {
      assert_int_equal(got, BLOCK_BYTES);
    }
    assert_int_equal(done(calls[i].call, CHAOS_SHORTEN), calls[i].can_be_short);
    if (calls[i].receives) {
      assert_memory_equal(source, target, (size_t)got);
      assert_int_equal(target[BLOCK_BYTES - 1], 0); /* nothing came behind the short count */
    }
  }
}

static unsigned bits_changed(void)
{
  unsigned bits = 0;
  for (size_t i = 0; i < BLOCK_BYTES; i++) {
    bits += (unsigned)__builtin_popcount((unsigned)(source[i] ^ target[i]));
  }
  return bits;
}

TEST_WITH(payload_has_one_bit_flipped, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    always(calls[i].call, CHAOS_FLIP, 0);
    assert_int_equal(calls[i].once(), BLOCK_BYTES);
    assert_int_equal(done(calls[i].call, CHAOS_FLIP), calls[i].receives);
    if (calls[i].receives) {
      assert_int_equal(bits_changed(), 1);
    }
  }
}

TEST_WITH(small_pieces_are_never_flipped, begin, end)
{
  const struct iovec local = {target, 64};
  const struct iovec remote = {source, 64};
  always(CHAOS_PROCESS_VM_READV, CHAOS_FLIP, 0);
  assert_int_equal(process_vm_readv(getpid(), &local, 1, &remote, 1, 0), 64);
  assert_memory_equal(source, target, 64);
  assert_int_equal(done(CHAOS_PROCESS_VM_READV, CHAOS_FLIP), 0);
}

TEST_WITH(flips_only_in_the_first_piece_of_a_message, begin, end)
{
  always(CHAOS_RECVMSG, CHAOS_FLIP, 0);
  for (int i = 0; i < 50; i++) {
    assert_int_equal(receive_message(), BLOCK_BYTES);
    assert_memory_equal(source + BLOCK_BYTES / 2, target + BLOCK_BYTES / 2, BLOCK_BYTES / 2);
  }
}

TEST_WITH(flips_reach_every_piece_of_memory, begin, end)
{
  const struct iovec iov[] = {{target, BLOCK_BYTES / 2}, {target + BLOCK_BYTES / 2, BLOCK_BYTES / 2}};
  const struct iovec remote = {source, BLOCK_BYTES};
  unsigned changed[2] = {0};
  always(CHAOS_PROCESS_VM_READV, CHAOS_FLIP, 0);
  for (int i = 0; i < 50; i++) {
    assert_int_equal(process_vm_readv(getpid(), iov, 2, &remote, 1, 0), BLOCK_BYTES);
    assert_int_equal(bits_changed(), 1);
    changed[memcmp(source, target, BLOCK_BYTES / 2) == 0]++;
  }
  assert_true(changed[0] > 5 && changed[1] > 5);
}

TEST_WITH(single_bytes_cannot_be_shortened, begin, end)
{
  always(CHAOS_SEND, CHAOS_SHORTEN, 0);
  assert_int_equal(send(pair[0], "x", 1, 0), 1);
  assert_int_equal(done(CHAOS_SEND, CHAOS_SHORTEN), 0);
}

TEST_WITH(off_has_no_effect, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    always(calls[i].call, CHAOS_FAIL, EIO);
    atomic_store(&control->on, 0);
    assert_int_equal(calls[i].once(), BLOCK_BYTES);
    assert_int_equal(atomic_load(&control->seen[calls[i].call]), 0);
  }
}

TEST_WITH(off_costs_nanoseconds, begin, end)
{
  enum { ROUNDS = 1000000 };
  struct timespec began;
  struct timespec ended;
  unsigned hits = 0;
  atomic_store(&control->on, 0);
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &began);
  for (int i = 0; i < ROUNDS; i++) {
    hits += chaos_is_on();
  }
  (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ended);
  int64_t ns = (ended.tv_sec - began.tv_sec) * INT64_C(1000000000) + ended.tv_nsec - began.tv_nsec;
  assert_int_equal(hits, 0);
  assert_true(ns / ROUNDS < 100); /* with sanitizers, too; a system call would be more */
}

TEST_WITH(other_threads_sockets_are_left_alone, begin, end)
{
  for (size_t i = 0; i < CALLS; i++) {
    anew();
    (void)prctl(PR_SET_NAME, "uvicorn", 0, 0, 0);
    always(calls[i].call, CHAOS_FAIL, EIO);
    assert_int_equal(calls[i].once(), calls[i].call == CHAOS_PROCESS_VM_READV ? -1 : (ssize_t)BLOCK_BYTES);
  }
}

/* ---- which calls it hits ---- */

/* A new thread's pattern of failures; threads are told apart by their order, which the test sets back. */
static void *fill_pattern(void *context)
{
  uint8_t *pattern = context;
  (void)prctl(PR_SET_NAME, "kvf-test", 0, 0, 0);
  for (size_t i = 0; i < DRAWS; i++) {
    pattern[i] = chaos_draw(CHAOS_SEND).kind == CHAOS_FAIL;
  }
  return NULL;
}

/* In a child, so that the thread is always the same one in the order of threads. */
static void pattern_of(uint64_t seed, uint8_t pattern[DRAWS])
{
  uint8_t *shared = mmap(NULL, DRAWS, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(shared, MAP_FAILED);
  atomic_store(&control->seed, seed);
  pid_t child = fork();
  if (child == 0) {
    pthread_t thread;
    bool started = pthread_create(&thread, NULL, fill_pattern, shared) == 0;
    _exit(started && pthread_join(thread, NULL) == 0 ? 0 : 1);
  }
  int status = -1;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_int_equal(status, 0);
  memcpy(pattern, shared, DRAWS);
  (void)munmap(shared, DRAWS);
}

TEST_WITH(seed_decides_which_calls, begin, end)
{
  uint8_t first[DRAWS];
  uint8_t again[DRAWS];
  uint8_t other[DRAWS];
  rule(CHAOS_SEND, CHAOS_FAIL, 100000, EIO);
  pattern_of(1, first);
  pattern_of(1, again);
  pattern_of(2, other);
  assert_memory_equal(first, again, DRAWS);
  assert_memory_not_equal(first, other, DRAWS);
}

TEST_WITH(rates_add_up, begin, end)
{
  unsigned hits[CHAOS_KINDS + 1] = {0};
  rule(CHAOS_RECV, CHAOS_FAIL, 100000, EIO);
  rule(CHAOS_RECV, CHAOS_DELAY, 300000, 1);
  for (size_t i = 0; i < 10000; i++) {
    hits[chaos_draw(CHAOS_RECV).kind]++;
  }
  assert_in_range(hits[CHAOS_FAIL], 850, 1150);
  assert_in_range(hits[CHAOS_DELAY], 2700, 3300);
  assert_int_equal(hits[CHAOS_SHORTEN] + hits[CHAOS_FLIP], 0);
}

/* ---- UCX, which only its user sees ---- */

typedef void *get_fn(void *, void *, size_t, uint64_t, void *, const void *);
typedef int8_t check_fn(void *);
typedef void *send_fn(void *, unsigned, const void *, size_t, const void *, size_t, const void *);
get_fn ucp_get_nbx;
check_fn ucp_request_check_status;

#define UCS_INPROGRESS 1 /* of the fake: whatever is not NULL */
send_fn ucp_am_send_nbx;

TEST_WITH(ucx_calls_go_through, begin, end)
{
  int request;
  assert_ptr_equal(ucp_get_nbx(&request, NULL, 0, 0, NULL, NULL), &request);
  assert_int_equal(ucp_request_check_status(&request), UCS_INPROGRESS);
  assert_ptr_equal(ucp_am_send_nbx(&request, 1, NULL, 0, NULL, 0, NULL), &request);
  assert_int_equal(atomic_load(&control->seen[CHAOS_UCP_GET_NBX]), 1);
}

TEST_WITH(ucx_calls_fail_with_the_rules_status, begin, end)
{
  int request;
  for (int call = CHAOS_UCP_GET_NBX; call <= CHAOS_UCP_AM_SEND_NBX; call++) {
    always((chaos_call)call, CHAOS_FAIL, 25);
  }
  assert_int_equal((intptr_t)ucp_get_nbx(&request, NULL, 0, 0, NULL, NULL), -25);
  assert_int_equal(ucp_request_check_status(&request), UCS_INPROGRESS);
  assert_int_equal(ucp_request_check_status(NULL), -25);
  assert_int_equal((intptr_t)ucp_am_send_nbx(&request, 1, NULL, 0, NULL, 0, NULL), -25);
  assert_int_equal(done(CHAOS_UCP_AM_SEND_NBX, CHAOS_FAIL), 1);
}

/* ---- the file ---- */

TEST_WITH(other_files_are_refused, begin, end)
{
  chaos_control *before = chaos_mapped;
  control->version++;
  assert_false(chaos_map(path));
  control->version--;
  assert_false(chaos_map("/nonexistent/file"));
  assert_false(chaos_map("/dev/null"));
  assert_ptr_equal(chaos_mapped, before);
}

static bool make_file(void)
{
  int fd = mkstemp(path);
  if (fd < 0 || ftruncate(fd, sizeof(chaos_control)) != 0) {
    return false;
  }
  control = mmap(NULL, sizeof(chaos_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  (void)close(fd);
  if (control == MAP_FAILED) {
    return false;
  }
  control->magic = CHAOS_MAGIC;
  control->version = CHAOS_VERSION;
  control->calls = CHAOS_CALLS;
  control->kinds = CHAOS_KINDS;
  return chaos_map(path);
}

int main(int count, char **arguments)
{
  ucp = count > 1 ? dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (ucp == NULL || !make_file()) {
    return 1;
  }
  int failed = test_run(NULL);
  (void)unlink(path);
  return failed;
}
