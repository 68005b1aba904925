/* One warm load over `local`, between two nodes of this process, counted by gcov from kvf_load_start() to its last
 * event: load_files.py runs it and reads the counts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kvferry/kvferry.h"

#define BLOCKS 64
#define BLOCK_BYTES 65536 /* more than inline_bytes: the load is one that copy threads carry */
#define LOADED 8
#define TOKENS (LOADED * 16)

extern void __gcov_reset(void);
extern void __gcov_dump(void);

typedef struct end {
  kvf_node *node;
  uint8_t *pool;
} end;

static void check(bool good, const char *what)
{
  if (!good) {
    (void)fprintf(stderr, "%s\n", what);
    _exit(2);
  }
}

static end open_end(void)
{
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t record_bytes = 0;
  end opened = {.pool = calloc(BLOCKS, BLOCK_BYTES)};
  kvf_config_init(&config);
  check(opened.pool != NULL && kvf_config_set(&config, "transports", "local", message) == KVF_OK &&
            kvf_node_open(&config, &opened.node, message) == KVF_OK,
        message);
  const kvf_region region = {.base = opened.pool,
                             .stride_bytes = BLOCK_BYTES,
                             .block_bytes = BLOCK_BYTES,
                             .blocks = BLOCKS,
                             .heads = 1,
                             .heads_total = 1};
  check(kvf_node_register(opened.node, &region, 1) == KVF_OK &&
            kvf_node_address(opened.node, record, sizeof(record), &record_bytes) == KVF_OK &&
            kvf_node_set_ranks(opened.node, record, &record_bytes, 1) == KVF_OK,
        "no memory");
  return opened;
}

static void pause_ms(long ms)
{
  const struct timespec time = {.tv_nsec = ms * 1000000};
  (void)nanosleep(&time, NULL);
}

/* Until the load has been told of, and is released. */
static void load(const end *consumer, const kvf_load_params *what)
{
  bool released = false;
  check(kvf_load_start(consumer->node, what) == KVF_OK, "the load does not start");
  while (!released) {
    kvf_event event;
    if (kvf_node_poll(consumer->node, &event, 1) == 1) {
      check(event.kind != KVF_EVENT_LOAD || event.u.report.status == KVF_OK, "the load has failed");
      released = event.kind == KVF_EVENT_RELEASED;
    }
  }
}

int main(void)
{
  static char ticket[4096];
  end producer = open_end();
  end consumer = open_end();
  uint32_t ids[LOADED];
  uint32_t tokens[TOKENS];
  const uint32_t count = LOADED;
  for (uint32_t i = 0; i < LOADED; i++) {
    ids[i] = i;
    memset(producer.pool + i * (size_t)BLOCK_BYTES, (int)i + 1, BLOCK_BYTES);
  }
  for (uint32_t i = 0; i < TOKENS; i++) {
    tokens[i] = i;
  }
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  kvf_load_params what = {.request_id = 1, .ticket = ticket, .destination = blocks};
  kvf_lease lease;
  check(kvf_prompt_hash(tokens, TOKENS, NULL, 0, &what.prompt) == KVF_OK &&
            kvf_lease_reserve(producer.node, LOADED, 0, &lease) == KVF_OK &&
            kvf_ticket_make(producer.node, &lease, &blocks, &what.prompt, ticket, sizeof(ticket), &what.ticket_bytes) ==
                KVF_OK &&
            kvf_lease_publish(producer.node, &lease, &blocks, &what.prompt, NULL, 0) == KVF_OK,
        "nothing is published");
  load(&consumer, &what);
  pause_ms(20); /* the control threads have nothing left to do */
  what.request_id = 2;

  __gcov_reset();
  load(&consumer, &what);
  __gcov_dump();
  check(memcmp(producer.pool, consumer.pool, LOADED * (size_t)BLOCK_BYTES) == 0, "other bytes");
  _exit(0);
}
