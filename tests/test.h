/* cmocka, after the headers that it needs, and tests that add themselves to their program's group. main() runs them
 * all, or those whose name contains its argument; with =NAME that one alone; with --list it prints their names. */
#ifndef KVF_TESTS_TEST_H
#define KVF_TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

void test_add(const struct CMUnitTest *test);

#define TEST_IF(wanted, name, set_up, tear_down)                            \
  static void name(void **state);                                           \
  __attribute__((constructor)) static void add_##name(void)                 \
  {                                                                         \
    if (wanted) {                                                           \
      test_add(&(struct CMUnitTest){#name, name, set_up, tear_down, NULL}); \
    }                                                                       \
  }                                                                         \
  static void name(__attribute__((unused)) void **state)

#define TEST_WITH(name, set_up, tear_down) TEST_IF(true, name, set_up, tear_down)

#define TEST(name) TEST_WITH(name, NULL, NULL)

/* For a program with a main() of its own; `part` may be NULL. */
int test_run(const char *part);

/* A test that runs with many seeds, or with that of the environment variable KVF_TEST_SEED only. Where it fails, the
 * seed is named. */
#define SEEDS_TEST(name) TEST_WITH(name, NULL, test_name_seed)
/* Begins the next of `runs`; false: there is none. */
bool test_next_seed(uint64_t runs, uint64_t *seed);
int test_name_seed(void **state);

#endif
