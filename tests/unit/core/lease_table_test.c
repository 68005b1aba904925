/* The lease table with the fence table that it stores into: each call, and all of them against a model. */
#include "core/lease_table.h"

#include <inttypes.h>

#include "base/prng.h"
#include "test.h"

#define MS(n) ((n) * KVF_NS_PER_MS)
#define WORLD_SLOTS 4
#define WORLD_TTL_MS 100
#define WORLD_MAX_MS 250

typedef struct lease_world {
  kvf_lease_table table;
  bool incomplete; /* what is published, until complete() */
  kvf_fence_entry fence[WORLD_SLOTS];
} lease_world;

static void world_init(lease_world *w, uint64_t now_ns)
{
  static const kvf_config config = {
      .lease_slots = WORLD_SLOTS, .lease_ttl_ms = WORLD_TTL_MS, .lease_max_ms = WORLD_MAX_MS};
  *w = (lease_world){0};
  assert_int_equal(kvf_lease_table_init(&w->table, &config, now_ns), KVF_OK);
}

/* The lease of this id; its token follows from the id. */
static kvf_lease lease_of(uint32_t slot, uint64_t id)
{
  return (kvf_lease){.id = id, .slot = slot, .token = {(uint8_t)id, 1, 2, 3}};
}

static kvf_consumer_key key_of(char name)
{
  return (kvf_consumer_key){.incarnation = {{(uint8_t)name}}, .request_id = 5};
}

static void world_store_all(lease_world *w)
{
  kvf_lease_store store;
  while (kvf_lease_table_next_store(&w->table, &store)) {
    assert_true(store.entry.word > w->fence[store.slot].word);
    w->fence[store.slot] = store.entry;
    kvf_lease_table_stored(&w->table, store.slot, store.entry.word);
  }
}

static kvf_status world_publish(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  static const uint32_t ids[] = {10, 11, KVF_BLOCK_NONE, 20, 21};
  static const uint32_t counts[] = {3, 0, 2};
  const kvf_blocks blocks = {ids, counts, 3};
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_publish(&w->table, now_ns, &lease, &blocks, 1000 + id, 2000 + id, w->incomplete);
}

/* Published, and its live word stored. */
static void world_live(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  assert_int_equal(world_publish(w, now_ns, slot, id), KVF_OK);
  world_store_all(w);
}

static kvf_lease_state world_message(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id, char name,
                                     kvf_finish_kind kind)
{
  const kvf_lease lease = lease_of(slot, id);
  const kvf_consumer_key key = key_of(name);
  return kvf_lease_table_on_consumer(&w->table, now_ns, &lease, &key, kind);
}

static kvf_status world_end(lease_world *w, uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_end(&w->table, now_ns, &lease);
}

/* Nothing has been given back. */
static void world_expect_none_ended(lease_world *w)
{
  kvf_event ended;
  assert_false(kvf_lease_table_next_ended(&w->table, &ended));
}

/* Exactly this lease has been given back, once its over was stored. */
static void world_expect_ended(lease_world *w, uint32_t slot, uint64_t id, kvf_lease_end_cause cause)
{
  kvf_event ended;
  if (w->fence[slot].word < kvf_fence_word_ended(id)) {
    world_expect_none_ended(w);
  }
  world_store_all(w);
  assert_true(w->fence[slot].word >= kvf_fence_word_ended(id));
  assert_true(kvf_lease_table_next_ended(&w->table, &ended));
  assert_int_equal(ended.id, id);
  assert_int_equal(ended.user, 2000 + id);
  assert_int_equal(ended.u.lease_end, cause);
  world_expect_none_ended(w);
}

#define LIVE KVF_LEASE_STATE_LIVE
#define OVER KVF_LEASE_STATE_ENDED
#define UNKNOWN KVF_LEASE_STATE_UNKNOWN

static lease_world world;
static lease_world *const w = &world;

static void expect_no_store(void)
{
  kvf_lease_store store;
  assert_false(kvf_lease_table_next_store(&w->table, &store));
}

/* The next store to make is this word. It is on its way until stored() says that it is done. */
static void expect_store(uint32_t slot, uint64_t word)
{
  kvf_lease_store store;
  assert_true(kvf_lease_table_next_store(&w->table, &store));
  assert_int_equal(store.slot, slot);
  assert_int_equal(store.entry.word, word);
  w->fence[slot] = store.entry;
}

static void stored(uint32_t slot)
{
  kvf_lease_table_stored(&w->table, slot, w->fence[slot].word);
}

static void set_up(void)
{
  world_init(w, 0);
}

static const char *taken; /* the step of follow() that is taken now, if any */

static void tear_down(void)
{
  if (taken != NULL) {
    print_message("at: %s\n", taken);
    taken = NULL;
  }
  kvf_lease_table_free(&w->table);
}

#define LEASE_TEST(name) TEST_WITH(name, set_up, tear_down)

static void set_up_live(void)
{
  set_up();
  world_live(w, 0, 0, 3);
}

/* Begins with lease 3 live in slot 0. */
#define LIVE_TEST(name) TEST_WITH(name, set_up_live, tear_down)

static kvf_status authorize(uint64_t now_ns, uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  return kvf_lease_table_authorize(&w->table, now_ns, &lease, NULL, 0);
}

static void complete(uint32_t slot, uint64_t id)
{
  const kvf_lease lease = lease_of(slot, id);
  kvf_lease_table_complete(&w->table, &lease);
}

/* ---- what happens to a lease, as text ---- */

typedef struct moment {
  uint64_t now_ns;
  uint64_t id;
  uint32_t slot;
} moment;

static int place_of(const char *word, const char *const *words, int count)
{
  int place = 0;
  while (place < count && strcmp(word, words[place]) != 0) {
    place++;
  }
  assert_true(place < count);
  return place;
}

