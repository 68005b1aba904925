#include "kvferry/consumer.h"

/* By one total order over all ints: statuses after which recomputing is unsafe are graver than all others (so that a
 * merge never hides one), then by what was lost, then by value. */
static bool is_graver(int a, int b)
{
  const kvf_status_info *info_a = kvf_status_describe(a);
  const kvf_status_info *info_b = kvf_status_describe(b);
  if (info_a->recompute_safe != info_b->recompute_safe) {
    return !info_a->recompute_safe;
  }
  if (info_a->lost != info_b->lost) {
    return info_a->lost > info_b->lost;
  }
  return a < b;
}

static int gravest(int a, int b)
{
  return is_graver(a, b) ? a : b;
}

/* Reports that do not belong together are a caller's mistake: the result says so, whatever the order of merging. */
kvf_report kvf_report_merge(kvf_report a, kvf_report b)
{
  kvf_report merged = {
      .request_id = a.request_id > b.request_id ? a.request_id : b.request_id,
      .ranks_mask = a.ranks_mask | b.ranks_mask,
      .blocks = a.blocks > b.blocks ? a.blocks : b.blocks,
      .prefix = a.prefix < b.prefix ? a.prefix : b.prefix,
      .status = gravest(a.status, b.status),
  };
  if (a.request_id != b.request_id || a.blocks != b.blocks) {
    merged.status = gravest(merged.status, KVF_INVALID);
  }
  return merged;
}
