/* cmocka, after the headers that it needs, and tests that add themselves to their program's group. main() runs them
 * all, or those whose name contains its argument; with =NAME that one alone; with --list it prints their names. And
 * what tests of all kinds need. */
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

/* What is done before a test, and after it even if it has failed; each may be NULL. */
typedef struct test_frame {
  void (*set_up)(void);
  void (*tear_down)(void);
} test_frame;

void test_add(const char *name, CMUnitTestFunction test, test_frame frame);

#define TEST_IF(wanted, name, set_up, tear_down)                  \
  static void name(void **state);                                 \
  __attribute__((constructor)) static void add_##name(void)       \
  {                                                               \
    if (wanted) {                                                 \
      test_add(#name, name, (test_frame){(set_up), (tear_down)}); \
    }                                                             \
  }                                                               \
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
void test_name_seed(void);

/* Whether this is a build for a sanitizer: it slows everything down, and sees what it looks for in the first rounds. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif
#ifdef __SANITIZE_THREAD__
#define SANITIZED_THREADS true
#else
#define SANITIZED_THREADS false
#endif

/* Zeroed; never NULL. */
void *allocate(size_t bytes);
uint64_t now_ns(void);
uint64_t now_ms(void);
void sleep_us(uint64_t us);
void sleep_ms(uint64_t ms);
/* What this process takes of the processors while the caller sleeps. */
uint64_t used_us_in(uint64_t ms);
/* Entries of a folder: descriptors in "/proc/self/fd", threads in "/proc/self/task". */
size_t count_entries(const char *folder);

#endif
