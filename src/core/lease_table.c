/* Leases of a producer rank: from publishing to giving back. */
#include "core/lease_table.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/crypto.h"
#include "base/status.h"
#include "core/check_list.h"

#define CACHE_LINE_BYTES 64
#define TICK_GROUP 16

/* How far the entry's word has come on its way into the fence table. */
typedef enum store_phase {
  STORE_DONE,   /* it is there */
  STORE_QUEUED, /* to be given out */
  STORE_OUT,    /* given out */
  STORE_STALE   /* given out, but the word has changed since: to be given out again */
} store_phase;

/* Of a consumer: one that has finished is in the state of its kvf_finish_kind. */
enum { CONSUMER_NONE = 0, CONSUMER_ATTACHED = KVF_FINISH_DETACHED + 1 };

typedef struct consumer {
  kvf_consumer_key key;
  uint8_t state;
} consumer;

/* Those that have no place in the slot. */
typedef struct consumer_store {
  uint32_t room;
  consumer consumers[];
} consumer_store;

/* What is needed once a lease, and not by a renewal. */
typedef struct block_list {
  uint64_t user;
  uint32_t groups;
  uint32_t data[]; /* where each group's ids begin and the last one's end (groups + 1 of them), then the ids */
} block_list;

/* The order of the fields follows their use, because with many leases a cache line costs more than the work on it. A
 * renewal touches the first two lines, a publish and a timer the first and the last. The word that the fence table is
 * to hold says it all about ids: what is below it has ended, what is above not published. */
struct kvf_lease_entry {
  _Alignas(CACHE_LINE_BYTES) uint64_t word;
  uint8_t token[sizeof(((kvf_lease *)0)->token)];
  uint64_t deadline_ns;
  uint64_t deadline_max_ns;
  uint64_t digest;
  uint8_t store;
  uint8_t cause;      /* a kvf_lease_end_cause once the lease has ended, until it is given back */
  uint8_t incomplete; /* the live word waits for the bytes, which `store` knows nothing of */
  uint8_t any_completed;
  uint64_t linger_until_ns; /* of one that any consumer has completed */
  _Alignas(CACHE_LINE_BYTES) kvf_consumer_key consumers[KVF_LEASE_CONSUMERS_IN_SLOT];
  uint8_t consumer_states[KVF_LEASE_CONSUMERS_IN_SLOT];
  consumer_store *more; /* NULL: there are no more than those */
  kvf_list lingering;   /* in table.lingering while it lingers: it ends at its deadline, as completed, unless another
                           consumer attaches */
  _Alignas(CACHE_LINE_BYTES)
      kvf_timer timer; /* never later than deadline_ns: a renewal leaves it, since most leases end before it fires */
  kvf_list queue;      /* in table.stores or table.ended */
  block_list *blocks;  /* of a lease that has been published and not been given back; else NULL */
  uint64_t id;         /* of that lease; its word is behind `word` if a later id was ended unpublished */
};

static_assert(sizeof(kvf_lease_entry) <= 256, "a million leases are 256 MB");
static_assert(offsetof(kvf_lease_entry, timer) == sizeof(kvf_lease_entry) - CACHE_LINE_BYTES, "the last line");

static bool is_live(const kvf_lease_entry *entry)
{
  return entry->word % 2 == 1;
}

/* No consumer has come for it yet. The first takes the first place, which is never empty again. */
static bool is_untaken(const kvf_lease_entry *entry)
{
  return is_live(entry) && entry->consumer_states[0] == CONSUMER_NONE;
}

static bool lingers(const kvf_lease_entry *entry)
{
  return kvf_list_is_linked(&entry->lingering);
}

