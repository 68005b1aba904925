/* Random worlds: everything that can come in comes in, in any order, and after each step a model of the destination
 * memory and of what was confirmed is compared with what the machine says. Checked in every run:
 *   P2  each load has its outcome by its deadline; no silence that was listened to lasts longer than
 *       2 * stall_timeout_ns
 *   P3  one outcome, then one release, for each load; the outcome says exactly what was confirmed before
 *   P4  no block is in two attempts at once, none is written to before its load's start or after its release
 * A failure names its seed: KVF_TEST_SEED=<seed> runs that one only. */
#include "base/prng.h"
#include "load_world.h"

#define RUNS 10000
#define STEPS 160
#define LOADS 4
#define PEERS 4
#define PARTS 3
#define ITEMS 12
#define BLOCKS (LOADS * ITEMS)
#define HEADS 4
#define READS 64
#define PATHS 512
#define STALL_MS 100
#define RELEASED_MS 150

/* The model: who may write to which block, what has been confirmed, and what the machine may say. */
typedef struct model_load {
  bool used;
  bool aborted;
  bool outcome;
  uint64_t request_id;
  uint64_t deadline_ms;
  uint64_t outcome_ms;
  uint32_t groups;
  uint32_t positions;
  uint32_t items_count;
  uint32_t parts_count;
  kvf_transfer_item items[ITEMS];
  world_slice parts[PARTS];
  bool good[PARTS][ITEMS];
  uint64_t progress_ms[PARTS];
} model_load;

typedef struct model_read {
  uint64_t id; /* 0: free */
  model_load *load;
  uint32_t part;
  uint32_t first;
  uint32_t count;
  uint32_t link_id;
  bool cancelled;
} model_read;

typedef struct model {
  kvf_prng prng;
  uint64_t now_ms;
  uint64_t silent_since_ms; /* no earlier, whatever the last progress was: there was a pause */
  bool benign;              /* the faults are over */
  model_load load[LOADS];
  model_read reads[READS];
  model_load *block_of[BLOCKS];   /* whose destination it is, from start to released */
  uint64_t writer[BLOCKS][HEADS]; /* the read that may write there */
  bool wanted[PEERS];             /* WANT_PATH is to be answered */
  bool pinged[PEERS];
  uint32_t paths; /* link n is of peer path_peer[n] */
  uint32_t path_peer[PATHS];
  bool path_down[PATHS];
  uint64_t last_read_id;
  uint64_t outcomes;
} model;

static model m_all;

static uint32_t pick(model *m, uint32_t bound)
{
  return (uint32_t)kvf_prng_below(&m->prng, bound);
}

static uint64_t now_ns(const model *m)
{
  return m->now_ms * MS;
}

static model_read *find_read(model *m, uint64_t id)
{
  for (size_t i = 0; i < READS; i++) {
    if (m->reads[i].id == id) {
      return &m->reads[i];
    }
  }
  return NULL;
}

static uint32_t reads_of(const model *m, const model_load *load, uint32_t part)
{
  uint32_t count = 0;
  for (size_t i = 0; i < READS; i++) {
    count += m->reads[i].id != 0 && m->reads[i].load == load && (part == PARTS || m->reads[i].part == part);
  }
  return count;
}

static uint32_t part_of(const model_load *load, uint32_t local_head)
{
  for (uint32_t part = 0; part < load->parts_count; part++) {
    if (load->parts[part].local_head == local_head) {
      return part;
    }
  }
  fail();
  return 0;
}

static uint32_t item_of(const model_load *load, const kvf_transfer_item *wanted)
{
  for (uint32_t i = 0; i < load->items_count; i++) {
    if (memcmp(&load->items[i], wanted, sizeof(*wanted)) == 0) {
      return i;
    }
  }
  fail();
  return 0;
}

