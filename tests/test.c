/* Tests that add themselves to their program's group: see test.h. */
#include "test.h"

#define TESTS_MAX 128

static struct CMUnitTest tests[TESTS_MAX];
static size_t tests_count;
static uint64_t seeds_begun;
static uint64_t current_seed;

void test_add(const struct CMUnitTest *test)
{
  if (tests_count == TESTS_MAX) {
    abort();
  }
  tests[tests_count++] = *test;
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

int test_name_seed(void **state)
{
  (void)state;
  if (seeds_begun > 0) {
    print_error("failed with KVF_TEST_SEED=%llu\n", (unsigned long long)current_seed);
  }
  return 0;
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

/* Of programs that have none of their own. */
__attribute__((weak)) int main(int argc, char **argv)
{
  return test_run(argc > 1 ? argv[1] : NULL);
}
