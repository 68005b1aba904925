/* A table in a sealed memfd, mapped by producer and readers; stores and loads of its words with their barriers. */
#include "transport/fence_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/own_fds.h"
#include "transport/transport.h"

/* The layout is that of kvf_fence_entry: remote readers copy it as plain bytes. */
typedef struct shared_entry {
  _Atomic uint64_t word;
  _Atomic uint64_t digest;
} shared_entry;

_Static_assert(sizeof(shared_entry) == sizeof(kvf_fence_entry), "readers copy an entry as it lies in memory");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "an entry's words must be plain memory");

#define FILE_NAME "kvferry-fence"

/* A word that changes this often within one call is another lease's each time: any of them is an answer. */
#define LOAD_TRIES 8

/* Its size cannot change, so every mapping can read all of it for ever. From Linux 5.1 on, only the mapping that is
 * there already can write it. */
static bool seal(int fd)
{
  const int fixed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  return fcntl(fd, F_ADD_SEALS, fixed | F_SEAL_FUTURE_WRITE) == 0 ||
         (errno == EINVAL && fcntl(fd, F_ADD_SEALS, fixed) == 0);
}

kvf_status kvf_fence_table_open(uint32_t slots, const kvf_incarnation *incarnation, void **out, int *out_fd)
{
  size_t bytes = kvf_fence_table_bytes(slots);
  void *table = MAP_FAILED;
  int fd = KVF_OWN_FD(memfd_create(FILE_NAME, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  *out = NULL;
  if (fd >= 0 && ftruncate(fd, (off_t)bytes) == 0) {
    table = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  bool is_good = table != MAP_FAILED && madvise(table, bytes, MADV_DONTFORK) == 0 && seal(fd);
  if (is_good) {
    *(kvf_fence_head *)table = (kvf_fence_head){.magic = KVF_FENCE_MAGIC, .incarnation = *incarnation, .slots = slots};
    *out = table;
  } else if (table != MAP_FAILED) {
    (void)munmap(table, bytes);
  }
  if (is_good && out_fd != NULL) {
    *out_fd = fd;
  } else {
    kvf_own_fd_close(fd);
  }
  return is_good ? KVF_OK : KVF_NO_MEMORY;
}

static bool is_table(const kvf_fence_head *head, uint32_t slots, const kvf_incarnation *incarnation)
{
  return head->magic == KVF_FENCE_MAGIC && head->slots == slots &&
         memcmp(&head->incarnation, incarnation, sizeof(*incarnation)) == 0;
}

/* By its name, which only memory has: a device or a FIFO must not be opened. A file system that may hang must not be
 * asked. */
static bool is_table_file(const char *link)
{
  static const char expected[] = "/memfd:" FILE_NAME " ";
  char name[sizeof(expected)];
  return readlink(link, name, sizeof(name)) == (ssize_t)sizeof(name) &&
         memcmp(name, expected, sizeof(expected) - 1) == 0;
}

static int open_file(pid_t pid, uint32_t fd)
{
  char path[64];
  (void)snprintf(path, sizeof(path), "/proc/%ld/fd/%lu", (long)pid, (unsigned long)fd);
  int found = is_table_file(path) ? KVF_OWN_FD(open(path, O_PATH | O_CLOEXEC)) : -1;
  if (found < 0) {
    return -1;
  }
  (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", found);
  int own =
      is_table_file(path) ? KVF_OWN_FD(open(path, O_RDONLY | O_CLOEXEC)) : -1; /* the number may have changed hands */
  kvf_own_fd_close(found);
  return own;
}

void *kvf_fence_table_map(pid_t pid, uint32_t fd, uint32_t slots, const kvf_incarnation *incarnation)
{
  struct stat file;
  size_t bytes = kvf_fence_table_bytes(slots);
  void *table = MAP_FAILED;
  int own = open_file(pid, fd);
  int seals = own < 0 ? -1 : fcntl(own, F_GET_SEALS);
  /* A file that could shrink would be a SIGBUS later. */
  if (seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && fstat(own, &file) == 0 && file.st_size >= (off_t)bytes) {
    table = mmap(NULL, bytes, PROT_READ, MAP_SHARED, own, 0);
  }
  kvf_own_fd_close(own);
  if (table == MAP_FAILED) {
    return NULL;
  }
  if (madvise(table, bytes, MADV_DONTFORK) != 0 || !is_table(table, slots, incarnation)) {
    (void)munmap(table, bytes);
    return NULL;
  }
  return table;
}

void kvf_fence_table_close(void *table, uint32_t slots)
{
  if (table != NULL) {
    (void)munmap(table, kvf_fence_table_bytes(slots));
  }
}

/* The head's generation alone changes in the life of a table. */
static const _Atomic uint64_t *generation_of(const void *table)
{
  const void *at = (const uint8_t *)table + offsetof(kvf_fence_head, generation);
  return at;
}

void kvf_fence_store_generation(void *table, uint64_t generation)
{
  atomic_thread_fence(memory_order_seq_cst);
  atomic_store_explicit((_Atomic uint64_t *)generation_of(table), generation, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
}

uint64_t kvf_fence_generation(const void *table)
{
  atomic_thread_fence(memory_order_acquire);
  return atomic_load_explicit(generation_of(table), memory_order_acquire);
}

static shared_entry *entry_at(void *table, uint32_t slot)
{
  void *entry = (uint8_t *)table + kvf_fence_entry_offset(slot);
  return entry;
}

void kvf_fence_store_live(void *table, uint32_t slot, kvf_fence_entry entry)
{
  shared_entry *shared = entry_at(table, slot);
  atomic_store_explicit(&shared->digest, entry.digest, memory_order_relaxed);
  /* A release store does not wait for streaming stores (movnt), which an engine may have filled the blocks with. */
  atomic_thread_fence(memory_order_seq_cst);
  atomic_store_explicit(&shared->word, entry.word, memory_order_release);
}

void kvf_fence_store_ended(void *table, uint32_t slot, kvf_fence_entry entry)
{
  shared_entry *shared = entry_at(table, slot);
  atomic_store_explicit(&shared->word, entry.word, memory_order_release);
  atomic_thread_fence(memory_order_seq_cst);
}

kvf_fence_entry kvf_fence_load(const void *table, uint32_t slot)
{
  const void *at = (const uint8_t *)table + kvf_fence_entry_offset(slot);
  const shared_entry *shared = at;
  kvf_fence_entry entry = {0};
  atomic_thread_fence(memory_order_acquire);
  for (int i = 0; i < LOAD_TRIES; i++) {
    entry.word = atomic_load_explicit(&shared->word, memory_order_acquire);
    entry.digest = atomic_load_explicit(&shared->digest, memory_order_relaxed);
    atomic_thread_fence(memory_order_acquire);
    if (atomic_load_explicit(&shared->word, memory_order_relaxed) == entry.word) {
      break;
    }
  }
  return entry;
}

void kvf_fence_barrier(void)
{
  atomic_thread_fence(memory_order_seq_cst);
}
