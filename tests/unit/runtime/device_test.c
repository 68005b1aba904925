/* Two nodes whose memory is a GPU's, as engines use them: blocks are written by kernels that run later, publications
 * and loads come with the stream, blocks change owners; P in this process, or in one of its own that is stopped and
 * killed. The fake driver does the work as late and as much out of order as CUDA allows; each seed is another course of
 * it. Rules R1 to R5 of base/fence.h, and that an engine which breaks one is seen. It runs on a real driver, too
 * (cuda_driver.h). */
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include "../../cuda_driver.h"
#include "../../memory_kind.h"
#include "base/prng.h"
#include "base/time.h"
#include "fake_cuda.h"
#include "fake_ucp.h"
#include "pair.h"
#include "test.h"
#include "transport/thread.h"

#define BLOCKS 4
#ifndef BLOCK_BYTES
#define BLOCK_BYTES 4096
#endif
#define TEXT_OF(number) #number
#define TEXT(number) TEXT_OF(number)
#define FIRST 20
#define PATIENCE_MS 20000
#define MOST_ROUNDS 10  /* times as many as usual */
#define CHUNK_BLOCKS 2  /* a load may bring only the first of them */
#define WRITTEN_US 1500 /* most blocks are written by then, and their lease is live */

/* What happens while D loads. */
typedef enum trouble { UNDISTURBED, LEASE_ENDS, ABORTED, STOPPED, KILLED, TROUBLES } trouble;

static const char *const trouble_names[TROUBLES] = {"undisturbed", "lease ended", "aborted", "P stopped", "P killed"};

/* An engine that breaks a rule. */
typedef enum breach { KEEPS_RULES, PUBLISHES_EARLY, LOADS_EARLY, WRITES_INTO_LEASE } breach;

typedef struct course {
  const char *from;
  const char *to;
  const char *transport;
  const char *checksum;
  bool is_apart; /* P is a process of its own */
  breach breach;
} course;

typedef struct round_counts {
  unsigned loaded[TROUBLES];
  unsigned refused[TROUBLES];
  unsigned loaded_from_stopped;
  unsigned wrong;
} round_counts;

static const cuda_driver *driver;
static course now;
static producer_process producer;
static unsigned imports_before; /* the case */
static round_counts counts;
static uint64_t usual_us[2]; /* what the last load took that nobody disturbed; of a lease that was live when it began */

/* ---- both sides ---- */

static void open_producer(void)
{
  const pair_option options[] = {
      {"transports", now.transport},      {"checksum", now.checksum},        {"memory", now.from},
      {"block_bytes", TEXT(BLOCK_BYTES)}, {"ucx_library", FAKE_UCP_LIBRARY}, {NULL, NULL}};
  if (now.is_apart) {
    producer_process_start(&producer, options);
  } else {
    pair_open_node(&p.producer, options);
    producer_process_here(&producer, &p.producer);
  }
}

static void open_consumer(void)
{
  char chunk_bytes[16];
  const pair_option options[] = {{"transports", now.transport},
                                 {"checksum", now.checksum},
                                 {"memory", now.to},
                                 {"block_bytes", TEXT(BLOCK_BYTES)},
                                 {"backoff_min_ms", "1"},
                                 {"backoff_max_ms", "1"},
                                 {"chunk_bytes", chunk_bytes},
                                 {"device_chunk_bytes", chunk_bytes},
                                 {"ucx_library", FAKE_UCP_LIBRARY},
                                 {NULL, NULL}};
  (void)snprintf(chunk_bytes, sizeof(chunk_bytes), "%d", CHUNK_BLOCKS * PAIR_REGIONS * BLOCK_BYTES);
  pair_open_node(&p.consumer, options);
}

/* P is dead: D closes all of it that it had open. */
static void close_dead_producer(void)
{
  const uint64_t until_ns = kvf_clock_now() + kvf_ms_to_ns(PATIENCE_MS);
  (void)close(producer.child.channel);
  while (driver->is_linked && test_memory_imports() > imports_before) {
    assert_true(kvf_clock_now() < until_ns);
    sleep_ms(1);
  }
}

/* D as well, which else may take the next P's address for the dead one's. */
static void begin_anew(void)
{
  pair_close_node(&p.consumer);
  open_producer();
  open_consumer();
}

