/* stress: see stress.h. */
#include <argp.h>
#include <dirent.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "stress.h"

#define SITES 5
#define THREADS_MAX 32
#define WARM_UP_MS 1000
/* What a heap may have grown by over a run without a leak: the C library counts what it caches for threads. Sanitizers
 * count exactly, and nothing is left there; a leak of one object per connection is some 60 kB in five seconds. */
#define HEAP_SLACK_BYTES 32768
#define HEAP_SLACK_BYTES_EXACT 1024

atomic_bool stress_stop;
atomic_bool stress_last;
atomic_uint stress_wrong;
static atomic_ullong next_seed;

void stress_fail(const char *promise, const char *format, ...)
{
  va_list arguments;
  char line[256];
  if (atomic_fetch_add(&stress_wrong, 1) == 0) {
    va_start(arguments, format);
    (void)vsnprintf(line, sizeof(line), format, arguments);
    va_end(arguments);
    (void)fprintf(stderr, "%s broken: %s\n", promise, line);
  }
  atomic_store(&stress_stop, true);
}

uint64_t stress_now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void stress_sleep_us(uint64_t us)
{
  const struct timespec pause = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
  (void)nanosleep(&pause, NULL);
}

void stress_seed(uint64_t seed)
{
  atomic_store(&next_seed, seed);
}

kvf_prng stress_prng(void)
{
  return (kvf_prng){atomic_fetch_add(&next_seed, UINT64_C(0x2545f4914f6cdd1d))};
}

/* ---- one run ---- */

typedef struct thread_list {
  pthread_t threads[THREADS_MAX];
  uint32_t count;
} thread_list;

static void begin(thread_list *list, void *(*run)(void *), void *context)
{
  if (list->count == THREADS_MAX || pthread_create(&list->threads[list->count], NULL, run, context) != 0) {
    stress_fail("P6", "no thread");
    return;
  }
  list->count++;
}

static void join(thread_list *list)
{
  while (list->count > 0) {
    (void)pthread_join(list->threads[--list->count], NULL);
  }
}

static void begin_engine(thread_list *engines, thread_list *pollers, stress_site *site)
{
  for (int i = 0; i < 2; i++) {
    begin(engines, site->consumer ? stress_consume : stress_produce, site);
  }
  begin(pollers, site->consumer ? stress_consume_poll : stress_produce_poll, site);
}

/* Those that poll go on until all is over. */
static void settle(stress_site *sites, thread_list *pollers)
{
  const uint64_t until_ms = stress_now_ms() + STRESS_PATIENCE_MS;
  bool idle = false;
  while (!idle && stress_now_ms() < until_ms && atomic_load(&stress_wrong) == 0) {
    idle = true;
    for (uint32_t i = 0; i < SITES; i++) {
      idle = stress_is_idle(&sites[i], false) && idle;
    }
    stress_sleep_us(5000);
  }
  for (uint32_t i = 0; i < SITES && atomic_load(&stress_wrong) == 0; i++) {
    (void)stress_is_idle(&sites[i], true);
  }
  join(pollers);
}

static void tell(stress_site *sites, uint64_t ms)
{
  unsigned long long outcomes = 0;
  unsigned long long good = 0;
  unsigned long long ends = 0;
  unsigned long long restarts = 0;
  for (uint32_t i = 0; i < SITES; i++) {
    outcomes += atomic_load(&sites[i].outcomes);
    good += atomic_load(&sites[i].good);
    ends += atomic_load(&sites[i].lease_ends);
    restarts += atomic_load(&sites[i].restarts);
  }
  (void)printf("%.1f s: %llu loads, %llu of them whole; %llu leases ended; %llu restarts\n", (double)ms / 1000,
               outcomes, good, ends, restarts);
}