/* Holds after each change of an entry. */
static void check(const kvf_lease_table *table, const kvf_lease_entry *entry)
{
  assert(!entry->incomplete || (is_live(entry) && entry->store != STORE_QUEUED));
  assert(!is_live(entry) || entry->word == kvf_fence_word_live(entry->id));
  assert(!is_live(entry) || entry->deadline_ns <= entry->deadline_max_ns);
  assert(!is_live(entry) || entry->deadline_ns == KVF_TIME_NEVER || kvf_timer_is_armed(&entry->timer));
  assert(!kvf_timer_is_armed(&entry->timer) || (is_live(entry) && entry->timer.expires_ns <= entry->deadline_ns));
  assert((is_live(entry) || entry->cause != 0) == (entry->blocks != NULL));
  assert(entry->cause == 0 || entry->word >= kvf_fence_word_ended(entry->id));
  assert(kvf_list_is_linked(&entry->queue) ==
         (entry->store == STORE_QUEUED || (entry->store == STORE_DONE && entry->cause != 0)));
  assert(is_live(entry) || entry->more == NULL);
  assert(!lingers(entry) || (is_live(entry) && entry->any_completed));
  assert(table->stored <= table->stored_max);
  assert(table->untaken <= table->live);
  assert(table->live <= table->unreleased && table->unreleased <= table->config->lease_slots);
  (void)table;
  (void)entry;
}

kvf_status kvf_lease_table_init(kvf_lease_table *table, const kvf_config *config, uint64_t now_ns)
{
  *table = (kvf_lease_table){
      .config = config, .consumers_max = KVF_LEASE_CONSUMERS_MAX, .stored_max = KVF_LEASE_CONSUMERS_STORED};
  kvf_list_init(&table->stores);
  kvf_list_init(&table->ended);
  kvf_list_init(&table->lingering);
  kvf_wheel_init(&table->wheel, now_ns);
  table->memory = calloc((size_t)config->lease_slots + 1, sizeof(*table->entries));
  if (table->memory == NULL) {
    return KVF_NO_MEMORY;
  }
  size_t past_line = (uintptr_t)table->memory % CACHE_LINE_BYTES;
  table->entries = (kvf_lease_entry *)((char *)table->memory + (past_line == 0 ? 0 : CACHE_LINE_BYTES - past_line));
  for (uint32_t slot = 0; slot < config->lease_slots; slot++) {
    kvf_timer_init(&table->entries[slot].timer, 0);
    kvf_list_init(&table->entries[slot].queue);
    kvf_list_init(&table->entries[slot].lingering);
  }
  return KVF_OK;
}

void kvf_lease_table_free(kvf_lease_table *table)
{
  for (uint32_t slot = 0; table->unreleased > 0; slot++) {
    if (table->entries[slot].blocks != NULL) {
      free(table->entries[slot].blocks);
      free(table->entries[slot].more);
      table->unreleased -= 1;
    }
  }
  free(table->memory);
  table->memory = NULL;
}

/* The entry of a lease's slot, NULL if the slot or the id is out of range. */
static kvf_lease_entry *entry_of(const kvf_lease_table *table, const kvf_lease *lease)
{
  if (lease->slot >= table->config->lease_slots || lease->id >= KVF_LEASE_ID_MAX) {
    return NULL;
  }
  kvf_lease_entry *entry = &table->entries[lease->slot];
  __builtin_prefetch(entry, 1);
  return entry;
}

/* Its word is to be given out; a live one only once the bytes are there. */
static void queue_store(kvf_lease_table *table, kvf_lease_entry *entry)
{
  kvf_list_remove(&entry->queue); /* from table.ended: what waits there waits for this store as well */
  entry->store = entry->incomplete ? STORE_DONE : STORE_QUEUED;
  if (!entry->incomplete) {
    kvf_list_push_back(&table->stores, &entry->queue);
  }
}

static void set_word(kvf_lease_table *table, kvf_lease_entry *entry, uint64_t word)
{
  assert(word > entry->word);
  entry->word = word;
  if (entry->store == STORE_OUT) {
    entry->store = STORE_STALE;
  } else if (entry->store != STORE_STALE) {
    queue_store(table, entry);
  }
}

