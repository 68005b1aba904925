#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "transport/thread.h"

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

static void signals_are_the_callers(void **state)
{
  (void)state;
  pthread_t thread;
  sigset_t blocked;
  void *result = NULL;
  assert_int_equal(kvf_thread_start(&thread, "kvf-test", look, &blocked), 0);
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

static void thread_has_its_name(void **state)
{
  (void)state;
  pthread_t thread;
  char name[16] = "";
  sigset_t end;
  (void)sigemptyset(&end);
  (void)sigaddset(&end, SIGUSR1);
  assert_int_equal(kvf_thread_start(&thread, "kvf-test", wait_for_signal, &end), 0);
  assert_int_equal(pthread_getname_np(thread, name, sizeof(name)), 0);
  assert_string_equal(name, "kvf-test");
  assert_int_equal(pthread_kill(thread, SIGUSR1), 0);
  assert_int_equal(pthread_join(thread, NULL), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(signals_are_the_callers),
      cmocka_unit_test(thread_has_its_name),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
