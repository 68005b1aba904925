/* A node of a benchmark's: what it is made of, what it offers, and what it loads. */
#ifndef KVF_BENCH_NODE_H
#define KVF_BENCH_NODE_H

#include "bench.h"
#include "kvferry/kvferry.h"

/* What P says of its blocks. */
typedef struct bench_ticket {
  kvf_prompt prompt;
  size_t bytes;
  char text[KVF_TICKET_BYTES_MAX];
} bench_ticket;

/* Gives up unless it is KVF_OK. */
void bench_expect(kvf_status status, const char *what);
/* With leases of a whole pool that last as long as the benchmark. */
void bench_config(kvf_config *out, const char *transports);
void bench_set(kvf_config *config, const char *name, const char *value);
/* NAME=VALUE. False: the library refuses it, and the message (KVF_MESSAGE_BYTES_MAX) says why. */
bool bench_set_option(kvf_config *config, const char *option, char *message);
kvf_node *bench_node(const kvf_config *config, const kvf_region *regions, uint32_t count);
/* Of a prompt with so many blocks. */
void bench_prompt(uint32_t blocks, kvf_prompt *out);
/* Blocks of one group, that are there. */
void bench_offer(kvf_node *node, const uint32_t *ids, uint32_t count, bench_ticket *out);
/* `after` may be NULL. */
void bench_start(kvf_node *node, uint64_t request_id, const bench_ticket *ticket, const uint32_t *ids, uint32_t count,
                 const kvf_ordering_point *after);

#endif