static void store(const moment *at, const char *which)
{
  if (strcmp(which, "all") == 0) {
    world_store_all(w);
  } else if (strcmp(which, "none") == 0) {
    expect_no_store();
  } else if (strcmp(which, "live") == 0) {
    expect_store(at->slot, kvf_fence_word_live(at->id));
  } else {
    assert_string_equal(which, "ended");
    expect_store(at->slot, kvf_fence_word_ended(at->id));
  }
}

static void expect_back(const moment *at, const char *why)
{
  static const char *const causes[] = {"none", "completed", "abandoned", "expired", "revoked"};
  const int cause = place_of(why, causes, 5);
  if (cause == 0) {
    world_expect_none_ended(w);
  } else {
    world_expect_ended(w, at->slot, at->id, (kvf_lease_end_cause)cause);
  }
}

/* The name of what the table answers. */
static const char *call_table(const moment *at, const char *verb, const char *what)
{
  if (strcmp(verb, "publishes") == 0) {
    return kvf_status_name(world_publish(w, at->now_ns, at->slot, at->id));
  }
  if (strcmp(verb, "reads") == 0) {
    return kvf_status_name(authorize(at->now_ns, at->slot, at->id));
  }
  if (strcmp(verb, "ends") == 0) {
    return kvf_status_name(world_end(w, at->now_ns, at->slot, at->id));
  }
  if (strcmp(verb, "lives") == 0) {
    world_live(w, at->now_ns, at->slot, at->id);
  } else if (strcmp(verb, "ticks") == 0) {
    kvf_lease_table_tick(&w->table, at->now_ns, 1000);
  } else if (strcmp(verb, "fills") == 0) {
    complete(at->slot, at->id);
  } else if (strcmp(verb, "stored") == 0) {
    stored(at->slot);
  } else if (strcmp(verb, "stores") == 0) {
    store(at, what);
  } else {
    assert_string_equal(verb, "back");
    expect_back(at, what);
  }
  return "ok";
}

static const char *tell_table(const moment *at, char consumer, const char *verb)
{
  static const char *const kinds[] = {"renews", "completes", "aborts", "detaches"};
  static const char *const states[] = {"", "live", "not_published", "ended", "unknown", "crowded"};
  const kvf_finish_kind kind = (kvf_finish_kind)place_of(verb, kinds, 4);
  return states[world_message(w, at->now_ns, at->slot, at->id, consumer, kind)];
}

static void take_step(const char *text, moment *at)
{
  const char *answer = strchr(text, ':');
  char verb[16] = "";
  char what[16] = "";
  unsigned ms;
  int used = 0;
  if (sscanf(text, " @%u%n", &ms, &used) == 1) {
    at->now_ns = MS(ms);
    text += used;
  }
  if (sscanf(text, " %u/%" SCNu64 "%n", &at->slot, &at->id, &used) == 2) {
    text += used;
  }
  assert_true(sscanf(text, " %15[a-z] %15[a-z]", verb, what) >= 1);
  if (verb[1] == '\0') {
    assert_string_equal(tell_table(at, verb[0], what), answer != NULL ? answer + 2 : "live");
  } else {
    assert_string_equal(call_table(at, verb, what), answer != NULL ? answer + 2 : "ok");
  }
}

/* Steps with commas between them. "@MS" is the time from there on (0), "SLOT/ID" the lease (0/3). "x renews": so does
 * that consumer. "lives": it is published, and all is stored. "fills": its bytes are complete. "stores live": that word
 * is taken to be stored; "stored": it is. "back revoked": as world_expect_ended() has it. Behind ": " is what the table
 * answers; else that is "live" to a consumer and "ok" to all others. */
static void follow(const char *steps)
{
  static char text[128];
  char *rest = NULL;
  moment at = {.id = 3};
  assert_true(snprintf(text, sizeof(text), "%s", steps) < (int)sizeof(text));
  for (taken = strtok_r(text, ",", &rest); taken != NULL; taken = strtok_r(NULL, ",", &rest)) {
    take_step(taken, &at);
  }
}

/* ---- life ---- */

LEASE_TEST(published_then_live_then_completed)
{
  follow("1/7 a renews: not_published, reads: not_published, publishes, a renews: not_published");
  follow("1/7 reads: not_published, stores live");
  assert_int_equal(w->fence[1].digest, 1007);
  follow("stores none, 1/7 reads: not_published, stored, reads, a renews");
  assert_int_equal(w->table.live, 1);
  follow("@1 1/7 a completes: ended, reads: lease_expired, a renews: ended");
  assert_int_equal(w->table.live, 0);
  assert_int_equal(w->table.unreleased, 1);
  follow("1/7 back completed, @1 a renews: ended");
  assert_int_equal(w->table.unreleased, 0);
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), KVF_TIME_NEVER);
}

LIVE_TEST(given_back_only_after_over_is_stored)
{
  follow("@1 ends, back none, stores ended, back none, stored, back revoked");
}

LEASE_TEST(ended_before_live_is_stored)
{
  follow("publishes, ends, stores ended, stores none, stored, back revoked");
}

/* Over must not overtake live on its way to the fence table. */
LEASE_TEST(ended_while_live_is_being_stored)
{
  follow("publishes, stores live, ends, stores none, stored, reads: lease_expired, a renews: ended, back revoked");
}

LEASE_TEST(ids_of_a_slot)
{
  follow("2/50 lives, 2/49 a renews: ended, reads: lease_expired, 2/51 a renews: not_published");
  follow("2/51 reads: not_published, 2/50 publishes: exists, 2/49 publishes: exists");
  follow("2/51 publishes: exists"); /* 50 has not been given back */
  follow("2/50 ends, 2/51 publishes: exists, stores all, publishes: exists, 2/50 back revoked, publishes: exists");
  follow("2/51 lives, 2/50 a renews: ended, 2/51 a renews");
}

