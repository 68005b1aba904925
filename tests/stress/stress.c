/* stress: see stress.h. */
#include <argp.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../memory_kind.h"
#include "../sides/peer.h"
#include "fake_cuda.h"
#include "stress.h"

#define SITES 5
#define WARM_UP_MS 1000
#define WARM_UPS_MAX 6
/* What a heap may have grown by over a run without a leak: in the rain a leak of one object per connection is some 60
 * kB in five seconds. A driver, the fake one too, keeps lists that grow. */
#define HEAP_SLACK_BYTES 1024
#define DRIVER_SLACK_BYTES 8192
/* An event of the driver's and what the library has around it: as many are kept as have ever been needed at a time. */
#define EVENT_BYTES 256
#define EVENTS_MAX ((uint64_t)SITES * (STRESS_LEASES + STRESS_LOADS)) /* more than could be open at once: a leak */

atomic_bool stress_stop;
atomic_bool stress_last;
atomic_uint stress_wrong;
const stress_mix *stress_mix_now = &stress_rain_mix;
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

void stress_seed(uint64_t seed)
{
  atomic_store(&next_seed, seed);
}

kvf_prng stress_prng(void)
{
  return (kvf_prng){atomic_fetch_add(&next_seed, UINT64_C(0x2545f4914f6cdd1d))};
}

/* ---- one run ---- */

void stress_begin(stress_threads *threads, void *(*run)(void *), void *context)
{
  if (threads->count == STRESS_THREADS_MAX ||
      pthread_create(&threads->threads[threads->count], NULL, run, context) != 0) {
    stress_fail("P6", "no thread");
    return;
  }
  threads->count++;
}

void stress_join(stress_threads *threads)
{
  while (threads->count > 0) {
    (void)pthread_join(threads->threads[--threads->count], NULL);
  }
}

static void begin_engine(stress_threads *engines, stress_threads *pollers, stress_site *site)
{
  for (int i = 0; i < 2; i++) {
    stress_begin(engines, stress_engine, site);
  }
  stress_begin(pollers, stress_poll, site);
}

