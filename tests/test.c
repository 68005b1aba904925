/* Tests that add themselves to their program's group, and what they need: see test.h. */
#include "test.h"

#include <dirent.h>
#include <time.h>

#define TESTS_MAX 128

static struct CMUnitTest tests[TESTS_MAX];
static test_frame frames[TESTS_MAX];
static size_t tests_count;
static uint64_t seeds_begun;
static uint64_t current_seed;

static int set_up(void **state)
{
  const test_frame *frame = *state;
  if (frame->set_up != NULL) {
    frame->set_up();
  }
  return 0;
}

static int tear_down(void **state)
{
  const test_frame *frame = *state;
  if (frame->tear_down != NULL) {
    frame->tear_down();
  }
  return 0;
}

void test_add(const char *name, CMUnitTestFunction test, test_frame frame)
{
  if (tests_count == TESTS_MAX) {
    abort();
  }
  frames[tests_count] = frame;
  tests[tests_count] = (struct CMUnitTest){name, test, set_up, tear_down, &frames[tests_count]};
  tests_count++;
}

bool test_next_seed(uint64_t runs, uint64_t *seed)
{
  const char *only = getenv("KVF_TEST_SEED");
  if (seeds_begun == (only == NULL ? runs : 1)) {
    seeds_begun = 0;
    return false;
  }
  current_seed = only == NULL ? seeds_begun : strtoull(only, NULL, 10);
  seeds_begun++;
  *seed = current_seed;
  return true;
}

void test_name_seed(void)
{
  if (seeds_begun > 0) {
    print_error("failed with KVF_TEST_SEED=%llu\n", (unsigned long long)current_seed);
  }
}

static int print_names(void)
{
  for (size_t i = 0; i < tests_count; i++) {
    (void)printf("%s\n", tests[i].name);
  }
  return 0;
}

int test_run(const char *part)
{
  char filter[64] = "*";
  if (part != NULL && strcmp(part, "--list") == 0) {
    return print_names();
  }
  if (part != NULL) {
    const bool is_whole = part[0] == '=';
    (void)snprintf(filter, sizeof(filter), is_whole ? "%s" : "*%s*", part + is_whole);
  }
  cmocka_set_test_filter(filter);
  return _cmocka_run_group_tests("tests", tests, tests_count, NULL, NULL);
}

void *allocate(size_t bytes)
{
  void *memory = calloc(1, bytes == 0 ? 1 : bytes);
  if (memory == NULL) {
    abort();
  }
  return memory;
}

static uint64_t clock_ns(clockid_t clock)
{
  struct timespec now;
  (void)clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

uint64_t now_ns(void)
{
  return clock_ns(CLOCK_MONOTONIC);
}

uint64_t now_ms(void)
{
  return now_ns() / 1000000;
}

void sleep_us(uint64_t us)
{
  const struct timespec pause = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
  (void)nanosleep(&pause, NULL);
}

void sleep_ms(uint64_t ms)
{
  sleep_us(ms * 1000);
}

uint64_t used_us_in(uint64_t ms)
{
  const uint64_t before_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
  sleep_ms(ms);
  return (clock_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns) / 1000;
}

size_t count_entries(const char *folder)
{
  size_t count = 0;
  DIR *directory = opendir(folder);
  if (directory == NULL) {
    fail_msg("cannot list %s", folder);
    return 0;
  }
  while (readdir(directory) != NULL) {
    count++;
  }
  (void)closedir(directory);
  return count;
}

/* Of programs that have none of their own. */
__attribute__((weak)) int main(int argc, char **argv)
{
  return test_run(argc > 1 ? argv[1] : NULL);
}