/* From now on it has a whole TTL, as far as its longest life goes. */
static void lengthen(const kvf_lease_table *table, kvf_lease_entry *entry, uint64_t now_ns)
{
  uint64_t ttl_ns = kvf_ms_to_ns(table->config->lease_ttl_ms);
  entry->deadline_ns = kvf_time_min(kvf_time_add(now_ns, ttl_ns), entry->deadline_max_ns);
}

/* ---- publish ---- */

static kvf_status copy_blocks(const kvf_blocks *blocks, uint64_t user, block_list **out)
{
  kvf_status status = kvf_blocks_check(blocks);
  if (status != KVF_OK) {
    return status;
  }
  const size_t total = kvf_blocks_count(blocks);
  block_list *list = malloc(sizeof(*list) + (blocks->groups + 1 + total) * sizeof(list->data[0]));
  if (list == NULL) {
    return KVF_NO_MEMORY;
  }
  list->user = user;
  list->groups = blocks->groups;
  uint32_t begin = blocks->groups + 1;
  for (uint32_t group = 0; group < blocks->groups; group++) {
    list->data[group] = begin;
    begin += blocks->counts[group];
  }
  list->data[blocks->groups] = begin;
  if (total > 0) {
    memcpy(&list->data[blocks->groups + 1], blocks->ids, total * sizeof(list->data[0]));
  }
  *out = list;
  return KVF_OK;
}

kvf_status kvf_lease_table_publish(kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                                   const kvf_blocks *blocks, uint64_t digest, uint64_t user, bool incomplete)
{
  kvf_lease_entry *entry = entry_of(table, lease);
  if (entry == NULL) {
    return kvf_because(KVF_INVALID, "lease->slot = %u, lease->id = %llu: not of kvf_lease_reserve(), lease_slots is %u",
                       (unsigned)lease->slot, (unsigned long long)lease->id, (unsigned)table->config->lease_slots);
  }
  __builtin_prefetch(&entry->timer, 1);
  block_list *list; /* first, while the entry is being fetched from memory */
  kvf_status status = copy_blocks(blocks, user, &list);
  if (status != KVF_OK) {
    return status;
  }
  if (kvf_fence_word_live(lease->id) <= entry->word || entry->blocks != NULL) {
    free(list);
    return kvf_because(KVF_EXISTS, "lease %llu, or a later one, has been published in slot %u",
                       (unsigned long long)lease->id, (unsigned)lease->slot);
  }
  entry->blocks = list;
  entry->id = lease->id;
  memcpy(entry->token, lease->token, sizeof(entry->token));
  entry->digest = digest;
  entry->incomplete = incomplete;
  entry->any_completed = false;
  memset(entry->consumer_states, CONSUMER_NONE, sizeof(entry->consumer_states));
  entry->deadline_max_ns = kvf_time_add(now_ns, kvf_ms_to_ns(table->config->lease_max_ms));
  lengthen(table, entry, now_ns);
  kvf_wheel_arm(&table->wheel, &entry->timer, entry->deadline_ns);
  set_word(table, entry, kvf_fence_word_live(lease->id));
  table->live += 1;
  table->untaken += 1;
  table->unreleased += 1;
  table->counters.published += 1;
  check(table, entry);
  return KVF_OK;
}

void kvf_lease_table_complete(kvf_lease_table *table, const kvf_lease *lease)
{
  kvf_lease_entry *entry = entry_of(table, lease);
  if (entry == NULL || !entry->incomplete || entry->word != kvf_fence_word_live(lease->id)) {
    return;
  }
  entry->incomplete = false;
  if (entry->store == STORE_DONE) {
    queue_store(table, entry);
  }
  check(table, entry);
}

/* ---- end ---- */