LEASE_TEST(out_of_range)
{
  follow("4/1 publishes: invalid, a renews: unknown, a completes: unknown, reads: lease_unknown, ends: not_found");
  follow("4294967295/1 a renews: unknown, 0/18446744073709551615 a renews: unknown, reads: lease_unknown");
  follow("0/18446744073709551615 ends: not_found");
  assert_int_equal(world_publish(w, 0, 0, KVF_LEASE_ID_MAX), KVF_INVALID);
  assert_int_equal(world_message(w, 0, 0, KVF_LEASE_ID_MAX, 'a', KVF_FINISH_NONE), UNKNOWN);
  world_live(w, 0, 0, KVF_LEASE_ID_MAX - 1);
  assert_int_equal(world_end(w, 0, 0, KVF_LEASE_ID_MAX - 1), KVF_OK);
  world_expect_ended(w, 0, KVF_LEASE_ID_MAX - 1, KVF_LEASE_END_REVOKED);
}

LIVE_TEST(wrong_token_is_unknown)
{
  const kvf_consumer_key key = key_of('a');
  kvf_lease lease = lease_of(0, 3);
  lease.token[15] ^= 1;
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 50, &lease, &key, KVF_FINISH_NONE), UNKNOWN);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 50, &lease, &key, KVF_FINISH_COMPLETED), UNKNOWN);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 50, &lease, &key, KVF_FINISH_ABORTED), UNKNOWN);
  assert_int_equal(kvf_lease_table_authorize(&w->table, 50, &lease, NULL, 0), KVF_LEASE_UNKNOWN);
  assert_int_equal(w->table.live, 1);
  follow("@100 a renews: ended"); /* nothing has lengthened it */
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, MS(100), &lease, &key, KVF_FINISH_NONE), UNKNOWN);
}

/* ---- revoking ---- */

LIVE_TEST(end_counts_once)
{
  follow("ends, ends: not_found, back revoked, ends: not_found, 0/2 ends: not_found, stores all, back none");
}

LEASE_TEST(end_of_unpublished_is_remembered)
{
  follow("ends: not_found, publishes: exists, a renews: ended, stores all");
  assert_int_equal(w->fence[0].word, kvf_fence_word_ended(3)); /* readers need not wait for it */
  follow("back none, publishes: exists, 0/4 lives, a renews");
  assert_int_equal(w->fence[0].word, kvf_fence_word_live(4));
}

LEASE_TEST(publish_while_an_unpublished_end_is_being_stored)
{
  follow("ends: not_found, stores ended, 0/4 publishes, stores none, stored, reads: not_published, stores all");
  follow("0/4 reads");
}

LIVE_TEST(end_of_a_later_id_ends_the_slots_lease)
{
  follow("0/5 ends: not_found, 0/3 a renews: ended, 0/5 a renews: ended, 0/6 a renews: not_published");
  follow("back revoked");
  assert_int_equal(w->fence[0].word, kvf_fence_word_ended(5));
  world_live(w, 0, 0, 6);
}

LEASE_TEST(end_of_a_later_id_while_the_slots_lease_waits)
{
  follow("lives, ends, stores all, 0/5 ends: not_found, 0/3 back revoked, back none");
}

LEASE_TEST(end_all)
{
  kvf_event ended;
  follow("lives, @90 3/4 lives, 2/5 publishes");
  kvf_lease_table_end_all(&w->table, MS(100));
  assert_int_equal(w->table.live, 0);
  world_store_all(w);
  unsigned count = 0;
  while (kvf_lease_table_next_ended(&w->table, &ended)) {
    assert_int_equal(ended.u.lease_end, ended.id == 3 ? KVF_LEASE_END_EXPIRED : KVF_LEASE_END_REVOKED);
    count++;
  }
  assert_int_equal(count, 3);
  kvf_lease_table_end_all(&w->table, MS(100));
  assert_int_equal(w->fence[2].word, kvf_fence_word_ended(5));
}

/* ---- time ---- */

LIVE_TEST(expires_at_its_ttl)
{
  assert_true(kvf_wheel_next_deadline(&w->table.wheel) <= MS(100));
  follow("@99 ticks, reads");
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), MS(100));
  follow("@100 ticks, back expired");
  assert_int_equal(w->table.counters.ended[KVF_LEASE_END_EXPIRED], 1);
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), KVF_TIME_NEVER);
}

/* At its deadline a lease is over for every call, although no tick has come. */
LEASE_TEST(over_without_a_tick)
{
  follow("lives, 1/3 lives, 2/3 lives, 3/3 lives");
  assert_int_equal(authorize(MS(100) - 1, 0, 3), KVF_OK);
  follow("@100 reads: lease_expired, a renews: ended, back expired, 1/3 a completes: ended, back expired");
  follow("@100 2/3 ends: not_found, back expired, 3/3 a aborts: ended, back expired");
}

LIVE_TEST(renewal_lengthens)
{
  follow("@99 a renews, @100 ticks, @198 ticks, reads");
  assert_int_equal(kvf_wheel_next_deadline(&w->table.wheel), MS(199));
  follow("@199 ticks, back expired");
}

LEASE_TEST(renewal_before_live_is_stored_counts)
{
  follow("publishes, @50 a renews: not_published, stores all, @149 reads, @150 reads: lease_expired");
}

LIVE_TEST(longest_life)
{
  follow("@99 a renews, @198 a renews, @249 a renews, @250 a renews: ended, back expired");
}

TEST(ttl_above_longest_life)
{
  static kvf_lease_table table;
  const kvf_config config = {.lease_slots = 1, .lease_ttl_ms = 100, .lease_max_ms = 40};
  const kvf_lease lease = lease_of(0, 1);
  const kvf_blocks blocks = {NULL, NULL, 0};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_OK);
  assert_int_equal(kvf_lease_table_publish(&table, 0, &lease, &blocks, 0, 0, false), KVF_OK);
  assert_int_equal(kvf_wheel_next_deadline(&table.wheel), MS(40));
  kvf_lease_table_free(&table);
}