/* ---- rounds ---- */

/* A lease of P's, and D's load of it. */
typedef struct round {
  uint64_t seed; /* and the load's id */
  kvf_prng prng;
  trouble trouble;
  uint8_t value;
  engine_write next;
  bool is_live;           /* when the load begins: its copies are most of it */
  uint64_t copies_before; /* the load */
  pair_ticket ticket;
  pair_result result;
} round;

/* $KVFERRY_TEST_SEEDS of them, or as many as a run of all tests has time for. */
static unsigned seeds_count(void)
{
  const char *asked = getenv("KVFERRY_TEST_SEEDS");
  const unsigned usual = (BLOCK_BYTES > 4096 ? 40u : 150u) / (now.is_apart ? 2 : 1);
  return asked != NULL ? (unsigned)strtoul(asked, NULL, 10) : SANITIZED ? usual / 4 : usual;
}

/* Beyond the usual seeds, more of what has not been seen yet; a breach of the rules needs rounds without kills. */
static trouble draw_trouble(kvf_prng *prng, bool is_usual)
{
  static const trouble usual[] = {LEASE_ENDS, LEASE_ENDS, UNDISTURBED, ABORTED, STOPPED};
  const bool is_slow = cuda_driver_is_named() || SANITIZED; /* processes may take long to start there */
  const uint64_t one_in = !is_usual && now.breach == KEEPS_RULES && counts.refused[KILLED] == 0 ? 4 : is_slow ? 64 : 12;
  if (now.is_apart && kvf_prng_below(prng, one_in) == 0) {
    return KILLED;
  }
  return usual[kvf_prng_below(prng, now.is_apart ? 5 : 4)];
}

/* That this process has asked the linked fake for. */
static uint64_t copies_count(void)
{
  return fake_cuda_calls("cuLaunchKernel") + fake_cuda_calls("cuMemcpyBatchAsync") + fake_cuda_calls("cuMemcpyAsync");
}

/* D's copies are not done from the first on, until they are let go. A real device is as late as it is. */
static void hold_copies(const round *r)
{
  const uint64_t until_ns = kvf_clock_now() + usual_us[true] * 1000;
  while (copies_count() == r->copies_before && kvf_clock_now() < until_ns) {
  }
  fake_cuda_stall_device(0, true);
}

static void make_trouble(round *r)
{
  const bool is_before_copies = now.is_apart && r->is_live && (r->trouble == LEASE_ENDS || r->trouble == KILLED);
  if (is_before_copies) {
    hold_copies(r);
  } else {
    sleep_us(kvf_prng_below(&r->prng, usual_us[r->is_live]));
  }
  switch (r->trouble) {
    case LEASE_ENDS:
      producer_process_overwrite(&producer, &r->ticket, 0, r->next);
      break;
    case ABORTED:
      (void)kvf_load_abort(p.consumer.node, r->seed);
      break;
    case STOPPED:
      assert_true(child_stop(&producer.child));
      (void)pair_poll_load(&p.consumer, r->seed, kvf_prng_below(&r->prng, 4 * usual_us[r->is_live]), &r->result);
      counts.loaded_from_stopped += r->result.load_released && r->result.report.status == KVF_OK;
      assert_true(child_continue(&producer.child));
      break;
    case KILLED:
      producer_process_kill(&producer);
      break;
    default:
      break;
  }
  if (is_before_copies) {
    sleep_us(WRITTEN_US);
    fake_cuda_stall_device(0, false);
  }
}

static void write_destination(uint8_t value)
{
  for (uint32_t i = 0; i < BLOCKS; i++) {
    pair_write(&p.consumer, FIRST + i, value);
  }
}

/* A load that waits for nothing comes before what D's engine writes, which is seen once that is done. A real device is
 * as late as it is. */
static void hold_engine(bool still)
{
  if (now.breach != LOADS_EARLY) {
    return;
  }
  if (driver->is_linked) {
    fake_cuda_stall(pair_point(&p.consumer)->handle, still);
  }
  if (!still) {
    pair_finish(&p.consumer);
  }
}

static bool is_expected(trouble what, kvf_status refused)
{
  switch (what) {
    case LEASE_ENDS:
      return refused == KVF_LEASE_EXPIRED;
    case ABORTED:
      return refused == KVF_ABORTED;
    case KILLED: /* the second: while D was importing P's memory */
      return refused == KVF_PEER_DOWN || refused == KVF_TRANSFER_SETUP;
    default:
      return false;
  }
}

