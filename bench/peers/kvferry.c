/* kvferry through its public interface: VARIANT is the transport, an option is the node's. A round is a load from its
 * start to its release event. The caller sleeps meanwhile, but for a load that callers look after themselves
 * (`inline_bytes`): there it asks again and again, as the others' callers do at any size. */
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "../node.h"
#include "peer.h"

#define INLINE_BYTES 65536 /* the option's default */
#define CALLER "caller"    /* an option of the driver's own: asleep, at any size */

static kvf_node *node;
static bench_ticket tickets[PEER_PARTS_MAX];
static uint64_t last_request;

static void open_node(const peer_job *job, uint8_t *pool)
{
  const peer_shape *shape = &job->shape;
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  bench_config(&config, job->variant);
  for (int i = 0; i < job->options_count; i++) {
    const bool is_own = strncmp(job->options[i], CALLER "=", sizeof(CALLER)) == 0;
    bench_must(is_own || bench_set_option(&config, job->options[i], message), message);
  }
  kvf_region *regions = calloc(shape->layers, sizeof(*regions));
  bench_must(regions != NULL, "no memory");
  for (uint32_t i = 0; i < shape->layers; i++) {
    regions[i] = (kvf_region){.base = pool + (size_t)i * shape->pool_blocks * shape->block_bytes,
                              .stride_bytes = shape->block_bytes,
                              .block_bytes = shape->block_bytes,
                              .blocks = shape->pool_blocks,
                              .heads = 1,
                              .heads_total = 1};
  }
  node = bench_node(&config, regions, shape->layers);
  free(regions);
}

static uint32_t blocks_of_part(const peer_job *job)
{
  return job->shape.blocks / job->parts;
}

static void version(const peer_job *job, FILE *out)
{
  (void)job;
  (void)fprintf(out, "kvferry " PEER_KVFERRY_VERSION);
}

static void hold(const peer_job *job, FILE *offer)
{
  const uint32_t count = blocks_of_part(job);
  open_node(job, job->source);
  bench_offer(node, job->remote_ids + (size_t)job->part * count, count, &tickets[0]);
  (void)fprintf(offer, "%.*s", (int)tickets[0].bytes, tickets[0].text);
}

static void read_begin(const peer_job *job, const char *offer)
{
  open_node(job, job->destination);
  for (uint32_t i = 0; i < job->parts; i++) {
    bench_ticket *ticket = &tickets[i];
    ticket->bytes = strcspn(offer, "|");
    bench_must(ticket->bytes <= sizeof(ticket->text), "too long a ticket");
    memcpy(ticket->text, offer, ticket->bytes);
    bench_prompt(blocks_of_part(job), &ticket->prompt);
    offer += ticket->bytes + (offer[ticket->bytes] == '|');
  }
}

static void start(const peer_job *job)
{
  const uint32_t count = blocks_of_part(job);
  for (uint32_t i = 0; i < job->parts; i++) {
    bench_start(node, ++last_request, &tickets[i], job->local_ids + (size_t)i * count, count, NULL);
  }
}

/* As an engine's step does that has work of its own to do. */
static void step(const peer_job *job)
{
  kvf_event events[64];
  (void)job;
  bench_must(kvf_node_poll(node, events, 64) == 0, "a load has ended meanwhile");
}

static bool is_inline(const peer_job *job)
{
  const peer_shape *shape = &job->shape;
  return (uint64_t)shape->layers * shape->blocks * shape->block_bytes <= INLINE_BYTES &&
         strcmp(peer_option(job, CALLER, ""), "asleep") != 0;
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
