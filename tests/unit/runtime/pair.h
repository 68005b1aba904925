/* Two nodes in this process, a producer and a consumer, each both rank and control node, with pools of blocks whose
 * bytes tell what they hold. */
#ifndef KVF_TESTS_PAIR_H
#define KVF_TESTS_PAIR_H

#include <pthread.h>

#include "kvferry/kvferry.h"

#define PAIR_BLOCKS 64
#define PAIR_REGIONS 3
#define PAIR_GROUPS_MAX 2
#ifndef PAIR_BLOCK_BYTES
#define PAIR_BLOCK_BYTES 4096
#endif
#define PAIR_BLOCK_TOKENS 16

/* What a busy machine may add to any time. */
#define PAIR_LATE_MS 8000

#define PAIR_LOG_LINES 256
#define PAIR_LOG_BYTES 512

/* The node's last log lines. */
typedef struct pair_log {
  pthread_mutex_t lock;
  uint32_t count; /* that ever came */
  char lines[PAIR_LOG_LINES][PAIR_LOG_BYTES];
} pair_log;

typedef struct pair_node {
  kvf_node *node;
  uint8_t *pool[PAIR_REGIONS]; /* where the test reads and writes the regions' bytes, but in a real device's memory */
  void *bases[PAIR_REGIONS];   /* what they are registered as */
  void *left[PAIR_REGIONS];    /* what pair_move() has left behind */
  uint32_t memory;             /* kvf_memory_kind */
  bool is_mapped;              /* CUDA's, by test_memory_map(): the test has no pointer to it */
  kvf_ordering_point point;    /* its engine's stream, if it has worked on a device */
  pair_log *log;
  uint32_t marks; /* lines of pair_logged()'s own */
} pair_node;

typedef struct pair {
  pair_node producer;
  pair_node consumer;
} pair;

/* An option as name and value; a NULL name ends a list. */
typedef struct pair_option {
  const char *name;
  const char *value;
} pair_option;

/* What the pages of nodes that are opened from now on are; NULL: each region is a part. */
extern const kvf_layout *pair_layout;
/* KV groups of what is offered and loaded from now on, at most PAIR_GROUPS_MAX: all in the same blocks. */
extern uint32_t pair_groups;

/* Options of both nodes, may be NULL; "model" is one of the identity's fields, "memory" says the kind: "host",
 * "cuda", "mapped" (CUDA's, by cuMemMap()), "test" or "other" (memory_kind.h). Fails the test if a node does not start.
 * Where a test says nothing else, a peer counts as stalled only after a time that no busy machine makes it wait. */
void pair_open(pair *p, const pair_option *options);
void pair_open_node(pair_node *n, const pair_option *options);
/* One that is closed already stays so. */
void pair_close_node(pair_node *n);
void pair_close(pair *p);
/* Takes its memory back, and registers other memory, once. The old one stays as it is until the node is closed. */
void pair_move(pair_node *n);

/* A prompt of so many tokens; equal seeds are equal prompts. */
kvf_prompt pair_prompt(uint32_t tokens, uint32_t seed);
/* Fills a node's block with bytes that only (seed, position) have. */
void pair_fill(pair_node *n, uint32_t block, uint32_t seed, uint32_t position);
bool pair_holds(const pair_node *n, uint32_t block, uint32_t seed, uint32_t position);

/* ---- a node's engine. Where its memory is CUDA's it works on a stream, late: the thread is in cuda_driver_enter()
 * ---- */

/* Gives all of a block this one value. */
void pair_write(pair_node *n, uint32_t block, uint8_t value);
bool pair_is_written(const pair_node *n, uint32_t block, uint8_t value);
/* What it has written so far; NULL: it writes at once. */
const kvf_ordering_point *pair_point(pair_node *n);
/* Waits until all is written. */
void pair_finish(const pair_node *n);

typedef struct pair_ticket {
  char text[8192];
  size_t bytes;
  kvf_lease lease;
  kvf_prompt prompt;
  uint32_t count;
  uint32_t blocks[PAIR_BLOCKS];
} pair_ticket;

/* Reserves, fills blocks first, first+2, … of the producer, makes the ticket; publishes if `publish`. */
void pair_offer(pair_node *producer, uint32_t first, uint32_t count, uint32_t seed, bool publish, pair_ticket *out);
/* The same, but the blocks are not filled, and nothing is published. */
void pair_reserve(pair_node *producer, uint32_t first, uint32_t count, uint32_t seed, pair_ticket *out);
void pair_publish(pair_node *producer, const pair_ticket *ticket);
kvf_status pair_publish_after(pair_node *producer, const pair_ticket *ticket, const kvf_ordering_point *after);

typedef struct pair_result {
  kvf_report report;
  kvf_verdict verdict;
  bool loaded;
  bool load_released;
  bool released;
  bool decided;
} pair_result;

/* Opens the request, begins, loads into blocks first, first+1, … of the consumer. */
kvf_status pair_request(pair_node *consumer, const pair_ticket *ticket, const kvf_prompt *prompt, uint64_t *id);
kvf_status pair_load(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first);
kvf_status pair_load_after(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first,
                           const kvf_ordering_point *after);
/* Both, which must succeed; returns the request's id. */
uint64_t pair_begin(pair_node *consumer, const pair_ticket *ticket, uint32_t first);
/* Polls until the load is released and the request decided, or the time is over: for a test of what does not come. */
void pair_poll_for(pair_node *consumer, uint64_t id, uint32_t timeout_ms, pair_result *out);
/* The same; fails the test after timeout_ms. */
void pair_wait(pair_node *consumer, uint64_t id, uint32_t timeout_ms, pair_result *out);
/* Waits until the producer's lease has ended; fails the test after timeout_ms. */
kvf_lease_end_cause pair_wait_lease_end(pair_node *producer, uint64_t lease_id, uint32_t timeout_ms);
uint64_t pair_stat(pair_node *n, const char *name, const char *reason);
/* Waits until the number is at least `value`, or for a log line with all of these texts (the last may be NULL); false:
 * not within timeout_ms. */
bool pair_wait_stat(pair_node *n, const char *name, const char *reason, uint64_t value, uint32_t timeout_ms);
bool pair_wait_log(pair_node *n, const char *text, const char *other_text, uint32_t timeout_ms);
bool pair_logged(pair_node *n, const char *text, const char *other_text);
/* Entries of a folder: descriptors in "/proc/self/fd", threads in "/proc/self/task". */
size_t pair_count_entries(const char *link_id);
uint64_t pair_now_ms(void);
void pair_sleep_ms(uint32_t ms);

#endif
