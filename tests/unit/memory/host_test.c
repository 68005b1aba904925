/* The host's kind of memory; what local makes of its steps is in transport/local_copy_test.c. */
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/checksum.h"
#include "memory/memory.h"
#include "test.h"

#define PAGE_BYTES ((size_t)4096)

ssize_t __real_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);
ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags);

static int fake_error; /* of the next calls; 0: they are made */

ssize_t __wrap_process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals, const struct iovec *remote,
                                unsigned long remotes, unsigned long flags)
{
  if (fake_error != 0) {
    errno = fake_error;
    return -1;
  }
  return __real_process_vm_readv(pid, local, locals, remote, remotes, flags);
}

static const kvf_memory_ops *const host = &kvf_memory_host;
static char message[KVF_MESSAGE_BYTES_MAX];

static kvf_region region_at(void *base, uint32_t blocks)
{
  return (kvf_region){.base = base,
                      .stride_bytes = PAGE_BYTES,
                      .block_bytes = PAGE_BYTES,
                      .blocks = blocks,
                      .heads = 1,
                      .heads_total = 1};
}

TEST(the_library_knows_its_kinds)
{
  assert_ptr_equal(kvf_memory_ops_of(KVF_MEMORY_HOST), host);
  assert_ptr_equal(kvf_memory_ops_of(KVF_MEMORY_CUDA), &kvf_memory_cuda);
  for (uint32_t kind = KVF_MEMORY_CUDA + 1; kind <= KVF_MEMORY_KINDS_MAX; kind++) {
    assert_null(kvf_memory_ops_of(kind));
  }
  assert_null(kvf_memory_ops_of(UINT32_MAX));
}

TEST(a_region_must_be_memory_of_the_process)
{
  uint8_t *pages = mmap(NULL, 3 * PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(pages, MAP_FAILED);
  assert_int_equal(munmap(pages + 2 * PAGE_BYTES, PAGE_BYTES), 0);
  kvf_region region = region_at(pages, 2);
  assert_int_equal(host->check(&region, message), KVF_OK);
  region.device = 1;
  assert_int_equal(host->check(&region, message), KVF_INVALID);
  assert_string_equal(message, "host memory has no device 1");
  region = region_at(pages, 3); /* its end is not there */
  assert_int_equal(host->check(&region, message), KVF_INVALID);
  region = region_at((void *)(uintptr_t)(INT64_MAX - 100), 1);
  assert_int_equal(host->check(&region, message), KVF_INVALID);
  assert_int_equal(mprotect(pages, PAGE_BYTES, PROT_NONE), 0);
  region = region_at(pages, 2);
  assert_int_equal(host->check(&region, message), KVF_INVALID);
  fake_error = EPERM; /* where the call is not allowed nothing is known */
  assert_int_equal(host->check(&region, message), KVF_OK);
  fake_error = 0;
  (void)munmap(pages, 2 * PAGE_BYTES);
}

TEST(bytes_are_copied_and_summed)
{
  static const char from[] = "some bytes";
  char to[sizeof(from)] = "";
  const struct iovec tos[] = {{to, 4}, {to + 4, sizeof(from) - 4}};
  const struct iovec froms[] = {{(void *)(uintptr_t)from, 4}, {(void *)(uintptr_t)(from + 4), sizeof(from) - 4}};
  uint64_t sum = 0;
  assert_true(host->copy_in(0, tos, froms, 2));
  assert_string_equal(to, from);
  memset(to, 0, sizeof(to));
  assert_true(host->copy_out(0, tos, froms, 2));
  assert_string_equal(to, from);
  assert_true(host->checksums(0, (const struct iovec[]){{(void *)(uintptr_t)from, sizeof(from)}}, 1, &sum));
  assert_int_equal(sum, kvf_checksum(from, sizeof(from)));
}

static kvf_status import_from(const void *exported, size_t bytes, kvf_memory_import *out)
{
  const kvf_memory_source source = {getpid(), KVF_MEMORY_NO_DEVICE, exported, bytes, PAGE_BYTES};
  return host->import(&source, out, message);
}

TEST(what_is_exported_is_imported)
{
  uint8_t block[PAGE_BYTES];
  const kvf_region region = region_at(block, 1);
  uint8_t exported[KVF_MEMORY_EXPORT_BYTES_MAX];
  size_t bytes = 0;
  kvf_memory_import import;
  assert_int_equal(host->export(&region, exported, &bytes, message), KVF_OK);
  assert_int_equal(import_from(exported, bytes, &import), KVF_OK);
  assert_ptr_equal(import.ops, host);
  assert_int_equal(import.base, (uintptr_t)block);
  for (size_t other = 0; other <= KVF_MEMORY_EXPORT_BYTES_MAX; other++) {
    kvf_status expected = other == bytes ? KVF_OK : KVF_TRANSFER_SETUP;
    assert_int_equal(import_from(exported, other, &import), expected);
  }
  const uint64_t last = INT64_MAX - PAGE_BYTES;
  const uint64_t past = last + 1;
  const uint64_t null = 0;
  assert_int_equal(import_from(&last, 8, &import), KVF_OK);
  assert_int_equal(import_from(&past, 8, &import), KVF_TRANSFER_SETUP);
  assert_int_equal(import_from(&null, 8, &import), KVF_TRANSFER_SETUP);
}

TEST(a_step_reads_what_it_can)
{
  kvf_memory_batch batch = {.count = 0};
  uint8_t from[3][100];
  uint8_t to[3][100] = {{0}};
  uint64_t bytes = 0;
  for (int i = 0; i < 3; i++) {
    memset(from[i], i + 1, sizeof(from[i]));
    batch.from[i] = (struct iovec){from[i], sizeof(from[i])};
    batch.to[i] = (struct iovec){to[i], sizeof(to[i])};
  }
  batch.count = 3;
  assert_int_equal(host->read(getpid(), &batch, &bytes), KVF_OK);
  assert_int_equal(bytes, 300);
  assert_memory_equal(to, from, sizeof(to));
}

TEST(what_a_step_that_fails_says)
{
  static const struct {
    int error;
    kvf_status status;
  } rows[] = {{ESRCH, KVF_PEER_DOWN},
              {ENOMEM, KVF_NO_MEMORY},
              {EFAULT, KVF_TRANSFER_FAILED},
              {EPERM, KVF_TRANSFER_FAILED},
              {EINTR, KVF_OK}};
  kvf_memory_batch batch = {.count = 0};
  uint8_t byte = 0;
  batch.to[0] = batch.from[0] = (struct iovec){&byte, 1};
  batch.first = 0;
  batch.count = 1;
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint64_t bytes = 9;
    fake_error = rows[i].error;
    assert_int_equal(host->read(getpid(), &batch, &bytes), rows[i].status);
    assert_int_equal(bytes, 0);
  }
  fake_error = 0;
}
