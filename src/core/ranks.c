/* Reports and releases of an engine's ranks, merged. */
#include "core/ranks.h"

#include <assert.h>

#include "base/status.h"
#include "kvferry/consumer.h"

/* A total order over all ints. Statuses after which recomputing is unsafe are worse than all others, so that a merge
 * never hides one. Next counts the scope of the loss, then the value. */
static int worst(int a, int b)
{
  const kvf_status_info *info_a = kvf_status_describe(a);
  const kvf_status_info *info_b = kvf_status_describe(b);
  if (info_a->recompute_safe != info_b->recompute_safe) {
    return info_a->recompute_safe ? b : a;
  }
  if (info_a->lost != info_b->lost) {
    return info_a->lost > info_b->lost ? a : b;
  }
  return a < b ? a : b;
}

/* Reports that do not belong together are a caller's mistake: the result says so, for any order of merging. */
kvf_report kvf_report_merge(kvf_report a, kvf_report b)
{
  kvf_report merged = {
      .request_id = a.request_id > b.request_id ? a.request_id : b.request_id,
      .ranks_mask = a.ranks_mask | b.ranks_mask,
      .blocks = a.blocks > b.blocks ? a.blocks : b.blocks,
      .prefix = a.prefix < b.prefix ? a.prefix : b.prefix,
      .status = worst(a.status, b.status),
  };
  if (a.request_id != b.request_id || a.blocks != b.blocks) {
    merged.status = worst(merged.status, KVF_INVALID);
  }
  return merged;
}

kvf_ranks kvf_ranks_of(uint32_t ranks, uint64_t request_id, uint32_t blocks)
{
  /* What no rank has found: merged with a report it is that report. */
  return (kvf_ranks){.merged = {.request_id = request_id, .blocks = blocks, .prefix = blocks, .status = KVF_OK},
                     .all = UINT64_MAX >> (KVF_RANKS_MAX - ranks)};
}

static bool are_known(const kvf_ranks *ranks, uint64_t mask)
{
  return mask != 0 && (mask & ~ranks->all) == 0;
}

kvf_status kvf_ranks_report(kvf_ranks *ranks, const kvf_report *report)
{
  if (!are_known(ranks, report->ranks_mask)) {
    return kvf_because(KVF_INVALID, "report->ranks_mask = %#llx must be some of %#llx",
                       (unsigned long long)report->ranks_mask, (unsigned long long)ranks->all);
  }
  if (report->blocks != ranks->merged.blocks || report->prefix > report->blocks) {
    return kvf_because(KVF_INVALID, "report->blocks = %u must be %u, and report->prefix = %u at most that",
                       (unsigned)report->blocks, (unsigned)ranks->merged.blocks, (unsigned)report->prefix);
  }
  ranks->merged = kvf_report_merge(ranks->merged, *report);
  return KVF_OK;
}

kvf_status kvf_ranks_release(kvf_ranks *ranks, uint64_t mask)
{
  if (!are_known(ranks, mask)) {
    return kvf_because(KVF_INVALID, "ranks_mask = %#llx must be some of %#llx", (unsigned long long)mask,
                       (unsigned long long)ranks->all);
  }
  ranks->released |= mask;
  return KVF_OK;
}

bool kvf_ranks_have_reported(const kvf_ranks *ranks)
{
  return ranks->merged.ranks_mask == ranks->all;
}

bool kvf_ranks_are_in(const kvf_ranks *ranks)
{
  return (ranks->merged.ranks_mask | ranks->released) == ranks->all;
}

bool kvf_ranks_are_released(const kvf_ranks *ranks)
{
  return ranks->released == ranks->all;
}

#ifndef NDEBUG

void kvf_ranks_check(const kvf_ranks *ranks)
{
  assert(ranks->all != 0 && (ranks->merged.ranks_mask & ~ranks->all) == 0 && (ranks->released & ~ranks->all) == 0);
  assert(ranks->merged.prefix <= ranks->merged.blocks);
}

#endif
