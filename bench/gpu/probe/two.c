/* Questions that take a second process: P holds memory, D looks at it. Where nothing else is said D is P's child, so
 * that no system lets it look for being the parent. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "probe.h"

#define WORD UINT64_C(0x5a17c0de5a17c0de)
#define KERNEL_NS 200000000
#define COPIES_MS 150 /* what those take that are under way when P is killed, about */
#define COPIES_MAX 400
#define KILL_AFTER_NS 30000000
#define LARGE_BYTES (40 * GIB)
#define FAKE_BYTES (64 * MIB)
#define LARGE_S 10.0

typedef struct offer {
  pid_t pid;
  int32_t fd;
  uint64_t host; /* an address of P's own */
  uint64_t offset;
  uint64_t bytes;
  kvf_cu_ipc_mem_handle handle;
} offer;

/* ---- the pair ---- */

static void give(int fd, const offer *made)
{
  if (send(fd, made, sizeof(*made), MSG_NOSIGNAL) != sizeof(*made)) {
    give_up("D is gone");
  }
}

static offer take(int fd)
{
  offer made;
  if (recv(fd, &made, sizeof(made), MSG_WAITALL) != sizeof(made)) {
    give_up("P is gone");
  }
  return made;
}

/* Until D has closed its end. */
static void hold(int fd)
{
  char end;
  (void)recv(fd, &end, 1, 0);
}

static size_t wanted_bytes;

/* The child is forked before any call of the driver's, which a fork does not survive. */
void ask_pair(const question *asked)
{
  int fds[2];
  wanted_bytes = asked->bytes;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) {
    give_up("socketpair");
  }
  const pid_t forked = fork();
  if (forked == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)close(fds[0]);
    asked->child(fds[1]);
    _exit(0);
  }
  (void)close(fds[1]);
  if (forked < 0) {
    give_up("fork");
  }
  asked->parent(fds[0]);
  (void)waitpid(forked, NULL, 0);
}

/* ---- what the system allows ---- */

static void system_producer(int fd)
{
  static uint64_t word = WORD;
  offer made = {.pid = getpid(), .host = (uintptr_t)&word, .bytes = sizeof(word)};
  char scope[8] = "";
  const int file = open("/proc/sys/kernel/yama/ptrace_scope", O_RDONLY | O_CLOEXEC);
  if (file >= 0 && read(file, scope, sizeof(scope) - 1) > 0) {
    say_text("ptrace_scope", scope);
  }
  made.fd = memfd_create("probe", MFD_CLOEXEC);
  if (made.fd < 0 || ftruncate(made.fd, 4096) != 0) {
    give_up("memfd_create");
  }
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  give(fd, &made);
  hold(fd);
}

static void system_consumer(int fd)
{
  const offer made = take(fd);
  uint64_t word = 0;
  const struct iovec local = {&word, sizeof(word)};
  const struct iovec remote = {(void *)(uintptr_t)made.host, sizeof(word)};
  char path[64];
  say_errno("process_vm_readv", process_vm_readv(made.pid, &local, 1, &remote, 1, 0));
  const long process = syscall(SYS_pidfd_open, made.pid, 0);
  say_errno("pidfd_open", process);
  say_errno("pidfd_getfd", syscall(SYS_pidfd_getfd, process, made.fd, 0));
  (void)snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)made.pid, (int)made.fd);
  say_errno("proc_fd", open(path, O_RDWR | O_CLOEXEC));
}

/* ---- memory behind an IPC handle ---- */

static void share(int fd, kvf_cu_memory at, size_t bytes)
{
  offer made = {.pid = getpid(), .bytes = bytes};
  kvf_cu_memory base = 0;
  const double begin = now_ms();
  must(cuda.api.mem_get_address_range(&base, NULL, at));
  must(cuda.api.ipc_get_mem_handle(&made.handle, at));
  say_number("export_ms", now_ms() - begin);
  made.offset = at - base;
  give(fd, &made);
  hold(fd);
}

static void ipc_producer(int fd)
{
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  enter_driver();
  must(cuda.mem_get_info(&free_bytes, &total_bytes));
  const size_t fit = wanted_bytes < free_bytes / 2 ? wanted_bytes : free_bytes / 2 / MIB * MIB;
  const size_t bytes = cuda.is_fake && fit > FAKE_BYTES ? FAKE_BYTES : fit;
  say_number("bytes", (double)bytes);
  const kvf_cu_memory at = allocate(bytes);
  fill(at, MIB < bytes ? MIB : bytes, WORD);
  share(fd, at, bytes);
}

/* Of several in the driver's same 2 MiB, the last. */
static void suballocated_producer(int fd)
{
  enter_driver();
  (void)allocate(64 * KIB);
  (void)allocate(64 * KIB);
  const kvf_cu_memory at = allocate(64 * KIB);
  fill(at, 64 * KIB, WORD);
  share(fd, at, 64 * KIB);
}

static void say_attribute(const char *name, unsigned attribute, kvf_cu_memory at)
{
  uint64_t value = 0;
  void *out = &value;
  const kvf_cu_result result = cuda.api.pointer_get_attributes(1, &attribute, &out, at);
  if (result == KVF_CUDA_SUCCESS) {
    say_number(name, (double)value);
  } else {
    say_result(name, result);
  }
}