static void drop_store(kvf_lease_table *table, kvf_lease_entry *entry)
{
  if (entry->more != NULL) {
    assert(table->stored >= entry->more->room);
    table->stored -= entry->more->room;
    free(entry->more);
    entry->more = NULL;
  }
}

/* Why no engine has loaded it. Of an engine's ranks, all of which have the lease, the first says so. */
static void say_unused(const kvf_lease_table *table, uint64_t now_ns, const kvf_lease_entry *entry,
                       kvf_lease_end_cause cause)
{
  if (table->context == NULL || table->config->rank != 0 || entry->any_completed) {
    return;
  }
  const char *why = "this engine has taken its blocks back";
  if (cause == KVF_LEASE_END_ABANDONED) {
    why = "the engine that came for it has given it up, as its log says";
  } else if (cause == KVF_LEASE_END_EXPIRED && is_untaken(entry)) {
    why = "no engine has come with its ticket within lease_ttl_ms";
  } else if (cause == KVF_LEASE_END_EXPIRED) {
    why = now_ns >= entry->deadline_max_ns ? "it is as old as lease_max_ms"
                                           : "the engine that came for it has not renewed it within lease_ttl_ms";
  }
  kvf_context_log(table->context, now_ns, KVF_LEASE_EXPIRED, cause,
                  cause == KVF_LEASE_END_EXPIRED ? KVF_LOG_WARN : KVF_LOG_INFO, "lease %llu has ended unread: %s",
                  (unsigned long long)entry->id, why);
}

static void end_lease(kvf_lease_table *table, kvf_lease_entry *entry, uint64_t now_ns, kvf_lease_end_cause cause)
{
  assert(is_live(entry));
  say_unused(table, now_ns, entry, cause);
  __builtin_prefetch(entry->blocks); /* to be freed soon */
  kvf_wheel_disarm(&table->wheel, &entry->timer);
  entry->cause = (uint8_t)cause;
  entry->incomplete = false;
  drop_store(table, entry);
  table->untaken -= is_untaken(entry);
  kvf_list_remove(&entry->lingering);
  set_word(table, entry, kvf_fence_word_ended(entry->id));
  table->live -= 1;
  table->counters.ended[cause] += 1;
  check(table, entry);
}

static bool has_run_out(const kvf_lease_entry *entry, uint64_t now_ns)
{
  return is_live(entry) && now_ns >= entry->deadline_ns;
}

static void expire_if_due(kvf_lease_table *table, kvf_lease_entry *entry, uint64_t now_ns)
{
  if (has_run_out(entry, now_ns)) {
    end_lease(table, entry, now_ns, lingers(entry) ? KVF_LEASE_END_COMPLETED : KVF_LEASE_END_EXPIRED);
  }
}

static kvf_status not_live(const kvf_lease *lease)
{
  return kvf_because(KVF_NOT_FOUND, "lease %llu has ended already, or was not published on this node",
                     (unsigned long long)lease->id);
}

kvf_status kvf_lease_table_end(kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease)
{
  kvf_lease_entry *entry = entry_of(table, lease);
  const uint64_t ended = kvf_fence_word_ended(lease->id);
  if (entry != NULL) {
    expire_if_due(table, entry, now_ns);
  }
  if (entry == NULL || ended <= entry->word) {
    return not_live(lease);
  }
  if (is_live(entry)) {
    end_lease(table, entry, now_ns, KVF_LEASE_END_REVOKED);
  }
  if (entry->word == ended) {
    return KVF_OK;
  }
  set_word(table, entry, ended);
  memcpy(entry->token, lease->token, sizeof(entry->token));
  check(table, entry);
  return not_live(lease);
}

void kvf_lease_table_end_lingering(kvf_lease_table *table)
{
  while (!kvf_list_is_empty(&table->lingering)) {
    kvf_lease_entry *entry = KVF_CONTAINER_OF(table->lingering.next, kvf_lease_entry, lingering);
    end_lease(table, entry, 0, KVF_LEASE_END_COMPLETED); /* which is not logged: the time is not read */
  }
}