static void own_destination(model *m, const model_read *read, uint64_t from, uint64_t to)
{
  const world_slice *part = &read->load->parts[read->part];
  for (uint32_t i = read->first; i < read->first + read->count; i++) {
    uint32_t block = read->load->items[i].local_block;
    assert_ptr_equal(m->block_of[block], read->load);
    for (uint32_t head = part->local_head; head < part->local_head + part->heads; head++) {
      assert_int_equal(m->writer[block][head], from);
      m->writer[block][head] = to;
    }
  }
}

static void on_read(model *m, const kvf_load_read *action)
{
  assert_true(action->transfer.items_count > 0 && action->transfer.id > m->last_read_id);
  m->last_read_id = action->transfer.id;
  model_load *load = m->block_of[action->transfer.items[0].local_block];
  assert_non_null(load);
  assert_false(load->outcome);
  model_read *read = find_read(m, 0);
  assert_non_null(read);
  *read = (model_read){.id = action->transfer.id,
                       .load = load,
                       .part = part_of(load, action->transfer.local_head),
                       .first = item_of(load, &action->transfer.items[0]),
                       .count = action->transfer.items_count,
                       .link_id = action->link_id};
  assert_true(read->first + read->count <= load->items_count);
  assert_memory_equal(action->transfer.items, &load->items[read->first], read->count * sizeof(*action->transfer.items));
  assert_int_equal(action->transfer.heads, load->parts[read->part].heads);
  assert_int_equal(m->path_peer[action->link_id], load->parts[read->part].peer);
  assert_false(m->path_down[action->link_id]);
  for (uint32_t i = read->first; i < read->first + read->count; i++) {
    assert_false(load->good[read->part][i]);
  }
  if (reads_of(m, load, read->part) == 1) {
    load->progress_ms[read->part] = m->now_ms;
  }
  own_destination(m, read, 0, read->id);
}

static void on_cancel(model *m, const kvf_load_read *action)
{
  model_read *read = find_read(m, action->transfer.id);
  assert_non_null(read);
  assert_int_equal(read->link_id, action->link_id);
  assert_false(read->cancelled);
  read->cancelled = true;
  if (!read->load->outcome) {
    assert_true(m->now_ms >= read->load->progress_ms[read->part] + STALL_MS);
  }
}

static void on_want(uint32_t peer)
{
  m_all.wanted[peer] = true;
}

static void on_ping(uint32_t peer)
{
  m_all.pinged[peer] = true;
}

static void on_stalled(uint32_t link_id, bool silent)
{
  (void)silent;
  assert_in_range(link_id, 1, PATHS - 1);
}

static model_load *find_load(model *m, uint64_t request_id)
{
  for (size_t i = 0; i < LOADS; i++) {
    if (m->load[i].used && m->load[i].request_id == request_id) {
      return &m->load[i];
    }
  }
  return NULL;
}

static uint32_t model_prefix(const model_load *load)
{
  uint32_t prefix = load->positions;
  for (uint32_t part = 0; part < load->parts_count; part++) {
    for (uint32_t i = 0; i < load->items_count; i++) {
      if (!load->good[part][i] && load->items[i].position < prefix) {
        prefix = load->items[i].position;
      }
    }
  }
  return prefix;
}

static void check_outcome(model *m, model_load *load, const kvf_report *report)
{
  assert_false(load->outcome);
  load->outcome = true;
  load->outcome_ms = m->now_ms;
  m->outcomes++;
  assert_int_equal(report->blocks, load->positions);
  assert_int_equal(report->prefix, model_prefix(load));
  assert_int_equal(report->status == KVF_OK, report->prefix == load->positions);
  assert_int_equal(report->status == KVF_ABORTED, load->aborted);
  if (report->status == KVF_DEADLINE) {
    assert_true(m->now_ms >= load->deadline_ms);
  }
}

static void check_released(model *m, model_load *load)
{
  assert_true(load->outcome);
  assert_int_equal(reads_of(m, load, PARTS), 0);
  for (uint32_t i = 0; i < load->items_count; i++) {
    m->block_of[load->items[i].local_block] = NULL;
  }
  load->used = false;
}

