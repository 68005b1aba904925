/* Memory of one process in another: by legacy handles and by file descriptors; a child exports, the test imports. */
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "child_process.h"
#include "gpu.h"

#define BYTES ((size_t)1 << 20)
#define GRAIN FAKE_CUDA_GRANULARITY_BYTES
#define OFFSET ((size_t)5000)

/* What the child sends first, and after each `f`: it has freed, and allocated anew. */
typedef struct exported {
  kvf_cu_ipc_mem_handle handle; /* of BYTES, all 1, then all 2 */
  int32_t fd;                   /* in the child, of GRAIN bytes, all 3 */
} exported;

static bool fill_now(kvf_cu_memory at, size_t bytes, uint8_t value)
{
  gpu_fill(NULL, at, bytes, value);
  return cuStreamSynchronize(NULL) == KVF_CUDA_SUCCESS;
}

static int export_to_parent(void)
{
  exported out;
  kvf_cu_memory at = 0;
  kvf_cu_memory inside;
  int fd = -1;
  char order;
  gpu_begin(1, false);
  kvf_cu_allocation made = gpu_create(GRAIN, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  inside = gpu_map(made, GRAIN, KVF_CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  (void)fill_now(inside, GRAIN, 3);
  if (gpu->mem_export_to_shareable_handle(&fd, made, KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) != 0) {
    return 1;
  }
  for (uint8_t value = 1;; value++) {
    at = gpu_allocate(BYTES);
    (void)fill_now(at, BYTES, value);
    out.fd = fd;
    if (gpu->ipc_get_mem_handle(&out.handle, at + OFFSET) != KVF_CUDA_SUCCESS ||
        !child_send(STDIN_FILENO, &out, sizeof(out)) || !child_receive(STDIN_FILENO, &order, 1)) {
      return 0;
    }
    if (cuMemFree_v2(at) != KVF_CUDA_SUCCESS) {
      return 1;
    }
  }
}

static child_process child;

static exported begin(bool by_hand)
{
  exported got;
  gpu_begin(1, by_hand);
  assert_true(child_start(&child, "exports", SOCK_STREAM));
  assert_true(child_receive(child.channel, &got, sizeof(got)));
  return got;
}

static void end(void)
{
  assert_int_equal(child_end(&child), 0);
}

static kvf_cu_memory open_handle(kvf_cu_ipc_mem_handle handle)
{
  kvf_cu_memory at = 0;
  assert_int_equal(gpu->ipc_open_mem_handle(&at, handle, KVF_CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS), KVF_CUDA_SUCCESS);
  return at;
}

TEST(a_handle_opens_all_of_an_allocation)
{
  exported got = begin(false);
  kvf_cu_memory refused;
  assert_int_equal(gpu->ipc_open_mem_handle(&refused, got.handle, 0), KVF_CUDA_ERROR_INVALID_VALUE);
  const kvf_cu_memory at = open_handle(got.handle);
  const kvf_cu_memory own = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  gpu_batch(stream, own, at, BYTES / 64, 64, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  kvf_cu_event done = gpu_record(stream);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_SUCCESS);
  assert_true(gpu_all_are(own, BYTES, 1));
  kvf_cu_ipc_mem_handle again;
  assert_int_equal(gpu->ipc_get_mem_handle(&again, at), KVF_CUDA_ERROR_INVALID_VALUE); /* it is not ours to export */
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_SUCCESS);
  end();
}

TEST(a_second_open_gives_the_same_pointer_and_counts)
{
  exported got = begin(true);
  const kvf_cu_memory at = open_handle(got.handle);
  assert_int_equal(open_handle(got.handle), at);
  assert_int_equal(fake_cuda_count().imports, 1);
  gpu_enter(1); /* one open a context */
  const kvf_cu_memory other = open_handle(got.handle);
  assert_int_not_equal(other, at);
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(gpu->ipc_close_mem_handle(other), KVF_CUDA_SUCCESS);
  gpu_leave();
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu_byte(at), 1);
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_ERROR_INVALID_VALUE);
  assert_int_equal(fake_cuda_count().imports, 0);
  end();
}

TEST(a_process_cannot_open_its_own_handle)
{
  gpu_begin(1, true);
  kvf_cu_ipc_mem_handle handle;
  kvf_cu_memory at = gpu_allocate(BYTES);
  assert_int_equal(gpu->ipc_get_mem_handle(&handle, at), KVF_CUDA_SUCCESS);
  assert_int_equal(gpu->ipc_open_mem_handle(&at, handle, 1), KVF_CUDA_ERROR_INVALID_CONTEXT);
}