LIVE_TEST(finished_consumer_does_not_lengthen)
{
  follow("@50 a renews, @60 b renews, @70 a completes, @80 a renews, @159 reads, @160 reads: lease_expired");
}

static char said[KVF_LOG_LINE_BYTES_MAX];

static void keep_said(void *context, kvf_log_level level, const char *line)
{
  (void)context;
  (void)snprintf(said, sizeof(said), "%d %.400s", (int)level, line);
}

static void assert_said(const char *expected)
{
  assert_string_equal(said, expected);
  said[0] = '\0';
}

static void listen_to_table(void)
{
  static kvf_context context;
  context = (kvf_context){.logger = {.fn = keep_said, .level = KVF_LOG_DEBUG}, .log_limit = {.lines_per_s = 5}};
  w->table.context = &context;
}

LEASE_TEST(lease_that_nobody_has_loaded_says_why)
{
  listen_to_table();
  follow("0/1 lives, @100 ticks, back expired");
  assert_said("1 lease 1 has ended unread: no engine has come with its ticket within lease_ttl_ms");
  follow("@1000 1/2 lives, a renews, @1100 ticks, back expired");
  assert_said("1 lease 2 has ended unread: the engine that came for it has not renewed it within lease_ttl_ms");
  follow("@2000 2/3 lives, a renews, @2080 a renews, @2160 a renews, @2240 a renews, @2250 ticks, back expired");
  assert_said("1 lease 3 has ended unread: it is as old as lease_max_ms");
  follow("@3000 3/4 lives, a aborts: ended");
  assert_said("2 lease 4 has ended unread: the engine that came for it has given it up, as its log says");
  follow("@4000 0/5 lives, ends");
  assert_said("2 lease 5 has ended unread: this engine has taken its blocks back");
  follow("@5000 1/6 lives, 1/7 ends: not_found"); /* a later one of its slot */
  assert_said("2 lease 6 has ended unread: this engine has taken its blocks back");
}

/* Nor is it said of one that has been loaded, nor by any rank but the first, nor without end. */
LEASE_TEST(lease_that_is_loaded_ends_in_silence)
{
  kvf_config of_rank = *w->table.config;
  w->table.config = &of_rank;
  listen_to_table();
  follow("0/1 lives, a completes: ended, back completed");
  of_rank.rank = 1;
  follow("0/2 lives, @100 ticks, back expired");
  assert_said("");
  of_rank.rank = 0;
  for (uint64_t id = 3; id < 13; id++) {
    world_live(w, MS(WORLD_TTL_MS), 0, id);
    assert_int_equal(world_end(w, MS(WORLD_TTL_MS), 0, id), KVF_OK);
    world_expect_ended(w, 0, id, KVF_LEASE_END_REVOKED);
  }
  assert_said("2 lease 7 has ended unread: this engine has taken its blocks back");
}

LEASE_TEST(tick_is_bounded)
{
  for (uint32_t slot = 0; slot < WORLD_SLOTS; slot++) {
    world_live(w, 0, slot, 3);
  }
  for (uint32_t left = WORLD_SLOTS; left > 0; left--) {
    assert_int_equal(w->table.live, left);
    assert_true(kvf_wheel_next_deadline(&w->table.wheel) <= MS(100));
    kvf_lease_table_tick(&w->table, MS(100), 1);
  }
  assert_int_equal(w->table.live, 0);
}

/* More than are looked at together, and no more than was asked for. */
TEST(many_run_out_in_one_tick)
{
  kvf_lease_table table;
  const kvf_config config = {.lease_slots = 100, .lease_ttl_ms = WORLD_TTL_MS, .lease_max_ms = WORLD_MAX_MS};
  const kvf_blocks blocks = {NULL, NULL, 0};
  assert_int_equal(kvf_lease_table_init(&table, &config, 0), KVF_OK);
  for (uint32_t slot = 0; slot < 100; slot++) {
    const kvf_lease lease = lease_of(slot, 3);
    assert_int_equal(kvf_lease_table_publish(&table, slot < 90 ? 0 : MS(50), &lease, &blocks, 1, slot, false), KVF_OK);
  }
  kvf_lease_table_tick(&table, MS(100), 40);
  assert_int_equal(table.live, 60);
  kvf_lease_table_tick(&table, MS(100), 1000);
  assert_int_equal(table.live, 10);
  assert_int_equal(table.counters.ended[KVF_LEASE_END_EXPIRED], 90);
  assert_in_range(kvf_wheel_next_deadline(&table.wheel), MS(100), MS(150));
  kvf_lease_table_free(&table);
}

LEASE_TEST(time_near_its_end)
{
  uint64_t now_ns = UINT64_MAX - MS(120);
  kvf_lease_table_free(&w->table);
  world_init(w, now_ns);
  world_live(w, now_ns, 0, 3);
  assert_int_equal(authorize(now_ns + MS(99), 0, 3), KVF_OK);
  assert_int_equal(world_message(w, now_ns + MS(99), 0, 3, 'a', KVF_FINISH_NONE),
                   LIVE); /* from here its deadline is never */
  kvf_lease_table_tick(&w->table, UINT64_MAX - 1, 1000);
  assert_int_equal(authorize(UINT64_MAX - 1, 0, 3), KVF_OK);
  assert_int_equal(world_end(w, UINT64_MAX - 1, 0, 3), KVF_OK);
  follow("back revoked");
}

/* ---- consumers ---- */

LIVE_TEST(last_abort_abandons)
{
  follow("a renews, b renews, a aborts, a aborts, b aborts: ended, back abandoned");
}

LIVE_TEST(abort_without_a_renewal)
{
  follow("a aborts: ended, back abandoned");
}

