/* The recovery table of kvferry/recovery.h. A request says what it has to say next when it is asked (next_kind()): its
 * state is what has come in and what has been told, and there is no queue.
 *
 * All lists are indices into arrays that kvf_recovery_open() has made; index + 1 is stored, so that 0 is none. */
#include <assert.h>
#include <stdlib.h>

#include "base/bitmap.h"
#include "kvferry/consumer.h"
#include "kvferry/recovery.h"

typedef struct kvf_recovery_entry {
  uint64_t request_id;
  uint64_t user;
  kvf_report merged; /* of no rank: ranks_mask is 0 */
  uint64_t quiet_mask;
  uint32_t tokens;
  uint32_t prompt_tokens;
  uint32_t local_blocks;
  uint32_t positions; /* of all groups */
  uint32_t bars;
  uint32_t kept;        /* leading blocks of each group that the engine was told are good */
  uint32_t first_block; /* of its loaded blocks */
  uint32_t error_block; /* the next one to look at for kvf_recovery_drain_errors() */
  uint32_t next;        /* of the same bucket */
  uint32_t told;        /* 0, or KVF_RECOVERY_READY, REWIND or TERMINATE */
  bool ended;
  bool abort_told;
  bool released;
} kvf_recovery_entry;

/* What the table knows of a block of a pool. */
typedef struct kvf_recovery_block {
  uint32_t owner; /* entry whose load it belongs to */
  uint32_t next;  /* the owner's next one, by group and position */
  uint32_t position;
  bool drained;
} kvf_recovery_block;

struct kvf_recovery {
  kvf_recovery_options options;
  uint64_t all_ranks;
  kvf_recovery_entry *entries;
  uint32_t *buckets;
  uint32_t buckets_mask;
  uint64_t *free_entries; /* bitmap: the lowest is taken, whatever the order in which they became free */
  kvf_recovery_block *blocks;
  uint32_t group_first[KVF_GROUPS_MAX + 1]; /* index of each group's block 0 */
  uint64_t *due;                            /* bitmap of entries with an event, its lowest first */
  uint64_t *errors;                         /* bitmap of entries with blocks to drain */
  uint32_t due_count;
  uint32_t errors_count;
  kvf_recovery_stats stats;
};

static uint32_t index_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return (uint32_t)(entry - recovery->entries);
}

/* Blocks of each group. */
static uint32_t group_blocks_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return entry->positions / recovery->options.groups;
}

/* Leading blocks of each group that are good, the local prefix at least. With several groups a load is all or nothing:
 * their blocks do not cover the same tokens. */
static uint32_t good_blocks_of(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t good = recovery->options.groups == 1 ? entry->merged.prefix : 0;
  if (entry->merged.prefix == entry->positions) {
    good = group_blocks_of(recovery, entry);
  }
  return good > entry->local_blocks ? good : entry->local_blocks;
}

/* ---- memory, and entries by request id ---- */

static kvf_status check_options(const kvf_recovery_options *options)
{
  if (options->ranks == 0 || options->block_tokens == 0 || options->requests_max == 0 || options->groups == 0) {
    return KVF_INVALID;
  }
  if (options->ranks > KVF_RANKS_MAX || options->requests_max > KVF_RECOVERY_REQUESTS_MAX ||
      options->groups > KVF_GROUPS_MAX) {
    return KVF_LIMIT;
  }
  uint64_t blocks = 0;
  for (uint32_t group = 0; group < options->groups; group++) {
    if (options->pool_blocks[group] == 0) {
      return KVF_INVALID;
    }
    blocks += options->pool_blocks[group];
  }
  return blocks > KVF_RECOVERY_BLOCKS_MAX ? KVF_LIMIT : KVF_OK;
}

static uint32_t buckets_of(uint32_t requests)
{
  uint32_t buckets = 1;
  while (buckets < requests) {
    buckets *= 2;
  }
  return buckets;
}

static bool allocate(kvf_recovery *recovery)
{
  const kvf_recovery_options *options = &recovery->options;
  for (uint32_t group = 0; group < options->groups; group++) {
    recovery->group_first[group + 1] = recovery->group_first[group] + options->pool_blocks[group];
  }
  uint32_t buckets = buckets_of(options->requests_max);
  size_t words = kvf_bitmap_words(options->requests_max);
  recovery->buckets_mask = buckets - 1;
  recovery->entries = calloc(options->requests_max, sizeof(*recovery->entries));
  recovery->buckets = calloc(buckets, sizeof(*recovery->buckets));
  recovery->blocks = calloc(recovery->group_first[options->groups], sizeof(*recovery->blocks));
  recovery->free_entries = calloc(words, sizeof(*recovery->free_entries));
  recovery->due = calloc(words, sizeof(*recovery->due));
  recovery->errors = calloc(words, sizeof(*recovery->errors));
  return recovery->entries != NULL && recovery->buckets != NULL && recovery->blocks != NULL &&
         recovery->free_entries != NULL && recovery->due != NULL && recovery->errors != NULL;
}

