/* A consumer's core and a producer's core, joined by a wire that the test can cut, hold and look into. Time is a
 * number. */
#ifndef KVF_TESTS_CONTROL_WORLD_H
#define KVF_TESTS_CONTROL_WORLD_H

#include "core/core.h"
#include "core/core_state.h"
#include "test.h"

#define CONTROL_TEST(name) TEST_WITH(name, NULL, control_world_close)
#define MS KVF_NS_PER_MS

typedef struct control_side {
  kvf_core core;
  uint64_t conn_id; /* of the one connection, 0: none */
  uint8_t inbox[2 * KVF_OUTBOX_BYTES_MAX];
  size_t inbox_bytes;
  bool dial_wanted;
  uint64_t dial_conn_id;
  bool hung_up;
  char last_log[256];
} control_side;

typedef struct control_world {
  bool is_open;
  uint64_t now_ns;
  control_side consumer;
  control_side producer;
  bool held; /* frames of the producer stay in its outbox */
  bool deaf; /* FINDs do not come to the producer */
} control_world;

extern control_world world;

typedef struct control_options {
  const char *consumer_key; /* NULL: none */
  const char *producer_key;
  const char *producer_other_key;
  bool control; /* the consumer is a control node, without memory */
  kvf_config config;
} control_options;

void control_options_init(control_options *options);
/* Closes the one before. */
void control_world_open(const control_options *options);
/* Of the last world that was opened, if it is still open. */
int control_world_close(void **state);

/* Carries effects and frames to and fro until nothing moves. Dials are answered by control_dial() only. */
void control_settle(void);
/* The dial that waits succeeds, or fails. */
void control_dial(kvf_status status);
/* Both ends see the connection closed. */
void control_cut(void);
/* Time passes; both cores tick. */
void control_advance(uint64_t ms);

/* A ticket of the producer for one block, as the consumer has decoded it. */
void control_ticket(kvf_ticket *ticket, uint32_t *ids, uint32_t blocks);
void control_publish(const kvf_ticket *ticket);

#endif