LIVE_TEST(untaken_until_its_first_consumer)
{
  world_live(w, 0, 1, 7);
  assert_int_equal(w->table.untaken, 2);
  follow("a renews, b renews");
  assert_int_equal(w->table.untaken, 1);
  follow("a detaches");
  assert_int_equal(w->table.untaken, 1);
  follow("ends");
  assert_int_equal(w->table.untaken, 1);
  follow("1/7 ends");
  assert_int_equal(w->table.untaken, 0);
}

/* Whoever gives up for reasons of its own leaves the lease to another, as long as it lasts. */
LIVE_TEST(detached_leaves_the_lease_to_others)
{
  follow("@40 a renews, @50 a detaches, @60 a detaches, a renews"); /* late: neither attaches it nor lengthens */
  follow("@70 b renews, @80 b completes: ended, back completed");
}

LIVE_TEST(detached_runs_out)
{
  follow("@40 a renews, @50 a detaches, a aborts"); /* it stays as it has finished */
  follow("@139 ticks, reads, @140 ticks, back expired");
}

/* In whatever order: an end that somebody wanted while another was attached comes when that one detaches. */
LIVE_TEST(detached_last_ends_what_others_have_finished)
{
  follow("a renews, b completes, a detaches: ended, back completed, 0/4 lives, a detaches, b aborts: ended");
  follow("0/4 back abandoned");
}

/* ---- leases that linger ---- */

static void let_linger(void)
{
  static const kvf_config config = {
      .lease_slots = WORLD_SLOTS, .lease_ttl_ms = WORLD_TTL_MS, .lease_max_ms = WORLD_MAX_MS, .lease_linger_ms = 20};
  w->table.config = &config;
}

/* Another engine with the same ticket has so long to come; if none does the blocks are back. */
LIVE_TEST(completed_lease_lingers_for_another_engine)
{
  let_linger();
  follow("@1 a renews, @2 a completes, @21 ticks, reads, @22 ticks, reads: lease_expired, back completed");
}

/* One that comes while it lingers has a whole TTL; the time is that of the first completion, and it is over by then. */
LIVE_TEST(engine_that_comes_while_it_lingers_attaches)
{
  let_linger();
  follow("a completes, @19 a renews"); /* a late one: it has finished */
  follow("@19 b renews, @21 ticks, reads");
  kvf_lease_table_end_lingering(&w->table); /* it does not linger now */
  follow("@22 b detaches: ended, back completed");
}

LIVE_TEST(engine_that_goes_while_it_lingers_changes_nothing)
{
  let_linger();
  follow("a completes, @5 b renews, @10 b aborts, @20 ticks, back completed");
}

/* Nobody has wanted what was aborted. */
LIVE_TEST(aborted_lease_does_not_linger)
{
  let_linger();
  follow("a renews, @1 a aborts: ended, back abandoned");
}

LIVE_TEST(lingering_leases_make_room)
{
  let_linger();
  follow("a completes, 1/3 lives");
  kvf_lease_table_end_lingering(&w->table);
  follow("back completed");
  assert_int_equal(w->table.live, 1);
}

LIVE_TEST(revoked_while_it_lingers)
{
  let_linger();
  follow("a completes");
  kvf_lease_table_end_all(&w->table, MS(1));
  follow("back revoked");
  kvf_lease_table_end_lingering(&w->table);
}

LIVE_TEST(detached_consumers_make_room)
{
  follow("z renews, y aborts");
  w->table.consumers_max = KVF_LEASE_CONSUMERS_IN_SLOT;
  for (int name = 'a'; name < 'a' + 3 * KVF_LEASE_CONSUMERS_IN_SLOT; name++) {
    assert_int_equal(world_message(w, 0, 0, 3, (char)name, KVF_FINISH_NONE), LIVE);
    assert_int_equal(world_message(w, 0, 0, 3, (char)name, KVF_FINISH_DETACHED), LIVE);
  }
  follow("z detaches: ended"); /* the one that aborted is not forgotten for those */
  follow("back abandoned");
}

LIVE_TEST(acknowledgement_waits_for_others_and_counts_once)
{
  follow("a renews, b renews, a completes, a completes, b aborts: ended, back completed");
}

LIVE_TEST(finished_is_final)
{
  follow("b renews, a completes, @60 a renews"); /* late: lengthens nothing */
  follow("@100 reads: lease_expired, @60 a aborts, b aborts: ended, back completed");
}

LIVE_TEST(abort_by_one_that_never_attached)
{
  follow("a renews, b aborts, b renews"); /* delayed: it does not attach */
  follow("a completes: ended, back completed");
}

LIVE_TEST(consumers_differ_in_every_part_of_their_key)
{
  const kvf_lease lease = lease_of(0, 3);
  kvf_consumer_key keys[3] = {key_of('a'), key_of('a'), key_of('a')};
  keys[1].request_id++;
  keys[2].incarnation.bytes[KVF_INCARNATION_BYTES - 1] = 1;
  for (int i = 0; i < 3; i++) {
    assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[i], KVF_FINISH_NONE), LIVE);
  }
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[0], KVF_FINISH_ABORTED), LIVE);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[2], KVF_FINISH_ABORTED), LIVE);
  assert_int_equal(kvf_lease_table_on_consumer(&w->table, 0, &lease, &keys[1], KVF_FINISH_ABORTED), OVER);
}

/* However many there are, the lease lasts as long as one of them is attached. */
LIVE_TEST(all_that_are_attached_are_remembered)
{
  for (int round = 0; round < 2; round++) {
    for (int i = 0; i < KVF_LEASE_CONSUMERS_MAX; i++) {
      assert_int_equal(world_message(w, MS(60), 0, 3, (char)i, KVF_FINISH_NONE), LIVE);
    }
  }
  assert_int_equal(w->table.stored, KVF_LEASE_CONSUMERS_MAX - KVF_LEASE_CONSUMERS_IN_SLOT);
  for (int i = KVF_LEASE_CONSUMERS_MAX - 1; i > 0; i--) {
    assert_int_equal(world_message(w, MS(60), 0, 3, (char)i, KVF_FINISH_COMPLETED), LIVE);
    assert_int_equal(world_message(w, MS(60), 0, 3, (char)i, KVF_FINISH_NONE), LIVE);
  }
  assert_int_equal(world_message(w, MS(60), 0, 3, 0, KVF_FINISH_DETACHED), OVER);
  assert_int_equal(w->table.stored, 0);
  follow("back completed");
}

