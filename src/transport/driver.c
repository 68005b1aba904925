#include "transport/driver.h"

#include <poll.h>

#include "transport/thread.h"

void kvf_driver_init(kvf_driver *driver)
{
  *driver = (kvf_driver){.waits_until_ns = 0};
  (void)pthread_mutex_init(&driver->lock, NULL);
}

void kvf_driver_free(kvf_driver *driver)
{
  (void)pthread_mutex_destroy(&driver->lock);
}

/* ---- any thread ---- */

bool kvf_driver_read_opened(kvf_driver *driver, bool small)
{
  atomic_fetch_add_explicit(small ? &driver->small_open : &driver->large_open, 1, memory_order_relaxed);
  return small && kvf_driver_has_small(driver);
}

void kvf_driver_read_closed(kvf_driver *driver, bool small)
{
  atomic_fetch_sub_explicit(small ? &driver->small_open : &driver->large_open, 1, memory_order_relaxed);
}

/* ---- the data thread's own thread ---- */

int kvf_driver_wait(kvf_driver *driver, const kvf_commands *commands, int epoll_fd, struct epoll_event *events,
                    int capacity, uint64_t now_ns, uint64_t due_ns)
{
  if (driver->asks >= KVF_DRIVER_ASKS_MIN) {
    driver->light_until_ns = kvf_time_add(now_ns, KVF_DRIVER_LOOK_NS);
  }
  driver->asks = 0;
  bool is_light =
      now_ns < driver->light_until_ns && atomic_load_explicit(&driver->large_open, memory_order_relaxed) == 0;
  if (is_light) {
    due_ns = kvf_time_min(due_ns, driver->light_until_ns);
  }

  int wait_ms = kvf_thread_wait_ms(now_ns, due_ns);
  int count = 0;
  driver->waits_until_ns = due_ns;
  driver->has_driven = false;
  (void)pthread_mutex_unlock(&driver->lock);
  if (is_light) {
    struct pollfd wake = {.fd = commands->wake_fd, .events = POLLIN};
    (void)poll(&wake, 1, wait_ms);
  } else {
    count = epoll_wait(epoll_fd, events, capacity, wait_ms);
  }
  (void)pthread_mutex_lock(&driver->lock);
  return is_light || driver->has_driven ? epoll_wait(epoll_fd, events, capacity, 0) : count;
}

/* ---- a caller ---- */

bool kvf_driver_has_small(const kvf_driver *driver)
{
  return atomic_load_explicit(&driver->small_open, memory_order_relaxed) > 0 &&
         atomic_load_explicit(&driver->large_open, memory_order_relaxed) == 0;
}

bool kvf_driver_take(kvf_driver *driver, kvf_commands *commands)
{
  if (pthread_mutex_trylock(&driver->lock) != 0) {
    kvf_commands_wake(commands, true); /* it may have looked already */
    return false;
  }
  driver->has_driven = true;
  return true;
}

void kvf_driver_leave(kvf_driver *driver, kvf_commands *commands, bool asked, uint64_t due_ns, bool wakes)
{
  driver->asks += asked;
  bool is_early = due_ns < driver->waits_until_ns;
  (void)pthread_mutex_unlock(&driver->lock);
  if (is_early || wakes) {
    kvf_commands_wake(commands, false);
  }
}