TEST(a_handle_that_is_altered_is_refused)
{
  exported got = begin(true);
  for (size_t i = 0; i < 40; i++) {
    if (i >= 24 && i < 32) { /* the word that says that its process is alive */
      continue;
    }
    kvf_cu_ipc_mem_handle altered = got.handle;
    kvf_cu_memory at = 0;
    altered.reserved[i] ^= 0x80; /* the next number would be a thread of the process */
    assert_int_equal(gpu->ipc_open_mem_handle(&at, altered, 1), KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  end();
}

/* The importer has the old memory open; what it reads is nobody's. */
TEST(freed_memory_is_poison_and_its_handle_opens_nothing)
{
  exported old = begin(true);
  const kvf_cu_memory at = open_handle(old.handle);
  exported renewed;
  assert_true(gpu_all_are(at, BYTES, 1));
  assert_true(child_send(child.channel, "f", 1));
  assert_true(child_receive(child.channel, &renewed, sizeof(renewed)));
  assert_true(gpu_all_are(at, BYTES, FAKE_CUDA_POISON));
  const kvf_cu_memory anew = open_handle(renewed.handle);
  assert_int_not_equal(anew, at);
  assert_true(gpu_all_are(anew, BYTES, 2));
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_SUCCESS);
  kvf_cu_memory gone;
  assert_int_equal(gpu->ipc_open_mem_handle(&gone, old.handle, 1), KVF_CUDA_ERROR_INVALID_HANDLE);
  end();
}

TEST(a_stopped_process_memory_is_read_and_a_dead_ones_is_poison)
{
  exported got = begin(false);
  const kvf_cu_memory at = open_handle(got.handle);
  const kvf_cu_memory own = gpu_allocate(BYTES);
  assert_true(child_stop(&child));
  assert_true(gpu_all_are(at, BYTES, 1));
  assert_true(child_kill(&child));
  gpu_copy(NULL, own, at, BYTES);
  kvf_cu_event done = gpu_record(NULL);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_SUCCESS); /* nothing says so */
  assert_true(gpu_all_are(own, BYTES, FAKE_CUDA_POISON));
  assert_int_equal(gpu->ipc_close_mem_handle(at), KVF_CUDA_SUCCESS);
}

/* The process dies before half of a copy, so that some of it is right. */
TEST(a_death_in_the_middle_of_a_copy_spoils_the_rest)
{
  exported got = begin(true);
  const kvf_cu_memory at = open_handle(got.handle);
  const kvf_cu_memory own = gpu_allocate(BYTES);
  kvf_cu_stream stream = gpu_stream();
  gpu_batch(stream, own, at, BYTES / 64, 64, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
  for (int i = 0; i < 20; i++) {
    assert_true(fake_cuda_step());
  }
  assert_true(child_kill(&child));
  gpu_finish();
  unsigned good = 0;
  unsigned spoilt = 0;
  for (size_t i = 0; i < BYTES; i += 1024) {
    good += gpu_byte(own + i) == 1 ? 1 : 0;
    spoilt += gpu_byte(own + i) == FAKE_CUDA_POISON ? 1 : 0;
  }
  assert_true(good > 0 && spoilt > 0);
  assert_int_equal(good + spoilt, BYTES / 1024);
}

/* pidfd_getfd, as an importer without a socket does it. */
static int fetch_fd(const exported *got)
{
  const int pidfd = (int)syscall(SYS_pidfd_open, child.pid, 0);
  assert_true(pidfd >= 0);
  const int fd = (int)syscall(SYS_pidfd_getfd, pidfd, got->fd, 0);
  assert_true(fd >= 0);
  assert_int_equal(close(pidfd), 0);
  return fd;
}

TEST(memory_behind_a_descriptor_stays_when_its_process_dies)
{
  exported got = begin(false);
  const int fd = fetch_fd(&got);
  kvf_cu_allocation imported = 0;
  assert_int_equal(gpu->mem_import_from_shareable_handle(&imported, (void *)(uintptr_t)fd,
                                                         KVF_CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                   KVF_CUDA_SUCCESS);
  assert_int_equal(close(fd), 0);
  const kvf_cu_memory at = gpu_map(imported, GRAIN, KVF_CU_MEM_ACCESS_FLAGS_PROT_READ);
  assert_int_equal(gpu->mem_release(imported), KVF_CUDA_SUCCESS);
  const kvf_cu_memory own = gpu_allocate(GRAIN);
  assert_true(child_kill(&child));
  gpu_copy(NULL, own, at, GRAIN);
  kvf_cu_event done = gpu_record(NULL);
  assert_int_equal(gpu->event_synchronize(done), KVF_CUDA_SUCCESS);
  assert_true(gpu_all_are(own, GRAIN, 3));
  fake_cuda_stall_device(0, true); /* until it is recorded */
  gpu_copy(NULL, at, own, 1);      /* an importer may read, and no more */
  kvf_cu_event broken = gpu_record(NULL);
  fake_cuda_stall_device(0, false);
  assert_int_equal(gpu->event_synchronize(broken), KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "exports") == 0) {
    return export_to_parent();
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
