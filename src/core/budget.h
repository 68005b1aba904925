/* A token bucket. It limits the prompt tokens per second that an engine recomputes, and the test bytes that a node
 * sends for kvf_check_node(). It holds one second's worth. A larger request may go when the bucket is full; the next
 * ones wait until its debt is paid. */
#ifndef KVF_CORE_BUDGET_H
#define KVF_CORE_BUDGET_H

#include <stdbool.h>
#include <stdint.h>

/* Full at first. */
typedef struct kvf_budget {
  uint32_t tokens_per_s; /* 0: no limit */
  uint64_t full_at_ns;   /* when the bucket is, or was, full */
} kvf_budget;

/* How long until `tokens` may be taken, if nobody else takes any; 0: now. */
uint64_t kvf_budget_wait_ns(const kvf_budget *budget, uint64_t now_ns, uint32_t tokens);

/* Takes them if they are there, else changes nothing and returns false. */
bool kvf_budget_take(kvf_budget *budget, uint64_t now_ns, uint32_t tokens);

#endif
