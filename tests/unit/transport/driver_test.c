#include "transport/driver.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "test.h"
#include "transport/thread.h"

/* A transport's data thread, with one descriptor that it waits for besides its commands. */
typedef struct world {
  kvf_commands commands;
  kvf_driver driver;
  int epoll_fd;
  int fd;
} world;

static world w;

static void watch(int fd)
{
  struct epoll_event event = {.events = EPOLLIN};
  assert_int_equal(epoll_ctl(w.epoll_fd, EPOLL_CTL_ADD, fd, &event), 0);
}

static int set_up(__attribute__((unused)) void **state)
{
  memset(&w, 0, sizeof(w));
  kvf_commands_init(&w.commands);
  kvf_driver_init(&w.driver);
  w.epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  w.fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  assert_true(w.epoll_fd >= 0 && w.fd >= 0 && w.commands.wake_fd >= 0);
  watch(w.commands.wake_fd);
  watch(w.fd);
  return 0;
}

static int tear_down(__attribute__((unused)) void **state)
{
  kvf_driver_free(&w.driver);
  kvf_commands_free(&w.commands);
  (void)close(w.epoll_fd);
  (void)close(w.fd);
  return 0;
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

static void tell(void)
{
  uint64_t one = 1;
  assert_int_equal(write(w.fd, &one, sizeof(one)), sizeof(one));
}

static bool is_awake(void)
{
  struct pollfd fd = {.fd = w.commands.wake_fd, .events = POLLIN};
  return poll(&fd, 1, 0) == 1;
}

/* As the data thread does it; returns how many events there were. */
static int wait_for(uint64_t ns)
{
  struct epoll_event events[4];
  uint64_t now_ns = kvf_clock_now();
  (void)pthread_mutex_lock(&w.driver.lock);
  (void)kvf_commands_rest(&w.commands);
  int count = kvf_driver_wait(&w.driver, &w.commands, w.epoll_fd, events, 4, now_ns, kvf_time_add(now_ns, ns));
  kvf_commands_woken(&w.commands);
  (void)pthread_mutex_unlock(&w.driver.lock);
  return count;
}

static void ask(int times)
{
  for (int i = 0; i < times; i++) {
    assert_true(kvf_driver_take(&w.driver, &w.commands));
    kvf_driver_leave(&w.driver, &w.commands, true, KVF_TIME_NEVER, false);
  }
}

SET_TEST(an_event_ends_the_wait)
{
  tell();
  assert_int_equal(wait_for(KVF_NS_PER_S), 1);
}

SET_TEST(while_callers_ask_events_wake_nobody)
{
  (void)kvf_driver_read_opened(&w.driver, true);
  tell();
  ask(KVF_DRIVER_ASKS_MIN);
  uint64_t before_ns = kvf_clock_now();
  assert_int_equal(wait_for(KVF_NS_PER_S), 1); /* it is there all the same, for whoever looks */
  uint64_t waited_ns = kvf_clock_now() - before_ns;
  assert_true(waited_ns >= KVF_DRIVER_LOOK_NS);
  assert_true(waited_ns < KVF_NS_PER_S);
}

/* An engine that starts a load, or looks now and then, is not one that asks without a pause. */
SET_TEST(few_asks_or_starts_change_nothing)
{
  (void)kvf_driver_read_opened(&w.driver, true);
  ask(KVF_DRIVER_ASKS_MIN - 1);
  for (int i = 0; i < 2 * KVF_DRIVER_ASKS_MIN; i++) {
    assert_true(kvf_driver_take(&w.driver, &w.commands));
    kvf_driver_leave(&w.driver, &w.commands, false, KVF_TIME_NEVER, false);
  }
  uint32_t asks = w.driver.asks;
  assert_int_equal(asks, KVF_DRIVER_ASKS_MIN - 1);
  tell();
  (void)wait_for(KVF_NS_PER_S);
  assert_true(w.driver.light_until_ns == 0);
}

/* One that waits for its event asks once a load. */
SET_TEST(asks_of_many_loads_do_not_add_up)
{
  (void)kvf_driver_read_opened(&w.driver, true);
  tell();
  for (int i = 0; i < 2 * KVF_DRIVER_ASKS_MIN; i++) {
    ask(1);
    assert_int_equal(wait_for(KVF_NS_PER_S), 1);
    assert_true(w.driver.light_until_ns == 0);
  }
}

SET_TEST(callers_that_ask_no_more_are_forgotten)
{
  ask(KVF_DRIVER_ASKS_MIN);
  assert_int_equal(wait_for(KVF_NS_PER_S), 0); /* its look */
  assert_int_equal(w.driver.asks, 0);
  uint64_t light_until_ns = w.driver.light_until_ns;
  tell();
  assert_int_equal(wait_for(10 * KVF_NS_PER_S), 1);
  assert_true(w.driver.light_until_ns == light_until_ns);
}

SET_TEST(a_command_ends_the_wait_at_any_time)
{
  ask(KVF_DRIVER_ASKS_MIN);
  kvf_commands_lock(&w.commands);
  w.commands.asleep = true;
  kvf_commands_unlock(&w.commands);
  kvf_commands_wake(&w.commands, false);
  w.driver.light_until_ns = kvf_time_add(kvf_clock_now(), 100 * KVF_NS_PER_S);
  assert_int_equal(wait_for(100 * KVF_NS_PER_S), 1);
}

SET_TEST(a_large_read_keeps_callers_away)
{
  assert_true(kvf_driver_read_opened(&w.driver, true));
  assert_true(kvf_driver_has_small(&w.driver));
  assert_false(kvf_driver_may_spin(&w.driver));
  assert_false(kvf_driver_read_opened(&w.driver, false));
  assert_false(kvf_driver_has_small(&w.driver));
  assert_false(kvf_driver_read_opened(&w.driver, true)); /* nobody else would start it */
  ask(KVF_DRIVER_ASKS_MIN);
  tell();
  w.driver.light_until_ns = kvf_time_add(kvf_clock_now(), 100 * KVF_NS_PER_S);
  assert_int_equal(wait_for(100 * KVF_NS_PER_S), 1);
  kvf_driver_read_closed(&w.driver, false);
  assert_true(kvf_driver_has_small(&w.driver));
  kvf_driver_read_closed(&w.driver, true);
  kvf_driver_read_closed(&w.driver, true);
  assert_false(kvf_driver_has_small(&w.driver));
  assert_true(kvf_driver_may_spin(&w.driver));
}

static void run_nothing(void *owner, kvf_command *command)
{
  (void)owner;
  (void)command;
}

static void sleep_as_data_thread(void)
{
  assert_int_equal(kvf_commands_rest(&w.commands), KVF_IDLE);
}

/* Between its last look for commands and its wait, the data thread holds the lock: what a caller posts then without
 * waking it must wake it when the caller cannot drive. */
SET_TEST(a_data_thread_at_work_is_told_of_commands)
{
  kvf_command command;
  kvf_command_init(&command, run_nothing);
  (void)pthread_mutex_lock(&w.driver.lock);
  sleep_as_data_thread();
  assert_false(kvf_driver_take(&w.driver, &w.commands));
  assert_false(is_awake()); /* there is none */
  kvf_list_push_back(&w.commands.list, &command.in_commands);
  assert_false(is_awake());
  assert_false(kvf_driver_take(&w.driver, &w.commands));
  assert_true(is_awake());
  (void)pthread_mutex_unlock(&w.driver.lock);
}

SET_TEST(an_earlier_deadline_wakes)
{
  w.driver.waits_until_ns = 50;
  sleep_as_data_thread();
  assert_true(kvf_driver_take(&w.driver, &w.commands));
  kvf_driver_leave(&w.driver, &w.commands, true, 50, false);
  assert_false(is_awake());
  assert_true(kvf_driver_take(&w.driver, &w.commands));
  kvf_driver_leave(&w.driver, &w.commands, true, 49, false);
  assert_true(is_awake());
}

SET_TEST(what_is_left_to_it_wakes)
{
  sleep_as_data_thread();
  assert_true(kvf_driver_take(&w.driver, &w.commands));
  kvf_driver_leave(&w.driver, &w.commands, true, KVF_TIME_NEVER, true);
  assert_true(is_awake());
}

/* Serves the event as a caller would that got hold of the lock before the woken data thread did. */
static void *serve_first(__attribute__((unused)) void *context)
{
  while (!kvf_driver_take(&w.driver, &w.commands)) {
  }
  tell();
  (void)poll(NULL, 0, 20); /* by then epoll_wait() has returned the event */
  uint64_t value;
  assert_int_equal(read(w.fd, &value, sizeof(value)), sizeof(value));
  kvf_driver_leave(&w.driver, &w.commands, false, KVF_TIME_NEVER, false);
  return NULL;
}

SET_TEST(what_a_caller_has_served_is_not_served_again)
{
  pthread_t caller;
  struct epoll_event events[4];
  uint64_t now_ns = kvf_clock_now();
  (void)pthread_mutex_lock(&w.driver.lock);
  assert_int_equal(pthread_create(&caller, NULL, serve_first, NULL), 0);
  int count =
      kvf_driver_wait(&w.driver, &w.commands, w.epoll_fd, events, 4, now_ns, kvf_time_add(now_ns, 10 * KVF_NS_PER_S));
  (void)pthread_mutex_unlock(&w.driver.lock);
  (void)pthread_join(caller, NULL);
  assert_int_equal(count, 0);
}
