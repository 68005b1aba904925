#include "core/parts.h"

#include <assert.h>

static uint32_t heads_per_rank(uint32_t heads_total, uint32_t ranks)
{
  return heads_total > ranks ? heads_total / ranks : 1;
}

static uint32_t first_head(uint32_t heads_total, uint32_t ranks, uint32_t rank)
{
  return (uint32_t)((uint64_t)rank * heads_total / ranks);
}

/* The lowest rank whose heads begin at `head` or later. */
static uint32_t first_rank_from(uint32_t heads_total, uint32_t ranks, uint32_t head)
{
  return (uint32_t)(((uint64_t)head * ranks + heads_total - 1) / heads_total);
}

static uint32_t rank_to_read(uint32_t heads_total, uint32_t producer_ranks, uint32_t consumer_rank, uint32_t head)
{
  if (producer_ranks <= heads_total) {
    return head / heads_per_rank(heads_total, producer_ranks);
  }
  uint32_t first = first_rank_from(heads_total, producer_ranks, head);
  uint32_t replicas = first_rank_from(heads_total, producer_ranks, head + 1) - first;
  return first + consumer_rank % replicas;
}

static kvf_status check(uint32_t heads_total, uint32_t producer_ranks, uint32_t consumer_ranks, uint32_t consumer_rank)
{
  if (heads_total == 0 || producer_ranks == 0 || consumer_rank >= consumer_ranks) {
    return KVF_INVALID;
  }
  if (producer_ranks > KVF_RANKS_MAX || consumer_ranks > KVF_RANKS_MAX) {
    return KVF_LIMIT;
  }
  if ((producer_ranks < heads_total && heads_total % producer_ranks != 0) ||
      (consumer_ranks < heads_total && heads_total % consumer_ranks != 0)) {
    return KVF_INCOMPATIBLE;
  }
  return KVF_OK;
}

kvf_status kvf_parts_plan(uint32_t heads_total, uint32_t producer_ranks, uint32_t consumer_ranks,
                          uint32_t consumer_rank, kvf_part parts[KVF_RANKS_MAX], uint32_t *count)
{
  kvf_status status = check(heads_total, producer_ranks, consumer_ranks, consumer_rank);
  if (status != KVF_OK) {
    return status;
  }
  const uint32_t begin = first_head(heads_total, consumer_ranks, consumer_rank);
  const uint32_t heads = heads_per_rank(heads_total, consumer_ranks);
  uint32_t written = 0;
  for (uint32_t done = 0; done < heads;) {
    uint32_t head = begin + done;
    kvf_part *part = &parts[written];
    part->rank = rank_to_read(heads_total, producer_ranks, consumer_rank, head);
    part->remote_head = head - first_head(heads_total, producer_ranks, part->rank);
    part->local_head = done;
    uint32_t rest_of_rank = heads_per_rank(heads_total, producer_ranks) - part->remote_head;
    part->heads = rest_of_rank < heads - done ? rest_of_rank : heads - done;
    done += part->heads;
    written++;
    assert(written <= KVF_RANKS_MAX);
  }
  *count = written;
  return KVF_OK;
}
