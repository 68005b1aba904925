/* The recovery table of kvferry/recovery.h. There is no queue of events. A request's next event follows from its state
 * (next_kind()): its reports, and the events that were taken.
 *
 * All lists are indices into arrays that kvf_recovery_open() has made; index + 1 is stored, so that 0 is none. */
#include <assert.h>
#include <stdlib.h>

#include "base/bitmap.h"
#include "base/status.h"
#include "core/ranks.h"
#include "kvferry/recovery.h"
#include "recovery/recovery_check.h"
#include "wire/ticket.h"

typedef struct kvf_recovery_entry {
  uint64_t request_id;
  uint64_t user;
  kvf_ranks ranks;
  uint32_t tokens;
  uint32_t prompt_tokens;
  uint32_t local_blocks;
  uint32_t first_gap; /* the first position behind those where some group has no block */
  uint32_t blockers;
  uint32_t kept;        /* leading blocks of each group that the engine was told are good */
  uint32_t first_block; /* of its loaded blocks */
  uint32_t error_block; /* the next one to look at for kvf_recovery_drain_errors() */
  uint32_t next;        /* of the same bucket */
  uint32_t decided;     /* 0, or KVF_RECOVERY_READY, REWIND or TERMINATE */
  bool ended;
  bool abort_given;
  bool released;
} kvf_recovery_entry;

/* What the table knows of a block of a pool. */
typedef struct kvf_recovery_block {
  uint32_t owner; /* entry whose load it belongs to */
  uint32_t next;  /* the owner's next one, by group and position */
  uint32_t position;
  bool drained;
} kvf_recovery_block;

/* Some of the entries. */
typedef struct kvf_recovery_set {
  uint64_t *bits; /* in kvf_recovery.bits */
  uint32_t count;
} kvf_recovery_set;

struct kvf_recovery {
  kvf_recovery_options options;
  kvf_recovery_entry *entries;
  uint32_t *buckets;
  uint64_t *bits;                /* of all sets */
  kvf_recovery_set free_entries; /* the lowest is taken, in any order of becoming free */
  kvf_recovery_block *blocks;
  uint32_t group_first[KVF_GROUPS_MAX + 1]; /* index of each group's block 0 */
  kvf_recovery_set due;                     /* entries with an event */
  kvf_recovery_set errors;                  /* entries with blocks to drain */
  kvf_recovery_stats stats;
};

static uint32_t index_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return (uint32_t)(entry - recovery->entries);
}

static void put(const kvf_recovery *recovery, kvf_recovery_set *set, const kvf_recovery_entry *entry, bool in)
{
  uint32_t index = index_of(recovery, entry);
  if (in != kvf_bitmap_get(set->bits, index)) {
    (in ? kvf_bitmap_set : kvf_bitmap_clear)(set->bits, index);
    set->count = in ? set->count + 1 : set->count - 1;
  }
}

static kvf_recovery_entry *first_of(const kvf_recovery *recovery, const kvf_recovery_set *set)
{
  return set->count == 0 ? NULL : &recovery->entries[kvf_bitmap_first(set->bits, recovery->options.requests_max)];
}

/* Positions of all groups. */
static uint32_t positions_of(const kvf_recovery_entry *entry)
{
  return entry->ranks.merged.blocks;
}

/* Blocks of each group. */
static uint32_t group_blocks_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return positions_of(entry) / recovery->options.groups;
}

/* The number of leading good blocks of each group, at least the local prefix. A window may have passed a block, so that
 * it is not there. A token before the last may look at such a block: then either all blocks count as good, or none. */
static uint32_t good_blocks_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t prefix = entry->ranks.merged.prefix;
  uint32_t good = prefix <= entry->first_gap ? prefix : 0;
  if (prefix == positions_of(entry)) {
    good = group_blocks_of(recovery, entry);
  }
  return good > entry->local_blocks ? good : entry->local_blocks;
}

/* ---- memory, and entries by request id ---- */