/* False: it could not begin. */
static bool run(uint64_t ms)
{
  static const char *const transports[SITES] = {"local,tcp", "tcp", "local,tcp", "tcp", "local"};
  static stress_site sites[SITES];
  stress_sites all = {sites, SITES};
  thread_list engines = {.count = 0};
  thread_list pollers = {.count = 0};
  const uint64_t begin_ms = stress_now_ms();
  atomic_store(&stress_stop, false);
  atomic_store(&stress_last, false);
  for (uint32_t i = 0; i < SITES; i++) {
    if (!stress_site_open(&sites[i], transports[i], i >= 2)) {
      return false;
    }
  }
  for (uint32_t i = 0; i < SITES; i++) {
    begin_engine(&engines, &pollers, &sites[i]);
  }
  begin(&engines, stress_look, &all);
  begin(&engines, stress_rain, &all);
  begin(&engines, stress_child, NULL);
  while (stress_now_ms() < begin_ms + ms && !atomic_load(&stress_stop)) {
    stress_sleep_us(10000);
  }
  atomic_store(&stress_stop, true);
  join(&engines);
  atomic_store(&stress_last, true);
  settle(sites, &pollers);
  tell(sites, stress_now_ms() - begin_ms);
  for (uint32_t i = 0; i < SITES; i++) {
    stress_site_close(&sites[i]);
  }
  return true;
}

/* ---- what is left afterwards ---- */

/* Sanitizers have heaps of their own. */
extern size_t __sanitizer_get_current_allocated_bytes(void) __attribute__((weak));

typedef struct residue {
  uint64_t heap_bytes;
  uint64_t fds;
  uint64_t threads;
} residue;

static uint64_t count_entries(const char *path)
{
  uint64_t count = 0;
  DIR *directory = opendir(path);
  if (directory == NULL) {
    return 0;
  }
  while (readdir(directory) != NULL) {
    count++;
  }
  (void)closedir(directory);
  return count;
}

static residue measure(void)
{
  residue found = {.fds = count_entries("/proc/self/fd"), .threads = count_entries("/proc/self/task")};
  if (__sanitizer_get_current_allocated_bytes != NULL) {
    found.heap_bytes = __sanitizer_get_current_allocated_bytes();
  } else {
    struct mallinfo2 heap = mallinfo2();
    found.heap_bytes = heap.uordblks + heap.hblkhd;
  }
  return found;
}

static void check_residue(const residue *before)
{
  const uint64_t slack_bytes =
      __sanitizer_get_current_allocated_bytes != NULL ? HEAP_SLACK_BYTES_EXACT : HEAP_SLACK_BYTES;
  residue after = measure();
  const uint64_t until_ms = stress_now_ms() + STRESS_PATIENCE_MS;
  while ((after.fds > before->fds || after.threads > before->threads) && stress_now_ms() < until_ms) {
    stress_sleep_us(1000); /* a joined thread leaves /proc a little later */
    after = measure();
  }
  (void)printf("left: heap %+lld bytes, %+lld descriptors, %+lld threads\n",
               (long long)(after.heap_bytes - before->heap_bytes), (long long)(after.fds - before->fds),
               (long long)(after.threads - before->threads));
  if (after.fds > before->fds || after.threads > before->threads ||
      after.heap_bytes > before->heap_bytes + slack_bytes) {
    stress_fail("P6", "something was left behind");
  }
}

typedef struct stress_arguments {
  uint64_t seconds;
  uint64_t seed;
  bool child;
} stress_arguments;

static error_t parse(int key, char *text, struct argp_state *state)
{
  stress_arguments *arguments = state->input;
  switch (key) {
    case 's':
      arguments->seconds = strtoul(text, NULL, 10);
      break;
    case 'r':
      arguments->seed = strtoul(text, NULL, 10);
      break;
    case 'c':
      arguments->child = true;
      break;
    default:
      return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

static const struct argp_option options[] = {
    {.name = "seconds", .key = 's', .arg = "N", .doc = "how long (5)"},
    {.name = "seed", .key = 'r', .arg = "N", .doc = "of what happens (the time)"},
    {.name = "child", .key = 'c', .flags = OPTION_HIDDEN},
    {0},
};

int main(int count, char **words)
{
  static const struct argp parser = {
      .options = options, .parser = parse, .doc = "Many threads on the public interface while faults rain."};
  stress_arguments arguments = {.seconds = 5, .seed = stress_now_ms()};
  (void)argp_parse(&parser, count, words, 0, NULL, &arguments);
  if (arguments.child) {
    return stress_child_main();
  }
  stress_seed(arguments.seed);
  (void)printf("seed %llu\n", (unsigned long long)arguments.seed);
  (void)setvbuf(stdout, NULL, _IOLBF, 0);
  bool ran = run(WARM_UP_MS);
  const residue before = measure();
  ran = ran && atomic_load(&stress_wrong) == 0 && run(arguments.seconds * 1000);
  if (ran) {
    check_residue(&before);
  }
  return ran && atomic_load(&stress_wrong) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
