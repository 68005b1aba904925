/* A fence table as its producer stores it and as others load and map it; and files that are none. */
#include "transport/fence_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "memory/own_fds.h"
#include "test.h"
#include "transport/transport.h"

#define SLOTS 16

static const kvf_incarnation incarnation = {{1, 2, 3}};

static void *table;
static int table_fd;

static void open_table(void)
{
  assert_int_equal(kvf_fence_table_open(SLOTS, &incarnation, &table, &table_fd), KVF_OK);
  assert_non_null(table);
}

static void close_table(void)
{
  kvf_fence_table_close(table, SLOTS);
  kvf_own_fd_close(table_fd);
}

#define TABLE_TEST(name) TEST_WITH(name, open_table, close_table)

TEST(a_new_table_has_a_head_and_no_live_word)
{
  void *alone = NULL; /* with no descriptor left */
  assert_int_equal(kvf_fence_table_open(SLOTS, &incarnation, &alone, NULL), KVF_OK);
  const kvf_fence_head *head = alone;
  assert_int_equal(head->magic, KVF_FENCE_MAGIC);
  assert_int_equal(head->slots, SLOTS);
  assert_memory_equal(&head->incarnation, &incarnation, sizeof(incarnation));
  for (uint32_t slot = 0; slot < SLOTS; slot++) {
    assert_int_equal(kvf_fence_load(alone, slot).word, 0);
  }
  kvf_fence_table_close(alone, SLOTS);
  kvf_fence_table_close(NULL, SLOTS);
}

TABLE_TEST(stores_are_loaded_from_their_slot_only)
{
  kvf_fence_store_live(table, SLOTS - 1, (kvf_fence_entry){kvf_fence_word_live(5), 77});
  kvf_fence_store_live(table, 3, (kvf_fence_entry){kvf_fence_word_live(6), 78});
  kvf_fence_entry entry = kvf_fence_load(table, SLOTS - 1);
  assert_int_equal(entry.word, kvf_fence_word_live(5));
  assert_int_equal(entry.digest, 77);
  kvf_fence_store_ended(table, 3, (kvf_fence_entry){kvf_fence_word_ended(6), 0});
  entry = kvf_fence_load(table, 3);
  assert_int_equal(entry.word, kvf_fence_word_ended(6));
  assert_int_equal(entry.digest, 78);
  assert_int_equal(kvf_fence_load(table, SLOTS - 1).word, kvf_fence_word_live(5));
  assert_int_equal(kvf_fence_load(table, 2).word, 0);
}

TABLE_TEST(an_entry_lies_where_remote_readers_look)
{
  kvf_fence_store_live(table, 3, (kvf_fence_entry){kvf_fence_word_live(9), 123});
  kvf_fence_entry raw;
  memcpy(&raw, (const uint8_t *)table + kvf_fence_entry_offset(3), sizeof(raw));
  assert_int_equal(raw.word, kvf_fence_word_live(9));
  assert_int_equal(raw.digest, 123);
}