void kvf_lease_table_end_all(kvf_lease_table *table, uint64_t now_ns)
{
  for (uint32_t slot = 0; table->live > 0; slot++) {
    kvf_lease_entry *entry = &table->entries[slot];
    expire_if_due(table, entry, now_ns);
    if (is_live(entry)) {
      end_lease(table, entry, now_ns, KVF_LEASE_END_REVOKED);
    }
  }
}

/* ---- consumers ---- */

static uint32_t room_of(const kvf_lease_entry *entry)
{
  return entry->more != NULL ? entry->more->room : 0;
}

static uint32_t places(const kvf_lease_table *table, const kvf_lease_entry *entry)
{
  const uint32_t in_slot =
      table->consumers_max < KVF_LEASE_CONSUMERS_IN_SLOT ? table->consumers_max : KVF_LEASE_CONSUMERS_IN_SLOT;
  return in_slot + room_of(entry);
}

static uint8_t *state_at(kvf_lease_entry *entry, uint32_t i)
{
  return i < KVF_LEASE_CONSUMERS_IN_SLOT ? &entry->consumer_states[i]
                                         : &entry->more->consumers[i - KVF_LEASE_CONSUMERS_IN_SLOT].state;
}

static kvf_consumer_key *key_at(kvf_lease_entry *entry, uint32_t i)
{
  return i < KVF_LEASE_CONSUMERS_IN_SLOT ? &entry->consumers[i]
                                         : &entry->more->consumers[i - KVF_LEASE_CONSUMERS_IN_SLOT].key;
}

/* places() if there is none. */
static uint32_t first_in_state(const kvf_lease_table *table, kvf_lease_entry *entry, uint8_t state)
{
  uint32_t i = 0;
  while (i < places(table, entry) && *state_at(entry, i) != state) {
    i++;
  }
  return i;
}

static bool any_in_state(const kvf_lease_table *table, kvf_lease_entry *entry, uint8_t state)
{
  return first_in_state(table, entry, state) < places(table, entry);
}

/* Twice as many places, as far as the limits go. False: there are no more. */
static bool add_places(kvf_lease_table *table, kvf_lease_entry *entry)
{
  const uint32_t room = room_of(entry);
  uint32_t more = places(table, entry);
  more = more < table->consumers_max - places(table, entry) ? more : table->consumers_max - places(table, entry);
  more = more < table->stored_max - table->stored ? more : table->stored_max - table->stored;
  if (more == 0) {
    return false;
  }
  consumer_store *store = realloc(entry->more, sizeof(*store) + (room + more) * sizeof(store->consumers[0]));
  if (store == NULL) {
    return false;
  }
  memset(&store->consumers[room], CONSUMER_NONE, more * sizeof(store->consumers[0]));
  store->room = room + more;
  entry->more = store;
  table->stored += more;
  return true;
}

/* places() if there is none. */
static uint32_t find_place(kvf_lease_table *table, kvf_lease_entry *entry)
{
  static const uint8_t finished[] = {KVF_FINISH_DETACHED, KVF_FINISH_ABORTED, KVF_FINISH_COMPLETED};
  uint32_t i = first_in_state(table, entry, CONSUMER_NONE);
  if (i < places(table, entry) || add_places(table, entry)) {
    return i;
  }
  for (unsigned k = 0; i == places(table, entry) && k < sizeof(finished); k++) {
    i = first_in_state(table, entry, finished[k]);
  }
  return i;
}

