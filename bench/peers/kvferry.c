/* kvferry through its public interface: VARIANT is the transport, an option is the node's. A round is a load from its
 * start to its release event. The caller sleeps meanwhile, but for a load that callers look after themselves
 * (`inline_bytes`): there it asks again and again, as the others' callers do at any size. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "kvferry/kvferry.h"
#include "peer.h"

#define BLOCK_TOKENS 16
#define INLINE_BYTES 65536 /* the option's default */

static kvf_node *node;
static kvf_prompt prompt;
static char *tickets[PEER_PARTS_MAX];
static uint64_t last_request;

static void set(kvf_config *config, const char *name, const char *value)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  peer_must(kvf_config_set(config, name, value, message) == KVF_OK, message);
}

static void open_node(const peer_job *job, uint8_t *pool)
{
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_config_init(&config);
  set(&config, "transports", job->variant);
  set(&config, "lease_ttl_ms", "600000");
  set(&config, "lease_pool_share_percent", "100");
  set(&config, "log_level", "warn");
  for (int i = 0; i < job->options_count; i++) {
    char *option = strdup(job->options[i]);
    char *value = option == NULL ? NULL : strchr(option, '=');
    peer_must(value != NULL, "an option is NAME=VALUE");
    *value = '\0';
    set(&config, option, value + 1);
    free(option);
  }
  peer_must(kvf_node_open(&config, &node, message) == KVF_OK, message);
  const peer_shape *shape = &job->shape;
  kvf_region *regions = calloc(shape->layers, sizeof(*regions));
  peer_must(regions != NULL, "no memory");
  for (uint32_t i = 0; i < shape->layers; i++) {
    regions[i] = (kvf_region){.base = pool + (size_t)i * shape->pool_blocks * shape->block_bytes,
                              .stride_bytes = shape->block_bytes,
                              .block_bytes = shape->block_bytes,
                              .blocks = shape->pool_blocks,
                              .heads = 1,
                              .heads_total = 1};
  }
  peer_must(kvf_node_register(node, regions, shape->layers) == KVF_OK, "cannot register the pool");
  free(regions);
}

static uint32_t blocks_of_part(const peer_job *job)
{
  return job->shape.blocks / job->parts;
}

static void make_prompt(const peer_job *job)
{
  static const uint32_t tokens[BLOCK_TOKENS * PEER_BLOCKS_MAX];
  peer_must(kvf_prompt_hash(tokens, blocks_of_part(job) * BLOCK_TOKENS, NULL, 0, &prompt) == KVF_OK, "cannot hash");
}

static void version(const peer_job *job, FILE *out)
{
  (void)job;
  (void)fprintf(out, "kvferry " PEER_KVFERRY_VERSION);
}

static void hold(const peer_job *job, FILE *offer)
{
  static char text[KVF_TICKET_BYTES_MAX];
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t record_bytes = 0;
  size_t text_bytes = 0;
  kvf_lease lease;
  uint32_t count = blocks_of_part(job);
  kvf_blocks blocks = {.ids = job->remote_ids + (size_t)job->part * count, .counts = &count, .groups = 1};
  open_node(job, job->source);
  make_prompt(job);
  peer_must(kvf_node_address(node, record, sizeof(record), &record_bytes) == KVF_OK &&
                kvf_node_set_ranks(node, record, &record_bytes, 1) == KVF_OK &&
                kvf_lease_reserve(node, count, 0, &lease) == KVF_OK &&
                kvf_lease_publish(node, &lease, &blocks, &prompt, NULL, 0) == KVF_OK &&
                kvf_ticket_make(node, &lease, &blocks, &prompt, text, sizeof(text), &text_bytes) == KVF_OK,
            "cannot offer the blocks");
  (void)fprintf(offer, "%.*s", (int)text_bytes, text);
}

static void read_begin(const peer_job *job, const char *offer)
{
  open_node(job, job->destination);
  make_prompt(job);
  for (uint32_t i = 0; i < job->parts; i++) {
    size_t length = strcspn(offer, "|");
    free(tickets[i]);
    tickets[i] = strndup(offer, length);
    peer_must(tickets[i] != NULL, "no memory");
    offer += length + (offer[length] == '|');
  }
}

static void start_part(const peer_job *job, uint32_t part)
{
  uint32_t count = blocks_of_part(job);
  kvf_load_params load = {.request_id = ++last_request,
                          .ticket = tickets[part],
                          .ticket_bytes = strlen(tickets[part]),
                          .prompt = prompt,
                          .destination = {.ids = job->local_ids + (size_t)part * count, .counts = &count, .groups = 1}};
  peer_must(kvf_load_start(node, &load) == KVF_OK, "cannot start a load");
}

static void start(const peer_job *job)
{
  for (uint32_t i = 0; i < job->parts; i++) {
    start_part(job, i);
  }
}

/* As an engine's step does that has work of its own to do. */
static void step(const peer_job *job)
{
  kvf_event events[64];
  (void)job;
  peer_must(kvf_node_poll(node, events, 64) == 0, "a load has ended meanwhile");
}

static bool is_inline(const peer_job *job)
{
  const peer_shape *shape = &job->shape;
  return (uint64_t)shape->layers * shape->blocks * shape->block_bytes <= INLINE_BYTES;
}

static const char *read_once(const peer_job *job)
{
  start(job);
  for (uint32_t released = 0; released < job->parts;) {
    kvf_event events[4];
    size_t count = kvf_node_poll(node, events, 4);
    for (size_t i = 0; i < count; i++) {
      if (events[i].kind == KVF_EVENT_LOAD && events[i].u.report.status != KVF_OK) {
        return kvf_status_name(events[i].u.report.status);
      }
      released += events[i].kind == KVF_EVENT_RELEASED;
    }
    if (count == 0 && !is_inline(job)) { /* sleeps, so that the caller takes no core from the copiers */
      struct pollfd wait = {.fd = kvf_node_event_fd(node), .events = POLLIN};
      (void)poll(&wait, 1, 10000);
    }
  }
  return NULL;
}

static void end(const peer_job *job)
{
  (void)job;
  kvf_node_close(node);
  node = NULL;
}

int main(int argc, char **argv)
{
  static const peer_driver driver = {.version = version,
                                     .hold = hold,
                                     .hold_end = end,
                                     .read = read_begin,
                                     .read_once = read_once,
                                     .read_end = end,
                                     .start = start,
                                     .step = step};
  return peer_main(argc, argv, &driver);
}
