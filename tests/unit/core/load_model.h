/* The model of the property test: who may write to which block, what has been confirmed, and what the machine may say.
 */
#ifndef KVF_TESTS_LOAD_MODEL_H
#define KVF_TESTS_LOAD_MODEL_H

#include "base/prng.h"
#include "load_world.h"

#define LOADS 4
#define PEERS 4
#define PARTS 3
#define ITEMS 12
#define BLOCKS (LOADS * ITEMS)
#define HEADS 4
#define READS 64
#define PATHS 512
#define STALL_MS 100
#define QUIET_MS 150

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
  kvf_read_item items[ITEMS];
  kvf_load_part_spec parts[PARTS];
  bool good[PARTS][ITEMS];
  uint64_t progress_ms[PARTS];
} model_load;

typedef struct model_read {
  uint64_t id; /* 0: free */
  model_load *load;
  uint32_t part;
  uint32_t first;
  uint32_t count;
  uint32_t path;
  bool cancelled;
} model_read;

typedef struct model {
  kvf_loads *loads;
  kvf_prng prng;
  uint64_t now_ms;
  uint64_t silent_since_ms; /* no earlier, whatever the last progress was: there was a pause */
  bool benign;              /* the faults are over */
  model_load load[LOADS];
  model_read reads[READS];
  model_load *block_of[BLOCKS];   /* whose destination it is, from start to quiet */
  uint64_t writer[BLOCKS][HEADS]; /* the read that may write there */
  bool wanted[PEERS];             /* WANT_PATH is to be answered */
  bool pinged[PEERS];
  uint32_t paths; /* path n is of peer path_peer[n] */
  uint32_t path_peer[PATHS];
  bool path_down[PATHS];
  uint64_t last_read_id;
  uint64_t outcomes;
} model;

static inline uint32_t pick(model *m, uint32_t bound)
{
  return (uint32_t)kvf_prng_below(&m->prng, bound);
}

static inline uint64_t now_ns(const model *m)
{
  return m->now_ms * MS;
}

static inline model_read *find_read(model *m, uint64_t id)
{
  for (size_t i = 0; i < READS; i++) {
    if (m->reads[i].id == id) {
      return &m->reads[i];
    }
  }
  return NULL;
}

static inline uint32_t reads_of(const model *m, const model_load *load, uint32_t part)
{
  uint32_t count = 0;
  for (size_t i = 0; i < READS; i++) {
    count += m->reads[i].id != 0 && m->reads[i].load == load && (part == PARTS || m->reads[i].part == part);
  }
  return count;
}

static inline uint32_t part_of(const model_load *load, uint32_t local_head)
{
  for (uint32_t part = 0; part < load->parts_count; part++) {
    if (load->parts[part].local_head == local_head) {
      return part;
    }
  }
  fail();
  return 0;
}

static inline uint32_t item_of(const model_load *load, const kvf_read_item *wanted)
{
  for (uint32_t i = 0; i < load->items_count; i++) {
    if (memcmp(&load->items[i], wanted, sizeof(*wanted)) == 0) {
      return i;
    }
  }
  fail();
  return 0;
}

static inline void own_destination(model *m, const model_read *read, uint64_t from, uint64_t to)
{
  const kvf_load_part_spec *part = &read->load->parts[read->part];
  for (uint32_t i = read->first; i < read->first + read->count; i++) {
    uint32_t block = read->load->items[i].local_block;
    assert_ptr_equal(m->block_of[block], read->load);
    for (uint32_t head = part->local_head; head < part->local_head + part->heads; head++) {
      assert_int_equal(m->writer[block][head], from);
      m->writer[block][head] = to;
    }
  }
}

