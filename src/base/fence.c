/* How a sample is judged against what a reader claims, and the digest of what a lease covers. */
#include "base/fence.h"

#include <string.h>

#include "base/crypto.h"
#include "base/status.h"

kvf_status kvf_fence_check(const kvf_fence_sample *sample, const kvf_fence_claim *claim)
{
  if (sample->head.magic != KVF_FENCE_MAGIC ||
      memcmp(&sample->head.incarnation, &claim->incarnation, sizeof(claim->incarnation)) != 0) {
    return KVF_PEER_RESTARTED;
  }
  if (sample->entry.word > kvf_fence_word_live(claim->lease_id)) {
    return KVF_LEASE_EXPIRED;
  }
  if (sample->head.generation != claim->generation) {
    return KVF_AGAIN;
  }
  if (sample->entry.word < kvf_fence_word_live(claim->lease_id)) {
    return KVF_NOT_PUBLISHED;
  }
  if (sample->entry.digest != claim->digest) {
    return KVF_BAD_TICKET;
  }
  return KVF_OK;
}

kvf_status kvf_blocks_check(const kvf_blocks *blocks)
{
  if (blocks->groups > KVF_GROUPS_MAX) {
    return kvf_because(KVF_LIMIT, "blocks->groups = %u: at most %d, KVF_GROUPS_MAX", (unsigned)blocks->groups,
                       KVF_GROUPS_MAX);
  }
  const size_t positions = kvf_blocks_count(blocks);
  return positions <= KVF_BLOCKS_PER_LEASE_MAX
             ? KVF_OK
             : kvf_because(KVF_LIMIT, "%zu positions in all groups: at most %d, KVF_BLOCKS_PER_LEASE_MAX", positions,
                           KVF_BLOCKS_PER_LEASE_MAX);
}

kvf_status kvf_fence_digest(const kvf_lease *lease, const kvf_blocks *blocks, const kvf_prompt *prompt, uint64_t *out)
{
  uint8_t hash[KVF_HASH_BYTES];
  const kvf_span spans[] = {
      {lease->token, sizeof(lease->token)},
      {&lease->id, sizeof(lease->id)},
      {prompt->hash, sizeof(prompt->hash)},
      {prompt->model, sizeof(prompt->model)},
      {&prompt->tokens, sizeof(prompt->tokens)},
      {&blocks->groups, sizeof(blocks->groups)},
      {blocks->counts, blocks->groups * sizeof(*blocks->counts)},
      {blocks->ids, kvf_blocks_count(blocks) * sizeof(*blocks->ids)},
  };
  kvf_status status = kvf_sha256(spans, sizeof(spans) / sizeof(spans[0]), hash);
  if (status == KVF_OK) {
    memcpy(out, hash, sizeof(*out));
  }
  return status;
}