static void take_events(model *m)
{
  kvf_event event;
  while (kvf_loads_next_event(&w.loads, &event)) {
    model_load *load = find_load(m, event.id);
    assert_non_null(load);
    if (event.kind == KVF_EVENT_LOAD) {
      check_outcome(m, load, &event.u.report);
    } else {
      check_released(m, load);
    }
  }
}

static void check_decided(const model *m)
{
  for (size_t i = 0; i < READS; i++) {
    if (m->reads[i].id != 0 && m->reads[i].load->outcome) {
      assert_true(m->reads[i].cancelled);
    }
  }
}

static bool take_next(model *m)
{
  kvf_load_read next;
  if (kvf_loads_next_cancel(&w.loads, &next)) {
    on_cancel(m, &next);
  } else if (kvf_loads_next_read(&w.loads, now_ns(m), &next)) {
    on_read(m, &next);
  } else {
    return false;
  }
  return true;
}

/* Events first, so that the model knows why reads are cancelled; sometimes not all that is to be done is. */
static void take_all(model *m)
{
  uint32_t limit = m->benign || pick(m, 4) != 0 ? UINT32_MAX : pick(m, 4);
  take_events(m);
  while (limit-- > 0) {
    if (!take_next(m)) {
      check_decided(m);
      break;
    }
  }
  take_events(m);
}

/* ---- what happens ---- */

static uint32_t choose_items(model *m, model_load *load)
{
  uint32_t position = 0;
  uint32_t block = 0;
  uint32_t count = 0;
  while (count < ITEMS && pick(m, 10) != 0) {
    position += pick(m, 3) == 0;
    for (uint32_t group = 0; group < load->groups && count < ITEMS; group++) {
      while (m->block_of[block] != NULL) {
        block++;
      }
      load->items[count++] = (kvf_transfer_item){group, position, 500 + block, block};
      m->block_of[block] = load;
    }
    position++;
  }
  load->positions = (position + pick(m, 2)) * load->groups;
  return count;
}

/* Slices of the heads that do not overlap, each from a peer of its own. */
static uint32_t choose_parts(model *m, model_load *load)
{
  uint32_t peer = pick(m, PEERS);
  uint32_t head = 0;
  uint32_t count = 0;
  while (count < PARTS && head < HEADS && (count == 0 || pick(m, 2) == 0)) {
    uint32_t heads = 1 + pick(m, HEADS - head);
    load->parts[count] = (world_slice){.peer = peer, .local_head = head, .heads = heads};
    peer = (peer + 1) % PEERS;
    head += heads;
    count++;
  }
  return count;
}

static void start_load(model *m)
{
  uint64_t request_id = 500 + pick(m, LOADS);
  model_load *load = &m->load[request_id - 500];
  if (load->used) {
    return;
  }
  *load = (model_load){.used = true, .request_id = request_id, .groups = 1 + pick(m, 3)};
  load->items_count = choose_items(m, load);
  load->parts_count = choose_parts(m, load);
  load->deadline_ms = m->now_ms + 1 + pick(m, 1000);
  const world_load spec = {.request_id = request_id,
                           .deadline_ns = load->deadline_ms * MS,
                           .lease = {.id = LEASE_ID},
                           .groups = load->groups,
                           .positions = load->positions,
                           .items_count = load->items_count,
                           .items = load->items,
                           .slices_count = load->parts_count,
                           .slices = load->parts};
  world_start_load(now_ns(m), &spec);
}

static void finish_read(model *m, model_read *read, kvf_status status, uint64_t word)
{
  const world_slice *part = &read->load->parts[read->part];
  kvf_fence_sample sample = world_sample(part->peer, word);
  uint64_t id = read->id;
  own_destination(m, read, id, 0);
  if (status == KVF_OK) {
    read->load->progress_ms[read->part] = m->now_ms;
  }
  if (status == KVF_OK && word == kvf_fence_word_live(LEASE_ID) && !read->load->outcome) {
    for (uint32_t i = read->first; i < read->first + read->count; i++) {
      read->load->good[read->part][i] = true;
    }
  }
  read->id = 0;
  kvf_loads_on_read_done(&w.loads, now_ns(m), id, status, 0, status == KVF_OK ? &sample : NULL, 100);
}