static kvf_status check_options(const kvf_recovery_options *options)
{
  const unsigned ranks = options->ranks;
  const unsigned requests = options->requests_max;
  const unsigned groups = options->groups;
  if (ranks == 0 || options->block_tokens == 0 || requests == 0 || groups == 0) {
    return kvf_because(KVF_INVALID, "ranks = %u, block_tokens = %u, requests_max = %u, groups = %u: none may be 0",
                       ranks, (unsigned)options->block_tokens, requests, groups);
  }
  if (ranks > KVF_RANKS_MAX || requests > KVF_RECOVERY_REQUESTS_MAX || groups > KVF_GROUPS_MAX) {
    return kvf_because(KVF_LIMIT, "ranks = %u, requests_max = %u, groups = %u: at most %d, %d and %d", ranks, requests,
                       groups, KVF_RANKS_MAX, KVF_RECOVERY_REQUESTS_MAX, KVF_GROUPS_MAX);
  }
  uint64_t blocks = 0;
  for (uint32_t group = 0; group < options->groups; group++) {
    if (options->pool_blocks[group] == 0) {
      return kvf_because(KVF_INVALID, "pool_blocks[%u] = 0", (unsigned)group);
    }
    blocks += options->pool_blocks[group];
  }
  return blocks <= KVF_RECOVERY_BLOCKS_MAX
             ? KVF_OK
             : kvf_because(KVF_LIMIT, "%llu blocks of all groups: at most %d, KVF_RECOVERY_BLOCKS_MAX",
                           (unsigned long long)blocks, KVF_RECOVERY_BLOCKS_MAX);
}

static bool allocate(kvf_recovery *recovery)
{
  const kvf_recovery_options *options = &recovery->options;
  for (uint32_t group = 0; group < options->groups; group++) {
    recovery->group_first[group + 1] = recovery->group_first[group] + options->pool_blocks[group];
  }
  size_t words = kvf_bitmap_words(options->requests_max);
  recovery->entries = calloc(options->requests_max, sizeof(*recovery->entries));
  recovery->buckets = calloc(options->requests_max, sizeof(*recovery->buckets));
  recovery->blocks = calloc(recovery->group_first[options->groups], sizeof(*recovery->blocks));
  recovery->bits = calloc(3 * words, sizeof(uint64_t));
  if (recovery->entries == NULL || recovery->buckets == NULL || recovery->blocks == NULL || recovery->bits == NULL) {
    return false;
  }
  recovery->free_entries.bits = recovery->bits;
  recovery->due.bits = recovery->bits + words;
  recovery->errors.bits = recovery->bits + 2 * words;
  return true;
}

kvf_status kvf_recovery_open(const kvf_recovery_options *options, kvf_recovery **out)
{
  *out = NULL;
  kvf_status status = check_options(options);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  kvf_recovery *recovery = calloc(1, sizeof(*recovery));
  if (recovery == NULL) {
    return kvf_answer(KVF_NO_MEMORY);
  }
  recovery->options = *options;
  if (!allocate(recovery)) {
    kvf_recovery_close(recovery);
    return kvf_answer(KVF_NO_MEMORY);
  }
  for (uint32_t i = 0; i < options->requests_max; i++) {
    put(recovery, &recovery->free_entries, &recovery->entries[i], true);
  }
  *out = recovery;
  return KVF_OK;
}

void kvf_recovery_close(kvf_recovery *recovery)
{
  if (recovery == NULL) {
    return;
  }
  free(recovery->bits);
  free(recovery->blocks);
  free(recovery->buckets);
  free(recovery->entries);
  free(recovery);
}

/* Fibonacci hashing: ids may be consecutive, or not. */
static uint32_t *bucket_of(const kvf_recovery *recovery, uint64_t request_id)
{
  uint64_t hash = request_id * UINT64_C(0x9e3779b97f4a7c15);
  return &recovery->buckets[(hash >> 32) % recovery->options.requests_max];
}

