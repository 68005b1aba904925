/* The world of nodes: whole nodes over the public interface, in this process or in one of their own, for the tests of
 * runtime, hostile and stress. A pair is a producer and a consumer, each both rank and control node, with pools of
 * blocks whose bytes tell what they hold. What goes wrong here fails the test. */
#ifndef KVF_TESTS_PAIR_H
#define KVF_TESTS_PAIR_H

#include <pthread.h>
#include <stdatomic.h>

#include "../child_process.h"
#include "../test.h"
#include "kvferry/kvferry.h"
#include "wire/rank_record.h"

/* A node's pool, unless its options say otherwise; and what it may be at most. */
#define PAIR_BLOCKS 64
#define PAIR_REGIONS 3
#define PAIR_BLOCK_BYTES 4096
#define PAIR_BLOCKS_MAX 128
#define PAIR_REGIONS_MAX 80
#define PAIR_BLOCK_TOKENS 16
#define PAIR_GROUPS_MAX 2

#define PAIR_LATE_MS 8000      /* what a busy machine may add to any time */
#define PAIR_PATIENCE_MS 30000 /* nothing takes this long unless it hangs */

#define PAIR_LOG_LINES 256
#define PAIR_LOG_BYTES 512

/* ---- nodes ---- */

/* The node's last log lines. */
typedef struct pair_log {
  pthread_mutex_t lock;
  uint32_t count; /* that ever came */
  char lines[PAIR_LOG_LINES][PAIR_LOG_BYTES];
} pair_log;

typedef struct pair_node {
  kvf_node *node;
  uint32_t blocks;
  uint32_t block_bytes;
  uint32_t regions;
  uint32_t register_tries;
  uint8_t *pool[PAIR_REGIONS_MAX]; /* where the test reads and writes them; NULL: in a real device's memory */
  void *bases[PAIR_REGIONS_MAX];   /* what they are registered as */
  void *left[PAIR_REGIONS_MAX];    /* what pair_move() has left behind */
  uint32_t memory;                 /* kvf_memory_kind */
  bool is_mapped;                  /* CUDA's, by test_memory_map(): the test has no pointer to it */
  kvf_ordering_point point;        /* its engine's stream, if it has worked on a device */
  pair_log *log;
  uint32_t marks; /* lines of pair_logged()'s own */
} pair_node;

typedef struct pair {
  pair_node producer;
  pair_node consumer;
} pair;

/* The nodes of a test; those that are still open are closed after it. */
extern pair p;
#define PAIR_TEST(name) TEST_WITH(name, NULL, pair_close)

