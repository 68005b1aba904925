/* Commands from other threads: their order, the one wake-up, and the end. */
#include "transport/commands.h"

#include <poll.h>

#include "test.h"
#include "transport/thread.h"

static kvf_commands commands;

static void set_up(void)
{
  kvf_commands_init(&commands);
  assert_true(commands.wake_fd >= 0);
}

static void tear_down(void)
{
  kvf_commands_free(&commands);
}

#define COMMANDS_TEST(name) TEST_WITH(name, set_up, tear_down)

static void run_nothing(void *owner, kvf_command *command)
{
  (void)owner;
  (void)command;
}

static void post(kvf_command *command)
{
  kvf_commands_lock(&commands);
  kvf_commands_post(&commands, command);
  kvf_commands_unlock(&commands);
}

static bool is_awake(void)
{
  struct pollfd fd = {.fd = commands.wake_fd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}

COMMANDS_TEST(commands_come_in_order_and_once)
{
  kvf_command first;
  kvf_command second;
  kvf_command_init(&first, run_nothing);
  kvf_command_init(&second, run_nothing);
  post(&first);
  post(&second);
  post(&first);
  assert_ptr_equal(kvf_commands_next(&commands), &first);
  assert_ptr_equal(kvf_commands_next(&commands), &second);
  assert_null(kvf_commands_next(&commands));
}

COMMANDS_TEST(who_sleeps_is_woken_once)
{
  kvf_command command;
  kvf_command_init(&command, run_nothing);
  assert_int_equal(kvf_commands_rest(&commands), KVF_IDLE);
  assert_false(is_awake());
  post(&command);
  assert_true(is_awake());
  kvf_commands_woken(&commands);
  kvf_commands_drain(&commands);
  assert_false(is_awake());
  assert_int_equal(kvf_commands_rest(&commands), KVF_BUSY);
  kvf_commands_woken(&commands);
  assert_non_null(kvf_commands_next(&commands));
  post(&command); /* nobody sleeps */
  assert_false(is_awake());
  assert_non_null(kvf_commands_next(&commands));
}

COMMANDS_TEST(the_end_waits_for_what_was_posted)
{
  kvf_command command;
  kvf_command_init(&command, run_nothing);
  post(&command);
  kvf_commands_stop(&commands);
  assert_int_equal(kvf_commands_rest(&commands), KVF_BUSY);
  assert_non_null(kvf_commands_next(&commands));
  assert_int_equal(kvf_commands_rest(&commands), KVF_STOPPED);
}

static kvf_status double_it(void *owner, void *argument)
{
  int *number = argument;
  assert_ptr_equal(owner, &commands);
  *number *= 2;
  return KVF_LIMIT;
}

static void *serve_one(__attribute__((unused)) void *argument)
{
  uint64_t now_ns = 0;
  while (!kvf_commands_run(&commands, &commands, &now_ns)) {
  }
  return NULL;
}

COMMANDS_TEST(who_waits_gets_the_answer)
{
  pthread_t thread;
  int number = 4;
  assert_int_equal(kvf_thread_start(&thread, "kvf-test", serve_one, NULL, &(kvf_thread_cpus){0}), 0);
  assert_int_equal(kvf_commands_ask(&commands, double_it, &number), KVF_LIMIT);
  assert_int_equal(number, 8);
  assert_int_equal(pthread_join(thread, NULL), 0);
}