kvf_status kvf_recovery_open(const kvf_recovery_options *options, kvf_recovery **out)
{
  *out = NULL;
  kvf_status status = check_options(options);
  if (status != KVF_OK) {
    return status;
  }
  kvf_recovery *recovery = calloc(1, sizeof(*recovery));
  if (recovery == NULL) {
    return KVF_NO_MEMORY;
  }
  recovery->options = *options;
  recovery->all_ranks = UINT64_MAX >> (KVF_RANKS_MAX - options->ranks);
  if (!allocate(recovery)) {
    kvf_recovery_close(recovery);
    return KVF_NO_MEMORY;
  }
  for (uint32_t i = 0; i < options->requests_max; i++) {
    kvf_bitmap_set(recovery->free_entries, i);
  }
  *out = recovery;
  return KVF_OK;
}

void kvf_recovery_close(kvf_recovery *recovery)
{
  if (recovery == NULL) {
    return;
  }
  free(recovery->errors);
  free(recovery->due);
  free(recovery->free_entries);
  free(recovery->blocks);
  free(recovery->buckets);
  free(recovery->entries);
  free(recovery);
}

/* Fibonacci hashing: ids may be consecutive, or not. */
static uint32_t *bucket_of(const kvf_recovery *recovery, uint64_t request_id)
{
  uint64_t hash = request_id * UINT64_C(0x9e3779b97f4a7c15);
  return &recovery->buckets[(hash >> 32) & recovery->buckets_mask];
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
  size_t i = kvf_bitmap_first(recovery->free_entries, recovery->options.requests_max);
  if (i == recovery->options.requests_max) {
    return NULL;
  }
  kvf_recovery_entry *entry = &recovery->entries[i];
  uint32_t *bucket = bucket_of(recovery, request_id);
  kvf_bitmap_clear(recovery->free_entries, i);
  *entry = (kvf_recovery_entry){.request_id = request_id, .next = *bucket};
  *bucket = (uint32_t)i + 1;
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
  kvf_bitmap_set(recovery->free_entries, i - 1);
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

/* From the last block to the first, so that the list ends up in order. */
static kvf_status own_blocks(kvf_recovery *recovery, kvf_recovery_entry *entry, const kvf_blocks *blocks)
{
  uint32_t group_blocks = group_blocks_of(recovery, entry);
  for (uint32_t i = entry->positions; i-- > 0;) {
    if (blocks->ids[i] == KVF_BLOCK_NONE) {
      continue;
    }
    uint32_t index = recovery->group_first[i / group_blocks] + blocks->ids[i];
    kvf_recovery_block *block = &recovery->blocks[index];
    if (block->owner != 0) {
      disown_blocks(recovery, entry);
      return KVF_EXISTS;
    }
    *block = (kvf_recovery_block){
        .owner = index_of(recovery, entry) + 1, .next = entry->first_block, .position = i % group_blocks};
    entry->first_block = index + 1;
  }
  return KVF_OK;
}

static kvf_status check_failed(const kvf_recovery *recovery, uint32_t rank, uint32_t group, const uint32_t *block_ids,
                               size_t count, kvf_status why)
{
  if (rank >= recovery->options.ranks || group >= recovery->options.groups || why == KVF_OK) {
    return KVF_INVALID;
  }
  for (size_t i = 0; i < count; i++) {
    if (block_ids[i] >= recovery->options.pool_blocks[group]) {
      return KVF_INVALID;
    }
  }
  return KVF_OK;
}

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
    uint32_t good = block->position;
    status = kvf_recovery_report(recovery, &(kvf_report){.request_id = entry->request_id,
                                                         .ranks_mask = UINT64_C(1) << rank,
                                                         .blocks = entry->positions,
                                                         .prefix = good,
                                                         .status = why});
  }
  return status;
}

/* ---- errors ---- */

static void want_drain(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  entry->error_block = entry->first_block;
  uint32_t index = index_of(recovery, entry);
  if (!kvf_bitmap_get(recovery->errors, index)) {
    kvf_bitmap_set(recovery->errors, index);
    recovery->errors_count++;
  }
}

static void drop_errors(kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint32_t index = index_of(recovery, entry);
  if (kvf_bitmap_get(recovery->errors, index)) {
    kvf_bitmap_clear(recovery->errors, index);
    recovery->errors_count--;
  }
}

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
                                        .status = entry->merged.status};
  }
  return count;
}

