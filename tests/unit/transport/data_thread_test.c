/* Who is the data thread when callers ask, and what ends its wait; and how open reads are found. */
#include "transport/data_thread.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "test.h"
#include "transport/thread.h"

/* A transport's data thread, with one descriptor that it waits for besides its commands, and a link. */
static kvf_data_thread w;
static kvf_data_thread_link the_link;
static int fd;
static uint64_t told_id; /* of the last read that was reported */

static void watch(int watched)
{
  struct epoll_event event = {.events = EPOLLIN};
  assert_int_equal(epoll_ctl(w.epoll_fd, EPOLL_CTL_ADD, watched, &event), 0);
}

static void on_read_done(void *context, const kvf_read_result *result)
{
  assert_ptr_equal(context, &w);
  told_id = result->id;
}

static void set_up(void)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  const kvf_transport_config config = {.spin_us = 100};
  const kvf_transport_host host = {.context = &w, .read_done = on_read_done};
  memset(&w, 0, sizeof(w));
  memset(&the_link, 0, sizeof(the_link));
  assert_int_equal(kvf_data_thread_open(&w, &kvf_transport_tcp, &config, &host, 1, message), KVF_OK);
  the_link.base.transport = &w.base;
  kvf_list_init(&the_link.open);
  fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  assert_true(fd >= 0);
  watch(fd);
}

