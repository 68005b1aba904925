/* What comes into a recovery table: requests, and what their ranks' loads found. */
#include "core/recovery_internal.h"

#define ENGINE_BARS \
  ((uint32_t)(KVF_BAR_GENERATED | KVF_BAR_PUBLISHED | KVF_BAR_BLOCKS_GONE | KVF_BAR_BEAMS | KVF_BAR_NO_CONTEXT))

const char *kvf_rewind_bar_name(uint32_t bars)
{
  static const struct {
    uint32_t bar;
    const char *name;
  } names[] = {
      {KVF_BAR_GENERATED, "generated"}, {KVF_BAR_PUBLISHED, "published"},   {KVF_BAR_BLOCKS_GONE, "blocks_gone"},
      {KVF_BAR_BEAMS, "beams"},         {KVF_BAR_NO_CONTEXT, "no_context"}, {KVF_BAR_TOO_LONG, "too_long"},
      {KVF_BAR_UNSAFE, "unsafe"},       {KVF_BAR_POLICY, "policy"},         {KVF_BAR_USED, "used"},
  };
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    if ((bars & names[i].bar) != 0) {
      return names[i].name;
    }
  }
  return "none";
}

/* ---- requests ---- */

static uint32_t blocks_of(const kvf_recovery *recovery, uint32_t tokens)
{
  return tokens / recovery->options.block_tokens + (tokens % recovery->options.block_tokens != 0);
}

static kvf_status check_blocks(const kvf_recovery *recovery, const kvf_recovery_request *request)
{
  const kvf_blocks *blocks = &request->blocks;
  uint32_t group_blocks = blocks_of(recovery, request->tokens);
  uint32_t local_blocks = request->local_prefix_tokens / recovery->options.block_tokens;
  if (blocks->groups != recovery->options.groups) {
    return KVF_INVALID;
  }
  if ((uint64_t)group_blocks * blocks->groups > KVF_BLOCKS_PER_LEASE_MAX) {
    return KVF_LIMIT;
  }
  const uint32_t *ids = blocks->ids;
  for (uint32_t group = 0; group < blocks->groups; group++) {
    if (blocks->counts[group] != group_blocks) {
      return KVF_INVALID;
    }
    for (uint32_t i = 0; i < group_blocks; i++, ids++) {
      if (*ids != KVF_BLOCK_NONE && (i < local_blocks || *ids >= recovery->options.pool_blocks[group])) {
        return KVF_INVALID;
      }
    }
  }
  return KVF_OK;
}

static kvf_status check_request(const kvf_recovery *recovery, const kvf_recovery_request *request)
{
  if (request->local_prefix_tokens > request->tokens || request->tokens > request->prompt_tokens ||
      request->local_prefix_tokens % recovery->options.block_tokens != 0 || (request->bars & ~ENGINE_BARS) != 0) {
    return KVF_INVALID;
  }
  kvf_status status = check_blocks(recovery, request);
  if (status != KVF_OK) {
    return status;
  }
  return kvf_recovery_find(recovery, request->request_id) == NULL ? KVF_OK : KVF_EXISTS;
}

kvf_status kvf_recovery_admit(kvf_recovery *recovery, const kvf_recovery_request *request)
{
  kvf_status status = check_request(recovery, request);
  if (status != KVF_OK) {
    return status;
  }
  kvf_recovery_entry *entry = kvf_recovery_insert(recovery, request->request_id);
  if (entry == NULL) {
    return KVF_NO_MEMORY;
  }
  entry->user = request->user;
  entry->tokens = request->tokens;
  entry->prompt_tokens = request->prompt_tokens;
  entry->local_blocks = request->local_prefix_tokens / recovery->options.block_tokens;
  entry->positions = blocks_of(recovery, request->tokens) * recovery->options.groups;
  entry->bars = request->bars;
  status = kvf_recovery_own_blocks(recovery, entry, &request->blocks);
  if (status != KVF_OK) {
    kvf_recovery_remove(recovery, entry);
    return status;
  }
  recovery->stats.admitted++;
  recovery->stats.loading++;
  return KVF_OK;
}