/* The consumer's state; it is attached if it was not known. NULL: there is no room for it. */
static uint8_t *find_or_attach(kvf_lease_table *table, kvf_lease_entry *entry, const kvf_consumer_key *key)
{
  assert(is_live(entry));
  for (uint32_t i = 0; i < places(table, entry); i++) {
    const kvf_consumer_key *known = key_at(entry, i);
    if (*state_at(entry, i) != CONSUMER_NONE && known->request_id == key->request_id &&
        memcmp(&known->incarnation, &key->incarnation, sizeof(key->incarnation)) == 0) {
      return state_at(entry, i);
    }
  }
  const uint32_t place = find_place(table, entry);
  if (place == places(table, entry)) {
    return NULL;
  }
  table->untaken -= is_untaken(entry);
  *key_at(entry, place) = *key;
  *state_at(entry, place) = CONSUMER_ATTACHED;
  return state_at(entry, place);
}

/* The state of the lease that a peer names. *out is its entry, if it is the one that the slot is at. */
static kvf_lease_state look_up(const kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                               kvf_lease_entry **out)
{
  *out = NULL;
  kvf_lease_entry *entry = entry_of(table, lease);
  if (entry == NULL) {
    return KVF_LEASE_STATE_UNKNOWN;
  }
  __builtin_prefetch(&entry->consumers[0], 1);
  if (kvf_fence_word_live(lease->id) > entry->word) {
    return KVF_LEASE_STATE_NOT_PUBLISHED;
  }
  if (kvf_fence_word_ended(lease->id) < entry->word) {
    return KVF_LEASE_STATE_ENDED;
  }
  if (!kvf_equal_secret(entry->token, lease->token, sizeof(entry->token))) {
    return KVF_LEASE_STATE_UNKNOWN;
  }
  *out = entry;
  if (!is_live(entry) || has_run_out(entry, now_ns)) {
    return KVF_LEASE_STATE_ENDED;
  }
  return entry->store == STORE_DONE && !entry->incomplete ? KVF_LEASE_STATE_LIVE : KVF_LEASE_STATE_NOT_PUBLISHED;
}

/* Nobody reads it now, and one has all it needs: another engine may still come with the same ticket. */
static void linger(kvf_lease_table *table, kvf_lease_entry *entry)
{
  assert(entry->any_completed);
  kvf_list_ensure_back(&table->lingering, &entry->lingering);
  entry->deadline_ns = kvf_time_min(entry->deadline_ns, entry->linger_until_ns);
  kvf_wheel_arm(&table->wheel, &entry->timer, entry->deadline_ns);
  check(table, entry);
}

static kvf_lease_state renew(kvf_lease_table *table, kvf_lease_entry *entry, uint64_t now_ns,
                             const kvf_consumer_key *key, kvf_lease_state state)
{
  const uint8_t *consumer_state = find_or_attach(table, entry, key);
  if (consumer_state == NULL) {
    return KVF_LEASE_STATE_CROWDED;
  }
  if (*consumer_state == CONSUMER_ATTACHED) {
    kvf_list_remove(&entry->lingering);
    lengthen(table, entry, now_ns);
  }
  return state;
}

static kvf_lease_state finish(kvf_lease_table *table, kvf_lease_entry *entry, uint64_t now_ns,
                              const kvf_consumer_key *key, kvf_finish_kind kind, kvf_lease_state state)
{
  uint8_t *consumer_state = find_or_attach(table, entry, key);
  if (consumer_state != NULL && *consumer_state == CONSUMER_ATTACHED) {
    *consumer_state = (uint8_t)kind;
    if (kind == KVF_FINISH_COMPLETED && !entry->any_completed) {
      entry->any_completed = true;
      entry->linger_until_ns = kvf_time_add(now_ns, kvf_ms_to_ns(table->config->lease_linger_ms));
    }
  }
  if (any_in_state(table, entry, CONSUMER_ATTACHED) ||
      (!entry->any_completed && !any_in_state(table, entry, KVF_FINISH_ABORTED))) {
    return state;
  }
  if (entry->any_completed && now_ns < entry->linger_until_ns) {
    linger(table, entry);
    return state;
  }
  end_lease(table, entry, now_ns, entry->any_completed ? KVF_LEASE_END_COMPLETED : KVF_LEASE_END_ABANDONED);
  return KVF_LEASE_STATE_ENDED;
}

