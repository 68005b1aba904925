/* Real pages, which lie in node 0 here, and what some other machine says of its nodes. */
#include "runtime/numa.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "test.h"

#define BYTES 65536

static char folder[] = "numa_test.XXXXXX";

static void path_of(const char *name, char path[64])
{
  (void)snprintf(path, 64, "%s/%s", folder, name);
}

static void write_file(const char *name, const char *text)
{
  char path[64];
  path_of(name, path);
  FILE *file = fopen(path, "we");
  assert_non_null(file);
  assert_true(fputs(text, file) >= 0);
  assert_int_equal(fclose(file), 0);
}

static void make_folder(void)
{
  char path[64];
  (void)snprintf(folder, sizeof(folder), "numa_test.XXXXXX");
  assert_non_null(mkdtemp(folder));
  path_of("node0", path);
  assert_int_equal(mkdir(path, 0700), 0);
  write_file("online", "0-1\n");
  write_file("node0/cpulist", "1,4-5\n");
}

static void remove_folder(void)
{
  static const char *const names[] = {"online", "node0/cpulist", "node0", "."};
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    char path[64];
    path_of(names[i], path);
    (void)remove(i == 3 ? folder : path);
  }
}

#define FOLDER_TEST(name) TEST_WITH(name, make_folder, remove_folder)

static kvf_region open_region(bool touched)
{
  void *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(base, MAP_FAILED);
  if (touched) {
    memset(base, 1, BYTES);
  }
  return (kvf_region){.base = base, .stride_bytes = 4096, .block_bytes = 4096, .blocks = BYTES / 4096, .heads = 1};
}

static bool find(bool touched, kvf_cpu_list *cpus)
{
  kvf_region regions[] = {open_region(false), open_region(touched)};
  bool found = kvf_numa_cpus(folder, regions, 2, cpus);
  (void)munmap(regions[0].base, BYTES);
  (void)munmap(regions[1].base, BYTES);
  return found;
}

FOLDER_TEST(the_cpus_of_the_pages_node)
{
  kvf_cpu_list cpus;
  kvf_cpu_list expected;
  assert_true(kvf_cpu_list_parse("1,4-5", &expected));
  assert_true(find(true, &cpus));
  assert_memory_equal(&cpus, &expected, sizeof(cpus));
}

FOLDER_TEST(what_cannot_be_known)
{
  kvf_cpu_list cpus;
  assert_false(find(false, &cpus));  /* no page is in memory yet */
  write_file("node0/cpulist", "\n"); /* memory without processors */
  assert_false(find(true, &cpus));
  write_file("node0/cpulist", "1\n");
  assert_true(find(true, &cpus));
  write_file("online", "0\n"); /* one node */
  assert_false(find(true, &cpus));
}

TEST(this_machine_answers)
{
  kvf_cpu_list cpus;
  kvf_region region = open_region(true);
  if (kvf_numa_cpus(KVF_NUMA_FOLDER, &region, 1, &cpus)) {
    assert_true(kvf_cpu_list_count(&cpus) > 0);
  }
  assert_false(kvf_numa_cpus("/nonexistent", &region, 1, &cpus));
  (void)munmap(region.base, BYTES);
}