LIVE_TEST(no_room_for_another_consumer)
{
  w->table.consumers_max = 6;
  for (int i = 0; i < 6; i++) {
    assert_int_equal(world_message(w, 0, 0, 3, (char)('a' + i), KVF_FINISH_NONE), LIVE);
  }
  follow("@60 x renews: crowded");                                                           /* and lengthens nothing */
  follow("@60 x completes, x aborts, @100 reads: lease_expired, @70 a completes, x renews"); /* in the place of the one
                                                                                                that is done */
  follow("@169 reads");
  for (int i = 1; i < 6; i++) {
    assert_int_equal(world_message(w, MS(80), 0, 3, (char)('a' + i), KVF_FINISH_ABORTED), LIVE);
  }
  follow("@80 x detaches: ended, back completed");
}

/* What one lease has of the store the others have not, until it ends. */
LEASE_TEST(no_place_in_the_store)
{
  w->table.stored_max = 6;
  follow("lives, 1/3 lives");
  for (int i = 0; i < KVF_LEASE_CONSUMERS_IN_SLOT + 6; i++) {
    assert_int_equal(world_message(w, 0, 0, 3, (char)('a' + i), KVF_FINISH_NONE), LIVE);
  }
  for (int i = 0; i < KVF_LEASE_CONSUMERS_IN_SLOT; i++) {
    assert_int_equal(world_message(w, 0, 1, 3, (char)('a' + i), KVF_FINISH_NONE), LIVE);
  }
  follow("x renews: crowded, 1/3 x renews: crowded, 0/3 ends, back revoked, 1/3 x renews");
}

LIVE_TEST(aborted_consumer_makes_room)
{
  w->table.consumers_max = KVF_LEASE_CONSUMERS_IN_SLOT;
  follow("a renews, b renews, c completes, d aborts, e renews, c completes"); /* it is not the one that was forgotten */
  follow("a aborts, b aborts, e aborts: ended, back completed");
}

LIVE_TEST(late_messages_are_counted)
{
  follow("a completes: ended");
  assert_int_equal(w->table.counters.late_acknowledgements, 0);
  follow("a completes: ended, 0/2 a completes: ended, 0/3 b aborts: ended, b renews: ended");
  assert_int_equal(w->table.counters.late_acknowledgements, 2);
  assert_int_equal(w->table.counters.late_renewals, 1);
  assert_int_equal(w->table.counters.published, 1);
  assert_int_equal(w->table.counters.ended[KVF_LEASE_END_COMPLETED], 1);
  follow("back completed");
}

/* The next lease of a slot has none of the last one's consumers. */
LIVE_TEST(consumers_do_not_outlive_the_lease)
{
  follow("a renews, b completes, ends, back revoked, 0/4 lives, b completes: ended, back completed");
}

/* ---- blocks ---- */

LIVE_TEST(authorize_turns_positions_into_blocks)
{
  const kvf_lease lease = lease_of(0, 3);
  kvf_transfer_item items[] = {
      {.group = 2, .position = 1, .local_block = 77},
      {.group = 0, .position = 0},
      {.group = 0, .position = 1},
      {.group = 2, .position = 0},
  };
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, items, 4), KVF_OK);
  assert_int_equal(items[0].remote_block, 21);
  assert_int_equal(items[0].local_block, 77);
  assert_int_equal(items[1].remote_block, 10);
  assert_int_equal(items[2].remote_block, 11);
  assert_int_equal(items[3].remote_block, 20);
  static const kvf_transfer_item bad[] = {
      {.group = 0, .position = 2}, /* KVF_BLOCK_NONE */
      {.group = 0, .position = 3},
      {.group = 1, .position = 0},
      {.group = 2, .position = 2},
      {.group = 3, .position = 0},
      {.group = 0, .position = UINT32_MAX},
      {.group = UINT32_MAX, .position = 0},
      {.group = UINT32_MAX, .position = UINT32_MAX},
  };
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    kvf_transfer_item pair[] = {items[0], bad[i]};
    assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, pair, 2), KVF_INVALID);
  }
}

LEASE_TEST(block_limits)
{
  static uint32_t ids[KVF_BLOCKS_PER_LEASE_MAX];
  uint32_t counts[KVF_GROUPS_MAX + 1] = {KVF_BLOCKS_PER_LEASE_MAX};
  kvf_blocks blocks = {ids, counts, KVF_GROUPS_MAX + 1};
  const kvf_lease lease = lease_of(0, 3);
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_LIMIT);
  blocks.groups = KVF_GROUPS_MAX;
  counts[1] = 1;
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_LIMIT);
  counts[1] = UINT32_MAX - KVF_BLOCKS_PER_LEASE_MAX + 1; /* their sum is 2^32 */
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_LIMIT);
  assert_int_equal(w->table.unreleased, 0);
  counts[1] = 0;
  ids[KVF_BLOCKS_PER_LEASE_MAX - 1] = 99;
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_OK);
  world_store_all(w);
  kvf_transfer_item item = {.group = 0, .position = KVF_BLOCKS_PER_LEASE_MAX - 1};
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, 99);
}

