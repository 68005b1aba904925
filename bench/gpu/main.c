/* kvferry on one GPU beside what its driver does with the same pieces: tools/gpu/README.md. One JSON object a line;
 * bench/gpu/gpu_report.py makes the table. */
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "gpu_bench.h"

#define RUN_S 180.0
#define CASE_LIMIT_S 30.0
#define CASE_LEAST_S 2.0 /* with less left none begins */
#define QUICK_LIMIT_S 60.0
#define AGAIN_WARM_S 0.2 /* after the first case */
#define POLL_NS 2000000

static char *reason; /* why the case's processes gave up: shared with them */

void bench_give_up(const char *format, ...)
{
  char text[BENCH_TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  if (reason[0] == '\0') {
    memcpy(reason, text, sizeof(text));
  }
  _exit(1);
}

void bench_check(const kvf_cuda *cuda, kvf_cu_result result, const char *what)
{
  if (result != KVF_CUDA_SUCCESS) {
    bench_give_up("%s: %s", what, kvf_cuda_error_name(cuda, result));
  }
}

static double seconds_of(struct timeval time)
{
  return (double)time.tv_sec + (double)time.tv_usec / 1e6;
}

double bench_cpu_s(void)
{
  struct rusage usage;
  (void)getrusage(RUSAGE_SELF, &usage);
  return seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime);
}

static double seconds_since(uint64_t begin_ns)
{
  return (double)(bench_now_ns() - begin_ns) / 1e9;
}

/* P is D's child, but not when D is gone: the memory of both is free before the next case begins. */
static void reap(pid_t group)
{
  (void)kill(-group, SIGKILL);
  while (waitpid(-1, NULL, 0) > 0) {
  }
}

static int wait_for(pid_t child, double limit_s)
{
  const struct timespec pause = {0, POLL_NS};
  const uint64_t begin_ns = bench_now_ns();
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    if (seconds_since(begin_ns) > limit_s) {
      (void)snprintf(reason, BENCH_TEXT_BYTES, "it was not over after %.0f s", limit_s);
      (void)kill(-child, SIGKILL);
      (void)waitpid(child, &status, 0);
      return 1;
    }
    (void)nanosleep(&pause, NULL);
  }
  if (WIFSIGNALED(status) && reason[0] == '\0') {
    (void)snprintf(reason, BENCH_TEXT_BYTES, "ended by signal %d; standard error may say why", WTERMSIG(status));
  }
  return status;
}

static bool run_case(const bench_case *of, const bench_settings *settings, double left_s)
{
  const double limit_s = settings->is_quick ? QUICK_LIMIT_S : CASE_LIMIT_S;
  reason[0] = '\0';
  (void)fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    bench_consumer(of, settings);
    (void)fflush(stdout);
    _exit(0);
  }
  if (child < 0) {
    bench_print_failure(of, "cannot fork");
    return false;
  }
  (void)setpgid(child, child);
  const int status = wait_for(child, limit_s < left_s ? limit_s : left_s);
  reap(child);
  if (status != 0) {
    bench_print_failure(of, reason[0] == '\0' ? "standard error may say why" : reason);
  }
  return status == 0;
}

static bool is_wanted(const bench_case *of, const bench_settings *settings)
{
  char name[BENCH_TEXT_BYTES];
  (void)snprintf(name, sizeof(name), "%s/%s", of->path, of->shape.name);
  return strstr(name, settings->only) != NULL &&
         (settings->without == NULL || strstr(name, settings->without) == NULL) &&
         (of->is_quick || !settings->is_quick);
}

static bool run_all(bench_settings *settings)
{
  const uint64_t begin_ns = bench_now_ns();
  bool good = true;
  for (size_t i = 0; i < bench_cases_count; i++) {
    const bench_case *of = &bench_cases[i];
    if (!is_wanted(of, settings)) {
      continue;
    }
    const double left_s = settings->run_s - seconds_since(begin_ns);
    if (left_s < CASE_LEAST_S) {
      bench_print_failure(of, "no time was left");
      good = false;
    } else {
      good = run_case(of, settings, left_s) && good;
      settings->tells_machine = false;
      settings->warm_s = settings->warm_s < AGAIN_WARM_S ? settings->warm_s : AGAIN_WARM_S;
    }
  }
  return good;
}

/* An older library's bench is no failure where it has no such option. */
static bool has_options(const bench_settings *settings)
{
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_config_init(&config);
  const bool has = bench_set_options(&config, settings, message);
  if (!has) {
    bench_print_refused(settings, message);
  }
  return has;
}

static int usage(void)
{
  (void)fprintf(stderr,
                "usage: gpu_bench [--quick] [--seconds N] [--case TEXT] [--without TEXT] [--set NAME=VALUE]…\n");
  return 2;
}

static void make_quick(bench_settings *settings)
{
  settings->is_quick = true;
  settings->case_s = 0;
  settings->warm_s = 0.01;
  settings->bytes_max = (uint64_t)11 << 20;
  settings->multiply_n = 64;
}

/* False: it is no such option. */
static bool take(bench_settings *settings, int option)
{
  if (option == 'q') {
    make_quick(settings);
  } else if (option == 's') {
    settings->run_s = strtod(optarg, NULL);
  } else if (option == 'c') {
    settings->only = optarg;
  } else if (option == 'w') {
    settings->without = optarg;
  } else if (option == 'o' && settings->options_count < BENCH_OPTIONS_MAX) {
    settings->options[settings->options_count++] = optarg;
  } else {
    return false;
  }
  return true;
}

int main(int argc, char **argv)
{
  static const struct option names[] = {
      {"quick", no_argument, NULL, 'q'},      {"seconds", required_argument, NULL, 's'},
      {"case", required_argument, NULL, 'c'}, {"without", required_argument, NULL, 'w'},
      {"set", required_argument, NULL, 'o'},  {NULL, 0, NULL, 0}};
  static bench_settings settings = {.case_s = 1.0,
                                    .warm_s = 1.0,
                                    .bytes_max = UINT64_MAX,
                                    .multiply_n = 2048,
                                    .tells_machine = true,
                                    .run_s = RUN_S,
                                    .only = ""};
  int option;
  while ((option = getopt_long(argc, argv, "", names, NULL)) != -1) {
    if (!take(&settings, option)) {
      return usage();
    }
  }
  reason = mmap(NULL, BENCH_TEXT_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (reason == MAP_FAILED || prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    (void)fprintf(stderr, "gpu_bench: cannot watch its processes\n");
    return 1;
  }
  return !has_options(&settings) || run_all(&settings) ? 0 : 1;
}
