#include "transport/fence_memory.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "transport/transport.h"

#define SLOTS 16

static const kvf_incarnation incarnation = {{1, 2, 3}};

static void *open_table(void)
{
  void *table = NULL;
  assert_int_equal(kvf_fence_table_open(SLOTS, &incarnation, &table), KVF_OK);
  assert_non_null(table);
  return table;
}

static void a_new_table_has_a_head_and_no_live_word(void **state)
{
  (void)state;
  void *table = open_table();
  const kvf_fence_head *head = table;
  assert_int_equal(head->magic, KVF_FENCE_MAGIC);
  assert_int_equal(head->slots, SLOTS);
  assert_memory_equal(&head->incarnation, &incarnation, sizeof(incarnation));
  for (uint32_t slot = 0; slot < SLOTS; slot++) {
    assert_int_equal(kvf_fence_load(table, slot).word, 0);
  }
  kvf_fence_table_close(table, SLOTS);
  kvf_fence_table_close(NULL, SLOTS);
}

static void stores_are_loaded_from_their_slot_only(void **state)
{
  (void)state;
  void *table = open_table();
  kvf_fence_store_live(table, SLOTS - 1, (kvf_fence_entry){kvf_fence_word_live(5), 77});
  kvf_fence_store_live(table, 3, (kvf_fence_entry){kvf_fence_word_live(6), 78});
  kvf_fence_entry entry = kvf_fence_load(table, SLOTS - 1);
  assert_int_equal(entry.word, kvf_fence_word_live(5));
  assert_int_equal(entry.digest, 77);
  kvf_fence_store_over(table, 3, (kvf_fence_entry){kvf_fence_word_over(6), 0});
  entry = kvf_fence_load(table, 3);
  assert_int_equal(entry.word, kvf_fence_word_over(6));
  assert_int_equal(entry.digest, 78);
  assert_int_equal(kvf_fence_load(table, SLOTS - 1).word, kvf_fence_word_live(5));
  assert_int_equal(kvf_fence_load(table, 2).word, 0);
  kvf_fence_table_close(table, SLOTS);
}

static void an_entry_lies_where_remote_readers_look(void **state)
{
  (void)state;
  void *table = open_table();
  kvf_fence_store_live(table, 3, (kvf_fence_entry){kvf_fence_word_live(9), 123});
  kvf_fence_entry raw;
  memcpy(&raw, (const uint8_t *)table + kvf_fence_entry_offset(3), sizeof(raw));
  assert_int_equal(raw.word, kvf_fence_word_live(9));
  assert_int_equal(raw.digest, 123);
  kvf_fence_table_close(table, SLOTS);
}

static void a_forked_child_does_not_have_it(void **state)
{
  (void)state;
  void *table = open_table();
  pid_t child = fork();
  assert_true(child >= 0);
  if (child == 0) {
    (void)signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report it */
    uint64_t magic = *(volatile const uint64_t *)table;
    _exit(magic == KVF_FENCE_MAGIC ? 0 : 1);
  }
  int status;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
  kvf_fence_table_close(table, SLOTS);
}

static void too_large_a_table_is_no_memory(void **state)
{
  (void)state;
  void *table = &state;
  kvf_status status = kvf_fence_table_open(UINT32_MAX, &incarnation, &table);
  if (status == KVF_OK) { /* a machine with that much */
    kvf_fence_table_close(table, UINT32_MAX);
    skip();
  }
  assert_int_equal(status, KVF_NO_MEMORY);
  assert_null(table);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_new_table_has_a_head_and_no_live_word),
      cmocka_unit_test(stores_are_loaded_from_their_slot_only),
      cmocka_unit_test(an_entry_lies_where_remote_readers_look),
      cmocka_unit_test(a_forked_child_does_not_have_it),
      cmocka_unit_test(too_large_a_table_is_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
