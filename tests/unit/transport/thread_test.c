/* A thread's signals and name, and when polling gives its core away. */
#include <signal.h>
#include <time.h>

#include "base/time.h"
#include "test.h"
#include "transport/thread.h"

static uint64_t clock_ns;      /* 0: the system's */
static uint64_t clock_step_ns; /* by which it moves on when it is looked at */

int __real_clock_gettime(clockid_t clock, struct timespec *now);
int __wrap_clock_gettime(clockid_t clock, struct timespec *now);

int __wrap_clock_gettime(clockid_t clock, struct timespec *now)
{
  if (clock_ns == 0) {
    return __real_clock_gettime(clock, now);
  }
  *now = (struct timespec){.tv_sec = (time_t)(clock_ns / KVF_NS_PER_S), .tv_nsec = (long)(clock_ns % KVF_NS_PER_S)};
  clock_ns += clock_step_ns;
  return 0;
}

static void *look(void *context)
{
  (void)pthread_sigmask(SIG_BLOCK, NULL, context);
  return context;
}

static bool is_blocked_here(int signal_number)
{
  sigset_t blocked;
  (void)pthread_sigmask(SIG_BLOCK, NULL, &blocked);
  return sigismember(&blocked, signal_number) == 1;
}

TEST(signals_are_the_callers)
{
  pthread_t thread;
  sigset_t blocked;
  void *result = NULL;
  assert_int_equal(kvf_thread_start(&thread, "kvf-test", look, &blocked, &(kvf_thread_cpus){0}), 0);
  assert_int_equal(pthread_join(thread, &result), 0);
  assert_ptr_equal(result, &blocked);
  assert_int_equal(sigismember(&blocked, SIGTERM), 1);
  assert_int_equal(sigismember(&blocked, SIGUSR1), 1);
  assert_false(is_blocked_here(SIGTERM));
}

static void *wait_for_signal(void *context)
{
  int got;
  (void)sigwait(context, &got);
  return NULL;
}

TEST(thread_has_its_name)
{
  pthread_t thread;
  char name[16] = "";
  sigset_t end;
  (void)sigemptyset(&end);
  (void)sigaddset(&end, SIGUSR1);
  assert_int_equal(kvf_thread_start(&thread, "kvf-test", wait_for_signal, &end, &(kvf_thread_cpus){0}), 0);
  assert_int_equal(pthread_getname_np(thread, name, sizeof(name)), 0);
  assert_string_equal(name, "kvf-test");
  assert_int_equal(pthread_kill(thread, SIGUSR1), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

TEST(who_yields_to_a_busy_thread_stops_polling)
{
  const uint64_t start_ns = 5 * KVF_NS_PER_S;
  clock_ns = start_ns;
  clock_step_ns = 2 * KVF_NS_PER_MS;
  assert_int_equal(kvf_thread_yield(), 0);
  clock_ns = start_ns;
  clock_step_ns = 3 * KVF_NS_PER_MS;
  assert_int_equal(kvf_thread_yield(), start_ns + 103 * KVF_NS_PER_MS);
  clock_ns = 0;
}