kvf_lease_state kvf_lease_table_on_consumer(kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                                            const kvf_consumer_key *key, kvf_finish_kind kind)
{
  const bool renews = kind == KVF_FINISH_NONE;
  kvf_lease_entry *entry = entry_of(table, lease);
  if (entry != NULL && !renews) {
    __builtin_prefetch(&entry->timer, 1); /* most often this ends the lease */
  }
  kvf_lease_state state = look_up(table, now_ns, lease, &entry);
  if (state == KVF_LEASE_STATE_ENDED) {
    table->counters.late_renewals += renews;
    table->counters.late_acknowledgements += kind == KVF_FINISH_COMPLETED;
  }
  if (entry == NULL) {
    return state;
  }
  expire_if_due(table, entry, now_ns);
  if (!is_live(entry)) {
    return state;
  }
  return renews ? renew(table, entry, now_ns, key, state) : finish(table, entry, now_ns, key, kind, state);
}

/* ---- readers ---- */

kvf_status kvf_lease_table_authorize(const kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease,
                                     kvf_transfer_item *items, uint32_t count)
{
  static const kvf_status refusals[] = {[KVF_LEASE_STATE_LIVE] = KVF_OK,
                                        [KVF_LEASE_STATE_NOT_PUBLISHED] = KVF_NOT_PUBLISHED,
                                        [KVF_LEASE_STATE_ENDED] = KVF_LEASE_EXPIRED,
                                        [KVF_LEASE_STATE_UNKNOWN] = KVF_LEASE_UNKNOWN};
  kvf_lease_entry *entry;
  const kvf_status refusal = refusals[look_up(table, now_ns, lease, &entry)];
  if (refusal != KVF_OK) {
    return refusal;
  }
  const block_list *list = entry->blocks;
  for (uint32_t i = 0; i < count; i++) {
    kvf_transfer_item *item = &items[i];
    if (item->group >= list->groups || item->position >= list->data[item->group + 1] - list->data[item->group]) {
      return KVF_INVALID;
    }
    item->remote_block = list->data[list->data[item->group] + item->position];
    if (item->remote_block == KVF_BLOCK_NONE) {
      return KVF_INVALID;
    }
  }
  return KVF_OK;
}

bool kvf_lease_table_holds(const kvf_lease_table *table, uint64_t now_ns, const kvf_lease *lease)
{
  kvf_lease_entry *entry;
  const kvf_lease_state state = look_up(table, now_ns, lease, &entry);
  return entry != NULL && state != KVF_LEASE_STATE_ENDED;
}

/* ---- time ---- */

/* In groups, so that the entries of a group are fetched from memory together. */
void kvf_lease_table_tick(kvf_lease_table *table, uint64_t now_ns, uint32_t max_items)
{
  kvf_lease_entry *group[TICK_GROUP];
  uint32_t count;
  do {
    kvf_timer *timer;
    for (count = 0; count < TICK_GROUP && (timer = kvf_wheel_expire(&table->wheel, now_ns, &max_items)) != NULL;
         count++) {
      group[count] = KVF_CONTAINER_OF(timer, kvf_lease_entry, timer);
      __builtin_prefetch(group[count], 1);
    }
    for (uint32_t i = 0; i < count; i++) {
      expire_if_due(table, group[i], now_ns);
      if (is_live(group[i])) {
        kvf_wheel_arm(&table->wheel, &group[i]->timer, group[i]->deadline_ns);
        check(table, group[i]);
      }
    }
  } while (count == TICK_GROUP);
}

/* ---- outputs ---- */