static inline void on_read(model *m, const kvf_load_action *action)
{
  assert_true(action->items_count > 0 && action->read_id > m->last_read_id);
  m->last_read_id = action->read_id;
  model_load *load = m->block_of[action->items[0].local_block];
  assert_non_null(load);
  assert_false(load->outcome);
  model_read *read = find_read(m, 0);
  assert_non_null(read);
  *read = (model_read){.id = action->read_id,
                       .load = load,
                       .part = part_of(load, action->local_head),
                       .first = item_of(load, &action->items[0]),
                       .count = action->items_count,
                       .path = action->path};
  assert_true(read->first + read->count <= load->items_count);
  assert_memory_equal(action->items, &load->items[read->first], read->count * sizeof(*action->items));
  assert_int_equal(action->heads, load->parts[read->part].heads);
  assert_int_equal(action->peer, load->parts[read->part].peer);
  assert_int_equal(m->path_peer[action->path], action->peer);
  assert_false(m->path_down[action->path]);
  for (uint32_t i = read->first; i < read->first + read->count; i++) {
    assert_false(load->good[read->part][i]);
  }
  if (reads_of(m, load, read->part) == 1) {
    load->progress_ms[read->part] = m->now_ms;
  }
  own_destination(m, read, 0, read->id);
}

static inline void on_cancel(model *m, const kvf_load_action *action)
{
  model_read *read = find_read(m, action->read_id);
  assert_non_null(read);
  assert_int_equal(read->path, action->path);
  assert_false(read->cancelled);
  read->cancelled = true;
  if (!read->load->outcome) {
    assert_true(m->now_ms >= read->load->progress_ms[read->part] + STALL_MS);
  }
}

static inline void take_action(model *m, const kvf_load_action *action)
{
  switch (action->kind) {
    case KVF_LOAD_READ:
      on_read(m, action);
      break;
    case KVF_LOAD_CANCEL:
      on_cancel(m, action);
      break;
    case KVF_LOAD_WANT_PATH:
      m->wanted[action->peer] = true;
      break;
    case KVF_LOAD_PING:
      m->pinged[action->peer] = true;
      break;
    case KVF_LOAD_PATH_STALLED:
      assert_int_equal(m->path_peer[action->path], action->peer);
      break;
    default:
      fail();
  }
}

static inline model_load *find_load(model *m, uint64_t request_id)
{
  for (size_t i = 0; i < LOADS; i++) {
    if (m->load[i].used && m->load[i].request_id == request_id) {
      return &m->load[i];
    }
  }
  return NULL;
}

static inline uint32_t model_prefix(const model_load *load)
{
  uint32_t prefix = load->positions;
  for (uint32_t part = 0; part < load->parts_count; part++) {
    for (uint32_t i = 0; i < load->items_count; i++) {
      if (!load->good[part][i] && load->items[i].position < prefix) {
        prefix = load->items[i].position;
      }
    }
  }
  return load->groups == 1 || prefix == load->positions ? prefix : 0;
}

static inline void check_outcome(model *m, model_load *load, const kvf_report *report)
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

static inline void check_quiet(model *m, model_load *load)
{
  assert_true(load->outcome);
  assert_int_equal(reads_of(m, load, PARTS), 0);
  for (uint32_t i = 0; i < load->items_count; i++) {
    m->block_of[load->items[i].local_block] = NULL;
  }
  load->used = false;
}

static inline void take_events(model *m)
{
  kvf_load_event event;
  while (kvf_loads_next_event(m->loads, &event)) {
    model_load *load = find_load(m, event.request_id);
    assert_non_null(load);
    if (event.kind == KVF_LOAD_OUTCOME) {
      check_outcome(m, load, &event.report);
    } else {
      check_quiet(m, load);
    }
  }
}

static inline void check_decided(const model *m)
{
  for (size_t i = 0; i < READS; i++) {
    if (m->reads[i].id != 0 && m->reads[i].load->outcome) {
      assert_true(m->reads[i].cancelled);
    }
  }
}

/* Events first, so that the model knows why reads are cancelled; sometimes not all actions are taken. */
static inline void take_all(model *m)
{
  kvf_load_action action;
  uint32_t limit = m->benign || pick(m, 4) != 0 ? UINT32_MAX : pick(m, 4);
  take_events(m);
  while (limit-- > 0) {
    if (!kvf_loads_next_action(m->loads, now_ns(m), &action)) {
      check_decided(m);
      break;
    }
    take_action(m, &action);
  }
  take_events(m);
}

#endif