static void tear_down(void)
{
  kvf_data_thread_free(&w);
  (void)close(fd);
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

static void tell(void)
{
  uint64_t one = 1;
  assert_int_equal(write(fd, &one, sizeof(one)), sizeof(one));
}

static bool is_awake(void)
{
  struct pollfd wake = {.fd = w.commands.wake_fd, .events = POLLIN};
  return poll(&wake, 1, 0) == 1;
}

/* As the data thread does it; returns how many events there were. */
static int wait_for(uint64_t ns)
{
  struct epoll_event events[4];
  uint64_t now_ns = w.now_ns = kvf_clock_now();
  (void)pthread_mutex_lock(&w.lock);
  (void)kvf_commands_rest(&w.commands);
  int count = kvf_data_thread_wait(&w, events, 4, kvf_time_add(now_ns, ns));
  kvf_commands_woken(&w.commands);
  (void)pthread_mutex_unlock(&w.lock);
  return count;
}

static void ask(int times)
{
  for (int i = 0; i < times; i++) {
    assert_true(kvf_data_thread_take(&w));
    kvf_data_thread_leave(&w, true, KVF_TIME_NEVER, false);
  }
}

SET_TEST(an_event_ends_the_wait)
{
  tell();
  assert_int_equal(wait_for(KVF_NS_PER_S), 1);
}

SET_TEST(while_callers_ask_events_wake_nobody)
{
  atomic_store(&w.small_open, 1);
  tell();
  ask(KVF_DATA_THREAD_ASKS_MIN);
  uint64_t before_ns = kvf_clock_now();
  assert_int_equal(wait_for(KVF_NS_PER_S), 1); /* it is there all the same, for whoever looks */
  uint64_t waited_ns = kvf_clock_now() - before_ns;
  assert_true(waited_ns >= KVF_DATA_THREAD_LOOK_NS);
  assert_true(waited_ns < KVF_NS_PER_S);
}

/* An engine that starts a load, or looks now and then, is not one that asks without a pause. */
SET_TEST(few_asks_or_starts_change_nothing)
{
  atomic_store(&w.small_open, 1);
  ask(KVF_DATA_THREAD_ASKS_MIN - 1);
  for (int i = 0; i < 2 * KVF_DATA_THREAD_ASKS_MIN; i++) {
    assert_true(kvf_data_thread_take(&w));
    kvf_data_thread_leave(&w, false, KVF_TIME_NEVER, false);
  }
  uint32_t asks = w.asks;
  assert_int_equal(asks, KVF_DATA_THREAD_ASKS_MIN - 1);
  tell();
  (void)wait_for(KVF_NS_PER_S);
  assert_true(w.light_until_ns == 0);
}

/* One that waits for its event asks once a load. */
SET_TEST(asks_of_many_loads_do_not_add_up)
{
  atomic_store(&w.small_open, 1);
  tell();
  for (int i = 0; i < 2 * KVF_DATA_THREAD_ASKS_MIN; i++) {
    ask(1);
    assert_int_equal(wait_for(KVF_NS_PER_S), 1);
    assert_true(w.light_until_ns == 0);
  }
}

SET_TEST(callers_that_ask_no_more_are_forgotten)
{
  ask(KVF_DATA_THREAD_ASKS_MIN);
  assert_int_equal(wait_for(KVF_NS_PER_S), 0); /* its look */
  assert_int_equal(w.asks, 0);
  uint64_t light_until_ns = w.light_until_ns;
  tell();
  assert_int_equal(wait_for(10 * KVF_NS_PER_S), 1);
  assert_true(w.light_until_ns == light_until_ns);
}

SET_TEST(a_command_ends_the_wait_at_any_time)
{
  ask(KVF_DATA_THREAD_ASKS_MIN);
  kvf_commands_lock(&w.commands);
  w.commands.asleep = true;
  kvf_commands_unlock(&w.commands);
  kvf_commands_wake(&w.commands, false);
  w.light_until_ns = kvf_time_add(kvf_clock_now(), 100 * KVF_NS_PER_S);
  assert_int_equal(wait_for(100 * KVF_NS_PER_S), 1);
}

static void run_nothing(void *owner, kvf_command *command)
{
  (void)owner;
  (void)command;
}

/* Whether the caller starts it: the data thread, which sleeps, is not woken for it. */
static bool starts(kvf_data_thread_read *read, bool small)
{
  const kvf_transfer request = {.id = 1, .small = small};
  w.commands.asleep = true;
  kvf_data_thread_read_start(&the_link.base, &request, read, run_nothing, run_nothing);
  bool woken = is_awake();
  kvf_commands_drain(&w.commands);
  return !woken;
}

static void end(kvf_data_thread_read *read)
{
  const kvf_read_result result = {.id = read->transfer.id};
  kvf_data_thread_read_done(read, &result);
  assert_int_equal(told_id, read->transfer.id);
}

SET_TEST(a_large_read_keeps_callers_away)
{
  kvf_data_thread_read small = {0};
  kvf_data_thread_read large = {0};
  kvf_data_thread_read late = {0};
  w.busy_ns = w.now_ns;
  assert_true(starts(&small, true));
  assert_true(kvf_data_thread_has_small(&w));
  assert_false(kvf_data_thread_may_spin(&w));
  assert_false(starts(&large, false));
  assert_false(kvf_data_thread_has_small(&w));
  assert_false(starts(&late, true)); /* nobody else would start it */
  ask(KVF_DATA_THREAD_ASKS_MIN);
  tell();
  w.light_until_ns = kvf_time_add(kvf_clock_now(), 100 * KVF_NS_PER_S);
  assert_int_equal(wait_for(100 * KVF_NS_PER_S), 1);
  w.busy_ns = w.now_ns;
  end(&large);
  assert_true(kvf_data_thread_has_small(&w));
  end(&small);
  end(&late);
  assert_false(kvf_data_thread_has_small(&w));
  assert_true(kvf_data_thread_may_spin(&w));
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
  (void)pthread_mutex_lock(&w.lock);
  sleep_as_data_thread();
  assert_false(kvf_data_thread_take(&w));
  assert_false(is_awake()); /* there is none */
  kvf_list_push_back(&w.commands.list, &command.in_commands);
  assert_false(is_awake());
  assert_false(kvf_data_thread_take(&w));
  assert_true(is_awake());
  (void)pthread_mutex_unlock(&w.lock);
}

SET_TEST(an_earlier_deadline_wakes)
{
  w.waits_until_ns = 50;
  sleep_as_data_thread();
  assert_true(kvf_data_thread_take(&w));
  kvf_data_thread_leave(&w, true, 50, false);
  assert_false(is_awake());
  assert_true(kvf_data_thread_take(&w));
  kvf_data_thread_leave(&w, true, 49, false);
  assert_true(is_awake());
}

SET_TEST(what_is_left_to_it_wakes)
{
  sleep_as_data_thread();
  assert_true(kvf_data_thread_take(&w));
  kvf_data_thread_leave(&w, true, KVF_TIME_NEVER, true);
  assert_true(is_awake());
}

/* Serves the event as a caller would that got hold of the lock before the woken data thread did. */
static void *serve_first(__attribute__((unused)) void *context)
{
  while (!kvf_data_thread_take(&w)) {
  }
  tell();
  (void)poll(NULL, 0, 20); /* by then epoll_wait() has returned the event */
  uint64_t value;
  assert_int_equal(read(fd, &value, sizeof(value)), sizeof(value));
  kvf_data_thread_leave(&w, false, KVF_TIME_NEVER, false);
  return NULL;
}

SET_TEST(what_a_caller_has_served_is_not_served_again)
{
  pthread_t caller;
  struct epoll_event events[4];
  uint64_t now_ns = w.now_ns = kvf_clock_now();
  (void)pthread_mutex_lock(&w.lock);
  assert_int_equal(pthread_create(&caller, NULL, serve_first, NULL), 0);
  int count = kvf_data_thread_wait(&w, events, 4, kvf_time_add(now_ns, 10 * KVF_NS_PER_S));
  (void)pthread_mutex_unlock(&w.lock);
  (void)pthread_join(caller, NULL);
  assert_int_equal(count, 0);
}

SET_TEST(reads_are_found_while_they_are_open)
{
  kvf_data_thread_read reads[2] = {0};
  for (uint64_t i = 0; i < 2; i++) {
    const kvf_transfer request = {.id = 7 + i};
    kvf_data_thread_read_start(&the_link.base, &request, &reads[i], run_nothing, run_nothing);
  }
  assert_ptr_equal(kvf_commands_next(&w.commands), &reads[0].start);
  kvf_data_thread_read_cancel(&the_link.base, 99);
  kvf_data_thread_read_cancel(&the_link.base, 8);
  assert_ptr_equal(kvf_data_thread_open_read(&the_link), &reads[0]);
  end(&reads[0]);
  assert_ptr_equal(kvf_data_thread_open_read(&the_link), &reads[1]);
  end(&reads[1]); /* and what was wished of it is off the list */
  assert_null(kvf_data_thread_open_read(&the_link));
  assert_null(kvf_commands_next(&w.commands));
}
