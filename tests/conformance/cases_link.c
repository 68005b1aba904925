/* How links come up, or do not; and what transports keep when they have gone. */
#include <dirent.h>
#include <sched.h>
#include <unistd.h>

#include "base/prng.h"
#include "conformance.h"

static kvf_link_spec spec; /* with which the sides were linked */

static void small_sides(void)
{
  const side_shape shape = {.count = 2, .regions = {{4096, 4096, 8, 4, 8, 0, 0}, {4096, 2048, 8, 4, 8, 1, 0}}};
  sides_open(&shape, &shape);
  spec = side_spec(&two->introduction);
}

#define SMALL_TEST(name) TEST_IF(suite_traits().has_peers, name, small_sides, sides_close)

/* Connecting with what `spec` is now is refused: at once or by link_up(). */
static kvf_status refused(void)
{
  kvf_link *link = NULL;
  kvf_status status = side_connect(&two->consumer, &spec, &link);
  assert_int_not_equal(status, KVF_OK);
  if (link != NULL) {
    under_test.ops->disconnect(link);
  }
  return status;
}

/* The first link is not disturbed by what happened to others. */
static void first_link_works(void)
{
  kvf_transfer read = lease_read(&two->consumer, two->lease, 0);
  assert_int_equal(side_read_now(&two->consumer, two->link, &read).status, KVF_OK);
  assert_true(sides_match(&read));
  read_free(&read);
}

SMALL_TEST(descriptions_cut_short)
{
  for (size_t bytes = 0; bytes < two->introduction.description_bytes; bytes++) {
    /* In memory of its own, so that reading past the end shows. */
    uint8_t *cut = allocate(bytes);
    memcpy(cut, two->introduction.description, bytes);
    spec.description = cut;
    spec.description_bytes = bytes;
    (void)refused();
    free(cut);
  }
  first_link_works();
}

SMALL_TEST(descriptions_of_garbage)
{
  uint8_t *garbage = allocate(KVF_TRANSPORT_DESCRIPTION_BYTES_MAX + 1);
  kvf_prng prng = {29};
  spec.description = garbage;
  for (int i = 0; i < 200; i++) {
    for (size_t byte = 0; byte <= KVF_TRANSPORT_DESCRIPTION_BYTES_MAX; byte++) {
      garbage[byte] = (uint8_t)kvf_prng_next(&prng);
    }
    spec.description_bytes = i % 2 == 0 ? two->introduction.description_bytes
                                        : kvf_prng_below(&prng, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX + 2);
    (void)refused();
  }
  memcpy(garbage, two->introduction.description, two->introduction.description_bytes);
  spec.description_bytes = two->introduction.description_bytes + 1;
  (void)refused();
  free(garbage);
  first_link_works();
}

SMALL_TEST(layouts_incompatible)
{
  const side_shape good = two->introduction.shape;
  side_shape shapes[6] = {good, good, good, good, good, good};
  shapes[0].regions[1].group = 0;
  shapes[1].regions[1].block_bytes = 1024;
  shapes[2].regions[0].heads_total = 16;
  shapes[3].regions[0].stride_bytes = 4095;
  shapes[4].regions[1].heads = 0;
  shapes[5].regions[0].blocks = 0;
  for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
    spec.remote = shapes[i].regions;
    assert_int_equal(refused(), KVF_INCOMPATIBLE);
  }
  spec.remote = good.regions;
  spec.remote_count = 1;
  assert_int_equal(refused(), KVF_INCOMPATIBLE);
  first_link_works();
}

SMALL_TEST(incarnation_of_another)
{
  spec.incarnation.bytes[5] ^= 1;
  (void)refused();
  first_link_works();
}

SMALL_TEST(session_of_another)
{
  if (!suite_traits().producer_checks) {
    skip();
  }
  spec.session_key.data[0] ^= 1;
  (void)refused();
  spec.session_key.data[0] ^= 1;
  spec.session_id++;
  (void)refused();
  first_link_works();
}

SMALL_TEST(describe_without_room)
{
  uint8_t bytes[KVF_TRANSPORT_DESCRIPTION_BYTES_MAX];
  size_t count = 0;
  const kvf_transport_ops *ops = under_test.ops;
  for (size_t room = 0; room < two->introduction.description_bytes; room++) {
    assert_int_equal(ops->describe(two->producer.transport, bytes, room, &count), KVF_LIMIT);
  }
  assert_int_equal(ops->describe(two->producer.transport, bytes, two->introduction.description_bytes, &count), KVF_OK);
  assert_int_equal(count, two->introduction.description_bytes);
}