static kvf_recovery_entry *find(const kvf_recovery *recovery, uint64_t request_id)
{
  for (uint32_t i = *bucket_of(recovery, request_id); i != 0; i = recovery->entries[i - 1].next) {
    if (recovery->entries[i - 1].request_id == request_id) {
      return &recovery->entries[i - 1];
    }
  }
  return NULL;
}

static kvf_recovery_entry *insert(kvf_recovery *recovery, uint64_t request_id)
{
  kvf_recovery_entry *entry = first_of(recovery, &recovery->free_entries);
  if (entry == NULL) {
    return NULL;
  }
  uint32_t *bucket = bucket_of(recovery, request_id);
  put(recovery, &recovery->free_entries, entry, false);
  *entry = (kvf_recovery_entry){.request_id = request_id, .next = *bucket};
  *bucket = index_of(recovery, entry) + 1;
  recovery->stats.open++;
  return entry;
}

static void take_out(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  uint32_t i = index_of(recovery, entry) + 1;
  uint32_t *link = bucket_of(recovery, entry->request_id);
  while (*link != i) {
    link = &recovery->entries[*link - 1].next;
  }
  *link = entry->next;
  put(recovery, &recovery->free_entries, entry, true);
  recovery->stats.open--;
}

void kvf_recovery_get_stats(const kvf_recovery *recovery, kvf_recovery_stats *out)
{
  *out = recovery->stats;
}

/* ---- which request a block belongs to, and which blocks have failed ---- */

static void disown_blocks(kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t i = entry->first_block;
  while (i != 0) {
    kvf_recovery_block *block = &recovery->blocks[i - 1];
    i = block->next;
    *block = (kvf_recovery_block){0};
  }
}

/* From the last block to the first, so that the list ends up in order. Finds the entry's first gap on the way. */
static kvf_status own_blocks(kvf_recovery *recovery, kvf_recovery_entry *entry, const kvf_blocks *blocks)
{
  uint32_t group_blocks = group_blocks_of(recovery, entry);
  entry->first_gap = group_blocks;
  for (uint32_t i = positions_of(entry); i-- > 0;) {
    uint32_t position = i % group_blocks;
    if (blocks->ids[i] == KVF_BLOCK_NONE) {
      entry->first_gap = position >= entry->local_blocks && position < entry->first_gap ? position : entry->first_gap;
      continue;
    }
    uint32_t index = recovery->group_first[i / group_blocks] + blocks->ids[i];
    kvf_recovery_block *block = &recovery->blocks[index];
    if (block->owner != 0) {
      disown_blocks(recovery, entry);
      return kvf_because(KVF_EXISTS, "block id %u of group %u belongs to another request of the table",
                         (unsigned)blocks->ids[i], (unsigned)(i / group_blocks));
    }
    *block =
        (kvf_recovery_block){.owner = index_of(recovery, entry) + 1, .next = entry->first_block, .position = position};
    entry->first_block = index + 1;
  }
  return KVF_OK;
}

static kvf_status check_failed(const kvf_recovery *recovery, uint32_t rank, uint32_t group, const uint32_t *block_ids,
                               size_t count, kvf_status why)
{
  if (rank >= recovery->options.ranks || group >= recovery->options.groups || why == KVF_OK) {
    return kvf_because(KVF_INVALID, "rank = %u and group = %u must be below %u and %u, and why = %s a failure",
                       (unsigned)rank, (unsigned)group, (unsigned)recovery->options.ranks,
                       (unsigned)recovery->options.groups, kvf_status_name(why));
  }
  for (size_t i = 0; i < count; i++) {
    if (block_ids[i] >= recovery->options.pool_blocks[group]) {
      return kvf_because(KVF_INVALID, "block id %u at index %zu is not below pool_blocks[%u] = %u",
                         (unsigned)block_ids[i], i, (unsigned)group, (unsigned)recovery->options.pool_blocks[group]);
    }
  }
  return KVF_OK;
}

static kvf_status take_report_of_rank(kvf_recovery *recovery, const kvf_report *report);