static void say_range(kvf_cu_memory at, const offer *made)
{
  kvf_cu_memory base = 0;
  size_t bytes = 0;
  say_result("address_range", cuda.api.mem_get_address_range(&base, &bytes, at));
  say_number("range_bytes", (double)bytes);
  say_number("range_begins_before", (double)(at - base));
  say_attribute("memory_type", KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
  say_attribute("ordinal", KVF_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
  say_attribute("range_start", KVF_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
  say_number("opened_at", (double)at);
  say_attribute("range_size", KVF_CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
  say_attribute("buffer_id_first", KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID, at);
  say_attribute("buffer_id_last", KVF_CU_POINTER_ATTRIBUTE_BUFFER_ID, at + made->offset + made->bytes - 1);
  say_attribute("type_past_end", KVF_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + made->offset + made->bytes + 64 * MIB);
}

static kvf_cu_memory open_ipc(const offer *made, const char *name)
{
  kvf_cu_memory at = 0;
  const double begin = now_ms();
  must(cuda.api.ipc_open_mem_handle(&at, made->handle, KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  say_number(name, now_ms() - begin);
  return at;
}

static void say_bytes(const char *name, kvf_cu_memory from)
{
  static uint64_t word;
  kvf_cu_stream stream = make_stream();
  must(cuda.api.memcpy_async((uintptr_t)&word, from, sizeof(word), stream));
  (void)drain_ms(stream);
  say_text(name, word == WORD ? "right" : "wrong");
}

/* Of one copy, the second time. */
static double copy_ms(kvf_cu_memory to, kvf_cu_memory from, size_t bytes, kvf_cu_stream stream)
{
  double ms = 0;
  for (int i = 0; i < 2; i++) {
    const double begin = now_ms();
    must(cuda.api.memcpy_async(to, from, bytes, stream));
    (void)drain_ms(stream);
    ms = now_ms() - begin;
  }
  return ms;
}

static void ipc_consumer(int fd)
{
  const offer made = take(fd);
  enter_driver();
  const kvf_cu_memory at = open_ipc(&made, "open_ms");
  say_number("offset", (double)made.offset);
  say_range(at, &made);
  say_bytes("bytes_are", at + made.offset);
  if (made.bytes <= GIB) {
    const double ms = copy_ms(allocate(made.bytes), at + made.offset, made.bytes, make_stream());
    say_number("copy_gb_s", (double)made.bytes / ms / 1e6);
  }
  const kvf_cu_memory again = open_ipc(&made, "second_open_ms");
  say_text("second_open", again == at ? "the same address" : "another address");
  must(cuda.api.ipc_close_mem_handle(again));
  const double begin = now_ms();
  say_result("close", cuda.api.ipc_close_mem_handle(at));
  say_number("close_ms", now_ms() - begin);
}

/* An engine's thread, which launches kernels on a stream of its own. */
typedef struct launcher {
  kvf_cu_memory scratch;
  atomic_bool stops;
  double longest_ms;
} launcher;

static void *launch_often(void *context)
{
  const struct timespec pause = {0, 200000};
  launcher *launches = context;
  kvf_cu_context primary;
  must(cuda.api.device_primary_ctx_retain(&primary, cuda.device));
  must(cuda.api.ctx_push_current(primary));
  kvf_cu_stream stream = make_stream();
  while (!atomic_load(&launches->stops)) {
    const double begin = now_ms();
    (void)begin_kernel(stream, launches->scratch, 0);
    const double took_ms = now_ms() - begin;
    launches->longest_ms = took_ms > launches->longest_ms ? took_ms : launches->longest_ms;
    (void)nanosleep(&pause, NULL);
  }
  return NULL;
}

/* M4: whether opening and closing wait for an engine's kernels, and its thread for the closing. */
static void beside_consumer(int fd)
{
  const offer made = take(fd);
  enter_driver();
  kvf_cu_stream stream = make_stream();
  const kvf_cu_memory scratch = allocate(2 * MIB);
  if (!begin_kernel(stream, scratch, 0)) {
    give_up("the driver takes no kernels");
  }
  (void)drain_ms(stream);
  (void)begin_kernel(stream, scratch, KERNEL_NS);
  const kvf_cu_memory at = open_ipc(&made, "open_ms");
  say_number("kernel_left_after_open_ms", drain_ms(stream));
  launcher launches = {.scratch = allocate(2 * MIB)};
  pthread_t thread;
  (void)begin_kernel(stream, scratch, KERNEL_NS);
  if (pthread_create(&thread, NULL, launch_often, &launches) != 0) {
    give_up("pthread_create");
  }
  const double begin = now_ms();
  must(cuda.api.ipc_close_mem_handle(at));
  say_number("close_ms", now_ms() - begin);
  atomic_store(&launches.stops, true);
  (void)pthread_join(thread, NULL);
  say_number("longest_launch_beside_close_ms", launches.longest_ms);
  say_number("kernel_left_after_close_ms", drain_ms(stream));
}

/* ---- P is killed while it is read: it is D's child here ---- */

static void killed_consumer(int fd)
{
  const struct timespec pause = {0, KILL_AFTER_NS};
  const offer made = take(fd);
  enter_driver();
  kvf_cu_stream stream = make_stream();
  const kvf_cu_memory at = open_ipc(&made, "open_ms");
  const kvf_cu_memory to = allocate(made.bytes);
  const double wanted = COPIES_MS / copy_ms(to, at, made.bytes, stream) + 1;
  for (int i = 0; i < COPIES_MAX && i < wanted; i++) {
    must(cuda.api.memcpy_async(to, at, made.bytes, stream));
  }
  (void)nanosleep(&pause, NULL);
  double begin = now_ms();
  (void)kill(made.pid, SIGKILL);
  const kvf_cu_result result = cuda.stream_synchronize(stream);
  say_result("copies", result);
  say_number("copies_left_ms", now_ms() - begin);
  must(result);
  say_bytes("bytes_are", to);
  say_result("copy_after_death", cuda.api.memcpy_async(to, at, made.bytes, stream));
  say_result("copy_after_death_ends", cuda.stream_synchronize(stream));
  begin = now_ms();
  say_result("close", cuda.api.ipc_close_mem_handle(at));
  say_number("close_ms", now_ms() - begin);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  must(cuda.mem_get_info(&free_bytes, &total_bytes));
  say_number("free_bytes", (double)free_bytes);
}

/* ---- memory of cuMemMap() ---- */

static kvf_cu_mem_access_desc access_of(unsigned flags)
{
  return (kvf_cu_mem_access_desc){{KVF_CU_MEM_LOCATION_TYPE_DEVICE, cuda.device}, flags};
}

static kvf_cu_memory map(kvf_cu_allocation allocation, size_t bytes)
{
  kvf_cu_memory at = 0;
  must(cuda.api.mem_address_reserve(&at, bytes, 0, 0, 0));
  must(cuda.api.mem_map(at, bytes, 0, allocation, 0));
  return at;
}

static void mapped_producer(int fd)
{
  const kvf_cu_mem_allocation_prop prop = {.type = KVF_CU_MEM_ALLOCATION_TYPE_PINNED,
                                           .requested_handle_types = KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                           .location = {KVF_CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  const kvf_cu_mem_access_desc access = access_of(KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  kvf_cu_allocation allocation;
  int file = -1;
  enter_driver();
  must(cuda.mem_create(&allocation, 2 * MIB, &prop, 0));
  const kvf_cu_memory at = map(allocation, 2 * MIB);
  must(cuda.api.mem_set_access(at, 2 * MIB, &access, 1));
  fill(at, 2 * MIB, WORD);
  must(cuda.api.mem_export_to_shareable_handle(&file, allocation, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
  const offer made = {.pid = getpid(), .fd = file, .bytes = 2 * MIB};
  (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  give(fd, &made);
  hold(fd);
}

static void mapped_consumer(int fd)
{
  const offer made = take(fd);
  const kvf_cu_mem_access_desc read_only = access_of(KVF_CU_MEM_ACCESS_FLAGS_PROT_READ);
  const kvf_cu_mem_access_desc read_write = access_of(KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  kvf_cu_allocation allocation;
  enter_driver();
  const int process = (int)syscall(SYS_pidfd_open, made.pid, 0);
  const int file = (int)syscall(SYS_pidfd_getfd, process, made.fd, 0);
  say_errno("pidfd_getfd", file);
  const double begin = now_ms();
  must(cuda.api.mem_import_from_shareable_handle(&allocation, (void *)(uintptr_t)file,
                                                 KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
  const kvf_cu_memory at = map(allocation, made.bytes);
  const kvf_cu_result result = cuda.api.mem_set_access(at, made.bytes, &read_only, 1);
  say_result("access_read", result);
  if (result == KVF_CUDA_SUCCESS) {
    say_bytes("bytes_by_read_are", at);
  }
  say_result("access_read_write", cuda.api.mem_set_access(at, made.bytes, &read_write, 1));
  say_number("import_ms", now_ms() - begin);
  say_bytes("bytes_are", at);
  say_range(at, &made);
}

const question two_processes[] = {
    {"system", NULL, 0, system_producer, system_consumer, 0},
    {"ipc-2MiB", NULL, 0, ipc_producer, ipc_consumer, 2 * MIB},
    {"ipc-suballocated-64KiB", NULL, 0, suballocated_producer, ipc_consumer, 0},
    {"mapped", NULL, 0, mapped_producer, mapped_consumer, 0},
    {"ipc-1GiB", NULL, 0, ipc_producer, ipc_consumer, GIB},
    {"ipc-beside-kernel", NULL, 0, ipc_producer, beside_consumer, 64 * MIB},
    {"killed", NULL, 0, killed_consumer, ipc_producer, GIB},
    {"ipc-40GiB", NULL, LARGE_S, ipc_producer, ipc_consumer, LARGE_BYTES},
};
const size_t two_processes_count = sizeof(two_processes) / sizeof(two_processes[0]);
