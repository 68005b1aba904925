/* Where a node's threads run, and how: what the thread that opens it has for itself is not for them. */
#include "pair.h"
#include "test.h"

#include <dirent.h>
#include <sched.h>
#include <unistd.h>

static cpu_set_t cpus_at_start;

static void keep_cpus(void)
{
  assert_int_equal(sched_getaffinity(0, sizeof(cpus_at_start), &cpus_at_start), 0);
}

static void restore_cpus(void)
{
  pair_close();
  assert_int_equal(sched_setaffinity(0, sizeof(cpus_at_start), &cpus_at_start), 0);
}

#define CPUS_TEST(name) TEST_WITH(name, keep_cpus, restore_cpus)

static size_t first_cpu(void)
{
  size_t cpu = 0;
  while (!CPU_ISSET(cpu, &cpus_at_start)) {
    cpu++;
  }
  return cpu;
}

static cpu_set_t only(size_t cpu)
{
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  return set;
}

static bool is_named(const char *thread, const char *wanted)
{
  char path[300];
  char name[32] = "";
  (void)snprintf(path, sizeof(path), "/proc/self/task/%s/comm", thread);
  FILE *file = fopen(path, "re");
  const bool is = file != NULL && fgets(name, sizeof(name), file) != NULL && strncmp(name, wanted, strlen(wanted)) == 0;
  if (file != NULL) {
    (void)fclose(file);
  }
  return is;
}

/* That all of the library's threads may run there, and nowhere else, and are of the usual class. */
static void expect_threads_on(const cpu_set_t *expected)
{
  unsigned count = 0;
  DIR *threads = opendir("/proc/self/task");
  assert_non_null(threads);
  for (const struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
    if (is_named(entry->d_name, "kvf-")) {
      cpu_set_t set;
      pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
      assert_int_equal(sched_getaffinity(thread, sizeof(set), &set), 0);
      assert_true(CPU_EQUAL(&set, expected));
      assert_int_equal(sched_getscheduler(thread), SCHED_OTHER);
      count++;
    }
  }
  (void)closedir(threads);
  assert_true(count >= 8); /* log, control, checksums, reaper, copy twice, tcp twice */
}

static void open_pinned(const char *thread_cpus)
{
  const pair_option options[] = {
      {"transports", "local,tcp"}, {"checksum", "on"}, {"thread_cpus", thread_cpus}, {NULL, NULL}};
  const cpu_set_t pinned = only(first_cpu());
  const struct sched_param batch = {0};
  assert_int_equal(sched_setaffinity(0, sizeof(pinned), &pinned), 0);
  assert_int_equal(sched_setscheduler(0, SCHED_BATCH, &batch), 0);
  pair_open_node(&p.producer, options);
  assert_int_equal(sched_setscheduler(0, SCHED_OTHER, &batch), 0);
}

/* How much longer than it asks for the thread may sleep, in nanoseconds. */
static long slack_of(const char *thread)
{
  char path[300];
  char text[32] = "";
  (void)snprintf(path, sizeof(path), "/proc/%s/timerslack_ns", thread);
  FILE *file = fopen(path, "re");
  const bool is_read = file != NULL && fgets(text, sizeof(text), file) != NULL;
  if (file != NULL) {
    (void)fclose(file);
  }
  return is_read ? strtol(text, NULL, 10) : 1; /* the kernel tells not everybody */
}

static const char *const polling[] = {"kvf-copy", "kvf-checksums", "kvf-ordering"};

/* A bit for each of their names that is a thread's, and that of none which sleeps longer. */
static unsigned exact_threads(void)
{
  unsigned found = 0;
  unsigned late = 0;
  DIR *threads = opendir("/proc/self/task");
  assert_non_null(threads);
  for (const struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
    for (size_t i = 0; i < 3; i++) {
      const bool is = is_named(entry->d_name, polling[i]);
      found |= is ? 1U << i : 0;
      late |= is && slack_of(entry->d_name) > 1 ? 1U << i : 0;
    }
  }
  (void)closedir(threads);
  return found & ~late;
}

/* Those that look at a device again and again, once they run. */
PAIR_TEST(threads_that_poll_sleep_exactly)
{
  static const pair_option options[] = {{"transports", "local"}, {"checksum", "on"}, {"memory", "cuda"}, {NULL, NULL}};
  const uint64_t until_ms = now_ms() + PAIR_LATE_MS;
  unsigned exact;
  pair_open_node(&p.producer, options);
  while ((exact = exact_threads()) != 7 && pair_tick(until_ms)) {
  }
  assert_int_equal(exact, 7);
}

CPUS_TEST(threads_do_not_inherit_the_openers_pinning)
{
  open_pinned("auto");
  expect_threads_on(&cpus_at_start);
}

CPUS_TEST(unless_they_are_to)
{
  const cpu_set_t pinned = only(first_cpu());
  open_pinned("inherit");
  expect_threads_on(&pinned);
}

CPUS_TEST(a_list_is_obeyed)
{
  size_t last = first_cpu();
  char list[32];
  for (size_t cpu = last; cpu < CPU_SETSIZE; cpu++) {
    last = CPU_ISSET(cpu, &cpus_at_start) ? cpu : last;
  }
  const cpu_set_t expected = only(last);
  (void)snprintf(list, sizeof(list), "%zu,1023", last);
  open_pinned(list);
  expect_threads_on(&expected);
}

TEST(a_list_of_cpus_that_are_not_there_is_refused)
{
  pair_expect_refused((const pair_option[]){{"thread_cpus", "1022-1023"}, {NULL, NULL}}, KVF_INVALID,
                      "thread_cpus = \"1022-1023\": this process may use none of these CPUs");
}