size_t kvf_recovery_drain_errors(kvf_recovery *recovery, kvf_recovery_error *out, size_t capacity)
{
  size_t count = 0;
  while (recovery->errors_count > 0 && count < capacity) {
    kvf_recovery_entry *entry = &recovery->entries[kvf_bitmap_first(recovery->errors, recovery->options.requests_max)];
    count += drain_entry(recovery, entry, out + count, capacity - count);
    if (entry->error_block == 0) {
      drop_errors(recovery, entry);
    }
  }
  recovery->stats.errors += count;
  return count;
}

/* ---- what there is to say of a request, decided when it is asked ---- */

#define NOTHING 0u

static bool is_quiet(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return entry->quiet_mask == recovery->all_ranks;
}

static uint32_t computed_tokens(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  uint64_t tokens = (uint64_t)good_blocks_of(recovery, entry) * recovery->options.block_tokens;
  return tokens < entry->tokens ? (uint32_t)tokens : entry->tokens;
}

static bool is_complete(const kvf_recovery *recovery, const kvf_recovery_entry *entry)
{
  return good_blocks_of(recovery, entry) == group_blocks_of(recovery, entry);
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
    return good_blocks_of(recovery, entry) < entry->kept ? KVF_RECOVERY_TERMINATE : NOTHING;
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
  drop_errors(recovery, entry);
  disown_blocks(recovery, entry);
  take_out(recovery, entry);
}

static void review(kvf_recovery *recovery, kvf_recovery_entry *entry)
{
  uint32_t index = index_of(recovery, entry);
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
  entry->kept = good_blocks_of(recovery, entry);
  if (event->kind != KVF_RECOVERY_TERMINATE) {
    event->confirmed_blocks = entry->kept - entry->local_blocks;
    event->computed_tokens = computed_tokens(recovery, entry);
    event->recompute_tokens = entry->tokens - event->computed_tokens;
  }
  if (!complete) {
    want_drain(recovery, entry);
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
  review(recovery, entry);
  *out = event;
  return true;
}

/* ---- what comes in: requests, and what their ranks found ---- */

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
  return find(recovery, request->request_id) == NULL ? KVF_OK : KVF_EXISTS;
}

kvf_status kvf_recovery_admit(kvf_recovery *recovery, const kvf_recovery_request *request)
{
  kvf_status status = check_request(recovery, request);
  if (status != KVF_OK) {
    return status;
  }
  kvf_recovery_entry *entry = insert(recovery, request->request_id);
  if (entry == NULL) {
    return KVF_NO_RESOURCE;
  }
  entry->user = request->user;
  entry->tokens = request->tokens;
  entry->prompt_tokens = request->prompt_tokens;
  entry->local_blocks = request->local_prefix_tokens / recovery->options.block_tokens;
  entry->positions = blocks_of(recovery, request->tokens) * recovery->options.groups;
  entry->bars = request->bars;
  status = own_blocks(recovery, entry, &request->blocks);
  if (status != KVF_OK) {
    take_out(recovery, entry);
    return status;
  }
  recovery->stats.admitted++;
  recovery->stats.loading++;
  return KVF_OK;
}

kvf_status kvf_recovery_bar(kvf_recovery *recovery, uint64_t request_id, uint32_t bars)
{
  kvf_recovery_entry *entry = find(recovery, request_id);
  if ((bars & ~ENGINE_BARS) != 0) {
    return KVF_INVALID;
  }
  if (entry == NULL) {
    return KVF_NOT_FOUND;
  }
  entry->bars |= bars;
  review(recovery, entry);
  return KVF_OK;
}

kvf_status kvf_recovery_end(kvf_recovery *recovery, uint64_t request_id)
{
  kvf_recovery_entry *entry = find(recovery, request_id);
  if (entry == NULL || entry->ended) {
    return KVF_NOT_FOUND;
  }
  entry->ended = true;
  review(recovery, entry);
  return KVF_OK;
}

/* ---- what the ranks found ---- */

static void merge(kvf_recovery *recovery, kvf_recovery_entry *entry, const kvf_report *report)
{
  recovery->stats.late_reports += entry->told != 0 || entry->ended;
  entry->merged = entry->merged.ranks_mask == 0 ? *report : kvf_report_merge(entry->merged, *report);
  review(recovery, entry);
}

kvf_status kvf_recovery_report(kvf_recovery *recovery, const kvf_report *report)
{
  kvf_recovery_entry *entry = find(recovery, report->request_id);
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
  kvf_recovery_entry *entry = find(recovery, request_id);
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
  kvf_recovery_entry *entry = find(recovery, request_id);
  if ((ranks_mask & ~recovery->all_ranks) != 0) {
    return KVF_INVALID;
  }
  if (entry == NULL) {
    return KVF_NOT_FOUND;
  }
  entry->quiet_mask |= ranks_mask;
  review(recovery, entry);
  return KVF_OK;
}