/* Two tests, over `local` and over `tcp`. */
#define EACH_TRANSPORT_TEST(name)          \
  static void name(const char *transport); \
  PAIR_TEST(name##_local)                  \
  {                                        \
    name("local");                         \
  }                                        \
  PAIR_TEST(name##_tcp)                    \
  {                                        \
    name("tcp");                           \
  }                                        \
  static void name(const char *transport)

/* An option as name and value; a NULL name ends a list. */
typedef struct pair_option {
  const char *name;
  const char *value;
} pair_option;

/* What the pages of nodes that are opened from now on are; NULL: each region is a part. */
extern const kvf_layout *pair_layout;
/* KV groups of what is offered and loaded from now on, at most PAIR_GROUPS_MAX: all in the same blocks. */
extern uint32_t pair_groups;

/* Options of the library's, may be NULL; besides, "model" is one of the identity's fields, "blocks", "block_bytes" and
 * "regions" are the pool's, "register_tries" is how often it registers while that gives KVF_TRANSFER_SETUP (1), and
 * "memory" says its kind: "host", "cuda", "mapped" (CUDA's, by cuMemMap()), "test" or "other" (memory_kind.h). Where a
 * test says nothing else, a peer counts as stalled only after a time that no busy machine makes it wait. */
void pair_open(const pair_option *options);
void pair_open_node(pair_node *n, const pair_option *options);
/* One that is closed already stays so. */
void pair_close_node(pair_node *n);
void pair_close(void);
/* Closes the node, and opens another on the same memory. */
void pair_restart_node(pair_node *n, const pair_option *options);
/* Takes its memory back, and registers other memory, once. The old one stays as it is until the node is closed. */
void pair_move(pair_node *n);

/* A node without memory, as a control node is, which logs as nodes do that are told nothing. */
kvf_status pair_open_bare(const pair_option *options, kvf_node **out, char *message);
/* Such a node does not open, and says so. */
void pair_expect_refused(const pair_option *options, kvf_status status, const char *said);

uint64_t pair_stat(pair_node *n, const char *name, const char *reason);
/* Waits until the number is at least `value`, or for a log line with all of these texts (the last may be NULL); false:
 * not within timeout_ms. */
bool pair_wait_stat(pair_node *n, const char *name, const char *reason, uint64_t value, uint32_t timeout_ms);
bool pair_wait_log(pair_node *n, const char *text, const char *other_text, uint32_t timeout_ms);
bool pair_logged(pair_node *n, const char *text, const char *other_text);
/* How the node says that it is reached. */
kvf_rank_record pair_record(kvf_node *node);

/* Sleeps for a millisecond; whether it is still before that time. */
bool pair_tick(uint64_t until_ms);

/* ---- a node's engine. On CUDA's memory pair_write() works on a stream, late: the thread is in cuda_driver_enter()
 * ----
 */

/* A prompt of so many tokens; equal seeds are equal prompts. */
kvf_prompt pair_prompt(uint32_t tokens, uint32_t seed);
/* Fills a node's block, or that of one region, with bytes that only (seed, position) have, at once. */
void pair_fill(pair_node *n, uint32_t block, uint64_t seed, uint32_t position);
bool pair_holds(const pair_node *n, uint32_t block, uint64_t seed, uint32_t position);
void pair_fill_region(pair_node *n, uint32_t region, uint32_t block, uint64_t seed, uint32_t position);
bool pair_region_holds(const pair_node *n, uint32_t region, uint32_t block, uint64_t seed, uint32_t position);
/* Those of blocks first, first+1, … at positions 0, 1, …. */
bool pair_holds_all(const pair_node *n, uint32_t first, uint32_t count, uint64_t seed);

/* Gives all of a block this one value. */
void pair_write(pair_node *n, uint32_t block, uint8_t value);
bool pair_is_written(const pair_node *n, uint32_t block, uint8_t value);
/* What it has written so far; NULL: it writes at once. */
const kvf_ordering_point *pair_point(pair_node *n);
/* Waits until all is written. */
void pair_finish(const pair_node *n);

/* ---- tickets and loads ---- */

typedef struct pair_ticket {
  char text[8192];
  size_t bytes;
  kvf_lease lease;
  kvf_prompt prompt;
  uint32_t seed; /* of its prompt and bytes */
  uint32_t count;
  uint32_t blocks[PAIR_BLOCKS_MAX];
} pair_ticket;

/* Reserves, fills blocks first, first+2, … of the producer, makes the ticket; publishes if `publish`. */
void pair_offer(pair_node *producer, uint32_t first, uint32_t count, uint32_t seed, bool publish, pair_ticket *out);
/* The same, but the blocks are not filled, and nothing is published. */
void pair_reserve(pair_node *producer, uint32_t first, uint32_t count, uint32_t seed, pair_ticket *out);
void pair_publish(pair_node *producer, const pair_ticket *ticket);
kvf_status pair_publish_after(pair_node *producer, const pair_ticket *ticket, const kvf_ordering_point *after);
/* The text names the other ticket's producer, too, behind those that it names already. */
void pair_add_source(pair_ticket *ticket, const pair_ticket *other);
/* Waits until the producer's lease has ended; fails the test after timeout_ms. */
kvf_lease_end_cause pair_wait_lease_end(pair_node *producer, uint64_t lease_id, uint32_t timeout_ms);
/* The engine takes its blocks back, whoever has the lease. */
void pair_take_back(pair_node *producer, const pair_ticket *ticket);

typedef struct pair_result {
  kvf_report report;
  kvf_verdict verdict;
  bool loaded;
  bool load_released;
  bool released;
  bool decided;
  bool holds; /* pair_fetch(): the blocks that are said to be good have the ticket's bytes */
} pair_result;

/* Opens the request, begins, loads into blocks first, first+1, … of the consumer. */
kvf_status pair_request(pair_node *consumer, const pair_ticket *ticket, const kvf_prompt *prompt, uint64_t *id);
kvf_status pair_load(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first);
/* `timeout_ms`: the load's own, 0: the option's. */
kvf_status pair_load_after(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first,
                           const kvf_ordering_point *after, uint32_t timeout_ms);
/* Request and load, which must succeed; returns the request's id. */
uint64_t pair_begin(pair_node *consumer, const pair_ticket *ticket, uint32_t first);
/* Polls until the load is released and the request decided, or the time is over: for a test of what does not come. */
pair_result pair_poll_for(pair_node *consumer, uint64_t id, uint32_t timeout_ms);
/* The same; it must come. */
pair_result pair_wait_for(pair_node *consumer, uint64_t id, uint32_t timeout_ms);
/* The same, within PAIR_LATE_MS. */
pair_result pair_wait(pair_node *consumer, uint64_t id);
/* Request, load and pair_wait(). Returns the load's status, or that of the call that refuses it; blocks that are said
 * to be good must have the ticket's bytes. `out` may be NULL. */
kvf_status pair_fetch(pair_node *consumer, const pair_ticket *ticket, uint32_t first, pair_result *out);
/* The same, which must bring all blocks, and the verdict to use them. */
void pair_fetch_whole(pair_node *consumer, const pair_ticket *ticket, uint32_t first);
/* Of a load without a request: polls on until it is released, or the time is over. Returns whether it is. */
bool pair_poll_load(pair_node *consumer, uint64_t id, uint64_t within_us, pair_result *out);

/* ---- a load, and what must be true of any ---- */

#define PAIR_TRY_BLOCKS 8
#define PAIR_TRY_TIMEOUT_MS 1500 /* the option load_timeout_ms of who tries */

typedef struct pair_outcome {
  kvf_status started; /* of kvf_request_open() or kvf_load_start(); the rest is of no meaning if it is not KVF_OK */
  kvf_status status;
  uint32_t prefix;
  uint64_t took_ms;
  uint64_t retries;
  kvf_verdict verdict;
} pair_outcome;

/* Offers blocks that a consumer beside does not use, loads them, and checks P1 (the blocks that are said to be good
 * are), P2 (the outcome comes in time, and released and the verdict after it), P3 (each once: pair_wait_for()), and
 * that a failure has a reason that is not a caller's mistake. */
void pair_try(pair_node *producer, pair_node *consumer, uint32_t seed, pair_outcome *out);
/* The same with a ticket of one's own: of another process' producer, say. */
void pair_try_ticket(pair_node *consumer, const pair_ticket *ticket, pair_outcome *out);
/* A try that started and ended in time; if it failed, the consumer has counted that and logged it with the peer. */
void pair_expect_told(pair_node *consumer, const pair_outcome *out, const char *peer);
/* Tries until one succeeds. */
void pair_expect_recovery(pair_node *producer, pair_node *consumer, uint32_t seed);

/* What this process has. */
typedef struct costs {
  size_t descriptors;
  size_t threads;
  /* Allocated. 0 under a sanitizer: ThreadSanitizer's count loses a large block if a thread ends in the same moment,
   * and AddressSanitizer names leaks itself. */
  size_t memory_bytes;
} costs;

costs costs_now(void);
/* Once descriptors and threads have not changed for COSTS_SETTLED_MS. */
#define COSTS_SETTLED_MS 100
costs costs_settled(void);
/* Waits for descriptors and threads as before, and for at most `slack_bytes` more memory; else fails. */
void costs_expect(costs before, size_t slack_bytes);

/* A healthy consumer beside the one that something is done to: it loads all the while. */
typedef struct beside {
  pair_node *producer;
  pair_node consumer;
  pthread_t thread;
  pthread_mutex_t offers; /* held while it makes a ticket */
  atomic_bool stop;
  atomic_uint loads;
  atomic_int failure; /* of the first load that failed */
  costs before;       /* when it had begun */
} beside;

/* Opens the consumer, which must not take a slow machine for a stall, and begins; returns when two loads have
 * succeeded. */
void beside_start(beside *b, pair_node *producer, const pair_option *options);
/* It has gone on, goes on, and has never failed, retried, or lost its peer; and the process has what it had before. */
void beside_expect_undisturbed(beside *b, size_t slack_bytes);
void beside_stop(beside *b);

/* ---- a producer in a process of its own, which can be stopped, and told to overwrite what it offered ---- */

typedef struct producer_process {
  child_process child;
  pair_node *here; /* not NULL: it is this node, and no process of its own */
} producer_process;

/* What main() does when it was started with the one argument "--producer": else it runs the tests. */
int producer_process_main(int argc, char **argv);

/* With at most PRODUCER_OPTIONS_MAX options of pair_open_node(). */
#define PRODUCER_OPTIONS_MAX 8
void producer_process_start(producer_process *process, const pair_option *options);
/* The orders are carried out by this node, in the calling thread. */
void producer_process_here(producer_process *process, pair_node *node);
/* Ends it, or waits for the end of one that somebody has killed. */
void producer_process_end(producer_process *process);
void producer_process_kill(producer_process *process);

/* What its engine writes into all of the blocks, by pair_write(); value 0: the bytes of the seed, at once. */
typedef struct engine_write {
  uint8_t value;
  bool out_of_order; /* the lease is live before that is done; or still live when it is */
} engine_write;

/* Like pair_offer(), published; and ends the lease and writes the blocks' next bytes. With a value, behind the work of
 * its engine: the fake's takes the course of `seed`. */
void producer_process_offer(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            engine_write write, pair_ticket *ticket);
void producer_process_overwrite(producer_process *process, const pair_ticket *ticket, uint32_t seed,
                                engine_write write);
/* It forks a child, which closes its copy of the node; with the last offer made, it may be killed, and the child lives
 * on until the channel is closed. */
void producer_process_fork(producer_process *process);

#endif