static void finish_some_read(model *m)
{
  model_read *read = &m->reads[pick(m, READS)];
  const uint64_t live = kvf_fence_word_live(LEASE_ID);
  const kvf_status failures[] = {KVF_TRANSFER_FAILED, KVF_CANCELLED, KVF_PEER_DOWN, KVF_CHECKSUM, KVF_NOT_PUBLISHED};
  if (read->id == 0) {
    kvf_loads_on_read_done(&w.loads, now_ns(m), 1000000 + pick(m, 5), KVF_TRANSFER_FAILED, 0, NULL, 0);
    return;
  }
  switch (pick(m, 24)) {
    case 0:
      finish_read(m, read, KVF_OK, live + 1);
      break;
    case 1:
      finish_read(m, read, KVF_LEASE_UNKNOWN, 0);
      break;
    case 2:
    case 3:
      finish_read(m, read, KVF_OK, live - 1);
      break;
    case 4:
    case 5:
    case 6:
    case 7:
      finish_read(m, read, failures[pick(m, 5)], 0);
      break;
    default:
      finish_read(m, read, KVF_OK, live);
  }
}

static void progress_of_some_read(model *m)
{
  const model_read *read = &m->reads[pick(m, READS)];
  if (read->id != 0) {
    read->load->progress_ms[read->part] = m->now_ms;
  }
  kvf_loads_on_read_progress(&w.loads, now_ns(m), read->id == 0 ? 1000000 : read->id);
}

static void answer_link(model *m)
{
  uint32_t peer = pick(m, PEERS);
  if (!m->wanted[peer] && pick(m, 8) != 0) {
    return;
  }
  m->wanted[peer] = false;
  if (pick(m, 8) == 0) {
    kvf_loads_on_link(&w.loads, now_ns(m), &w.peer[peer], 0, KVF_PEER_DOWN);
    return;
  }
  assert_true(m->paths + 1 < PATHS - PEERS);
  m->paths++;
  m->path_peer[m->paths] = peer;
  kvf_loads_on_link(&w.loads, now_ns(m), &w.peer[peer], m->paths, KVF_OK);
}

static void take_path_down(model *m)
{
  if (m->paths > 0) {
    uint32_t link_id = m->paths - pick(m, m->paths < 4 ? m->paths : 4);
    m->path_down[link_id] = true;
    kvf_loads_on_link_down(&w.loads, now_ns(m), &w.peer[m->path_peer[link_id]], link_id);
  }
}

static void pong(model *m)
{
  uint32_t peer = pick(m, PEERS);
  if (m->pinged[peer] || pick(m, 8) == 0) {
    m->pinged[peer] = false;
    kvf_loads_on_pong(&w.peer[peer]);
  }
}

static void abort_some_load(model *m)
{
  uint64_t request_id = 500 + pick(m, LOADS + 1);
  model_load *load = find_load(m, request_id);
  if (load != NULL && !load->outcome) {
    load->aborted = true;
  }
  if (load != NULL) {
    assert_true(world_abort(now_ns(m), request_id));
  }
}

static void check_time(model *m)
{
  bool healthy = true;
  for (size_t i = 0; i < LOADS; i++) {
    const model_load *load = &m->load[i];
    if (load->used) {
      assert_true(load->outcome || m->now_ms < load->deadline_ms);
      healthy = healthy && (!load->outcome || m->now_ms < load->outcome_ms + RELEASED_MS);
    }
  }
  assert_int_equal(w.loads.stats.overdue == 0, healthy);
}

static void check_silence(const model *m)
{
  for (size_t i = 0; i < READS; i++) {
    const model_read *read = &m->reads[i];
    if (read->id != 0 && !read->cancelled) {
      uint64_t progress_ms = read->load->progress_ms[read->part];
      uint64_t since_ms = progress_ms > m->silent_since_ms ? progress_ms : m->silent_since_ms;
      assert_true(m->now_ms < since_ms + UINT64_C(2) * STALL_MS);
    }
  }
}