void stress_settle(const stress_sites *sites, stress_threads *pollers)
{
  const uint64_t until_ms = now_ms() + STRESS_PATIENCE_MS;
  bool idle = false;
  atomic_store(&stress_last, true);
  while (!idle && now_ms() < until_ms && atomic_load(&stress_wrong) == 0) {
    idle = true;
    for (uint32_t i = 0; i < sites->count; i++) {
      idle = stress_is_idle(&sites->site[i], false) && idle;
    }
    sleep_us(5000);
  }
  for (uint32_t i = 0; i < sites->count && atomic_load(&stress_wrong) == 0; i++) {
    (void)stress_is_idle(&sites->site[i], true);
  }
  stress_join(pollers);
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

static void set_up(stress_setting *setting, held_port port, const char *transports, bool consumer, bool devices)
{
  *setting = (stress_setting){.consumer = consumer, .devices = devices};
  (void)snprintf(setting->listen, sizeof(setting->listen), "%s", port.address);
  (void)snprintf(setting->transports, sizeof(setting->transports), "%s", transports);
}

static void rain(uint64_t ms, bool devices)
{
  static const char *const transports[SITES + 1] = {"local,tcp", "tcp", "local,tcp", "tcp", "local", "local,tcp"};
  static stress_site sites[SITES];
  held_port ports[SITES + 1]; /* the last is the child's */
  stress_setting settings[SITES + 1];
  stress_sites all = {sites, SITES};
  stress_threads engines = {.count = 0};
  stress_threads pollers = {.count = 0};
  const uint64_t begin_ms = now_ms();
  atomic_store(&stress_stop, false);
  atomic_store(&stress_last, false);
  for (uint32_t i = 0; i <= SITES; i++) {
    ports[i] = hold_port();
    set_up(&settings[i], ports[i], transports[i], i >= 2 && i < SITES, devices);
    if (i < SITES) {
      stress_site_open(&sites[i], &settings[i]);
    }
  }
  for (uint32_t i = 0; i < SITES; i++) {
    begin_engine(&engines, &pollers, &sites[i]);
  }
  stress_begin(&engines, stress_look, &all);
  stress_begin(&engines, stress_rain, &all);
  stress_begin(&engines, stress_child, &settings[SITES]);
  if (devices) {
    stress_begin(&engines, stress_shake_device, NULL);
  }
  while (now_ms() < begin_ms + ms && !atomic_load(&stress_stop)) {
    sleep_us(10000);
  }
  atomic_store(&stress_stop, true);
  stress_join(&engines);
  stress_settle(&all, &pollers);
  tell(sites, now_ms() - begin_ms);
  for (uint32_t i = 0; i < SITES; i++) {
    stress_site_close(&sites[i]);
  }
  if (!test_memory_is_released()) {
    stress_fail("P6", "memory of others is still open");
  }
  for (uint32_t i = 0; i <= SITES; i++) {
    (void)close(ports[i].fd);
  }
}

/* ---- what is left afterwards ---- */

/* 0: not known. */
static uint64_t resident_bytes(void)
{
  uint64_t pages = 0;
  FILE *file = fopen("/proc/self/statm", "re");
  if (file != NULL) {
    pages = fscanf(file, "%*u %" SCNu64, &pages) == 1 ? pages : 0;
    (void)fclose(file);
  }
  return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

stress_residue stress_measure(void)
{
  return (stress_residue){costs_now(), resident_bytes(), fake_cuda_count().events};
}

static void tell_residue(const char *what, uint64_t before, uint64_t after)
{
  (void)printf("%-28s%llu before, %llu after\n", what, (unsigned long long)before, (unsigned long long)after);
}

static bool is_more(const stress_residue *after, const stress_residue *before)
{
  const uint64_t more_events = after->events > before->events ? after->events - before->events : 0;
  const uint64_t slack_bytes =
      (fake_cuda_count().contexts > 0 ? DRIVER_SLACK_BYTES : HEAP_SLACK_BYTES) + more_events * EVENT_BYTES;
  return after->costs.descriptors > before->costs.descriptors || after->costs.threads > before->costs.threads ||
         more_events > EVENTS_MAX || after->costs.memory_bytes > before->costs.memory_bytes + slack_bytes;
}

void stress_check_residue(const stress_residue *before)
{
  stress_residue after = stress_measure();
  const uint64_t until_ms = now_ms() + STRESS_PATIENCE_MS;
  while (is_more(&after, before) && now_ms() < until_ms) {
    sleep_us(1000); /* a joined thread leaves /proc a little later */
    after = stress_measure();
  }
  tell_residue("heap, bytes", before->costs.memory_bytes, after.costs.memory_bytes);
  tell_residue("resident, bytes", before->resident_bytes, after.resident_bytes);
  tell_residue("descriptors", before->costs.descriptors, after.costs.descriptors);
  tell_residue("threads", before->costs.threads, after.costs.threads);
  tell_residue("events of the driver", before->events, after.events);
  if (is_more(&after, before)) {
    stress_fail("P6", "something was left behind");
  }
}

/* Lists of the driver's grow until they hold as much as was ever needed at a time: on a loaded machine that takes more
 * than one round. A leak grows in each. */
static stress_residue warm_up(bool devices)
{
  stress_residue before;
  stress_residue after = {0};
  unsigned rounds = 0;
  do {
    before = after;
    rain(WARM_UP_MS, devices);
    after = stress_measure();
  } while (is_more(&after, &before) && ++rounds < WARM_UPS_MAX);
  return after;
}

static void rain_twice(uint64_t ms, bool devices)
{
  const stress_residue before = warm_up(devices);
  if (atomic_load(&stress_wrong) == 0) {
    rain(ms, devices);
    stress_check_residue(&before);
  }
}

typedef struct stress_arguments {
  uint64_t seconds;
  uint64_t seed;
  stress_churn_order churn_order;
  bool devices;
  bool churn;
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
    case 'm':
      arguments->devices = strcmp(text, "cuda") == 0;
      if (!arguments->devices && strcmp(text, "host") != 0) {
        argp_error(state, "memory is host or cuda");
      }
      break;
    case 'u':
      arguments->churn = true;
      break;
    case 'l':
      arguments->churn_order.loads = strtoul(text, NULL, 10);
      break;
    case 't':
      arguments->churn_order.tls = true;
      break;
    case '6':
      arguments->churn_order.ipv6 = true;
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
    {.name = "memory", .key = 'm', .arg = "host|cuda", .doc = "cuda: some of it is that of fake GPUs (host)"},
    {.name = "churn", .key = 'u', .doc = "producers that are killed and started anew, instead of rain"},
    {.name = "loads", .key = 'l', .arg = "N", .doc = "churn: how many (100000; 10000 with a sanitizer)"},
    {.name = "tls", .key = 't', .doc = "churn: everything inside TLS, and its keys change meanwhile"},
    {.name = "ipv6", .key = '6', .doc = "churn: on ::1"},
    {.name = "child", .key = 'c', .flags = OPTION_HIDDEN},
    {0},
};

/* glibc keeps freed blocks for each thread (its tcache) and counts them as in use. Read before main(), so: once more.
 */
static void start_without_caches(char **words)
{
  static const char tunable[] = "glibc.malloc.tcache_count=0";
  const char *set = getenv("GLIBC_TUNABLES");
  if ((set == NULL || strcmp(set, tunable) != 0) && setenv("GLIBC_TUNABLES", tunable, 1) == 0) {
    (void)execv("/proc/self/exe", words);
  }
}

int main(int count, char **words)
{
  start_without_caches(words);
  static const struct argp parser = {
      .options = options, .parser = parse, .doc = "Many threads on the public interface while faults rain."};
  stress_arguments arguments = {.seconds = 5, .seed = now_ms(), .churn_order.loads = SANITIZED ? 10000 : 100000};
  (void)argp_parse(&parser, count, words, 0, NULL, &arguments);
  if (arguments.child) {
    return stress_child_main();
  }
  stress_seed(arguments.seed);
  (void)printf("seed %llu\n", (unsigned long long)arguments.seed);
  (void)setvbuf(stdout, NULL, _IOLBF, 0);
  if (arguments.devices) {
    stress_devices_begin();
    arguments.churn_order.devices = true;
  }
  if (arguments.churn) {
    stress_churn(&arguments.churn_order);
  } else {
    rain_twice(arguments.seconds * 1000, arguments.devices);
  }
  return atomic_load(&stress_wrong) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