bool kvf_lease_table_next_store(kvf_lease_table *table, kvf_lease_store *out)
{
  kvf_list *link = kvf_list_pop_front(&table->stores);
  if (link == NULL) {
    return false;
  }
  kvf_lease_entry *entry = KVF_CONTAINER_OF(link, kvf_lease_entry, queue);
  entry->store = STORE_OUT;
  *out = (kvf_lease_store){.slot = (uint32_t)(entry - table->entries), .entry = {entry->word, entry->digest}};
  check(table, entry);
  return true;
}

void kvf_lease_table_stored(kvf_lease_table *table, uint32_t slot, uint64_t word)
{
  assert(slot < table->config->lease_slots);
  kvf_lease_entry *entry = &table->entries[slot];
  assert(entry->store == STORE_STALE ? word < entry->word : entry->store == STORE_OUT && word == entry->word);
  (void)word;
  if (entry->store == STORE_STALE) {
    queue_store(table, entry);
  } else {
    entry->store = STORE_DONE;
    if (entry->cause != 0) {
      kvf_list_push_back(&table->ended, &entry->queue);
    }
  }
  check(table, entry);
}

bool kvf_lease_table_next_ended(kvf_lease_table *table, kvf_event *out)
{
  kvf_list *link = kvf_list_pop_front(&table->ended);
  if (link == NULL) {
    return false;
  }
  kvf_lease_entry *entry = KVF_CONTAINER_OF(link, kvf_lease_entry, queue);
  *out = (kvf_event){.kind = KVF_EVENT_LEASE_ENDED,
                     .id = entry->id,
                     .user = entry->blocks->user,
                     .u = {.lease_end = (kvf_lease_end_cause)entry->cause}};
  assert(table->unreleased > 0 && entry->store == STORE_DONE);
  free(entry->blocks);
  entry->blocks = NULL;
  entry->cause = 0;
  table->unreleased -= 1;
  check(table, entry);
  return true;
}

#ifndef NDEBUG

static void check_all_slots(const kvf_lease_table *table)
{
  kvf_lease_table counted = {.config = table->config};
  uint32_t queued = 0;
  uint32_t ended = 0;
  uint32_t lingering = 0;
  for (uint32_t slot = 0; slot < table->config->lease_slots; slot++) {
    const kvf_lease_entry *entry = &table->entries[slot];
    check(table, entry);
    counted.live += is_live(entry);
    counted.untaken += is_untaken(entry);
    counted.unreleased += entry->blocks != NULL;
    counted.stored += room_of(entry);
    queued += entry->store == STORE_QUEUED;
    ended += entry->store == STORE_DONE && entry->cause != 0;
    lingering += lingers(entry);
  }
  assert(counted.live == table->live && counted.untaken == table->untaken);
  assert(counted.unreleased == table->unreleased);
  assert(counted.stored == table->stored);
  assert(queued == kvf_check_list(&table->stores));
  assert(ended == kvf_check_list(&table->ended));
  assert(lingering == kvf_check_list(&table->lingering));
}

void kvf_lease_table_check(const kvf_lease_table *table, bool costly)
{
  const kvf_list *const queues[] = {&table->stores, &table->ended};
  const kvf_lease_counters *counters = &table->counters;
  uint64_t ended = 0;
  for (unsigned i = 0; i < sizeof(queues) / sizeof(queues[0]); i++) {
    for (const kvf_list *node = queues[i]->next; node != queues[i]; node = node->next) {
      const kvf_lease_entry *entry = KVF_CONTAINER_OF(node, kvf_lease_entry, queue);
      assert(entry->store == (queues[i] == &table->stores ? STORE_QUEUED : STORE_DONE));
      check(table, entry);
    }
  }
  for (const kvf_list *node = table->lingering.next; node != &table->lingering; node = node->next) {
    check(table, KVF_CONTAINER_OF(node, kvf_lease_entry, lingering));
  }
  for (uint32_t cause = 0; cause <= KVF_LEASE_END_REVOKED; cause++) {
    ended += counters->ended[cause];
  }
  assert(counters->published - ended == table->live);
  if (costly) {
    check_all_slots(table);
  }
}

#endif
