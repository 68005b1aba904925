/* What a recovery table has to say of a request, decided when it is asked. */
#include <assert.h>

#include "base/bitmap.h"
#include "core/recovery_internal.h"

#define NOTHING 0u

static bool is_quiet(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return entry->quiet_mask == recovery->all_ranks;
}

static uint32_t computed_tokens(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint64_t tokens = (uint64_t)kvf_recovery_good_blocks(recovery, entry) * recovery->options.block_tokens;
  return tokens < entry->tokens ? (uint32_t)tokens : entry->tokens;
}

static bool is_complete(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return kvf_recovery_good_blocks(recovery, entry) == kvf_recovery_group_blocks(recovery, entry);
}

/* Whatever the engine could do about it: nothing of the load can be trusted, or it is not wanted. */
static uint32_t bars_to_all(const kvf_recovery_entry *entry)
{
  uint32_t bars = entry->bars & KVF_BAR_POLICY;
  return kvf_status_describe(entry->merged.status)->recompute_safe ? bars : bars | KVF_BAR_UNSAFE;
}

static uint32_t bars_to_rewind(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t bars = entry->bars | bars_to_all(entry);
  uint32_t most = recovery->options.recompute_max_tokens;
  if (most != 0 && !is_complete(recovery, entry) && entry->prompt_tokens - computed_tokens(recovery, entry) > most) {
    bars |= KVF_BAR_TOO_LONG;
  }
  return entry->told == NOTHING ? bars : bars | KVF_BAR_USED;
}

/* KVF_RECOVERY_READY, REWIND or TERMINATE, if it is time for one. */
static uint32_t next_decision(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  if (entry->ended || entry->told == KVF_RECOVERY_TERMINATE) {
    return NOTHING;
  }
  if (entry->told != NOTHING) {
    return kvf_recovery_good_blocks(recovery, entry) < entry->kept ? KVF_RECOVERY_TERMINATE : NOTHING;
  }
  if (entry->merged.ranks_mask != recovery->all_ranks) {
    return NOTHING;
  }
  bool complete = is_complete(recovery, entry);
  if (bars_to_all(entry) != 0 || (!complete && bars_to_rewind(recovery, entry) != 0)) {
    return KVF_RECOVERY_TERMINATE;
  }
  if (!is_quiet(recovery, entry)) {
    return NOTHING; /* a late write would undo what the engine computes */
  }
  return complete ? KVF_RECOVERY_READY : KVF_RECOVERY_REWIND;
}

static uint32_t next_kind(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t decision = next_decision(recovery, entry);
  if (decision != NOTHING) {
    return decision;
  }
  if (!is_quiet(recovery, entry)) {
    bool given_up = entry->ended || entry->told == KVF_RECOVERY_TERMINATE;
    return given_up && !entry->abort_told ? KVF_RECOVERY_ABORT : NOTHING;
  }
  return !entry->released && (entry->ended || entry->told != NOTHING) ? KVF_RECOVERY_RELEASE : NOTHING;
}

static void leave(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  kvf_recovery_drop_errors(recovery, entry);
  kvf_recovery_disown_blocks(recovery, entry);
  kvf_recovery_remove(recovery, entry);
}

void kvf_recovery_review(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  uint32_t index = kvf_recovery_index(recovery, entry);
  bool due = next_kind(recovery, entry) != NOTHING;
  if (due != kvf_bitmap_get(recovery->due, index)) {
    (due ? kvf_bitmap_set : kvf_bitmap_clear)(recovery->due, index);
    recovery->due_count = due ? recovery->due_count + 1 : recovery->due_count - 1;
  }
  if (entry->ended && entry->released) {
    leave(recovery, entry);
  }
}

static void tell_decision(kvf_recovery *recovery, kvf_recovery_entry *entry, kvf_recovery_event *event)
{
  bool complete = is_complete(recovery, entry);
  event->bars = event->kind == KVF_RECOVERY_TERMINATE ? bars_to_rewind(recovery, entry) : 0;
  event->status = event->kind == KVF_RECOVERY_READY ? KVF_OK : kvf_status_describe(entry->merged.status)->status;
  entry->told = event->kind;
  entry->kept = kvf_recovery_good_blocks(recovery, entry);
  if (event->kind != KVF_RECOVERY_TERMINATE) {
    event->confirmed_blocks = entry->kept - entry->local_blocks;
    event->computed_tokens = computed_tokens(recovery, entry);
    event->recompute_tokens = entry->tokens - event->computed_tokens;
  }
  if (!complete) {
    kvf_recovery_want_drain(recovery, entry);
  }
  kvf_recovery_stats *stats = &recovery->stats;
  stats->ready += event->kind == KVF_RECOVERY_READY;
  stats->terminated += event->kind == KVF_RECOVERY_TERMINATE;
  if (event->kind == KVF_RECOVERY_REWIND) {
    stats->rewound++;
    stats->kept_blocks += event->confirmed_blocks;
    stats->recompute_tokens += event->recompute_tokens;
  }
}

static void tell(kvf_recovery *recovery, kvf_recovery_entry *entry, kvf_recovery_event *event)
{
  switch (event->kind) {
    case KVF_RECOVERY_READY:
    case KVF_RECOVERY_REWIND:
    case KVF_RECOVERY_TERMINATE:
      tell_decision(recovery, entry, event);
      break;
    case KVF_RECOVERY_ABORT:
      entry->abort_told = true;
      event->ranks_mask = recovery->all_ranks & ~entry->quiet_mask;
      recovery->stats.aborted++;
      break;
    case KVF_RECOVERY_RELEASE:
      entry->released = true;
      recovery->stats.released++;
      recovery->stats.loading--;
      break;
  }
}

bool kvf_recovery_next_event(kvf_recovery *recovery, kvf_recovery_event *out)
{
  if (recovery->due_count == 0) {
    return false;
  }
  kvf_recovery_entry *entry = &recovery->entries[kvf_bitmap_first(recovery->due, recovery->options.requests_max)];
  uint32_t kind = next_kind(recovery, entry);
  assert(kind != NOTHING);
  kvf_recovery_event event = {
      .kind = (kvf_recovery_event_kind)kind, .request_id = entry->request_id, .user = entry->user};
  tell(recovery, entry, &event);
  kvf_recovery_review(recovery, entry);
  *out = event;
  return true;
}