/* Each block that D is told is good has the lease's bytes. */
static void judge(const round *r)
{
  const kvf_status status = (kvf_status)r->result.report.status;
  for (uint32_t i = 0; i < r->result.report.prefix; i++) {
    counts.wrong += pair_is_written(&p.consumer, FIRST + i, r->value) ? 0 : 1;
  }
  counts.loaded[r->trouble] += status == KVF_OK;
  counts.refused[r->trouble] += status != KVF_OK;
  const bool is_good = status == KVF_OK ? r->result.report.prefix == BLOCKS : is_expected(r->trouble, status);
  if (!is_good || (counts.wrong > 0 && now.breach == KEEPS_RULES)) {
    fail_msg("seed %llu, %s: %s, %u blocks are said to be good, %u of them wrongly", (unsigned long long)r->seed,
             trouble_names[r->trouble], kvf_status_name(status), r->result.report.prefix, counts.wrong);
  }
}

/* The blocks of both get their next owner: at D, nobody else writes any more. */
static void end_round(const round *r)
{
  write_destination(255);
  if (r->trouble == KILLED) {
    close_dead_producer();
  } else if (r->trouble != LEASE_ENDS) {
    producer_process_overwrite(&producer, &r->ticket, 0, r->next);
  }
  pair_finish(&p.consumer);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    assert_true(pair_is_written(&p.consumer, FIRST + i, 255));
  }
  if (r->trouble == KILLED) {
    begin_anew();
  }
}

static void run_round(uint64_t seed)
{
  static round r;
  r = (round){.seed = seed, .prng = {seed}};
  r.trouble = draw_trouble(&r.prng, seed <= seeds_count());
  r.value = (uint8_t)(1 + kvf_prng_below(&r.prng, 120));
  r.next = (engine_write){(uint8_t)(r.value + 120), now.breach == WRITES_INTO_LEASE};
  r.is_live = now.breach != PUBLISHES_EARLY && kvf_prng_below(&r.prng, 2) == 0;
  const engine_write write = {r.value, now.breach == PUBLISHES_EARLY};
  const uint32_t first = (uint32_t)kvf_prng_below(&r.prng, PAIR_BLOCKS);
  fake_cuda_seed(seed);
  producer_process_offer(&producer, first, BLOCKS, (uint32_t)seed, write, &r.ticket);
  sleep_us(r.is_live ? WRITTEN_US : 0);
  if (now.breach != PUBLISHES_EARLY) { /* for that would hold up the load until P's blocks are written */
    write_destination(0);              /* as engines zero new blocks */
  }
  hold_engine(true);
  const kvf_ordering_point *after = now.breach == LOADS_EARLY ? NULL : pair_point(&p.consumer);
  r.copies_before = copies_count();
  const uint64_t begin_ns = kvf_clock_now();
  assert_int_equal(pair_load_after(&p.consumer, &r.ticket, seed, FIRST, after, 0), KVF_OK);
  if (r.trouble != UNDISTURBED) {
    make_trouble(&r);
  }
  assert_true(pair_poll_load(&p.consumer, seed, PATIENCE_MS * UINT64_C(1000), &r.result));
  if (r.trouble == UNDISTURBED) {
    usual_us[r.is_live] = 1 + (kvf_clock_now() - begin_ns) / 1000;
  }
  hold_engine(false);
  judge(&r);
  end_round(&r);
}

/* ---- courses ---- */

/* Whether both ends of loads have been tried, and P's of all. Which comes first, the load's end or the trouble, is the
 * machine's to say: few rounds may all end in one way. */
static bool is_enough(void)
{
  unsigned loaded = 0;
  unsigned refused = 0;
  for (unsigned i = 0; i < TROUBLES; i++) {
    loaded += counts.loaded[i];
    refused += counts.refused[i];
  }
  const bool reads_stopped = strcmp(now.transport, "local") == 0;
  return loaded > 0 && refused > 0 &&
         (!now.is_apart || (counts.refused[KILLED] > 0 && (counts.loaded_from_stopped > 0 || !reads_stopped)));
}