LEASE_TEST(blocks_are_copied)
{
  uint32_t ids[] = {5};
  uint32_t counts[] = {1};
  const kvf_blocks blocks = {ids, counts, 1};
  const kvf_lease lease = lease_of(0, 3);
  assert_int_equal(kvf_lease_table_publish(&w->table, 0, &lease, &blocks, 0, 0, false), KVF_OK);
  world_store_all(w);
  ids[0] = 6;
  counts[0] = 0;
  kvf_transfer_item item = {0};
  assert_int_equal(kvf_lease_table_authorize(&w->table, 0, &lease, &item, 1), KVF_OK);
  assert_int_equal(item.remote_block, 5);
}

/* ---- bytes, or their checksums, that are not complete: a live word waits for them ---- */

LEASE_TEST(live_waits_for_its_bytes)
{
  w->incomplete = true;
  follow("1/7 publishes, stores none, reads: not_published, a renews: not_published");
  follow("1/6 fills"); /* not these */
  follow("2/7 fills");
  complete(WORLD_SLOTS, 7);
  follow("stores none, 1/7 fills, stores live, stored, fills"); /* again: nothing */
  follow("stores none, 1/7 reads");
}

LEASE_TEST(ended_before_its_bytes_is_never_live)
{
  w->incomplete = true;
  follow("publishes, ends, stores ended, fills, stores none, stored, fills, back revoked, 0/4 publishes");
  follow("fills"); /* of the one before */
  follow("stores none, 0/4 fills, stores live");
}

/* Another store of the slot is on its way, or waits: it does not take the live word along. */
LEASE_TEST(incomplete_behind_another_store)
{
  w->incomplete = true;
  follow("ends: not_found, 0/4 publishes, stores none, 1/3 ends: not_found, stores ended, 1/4 publishes, stored");
  follow("stores none, 1/4 reads: not_published");

  follow("2/3 ends: not_found, stores ended, 2/4 publishes, fills, reads: not_published, stored, stores live");
}

LEASE_TEST(runs_out_before_its_bytes)
{
  w->incomplete = true;
  assert_int_equal(world_publish(w, 0, 0, 3), KVF_OK);
  kvf_lease_table_tick(&w->table, MS(WORLD_TTL_MS), 100);
  follow("back expired");
}

/* ---- a model ---- */

/* The lease table against a model that keeps every message it has ever seen and judges by looking through them all.
 * Messages are repeated and come late, to leases that are live, over, gone or still to come. */
enum { NAMES = 4, IDS = 400, STEPS = 6000 };

typedef enum model_consumer_state { AWAY, ATTACHED, COMPLETED, ABORTED, DETACHED } model_consumer_state;

typedef struct model_lease {
  bool published;
  bool refused; /* ended before it was published */
  bool over;
  bool given_back;
  kvf_lease_end_cause cause;
  uint64_t deadline_ns;
  uint64_t deadline_max_ns;
  model_consumer_state consumers[NAMES];
} model_lease;

typedef struct model {
  lease_world world;
  kvf_prng prng;
  uint64_t now_ns;
  uint64_t base_id;
  uint64_t seen[WORLD_SLOTS]; /* 0, or 1 + the index of the latest lease that the slot has heard of */
  uint64_t next;              /* index of the next lease to publish; lease i is of slot i % WORLD_SLOTS */
  model_lease leases[IDS];
} model;

static void model_end(model_lease *lease, kvf_lease_end_cause cause)
{
  lease->over = true;
  lease->cause = cause;
}

static bool model_is_live(const model_lease *lease)
{
  return lease->published && !lease->over;
}

static void model_run_out(model *m, model_lease *lease)
{
  if (model_is_live(lease) && m->now_ns >= lease->deadline_ns) {
    model_end(lease, KVF_LEASE_END_EXPIRED);
  }
}

static kvf_lease_state model_state(const model *m, uint64_t i)
{
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  if (m->seen[slot] <= i) {
    return KVF_LEASE_STATE_NOT_PUBLISHED;
  }
  if (m->seen[slot] > i + 1 || !model_is_live(&m->leases[i])) {
    return KVF_LEASE_STATE_ENDED;
  }
  return m->world.fence[slot].word == kvf_fence_word_live(m->base_id + i) ? KVF_LEASE_STATE_LIVE
                                                                          : KVF_LEASE_STATE_NOT_PUBLISHED;
}

static bool any_in(const model_lease *lease, model_consumer_state state)
{
  bool any = false;
  for (int name = 0; name < NAMES; name++) {
    any = any || lease->consumers[name] == state;
  }
  return any;
}

static void model_judge(model_lease *lease)
{
  if (!any_in(lease, ATTACHED) && any_in(lease, COMPLETED)) {
    model_end(lease, KVF_LEASE_END_COMPLETED);
  } else if (!any_in(lease, ATTACHED) && any_in(lease, ABORTED)) {
    model_end(lease, KVF_LEASE_END_ABANDONED);
  }
}

static void model_renew(model *m, model_lease *lease, model_consumer_state *consumer)
{
  *consumer = *consumer == AWAY ? ATTACHED : *consumer;
  if (*consumer == ATTACHED) {
    lease->deadline_ns = kvf_time_min(m->now_ns + MS(WORLD_TTL_MS), lease->deadline_max_ns);
  }
}

static void model_finish(model_lease *lease, model_consumer_state *consumer, model_consumer_state how)
{
  *consumer = *consumer > ATTACHED ? *consumer : how;
  model_judge(lease);
}

/* ---- steps: the same to the table and to the model ---- */

static uint64_t random_index(model *m)
{
  uint64_t back = kvf_prng_below(&m->prng, UINT64_C(3) * WORLD_SLOTS);
  uint64_t i = m->next + 2 > back ? m->next + 2 - back : 0;
  return i < IDS ? i : IDS - 1;
}