static void pass_time(model *m, uint64_t ms)
{
  m->now_ms += ms;
  if (ms >= STALL_MS / 2) {
    m->silent_since_ms = m->now_ms - STALL_MS / 2; /* who sleeps through half a timeout hears nobody */
  }
  while (world_next_deadline() <= now_ns(m)) {
    world_tick_some(m->now_ms, 1 + pick(m, 3));
  }
  take_events(m);
  check_time(m);
  while (take_next(m)) {
  }
  check_silence(m);
}

static void step(model *m)
{
  switch (pick(m, 16)) {
    case 0:
    case 1:
      start_load(m);
      break;
    case 2:
      if (pick(m, 4) == 0) {
        abort_some_load(m);
      }
      break;
    case 3:
      take_path_down(m);
      break;
    case 4:
    case 5:
      pass_time(m, pick(m, 60));
      break;
    case 6:
      progress_of_some_read(m);
      break;
    case 7:
      pong(m);
      break;
    case 8:
    case 9:
    case 10:
      answer_link(m);
      break;
    default:
      for (uint32_t i = 0; i < 8; i++) { /* most slots are free */
        finish_some_read(m);
        take_all(m);
      }
  }
  take_all(m);
}

/* The faults end: every load ends, good if there is time, and nothing is left. */
static void settle(model *m)
{
  m->benign = true;
  for (uint32_t round = 0; round < 1500 && kvf_loads_open(&w.loads) > 0; round++) {
    for (uint32_t peer = 0; peer < PEERS; peer++) {
      if (m->wanted[peer]) {
        m->wanted[peer] = false;
        m->path_peer[PATHS - 1 - peer] = peer;
        kvf_loads_on_link(&w.loads, now_ns(m), &w.peer[peer], PATHS - 1 - peer, KVF_OK);
        take_all(m);
      }
    }
    for (size_t i = 0; i < READS; i++) {
      if (m->reads[i].id != 0) {
        finish_read(m, &m->reads[i], KVF_OK, kvf_fence_word_live(LEASE_ID));
      }
    }
    take_all(m);
    pass_time(m, 1);
  }
  assert_int_equal(kvf_loads_open(&w.loads), 0);
  assert_int_equal(world_next_deadline(), KVF_TIME_NEVER);
  assert_int_equal(w.loads.stats.overdue, 0);
}

static uint64_t run_world(uint64_t seed)
{
  model *m = &m_all;
  memset(m, 0, sizeof(*m));
  m->prng.state = seed;
  world_init();
  w.on_want = on_want;
  w.on_ping = on_ping;
  w.on_stalled = on_stalled;
  kvf_config *config = &w.context.config;
  config->stall_timeout_ms = STALL_MS;
  config->release_timeout_ms = RELEASED_MS;
  config->backoff_min_ms = 2;
  config->backoff_max_ms = 50;
  config->chunk_bytes = 100 + pick(m, 1500);
  config->chunks_in_flight = 1 + pick(m, 4);
  config->inline_bytes = pick(m, 400);
  w.pool.head_bytes[0] = 100;
  w.pool.head_bytes[1] = 50;
  w.pool.head_bytes[2] = 300;
  m->now_ms = pick(m, 100000);
  world_open_at(now_ns(m), seed);
  for (uint32_t i = 0; i < STEPS; i++) {
    step(m);
  }
  settle(m);
  kvf_loads_free(&w.loads);
  return m->outcomes;
}

SEEDS_TEST(every_world_keeps_the_promises)
{
  uint64_t outcomes = 0;
  uint64_t runs = 0;
  for (uint64_t seed; test_next_seed(RUNS, &seed); runs++) {
    outcomes += run_world(seed);
  }
  assert_true(runs < RUNS || outcomes > RUNS);
}