kvf_status kvf_recovery_report_blocks(kvf_recovery *recovery, uint32_t rank, uint32_t group, const uint32_t *block_ids,
                                      size_t count, kvf_status why)
{
  kvf_status status = check_failed(recovery, rank, group, block_ids, count, why);
  for (size_t i = 0; status == KVF_OK && i < count; i++) {
    const kvf_recovery_block *block = &recovery->blocks[recovery->group_first[group] + block_ids[i]];
    if (block->owner == 0) {
      recovery->stats.unknown_blocks++;
      continue;
    }
    const kvf_recovery_entry *entry = &recovery->entries[block->owner - 1];
    status = take_report_of_rank(recovery, &(kvf_report){.request_id = entry->request_id,
                                                         .ranks_mask = UINT64_C(1) << rank,
                                                         .blocks = positions_of(entry),
                                                         .prefix = block->position,
                                                         .status = why});
  }
  return kvf_answer(status);
}

/* ---- errors ---- */

static uint32_t group_of(const kvf_recovery *recovery, uint32_t index)
{
  uint32_t group = 0;
  while (index >= recovery->group_first[group + 1]) {
    group++;
  }
  return group;
}

/* Writes the entry's failed blocks; all of them are written if there is room left. */
static size_t drain_entry(kvf_recovery *recovery, kvf_recovery_entry *entry, kvf_recovery_error *out, size_t capacity)
{
  size_t count = 0;
  while (count < capacity && entry->error_block != 0) {
    uint32_t index = entry->error_block - 1;
    kvf_recovery_block *block = &recovery->blocks[index];
    entry->error_block = block->next;
    if (block->position < entry->kept || block->drained) {
      continue;
    }
    uint32_t group = group_of(recovery, index);
    block->drained = true;
    out[count++] = (kvf_recovery_error){.request_id = entry->request_id,
                                        .group = group,
                                        .block_id = index - recovery->group_first[group],
                                        .position = block->position,
                                        .status = entry->ranks.merged.status};
  }
  return count;
}

size_t kvf_recovery_drain_errors(kvf_recovery *recovery, kvf_recovery_error *out, size_t capacity)
{
  size_t count = 0;
  while (recovery->errors.count > 0 && count < capacity) {
    kvf_recovery_entry *entry = first_of(recovery, &recovery->errors);
    count += drain_entry(recovery, entry, out + count, capacity - count);
    put(recovery, &recovery->errors, entry, entry->error_block != 0);
  }
  recovery->stats.errors += count;
  return count;
}

/* ---- what there is to say of a request, decided when it is asked ---- */

#define NOTHING 0u

static uint32_t computed_tokens(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint64_t tokens = (uint64_t)good_blocks_of(recovery, entry) * recovery->options.block_tokens;
  return tokens < entry->tokens ? (uint32_t)tokens : entry->tokens;
}

static bool is_complete(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return good_blocks_of(recovery, entry) == group_blocks_of(recovery, entry);
}

/* No block of the load can be trusted, independent of the engine's abilities. */
static bool is_unsafe(const kvf_recovery_entry *entry)
{
  return !kvf_status_describe(entry->ranks.merged.status)->recompute_safe;
}

static uint32_t blockers_of_rewind(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t blockers = entry->blockers | (is_unsafe(entry) ? (uint32_t)KVF_BLOCKER_UNSAFE : 0);
  uint32_t most = recovery->options.recompute_max_tokens;
  if (most != 0 && !is_complete(recovery, entry) && entry->prompt_tokens - computed_tokens(recovery, entry) > most) {
    blockers |= KVF_BLOCKER_TOO_LONG;
  }
  return entry->decided == NOTHING ? blockers : blockers | KVF_BLOCKER_USED;
}