kvf_status kvf_recovery_bar(kvf_recovery *recovery, uint64_t request_id, uint32_t bars)
{
  kvf_recovery_entry *entry = kvf_recovery_find(recovery, request_id);
  if ((bars & ~ENGINE_BARS) != 0) {
    return KVF_INVALID;
  }
  if (entry == NULL) {
    return KVF_NOT_FOUND;
  }
  entry->bars |= bars;
  kvf_recovery_review(recovery, entry);
  return KVF_OK;
}

kvf_status kvf_recovery_end(kvf_recovery *recovery, uint64_t request_id)
{
  kvf_recovery_entry *entry = kvf_recovery_find(recovery, request_id);
  if (entry == NULL || entry->ended) {
    return KVF_NOT_FOUND;
  }
  entry->ended = true;
  kvf_recovery_review(recovery, entry);
  return KVF_OK;
}

/* ---- what the ranks found ---- */

static void merge(kvf_recovery *recovery, kvf_recovery_entry *entry, const kvf_report *report)
{
  recovery->stats.late_reports += entry->told != 0 || entry->ended;
  entry->merged = entry->merged.ranks_mask == 0 ? *report : kvf_report_merge(entry->merged, *report);
  kvf_recovery_review(recovery, entry);
}

kvf_status kvf_recovery_report(kvf_recovery *recovery, const kvf_report *report)
{
  kvf_recovery_entry *entry = kvf_recovery_find(recovery, report->request_id);
  if (entry == NULL) {
    return KVF_NOT_FOUND;
  }
  if (report->ranks_mask == 0 || (report->ranks_mask & ~recovery->all_ranks) != 0 ||
      report->blocks != entry->positions || report->prefix > report->blocks ||
      (report->status == KVF_OK && report->prefix < report->blocks)) {
    return KVF_INVALID;
  }
  merge(recovery, entry, report);
  return KVF_OK;
}

/* What all ranks have, by the verdict. */
static kvf_status report_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry, const kvf_verdict *verdict,
                            kvf_report *out)
{
  *out = (kvf_report){.request_id = entry->request_id,
                      .ranks_mask = recovery->all_ranks,
                      .blocks = entry->positions,
                      .status = verdict->status};
  switch (verdict->action) {
    case KVF_ACTION_USE:
      out->prefix = entry->positions;
      return verdict->status == KVF_OK ? KVF_OK : KVF_INVALID;
    case KVF_ACTION_RECOMPUTE:
      out->prefix = verdict->keep_blocks;
      return verdict->status != KVF_OK && verdict->keep_blocks < entry->positions ? KVF_OK : KVF_INVALID;
    case KVF_ACTION_FAIL:
      return verdict->status != KVF_OK ? KVF_OK : KVF_INVALID;
  }
  return KVF_INVALID;
}

kvf_status kvf_recovery_verdict(kvf_recovery *recovery, uint64_t request_id, const kvf_verdict *verdict)
{
  kvf_recovery_entry *entry = kvf_recovery_find(recovery, request_id);
  if (entry == NULL) {
    return KVF_NOT_FOUND;
  }
  kvf_report report;
  kvf_status status = report_of(recovery, entry, verdict, &report);
  if (status == KVF_OK) {
    entry->bars |= verdict->action == KVF_ACTION_FAIL ? (uint32_t)KVF_BAR_POLICY : 0;
    merge(recovery, entry, &report);
  }
  return status;
}

kvf_status kvf_recovery_quiet(kvf_recovery *recovery, uint64_t request_id, uint64_t ranks_mask)
{
  kvf_recovery_entry *entry = kvf_recovery_find(recovery, request_id);
  if ((ranks_mask & ~recovery->all_ranks) != 0) {
    return KVF_INVALID;
  }
  if (entry == NULL) {
    return KVF_NOT_FOUND;
  }
  entry->quiet_mask |= ranks_mask;
  kvf_recovery_review(recovery, entry);
  return KVF_OK;
}
