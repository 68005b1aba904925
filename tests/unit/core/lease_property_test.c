/* The lease table against a model that keeps every message it has ever seen and judges by looking through them all.
 * Messages are repeated and come late, to leases that are live, over, gone or still to come. */
#include "base/prng.h"
#include "lease_world.h"

enum { NAMES = 4, IDS = 400, STEPS = 6000 };

typedef enum model_consumer_state { AWAY, ATTACHED, COMPLETED, ABORTED } model_consumer_state;

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
    return KVF_LEASE_STATE_OVER;
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
    lease->deadline_ns = kvf_time_min(m->now_ns + WORLD_TTL_NS, lease->deadline_max_ns);
  }
}

static void model_complete(model_lease *lease, model_consumer_state *consumer)
{
  *consumer = *consumer > ATTACHED ? *consumer : COMPLETED;
  model_judge(lease);
}

static void model_abort(model_lease *lease, model_consumer_state *consumer)
{
  *consumer = *consumer == COMPLETED ? COMPLETED : ABORTED;
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
    lease->deadline_max_ns = m->now_ns + WORLD_MAX_NS;
    lease->deadline_ns = m->now_ns + WORLD_TTL_NS;
    m->seen[slot] = i + 1;
  }
  if (i == m->next && (expected == KVF_OK || m->seen[slot] > i)) {
    m->next++;
  }
}

static void step_message(model *m)
{
  uint64_t i = random_index(m);
  uint32_t slot = (uint32_t)(i % WORLD_SLOTS);
  uint64_t id = m->base_id + i;
  int name = (int)kvf_prng_below(&m->prng, NAMES);
  uint64_t kind = kvf_prng_below(&m->prng, 8);
  model_lease *lease = &m->leases[i];
  model_run_out(m, lease);
  kvf_lease_state expected = model_state(m, i);
  kvf_lease_state state;
  if (kind < 4) {
    state = world_renew(&m->world, m->now_ns, slot, id, (char)name);
  } else if (kind < 7) {
    state = world_complete(&m->world, m->now_ns, slot, id, (char)name);
  } else {
    state = world_abort(&m->world, m->now_ns, slot, id, (char)name);
  }
  if (model_is_live(lease) && kind < 4) {
    model_renew(m, lease, &lease->consumers[name]);
  } else if (model_is_live(lease) && kind < 7) {
    model_complete(lease, &lease->consumers[name]);
  } else if (model_is_live(lease)) {
    model_abort(lease, &lease->consumers[name]);
  }
  assert_int_equal(state, lease->over ? KVF_LEASE_STATE_OVER : expected);
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
  kvf_lease_ended ended;
  while (kvf_lease_table_next_ended(&m->world.table, &ended)) {
    assert_in_range(ended.id - m->base_id, 0, IDS - 1);
    model_lease *lease = &m->leases[ended.id - m->base_id];
    model_run_out(m, lease);
    assert_true(lease->published && lease->over && !lease->given_back);
    assert_int_equal(ended.cause, lease->cause);
    assert_int_equal(ended.user, 2000 + ended.id);
    assert_true(m->world.fence[ended.slot].word >= kvf_fence_word_over(ended.id));
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
  for (m.now_ns += WORLD_MAX_NS; m.world.table.live > 0; m.now_ns += MS(1)) {
    kvf_lease_table_tick(&m.world.table, m.now_ns, 1);
  }
  world_store_all(&m.world);
  take_ended(&m);
  for (uint64_t i = 0; i < IDS; i++) {
    assert_true(m.leases[i].published == m.leases[i].given_back);
  }
  assert_int_equal(m.world.table.held, 0);
  assert_int_equal(kvf_lease_table_next_deadline(&m.world.table), KVF_TIME_NEVER);
  kvf_lease_table_free(&m.world.table);
}

TEST(agrees_with_model)
{
  for (uint64_t seed = 1; seed <= 200; seed++) {
    live_by_seed(seed);
  }
}