static void expect_not_inherited(const void *mapping)
{
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report it */
    uint64_t magic = *(const volatile uint64_t *)mapping;
    _exit(magic == KVF_FENCE_MAGIC ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TABLE_TEST(a_forked_child_has_neither_it_nor_one_that_is_mapped)
{
  void *mapped = kvf_fence_table_map(getpid(), (uint32_t)table_fd, SLOTS, &incarnation);
  assert_non_null(mapped);
  expect_not_inherited(table);
  expect_not_inherited(mapped);
  kvf_fence_table_close(mapped, SLOTS);
}

TEST(a_table_without_address_space_or_descriptor_is_no_memory)
{
  static const int limits[] = {RLIMIT_AS, RLIMIT_NOFILE};
  for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
    struct rlimit before;
    void *opened = &before;
    assert_int_equal(getrlimit((__rlimit_resource_t)limits[i], &before), 0);
    const struct rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
    assert_int_equal(setrlimit((__rlimit_resource_t)limits[i], &none), 0);
    kvf_status status = kvf_fence_table_open(SLOTS, &incarnation, &opened, NULL);
    assert_int_equal(setrlimit((__rlimit_resource_t)limits[i], &before), 0);
    assert_int_equal(status, KVF_NO_MEMORY);
    assert_null(opened);
  }
}

/* ---- mapped by others ---- */

TABLE_TEST(a_mapped_table_shows_each_store_for_ever)
{
  void *mapped = kvf_fence_table_map(getpid(), (uint32_t)table_fd, SLOTS, &incarnation);
  assert_non_null(mapped);
  assert_ptr_not_equal(mapped, table);
  kvf_fence_store_live(table, SLOTS - 1, (kvf_fence_entry){kvf_fence_word_live(5), 77});
  assert_int_equal(kvf_fence_load(mapped, SLOTS - 1).word, kvf_fence_word_live(5));
  assert_int_equal(kvf_fence_load(mapped, SLOTS - 1).digest, 77);
  kvf_fence_store_ended(table, SLOTS - 1, (kvf_fence_entry){kvf_fence_word_ended(5), 0});
  assert_int_equal(ftruncate(table_fd, 0), -1);
  close_table();
  table = NULL;
  table_fd = -1;
  assert_int_equal(kvf_fence_load(mapped, SLOTS - 1).word, kvf_fence_word_ended(5));
  kvf_fence_table_close(mapped, SLOTS);
}

static bool can_map(int fd, uint32_t slots, const kvf_incarnation *wanted)
{
  void *mapped = kvf_fence_table_map(getpid(), (uint32_t)fd, slots, wanted);
  kvf_fence_table_close(mapped, slots);
  return mapped != NULL;
}

/* All that a head's reader looks at, in a file of another name, or in one that can still be cut short. */
static int copy_of(const char *name, int seals)
{
  int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, table, kvf_fence_table_bytes(SLOTS)), kvf_fence_table_bytes(SLOTS));
  assert_int_equal(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

/* Its owner's mapping alone writes: a reader's cannot, whatever the reader does. */
TABLE_TEST(nobody_else_writes_to_it)
{
  char path[64];
  (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", table_fd);
  int other = open(path, O_RDWR | O_CLOEXEC);
  assert_true(other >= 0);
  assert_ptr_equal(mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, other, 0), MAP_FAILED);
  void *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, other, 0);
  assert_ptr_not_equal(mapped, MAP_FAILED);
  assert_int_equal(mprotect(mapped, 4096, PROT_READ | PROT_WRITE), -1);
  assert_int_equal(pwrite(other, "x", 1, 0), -1);
  assert_int_equal(munmap(mapped, 4096), 0);
  assert_int_equal(close(other), 0);
  kvf_fence_store_live(table, 1, (kvf_fence_entry){kvf_fence_word_live(5), 77});
  assert_int_equal(kvf_fence_load(table, 1).word, kvf_fence_word_live(5));
}

/* A stray write, of this process or of one that may write its memory, ends no process and no lease's life is longer. */
TABLE_TEST(a_scribbled_word_is_stored_over)
{
  const kvf_fence_entry scribbled = {UINT64_MAX, 1};
  memcpy((uint8_t *)table + kvf_fence_entry_offset(2), &scribbled, sizeof(scribbled));
  kvf_fence_store_live(table, 2, (kvf_fence_entry){kvf_fence_word_live(5), 77});
  assert_int_equal(kvf_fence_load(table, 2).word, kvf_fence_word_live(5));
  memcpy((uint8_t *)table + kvf_fence_entry_offset(2), &scribbled, sizeof(scribbled));
  kvf_fence_store_ended(table, 2, (kvf_fence_entry){kvf_fence_word_ended(5), 0});
  assert_int_equal(kvf_fence_load(table, 2).word, kvf_fence_word_ended(5));
}

TABLE_TEST(what_is_not_that_table_is_not_mapped)
{
  static const kvf_incarnation another = {{1, 2, 4}};
  assert_true(can_map(table_fd, SLOTS, &incarnation));
  assert_false(can_map(table_fd, SLOTS, &another));
  assert_false(can_map(table_fd, SLOTS - 1, &incarnation));
  assert_false(can_map(table_fd, 1u << 20, &incarnation)); /* longer than the file */
  int copy = copy_of("kvferry-fence", F_SEAL_SHRINK);
  assert_true(can_map(copy, SLOTS, &incarnation));
  assert_int_equal(close(copy), 0);
  int others[] = {copy_of("kvferry-fence", 0), copy_of("kvferry-fences", F_SEAL_SHRINK),
                  copy_of("kvferry", F_SEAL_SHRINK), open("/dev/null", O_RDONLY | O_CLOEXEC)};
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    assert_false(can_map(others[i], SLOTS, &incarnation));
    assert_int_equal(close(others[i]), 0);
    assert_false(can_map(others[i], SLOTS, &incarnation)); /* nor a file that is not there */
  }
  ((kvf_fence_head *)table)->magic++;
  assert_false(can_map(table_fd, SLOTS, &incarnation));
}