SMALL_TEST(memory_set_twice)
{
  const kvf_transport_memory memory = side_memory(&two->producer);
  const kvf_transport_ops *ops = under_test.ops;
  assert_int_equal(ops->set_memory(two->producer.transport, &memory), KVF_EXISTS);
  ops->clear_memory(two->producer.transport);
  ops->clear_memory(two->producer.transport);
  assert_int_equal(ops->set_memory(two->producer.transport, &memory), KVF_OK);
  side_introduce(&two->producer, &two->introduction);
  sides_disconnect();
  sides_link();
  first_link_works();
}

/* A thread that has been joined may be listed for a moment longer. */
static bool comes_back_to(const char *folder, size_t count)
{
  for (int i = 0; i < 2000; i++) {
    if (count_entries(folder) <= count) {
      return true;
    }
    sleep_us(1000);
  }
  return false;
}

static unsigned count_threads_on(const cpu_set_t *cpus)
{
  unsigned count = 0;
  DIR *threads = opendir("/proc/self/task");
  assert_non_null(threads);
  for (const struct dirent *entry = readdir(threads); entry != NULL; entry = readdir(threads)) {
    cpu_set_t set;
    pid_t thread = (pid_t)strtol(entry->d_name, NULL, 10);
    count += thread != 0 && sched_getaffinity(thread, sizeof(set), &set) == 0 && CPU_EQUAL(&set, cpus);
  }
  (void)closedir(threads);
  return count;
}

PEER_TEST(who_copies_moves_near_the_memory)
{
  const side_shape shape = side_shape_simple(8, 4096);
  cpu_set_t cpus;
  kvf_cpu_list near_cpus = {0};
  assert_int_equal(sched_getaffinity(0, sizeof(cpus), &cpus), 0);
  if (CPU_COUNT(&cpus) < 2) {
    skip();
  }
  unsigned cpu = 0;
  while (!CPU_ISSET(cpu, &cpus)) {
    cpu++;
  }
  CPU_ZERO(&cpus);
  CPU_SET(cpu, &cpus);
  kvf_bitmap_set(near_cpus.words, cpu);

  side *one = allocate(sizeof(*one));
  producer_open(one, &shape);
  assert_int_equal(count_threads_on(&cpus), 0);
  under_test.ops->clear_memory(one->transport);
  kvf_transport_memory memory = side_memory(one);
  memory.near_cpus = &near_cpus;
  assert_int_equal(under_test.ops->set_memory(one->transport, &memory), KVF_OK);
  for (int i = 0; i < 1000 && count_threads_on(&cpus) == 0; i++) {
    sleep_us(1000); /* a thread that has just been started moves when it begins */
  }
  assert_true(count_threads_on(&cpus) > 0);
  side_close(one);
  free(one);
}

PEER_TEST(nothing_left_behind)
{
  const side_shape shape = side_shape_simple(64, 65536);
  const side_shape own = side_shape_simple(4 * 64, 65536);
  size_t fds = 0;
  size_t threads = 0;
  for (int i = 0; i < 11; i++) {
    if (i == 1) { /* the process' first thread brings TSan's own with it */
      fds = count_entries("/proc/self/fd");
      threads = count_entries("/proc/self/task");
    }
    sides_open(&shape, &own);
    kvf_link *more[4];
    kvf_transfer reads[4];
    for (uint32_t link = 0; link < 4; link++) {
      more[link] = side_connect_ok(&two->consumer, &two->introduction);
      reads[link] = lease_read(&two->consumer, two->lease, link * 64);
      under_test.ops->read(more[link], &reads[link]);
    }
    for (size_t link = 0; link < 4; link++) {
      under_test.ops->disconnect(more[link]);
    }
    sides_disconnect();
    if (i % 2 == 0) {
      side_close_transport(&two->consumer);
      side_close_transport(&two->producer);
    } else {
      side_close_transport(&two->producer);
      side_close_transport(&two->consumer);
    }
    for (size_t link = 0; link < 4; link++) {
      assert_true(side_is_done(&two->consumer, reads[link].id));
      read_free(&reads[link]);
    }
    side_free(&two->consumer);
    side_free(&two->producer);
    free(two);
    two = NULL;
  }
  assert_true(comes_back_to("/proc/self/fd", fds));
  assert_true(comes_back_to("/proc/self/task", threads));
}

/* A child that was made while a link was up, and of which no fork handler knows, has a copy of its descriptors, and
 * keeps them as long as it lives. */
PEER_TEST(forked_child_keeps_nothing)
{
  volley_sides_apart();
  process_start();
  const child_process child = child_idle();
  sides_disconnect();
  sleep_us(50000); /* so that nothing is left of it */
  process_kill();
  assert_true(used_us_in(500) < 100000); /* nobody is told, again and again, of what is not there any more */
  assert_true(child_kill(&child));
}