/* What a case that has failed has left. Its nodes stay: they may never come to an end. */
static void abandon(void)
{
  if (p.consumer.node != NULL && now.is_apart) {
    (void)kill(producer.child.pid, SIGKILL);
    (void)child_end(&producer.child);
  }
  p = (pair){0};
  fake_cuda_stall_device(0, false);
  imports_before = test_memory_imports();
}

static void begin(course of)
{
  abandon();
  now = of;
  counts = (round_counts){0};
  usual_us[false] = usual_us[true] = WRITTEN_US;
  driver = driver != NULL ? driver : cuda_driver_enter();
  if (strcmp(of.transport, "ucx") == 0 && !driver->is_linked) {
    skip(); /* the fake of UCX has the linked fake's memory alone */
  }
  open_producer();
  open_consumer();
}

static void end(void)
{
  pair_close_node(&p.consumer);
  if (now.is_apart) {
    producer_process_end(&producer);
  } else {
    pair_close_node(&p.producer);
  }
  assert_int_equal(fake_ucp_violations(), 0);
}

static void run(course of)
{
  begin(of);
  const unsigned usual = seeds_count();
  for (unsigned seed = 1; seed <= usual || (seed <= MOST_ROUNDS * usual && !is_enough()); seed++) {
    run_round(seed);
  }
  for (unsigned i = 0; i < TROUBLES; i++) {
    print_message("%s: loaded %u, refused %u\n", trouble_names[i], counts.loaded[i], counts.refused[i]);
  }
  print_message("loaded while P stood still: %u\n", counts.loaded_from_stopped);
  assert_true(is_enough());
  end();
}

/* Real devices may happen to work in order. */
static void run_breach(breach of)
{
  begin((course){"cuda", "cuda", "local", "off", true, of});
  const unsigned most = MOST_ROUNDS * seeds_count() * (driver->is_fake ? MOST_ROUNDS : 1); /* there it must be seen */
  unsigned seed = 0;
  while (seed < most && counts.wrong == 0) {
    run_round(++seed);
  }
  print_message("wrong blocks %s after %u rounds\n", counts.wrong > 0 ? "seen" : "NOT SEEN", seed);
  assert_true(counts.wrong > 0 || !driver->is_fake);
  end();
}

/* From whose memory to whose, over what, with checksums or not; whether P is a process of its own. */
#define COURSE(name, ...)                    \
  TEST(name)                                 \
  {                                          \
    run((course){__VA_ARGS__, KEEPS_RULES}); \
  }

COURSE(device_to_device_over_local, "cuda", "cuda", "local", "off", false)
COURSE(device_to_host_over_local, "cuda", "host", "local", "off", false)
COURSE(host_to_device_over_local, "host", "cuda", "local", "off", false)
COURSE(device_to_device_with_checksums, "cuda", "cuda", "local", "on", false)
COURSE(device_to_device_over_ucx, "cuda", "cuda", "ucx", "off", false)
COURSE(device_to_host_over_ucx, "cuda", "host", "ucx", "off", false)
COURSE(host_to_device_over_ucx, "host", "cuda", "ucx", "off", false)

COURSE(apart_over_local, "cuda", "cuda", "local", "off", true)
COURSE(apart_over_local_with_checksums, "cuda", "cuda", "local", "on", true)
COURSE(apart_to_host_over_local, "cuda", "host", "local", "off", true)
COURSE(apart_mapped_over_local, "mapped", "cuda", "local", "off", true)
COURSE(apart_mapped_over_local_with_checksums, "mapped", "cuda", "local", "on", true)
COURSE(apart_over_tcp, "cuda", "cuda", "tcp", "off", true)
COURSE(apart_over_tcp_with_checksums, "cuda", "cuda", "tcp", "on", true)
COURSE(apart_to_host_over_tcp, "cuda", "host", "tcp", "off", true)
COURSE(apart_from_host_over_tcp, "host", "cuda", "tcp", "off", true)

TEST(apart_publishing_early_is_seen)
{
  run_breach(PUBLISHES_EARLY);
}

TEST(apart_loading_early_is_seen)
{
  run_breach(LOADS_EARLY);
}

TEST(apart_writing_into_a_lease_is_seen)
{
  run_breach(WRITES_INTO_LEASE);
}

int main(int argc, char **argv)
{
  return producer_process_main(argc, argv);
}