static void step_publish(model *m)
{
  uint64_t i = kvf_prng_below(&m->prng, 4) == 0 ? random_index(m) : m->next;
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  if (i >= IDS) {
    return;
  }
  bool occupied = false;
  for (uint64_t j = slot; j < i; j += WORLD_SLOTS) {
    occupied = occupied || (m->leases[j].published && !m->leases[j].given_back);
  }
  kvf_status expected = m->seen[slot] > i || occupied ? KVF_EXISTS : KVF_OK;
  assert_int_equal(world_publish(&m->world, m->now_ns, slot, m->base_id + i), expected);
  if (expected == KVF_OK) {
    model_lease *lease = &m->leases[i];
    lease->published = true;
    lease->deadline_max_ns = m->now_ns + MS(WORLD_MAX_MS);
    lease->deadline_ns = m->now_ns + MS(WORLD_TTL_MS);
    m->seen[slot] = i + 1;
  }
  if (i == m->next && (expected == KVF_OK || m->seen[slot] > i)) {
    m->next++;
  }
}

static void step_message(model *m)
{
  static const struct {
    kvf_finish_kind kind;
    model_consumer_state state;
  } finishes[] = {{KVF_FINISH_COMPLETED, COMPLETED},
                  {KVF_FINISH_DETACHED, DETACHED},
                  {KVF_FINISH_COMPLETED, COMPLETED},
                  {KVF_FINISH_ABORTED, ABORTED}};
  uint64_t i = random_index(m);
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  uint64_t id = m->base_id + i;
  int name = (int)kvf_prng_below(&m->prng, NAMES);
  uint64_t kind = kvf_prng_below(&m->prng, 8);
  model_lease *lease = &m->leases[i];
  model_run_out(m, lease);
  kvf_lease_state expected = model_state(m, i);
  const kvf_finish_kind told = kind < 4 ? KVF_FINISH_NONE : finishes[kind - 4].kind;
  kvf_lease_state state = world_message(&m->world, m->now_ns, slot, id, (char)name, told);
  if (model_is_live(lease) && kind < 4) {
    model_renew(m, lease, &lease->consumers[name]);
  } else if (model_is_live(lease)) {
    model_finish(lease, &lease->consumers[name], finishes[kind - 4].state);
  }
  assert_int_equal(state, lease->over ? KVF_LEASE_STATE_ENDED : expected);
}

static void step_end(model *m)
{
  uint64_t i = random_index(m);
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  for (uint64_t j = slot; j < IDS; j += WORLD_SLOTS) {
    model_run_out(m, &m->leases[j]);
  }
  bool live = model_is_live(&m->leases[i]);
  assert_int_equal(world_end(&m->world, m->now_ns, slot, m->base_id + i), live ? KVF_OK : KVF_NOT_FOUND);
  if (live || m->seen[slot] <= i) {
    for (uint64_t j = slot; j <= i; j += WORLD_SLOTS) {
      if (model_is_live(&m->leases[j])) {
        model_end(&m->leases[j], KVF_LEASE_END_REVOKED);
      }
    }
    m->seen[slot] = i + 1;
  }
}

static void step_time(model *m)
{
  m->now_ns += kvf_prng_below(&m->prng, MS(20));
  if (kvf_prng_below(&m->prng, 2) == 0) {
    kvf_lease_table_tick(&m->world.table, m->now_ns, (uint32_t)kvf_prng_below(&m->prng, 4));
  }
}

/* One store, sometimes with something else between its being given out and its being done. */
static void step_store(model *m)
{
  kvf_lease_store store;
  if (!kvf_lease_table_next_store(&m->world.table, &store)) {
    return;
  }
  assert_true(store.entry.word > m->world.fence[store.slot].word);
  for (uint64_t more = kvf_prng_below(&m->prng, 3); more > 0; more--) {
    step_message(m);
    step_end(m);
  }
  m->world.fence[store.slot] = store.entry;
  kvf_lease_table_stored(&m->world.table, store.slot, store.entry.word);
}

static void take_ended(model *m)
{
  kvf_event ended;
  while (kvf_lease_table_next_ended(&m->world.table, &ended)) {
    assert_in_range(ended.id - m->base_id, 0, IDS - 1);
    model_lease *lease = &m->leases[ended.id - m->base_id];
    model_run_out(m, lease);
    assert_true(lease->published && lease->over && !lease->given_back);
    assert_int_equal(ended.u.lease_end, lease->cause);
    assert_int_equal(ended.user, 2000 + ended.id);
    assert_true(m->world.fence[(ended.id - m->base_id) % WORLD_SLOTS].word >= kvf_fence_word_ended(ended.id));
    lease->given_back = true;
  }
}

static void live_by_seed(uint64_t seed)
{
  static model m;
  m = (model){.prng = {seed}, .now_ns = seed * MS(12345), .base_id = seed << 40};
  world_init(&m.world, m.now_ns);
  for (unsigned step = 0; step < STEPS; step++) {
    switch (kvf_prng_below(&m.prng, 16)) {
      case 0:
      case 1:
        step_publish(&m);
        break;
      case 2:
        if (kvf_prng_below(&m.prng, 4) == 0) {
          step_end(&m);
        }
        break;
      case 3:
        step_time(&m);
        break;
      case 4:
      case 5:
      case 6:
        step_store(&m);
        break;
      case 7:
        take_ended(&m);
        break;
      default:
        step_message(&m);
    }
  }
  assert_true(m.next > IDS / 4);
  for (m.now_ns += MS(WORLD_MAX_MS); m.world.table.live > 0; m.now_ns += MS(1)) {
    kvf_lease_table_tick(&m.world.table, m.now_ns, 1);
  }
  world_store_all(&m.world);
  take_ended(&m);
  for (uint64_t i = 0; i < IDS; i++) {
    assert_true(m.leases[i].published == m.leases[i].given_back);
  }
  assert_int_equal(m.world.table.unreleased, 0);
  assert_int_equal(kvf_wheel_next_deadline(&m.world.table.wheel), KVF_TIME_NEVER);
  kvf_lease_table_free(&m.world.table);
}

TEST(agrees_with_model)
{
  for (uint64_t seed = 1; seed <= 200; seed++) {
    live_by_seed(seed);
  }
}