/* KVF_RECOVERY_READY, REWIND or TERMINATE, if it is time for one. */
static uint32_t next_decision(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  if (entry->ended || entry->decided == KVF_RECOVERY_TERMINATE) {
    return NOTHING;
  }
  if (entry->decided != NOTHING) {
    return good_blocks_of(recovery, entry) < entry->kept ? KVF_RECOVERY_TERMINATE : NOTHING;
  }
  if (!kvf_ranks_have_reported(&entry->ranks)) {
    return NOTHING;
  }
  bool complete = is_complete(recovery, entry);
  if (is_unsafe(entry) || (!complete && blockers_of_rewind(recovery, entry) != 0)) {
    return KVF_RECOVERY_TERMINATE;
  }
  if (!kvf_ranks_are_released(&entry->ranks)) {
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
  if (!kvf_ranks_are_released(&entry->ranks)) {
    bool given_up = entry->ended || entry->decided == KVF_RECOVERY_TERMINATE;
    return given_up && !entry->abort_given ? KVF_RECOVERY_ABORT : NOTHING;
  }
  return !entry->released && (entry->ended || entry->decided != NOTHING) ? KVF_RECOVERY_RELEASE : NOTHING;
}

static void review(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  put(recovery, &recovery->due, entry, next_kind(recovery, entry) != NOTHING);
  if (entry->ended && entry->released) {
    put(recovery, &recovery->errors, entry, false);
    disown_blocks(recovery, entry);
    take_out(recovery, entry);
  }
}

static void tell_decision(kvf_recovery *recovery, kvf_recovery_entry *entry, kvf_recovery_event *event)
{
  bool complete = is_complete(recovery, entry);
  event->blockers = event->kind == KVF_RECOVERY_TERMINATE ? blockers_of_rewind(recovery, entry) : 0;
  event->status = event->kind == KVF_RECOVERY_READY ? KVF_OK : kvf_status_describe(entry->ranks.merged.status)->status;
  entry->decided = event->kind;
  entry->kept = good_blocks_of(recovery, entry);
  if (event->kind != KVF_RECOVERY_TERMINATE) {
    event->confirmed_blocks = entry->kept - entry->local_blocks;
    event->computed_tokens = computed_tokens(recovery, entry);
    event->recompute_tokens = entry->tokens - event->computed_tokens;
  }
  if (!complete) {
    entry->error_block = entry->first_block;
    put(recovery, &recovery->errors, entry, true);
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
      entry->abort_given = true;
      event->ranks_mask = entry->ranks.all & ~entry->ranks.released;
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
  kvf_recovery_entry *entry = first_of(recovery, &recovery->due);
  if (entry == NULL) {
    return false;
  }
  uint32_t kind = next_kind(recovery, entry);
  assert(kind != NOTHING);
  kvf_recovery_event event = {
      .kind = (kvf_recovery_event_kind)kind, .request_id = entry->request_id, .user = entry->user};
  tell(recovery, entry, &event);
  review(recovery, entry);
  *out = event;
  return true;
}

/* ---- requests ---- */

#define ENGINE_BLOCKERS                                                                                     \
  ((uint32_t)(KVF_BLOCKER_GENERATED | KVF_BLOCKER_PUBLISHED | KVF_BLOCKER_BLOCKS_GONE | KVF_BLOCKER_BEAMS | \
              KVF_BLOCKER_NO_CONTEXT))

static kvf_status check_blocks(const kvf_recovery *recovery, const kvf_recovery_request *request)
{
  const kvf_blocks *blocks = &request->blocks;
  uint32_t group_blocks = kvf_ticket_positions(request->tokens, recovery->options.block_tokens);
  uint32_t local_blocks = request->local_prefix_tokens / recovery->options.block_tokens;
  if (blocks->groups != recovery->options.groups) {
    return kvf_because(KVF_INVALID, "blocks.groups = %u must be %u", (unsigned)blocks->groups,
                       (unsigned)recovery->options.groups);
  }
  if ((uint64_t)group_blocks * blocks->groups > KVF_BLOCKS_PER_LEASE_MAX) {
    return kvf_because(KVF_LIMIT, "%u positions in each of %u groups: at most %d together, KVF_BLOCKS_PER_LEASE_MAX",
                       (unsigned)group_blocks, (unsigned)blocks->groups, KVF_BLOCKS_PER_LEASE_MAX);
  }
  const uint32_t *ids = blocks->ids;
  for (uint32_t group = 0; group < blocks->groups; group++) {
    if (blocks->counts[group] != group_blocks) {
      return kvf_because(KVF_INVALID, "blocks.counts[%u] = %u: %u tokens in blocks of %u are %u positions",
                         (unsigned)group, (unsigned)blocks->counts[group], (unsigned)request->tokens,
                         (unsigned)recovery->options.block_tokens, (unsigned)group_blocks);
    }
    for (uint32_t i = 0; i < group_blocks; i++, ids++) {
      if (*ids != KVF_BLOCK_NONE && (i < local_blocks || *ids >= recovery->options.pool_blocks[group])) {
        return kvf_because(KVF_INVALID,
                           "block id %u of position %u of group %u: below %u, and none in the first %u positions, "
                           "which the engine has itself",
                           (unsigned)*ids, (unsigned)i, (unsigned)group, (unsigned)recovery->options.pool_blocks[group],
                           (unsigned)local_blocks);
      }
    }
  }
  return KVF_OK;
}

static kvf_status check_request(const kvf_recovery *recovery, const kvf_recovery_request *request)
{
  const unsigned local = request->local_prefix_tokens;
  const unsigned block_tokens = recovery->options.block_tokens;
  if (local > request->tokens || request->tokens > request->prompt_tokens || local % block_tokens != 0) {
    return kvf_because(KVF_INVALID,
                       "local_prefix_tokens = %u, tokens = %u, prompt_tokens = %u: none above the next, and the first "
                       "a multiple of block_tokens = %u",
                       local, (unsigned)request->tokens, (unsigned)request->prompt_tokens, block_tokens);
  }
  if ((request->blockers & ~ENGINE_BLOCKERS) != 0) {
    return kvf_because(KVF_INVALID, "blockers = %#x: an engine sets some of %#x", (unsigned)request->blockers,
                       (unsigned)ENGINE_BLOCKERS);
  }
  kvf_status status = check_blocks(recovery, request);
  if (status != KVF_OK) {
    return status;
  }
  return find(recovery, request->request_id) == NULL
             ? KVF_OK
             : kvf_because(KVF_EXISTS, "request %llu is in the table", (unsigned long long)request->request_id);
}

kvf_status kvf_recovery_admit(kvf_recovery *recovery, const kvf_recovery_request *request)
{
  kvf_status status = check_request(recovery, request);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  kvf_recovery_entry *entry = insert(recovery, request->request_id);
  if (entry == NULL) {
    return kvf_answer(kvf_because(KVF_NO_RESOURCE, "requests_max = %u requests are in the table",
                                  (unsigned)recovery->options.requests_max));
  }
  entry->user = request->user;
  entry->tokens = request->tokens;
  entry->prompt_tokens = request->prompt_tokens;
  entry->local_blocks = request->local_prefix_tokens / recovery->options.block_tokens;
  entry->ranks =
      kvf_ranks_of(recovery->options.ranks, request->request_id,
                   kvf_ticket_positions(request->tokens, recovery->options.block_tokens) * recovery->options.groups);
  entry->blockers = request->blockers;
  status = own_blocks(recovery, entry, &request->blocks);
  if (status != KVF_OK) {
    take_out(recovery, entry);
    return kvf_answer(status);
  }
  recovery->stats.admitted++;
  recovery->stats.loading++;
  return KVF_OK;
}

static kvf_status not_in_table(uint64_t request_id)
{
  return kvf_because(KVF_NOT_FOUND, "request %llu is not in the table, or not any more",
                     (unsigned long long)request_id);
}

kvf_status kvf_recovery_end(kvf_recovery *recovery, uint64_t request_id)
{
  kvf_recovery_entry *entry = find(recovery, request_id);
  if (entry == NULL || entry->ended) {
    return kvf_answer(not_in_table(request_id));
  }
  entry->ended = true;
  review(recovery, entry);
  return KVF_OK;
}

/* ---- what the ranks found ---- */

static kvf_status take_report_of_rank(kvf_recovery *recovery, const kvf_report *report)
{
  kvf_recovery_entry *entry = find(recovery, report->request_id);
  if (entry == NULL) {
    return not_in_table(report->request_id);
  }
  bool is_whole = report->prefix == report->blocks;
  bool contradicts_itself =
      !is_whole && (report->status == KVF_OK || report->prefix >= group_blocks_of(recovery, entry));
  kvf_status status =
      contradicts_itself
          ? kvf_because(KVF_INVALID, "report: prefix = %u of blocks = %u contradicts status = %s",
                        (unsigned)report->prefix, (unsigned)report->blocks, kvf_status_name(report->status))
          : kvf_ranks_report(&entry->ranks, report);
  recovery->stats.late_reports += status == KVF_OK && (entry->decided != NOTHING || entry->ended);
  review(recovery, entry);
  return status;
}

kvf_status kvf_recovery_report(kvf_recovery *recovery, const kvf_report *report)
{
  return kvf_answer(take_report_of_rank(recovery, report));
}

kvf_status kvf_recovery_released(kvf_recovery *recovery, uint64_t request_id, uint64_t ranks_mask)
{
  kvf_recovery_entry *entry = find(recovery, request_id);
  if (entry == NULL) {
    return kvf_answer(not_in_table(request_id));
  }
  kvf_status status = kvf_ranks_release(&entry->ranks, ranks_mask);
  review(recovery, entry);
  return kvf_answer(status);
}

#ifdef NDEBUG

void kvf_recovery_check(const kvf_recovery *recovery)
{
  (void)recovery;
}

#else

/* An entry that is in use. Returns how many blocks it owns. */
static uint32_t check_entry(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  const uint32_t index = index_of(recovery, entry);
  uint32_t owned = 0;
  for (uint32_t i = entry->first_block; i != 0; i = recovery->blocks[i - 1].next, owned++) {
    assert(recovery->blocks[i - 1].owner == index + 1);
    assert(recovery->blocks[i - 1].position < group_blocks_of(recovery, entry));
  }
  kvf_ranks_check(&entry->ranks);
  assert(find(recovery, entry->request_id) == entry);
  assert(kvf_bitmap_get(recovery->due.bits, index) == (next_kind(recovery, entry) != NOTHING));
  assert(entry->error_block == 0 || entry->decided != NOTHING);
  assert(!entry->released || kvf_ranks_are_released(&entry->ranks));
  assert(!entry->released || !entry->ended);
  assert(entry->kept <= group_blocks_of(recovery, entry));
  return owned;
}

void kvf_recovery_check(const kvf_recovery *recovery)
{
  const kvf_recovery_set *const sets[] = {&recovery->free_entries, &recovery->due, &recovery->errors};
  uint32_t counts[3] = {0};
  uint32_t loading = 0;
  uint32_t owned = 0;
  for (uint32_t i = 0; i < recovery->options.requests_max; i++) {
    const bool is_free = kvf_bitmap_get(recovery->free_entries.bits, i);
    for (unsigned k = 0; k < 3; k++) {
      counts[k] += kvf_bitmap_get(sets[k]->bits, i);
      assert(!is_free || k == 0 || !kvf_bitmap_get(sets[k]->bits, i));
    }
    owned += is_free ? 0 : check_entry(recovery, &recovery->entries[i]);
    loading += !is_free && !recovery->entries[i].released;
  }
  for (uint32_t i = 0; i < recovery->group_first[recovery->options.groups]; i++) {
    owned -= recovery->blocks[i].owner != 0;
  }
  assert(owned == 0);
  assert(counts[0] == sets[0]->count && counts[1] == sets[1]->count && counts[2] == sets[2]->count);
  assert(recovery->stats.open == recovery->options.requests_max - counts[0] && recovery->stats.loading == loading);
}

#endif
