/* A node of a benchmark's, through the public interface. */
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_TOKENS 16

void bench_expect(kvf_status status, const char *what)
{
  if (status != KVF_OK) {
    bench_give_up("%s: %s", what, kvf_status_name((int)status));
  }
}

void bench_config(kvf_config *out, const char *transports)
{
  kvf_config_init(out);
  bench_set(out, "transports", transports);
  bench_set(out, "lease_ttl_ms", "600000");
  bench_set(out, "lease_pool_share_percent", "100");
  bench_set(out, "log_level", "warn");
}

void bench_set(kvf_config *config, const char *name, const char *value)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  bench_must(kvf_config_set(config, name, value, message) == KVF_OK, message);
}

bool bench_set_option(kvf_config *config, const char *option, char *message)
{
  char name[KVF_MESSAGE_BYTES_MAX];
  (void)snprintf(name, sizeof(name), "%s", option);
  char *value = strchr(name, '=');
  bench_must(value != NULL, "an option is NAME=VALUE");
  *value = '\0';
  return kvf_config_set(config, name, value + 1, message) == KVF_OK;
}

kvf_node *bench_node(const kvf_config *config, const kvf_region *regions, uint32_t count)
{
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  bench_must(kvf_node_open(config, &node, message) == KVF_OK, message);
  bench_expect(kvf_node_register(node, regions, count), "cannot register the pool; the log on standard error says why");
  return node;
}

void bench_prompt(uint32_t blocks, kvf_prompt *out)
{
  uint32_t *tokens = calloc((size_t)blocks * BLOCK_TOKENS, sizeof(*tokens));
  bench_must(tokens != NULL && kvf_prompt_hash(tokens, blocks * BLOCK_TOKENS, NULL, 0, out) == KVF_OK, "cannot hash");
  free(tokens);
}

void bench_offer(kvf_node *node, const uint32_t *ids, uint32_t count, bench_ticket *out)
{
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t record_bytes = 0;
  kvf_lease lease;
  bench_expect(kvf_node_address(node, record, sizeof(record), &record_bytes), "kvf_node_address");
  bench_expect(kvf_node_set_ranks(node, record, &record_bytes, 1), "kvf_node_set_ranks");
  bench_prompt(count, &out->prompt);
  bench_expect(kvf_lease_reserve(node, count, 0, &lease), "kvf_lease_reserve");
  bench_expect(kvf_lease_publish(node, &lease, &blocks, &out->prompt, NULL, 0), "kvf_lease_publish");
  bench_expect(kvf_ticket_make(node, &lease, &blocks, &out->prompt, out->text, sizeof(out->text), &out->bytes),
               "kvf_ticket_make");
}

void bench_start(kvf_node *node, uint64_t request_id, const bench_ticket *ticket, const uint32_t *ids, uint32_t count,
                 const kvf_ordering_point *after)
{
  const kvf_load_params load = {.request_id = request_id,
                                .ticket = ticket->text,
                                .ticket_bytes = ticket->bytes,
                                .prompt = ticket->prompt,
                                .destination = {.ids = ids, .counts = &count, .groups = 1},
                                .after = after};
  bench_expect(kvf_load_start(node, &load), "kvf_load_start");
}
