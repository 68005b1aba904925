/* Random schedules of an engine with a recovery table. After each step, and at the end of each schedule:
 *   P1  the engine computes from, and publishes, nothing but blocks that are good on all ranks
 *   P2  a request whose ranks are all in is told in the same step; when the faults end, everything ends
 *   P3  one decision, one abort, one release, each failed block drained once, exactly the lost tokens recomputed
 *   P4  no rank writes to a block whose request has been told to go on, or that is another's
 *   P5  all blocks go back
 *   P7  every rank's table says the same, in the same order, whatever the order in which it was told
 * A failure names its seed: KVF_TEST_SEED=<seed> runs that one only. */
#include "recovery_engine.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 3000, STEPS = 150, STEPS_TO_SETTLE = 600, EVENTS = 128 };

/* ---- what the tables are told ---- */

static void tell_end(engine *e, engine_request *request)
{
  for (uint32_t t = 0; t < e->tables_count; t++) {
    assert_int_equal(kvf_recovery_end(e->tables[t], request->id), request->ended ? KVF_NOT_FOUND : KVF_OK);
  }
  request->ended = true;
}

static void tell_bar(engine *e, engine_request *request, uint32_t bar)
{
  request->bars |= bar;
  for (uint32_t t = 0; t < e->tables_count; t++) {
    assert_int_equal(kvf_recovery_bar(e->tables[t], request->id, bar), KVF_OK);
  }
}

static void note_report(engine_request *request, const kvf_report *report)
{
  request->reported |= report->ranks_mask;
  request->prefix = report->prefix < request->prefix ? report->prefix : request->prefix;
  request->unsafe = request->unsafe || report->status == KVF_RANK_LOST;
}

static kvf_status deliver(kvf_recovery *table, const engine_request *request, const engine_message *message)
{
  if (message->kind == MESSAGE_REPORT) {
    return kvf_recovery_report(table, &message->report);
  }
  if (message->kind == MESSAGE_QUIET) {
    return kvf_recovery_quiet(table, request->id, UINT64_C(1) << message->rank);
  }
  uint32_t failed[PROMPT_BLOCKS];
  uint32_t count = 0;
  for (uint32_t position = message->report.blocks; position-- > message->report.prefix;) {
    failed[count++] = request->block_ids[position];
  }
  return kvf_recovery_report_blocks(table, message->rank, 0, failed, count, (kvf_status)message->report.status);
}

/* Failed block ids name no request: they come before the rank is quiet, after which the blocks may be another's. */
static bool may_go(const engine *e, const engine_message *message)
{
  for (uint32_t i = 0; message->kind == MESSAGE_QUIET && i < MESSAGES; i++) {
    const engine_message *other = &e->messages[i];
    if (other->kind == MESSAGE_BLOCKS && other->request == message->request && other->rank == message->rank) {
      return false;
    }
  }
  return message->delay == 0;
}

static bool is_gone(const engine_request *request, const engine_message *message)
{
  return message->kind == MESSAGE_REPORT ? message->report.request_id != request->id || request->phase == GONE
                                         : request->phase == GONE;
}

/* What has arrived in this step, to every table in an order of its own. */
static void exchange(engine *e)
{
  engine_message *arrived[MESSAGES];
  uint32_t count = 0;
  for (uint32_t i = 0; i < MESSAGES; i++) {
    engine_message *message = &e->messages[i];
    if (message->kind != MESSAGE_NONE && may_go(e, message)) {
      arrived[count++] = message;
    }
    message->delay -= message->delay > 0;
  }
  for (uint32_t t = 0; t < e->tables_count; t++) {
    for (uint32_t i = count; i > 1; i--) {
      uint32_t j = pick(e, i);
      engine_message *swap = arrived[i - 1];
      arrived[i - 1] = arrived[j];
      arrived[j] = swap;
    }
    for (uint32_t i = 0; i < count; i++) {
      const engine_request *request = &e->requests[arrived[i]->request];
      assert_int_equal(deliver(e->tables[t], request, arrived[i]),
                       is_gone(request, arrived[i]) ? KVF_NOT_FOUND : KVF_OK);
    }
  }
  for (uint32_t i = 0; i < count; i++) {
    engine_request *request = &e->requests[arrived[i]->request];
    if (!is_gone(request, arrived[i]) && arrived[i]->kind == MESSAGE_QUIET) {
      request->quiet |= UINT64_C(1) << arrived[i]->rank;
    } else if (!is_gone(request, arrived[i])) {
      note_report(request, &arrived[i]->report);
    }
    arrived[i]->kind = MESSAGE_NONE;
  }
}

/* The engine's own deadline: ranks that are not in, or not quiet, are lost. */
static void lose_ranks(engine *e, engine_request *request)
{
  uint64_t missing = e->all_ranks & ~(request->reported & request->quiet);
  const kvf_report lost = {.request_id = request->id,
                           .ranks_mask = missing,
                           .blocks = load_blocks(request),
                           .prefix = 0,
                           .status = KVF_RANK_LOST};
  for (uint32_t t = 0; missing != 0 && t < e->tables_count; t++) {
    assert_int_equal(kvf_recovery_report(e->tables[t], &lost), KVF_OK);
  }
  if (missing != 0) {
    note_report(request, &lost);
  }
}

/* A rank takes back a block of a load that had looked good. */
static void fail_late(engine *e, engine_request *request)
{
  const kvf_report late = {.request_id = request->id,
                           .ranks_mask = 1,
                           .blocks = load_blocks(request),
                           .prefix = request->local_blocks,
                           .status = KVF_CHECKSUM};
  for (uint32_t t = 0; t < e->tables_count; t++) {
    assert_int_equal(kvf_recovery_report(e->tables[t], &late), KVF_OK);
  }
  note_report(request, &late);
}

/* ---- what the tables say ---- */

static uint32_t good_blocks(const engine_request *request)
{
  return request->prefix > request->local_blocks ? request->prefix : request->local_blocks;
}

static void on_ready(engine *e, engine_request *request, const kvf_recovery_event *event)
{
  assert_int_equal(request->prefix, load_blocks(request));
  assert_true(is_good_everywhere(e, request, load_blocks(request)));
  assert_int_equal(event->computed_tokens, request->tokens);
  assert_int_equal(event->recompute_tokens, 0);
  e->ready++;
}

static void on_rewind(engine *e, engine_request *request, const kvf_recovery_event *event)
{
  uint32_t shortest = load_blocks(request);
  for (uint32_t rank = 0; rank < e->ranks; rank++) {
    shortest = request->loads[rank].done < shortest ? request->loads[rank].done : shortest;
  }
  assert_true(shortest < load_blocks(request));
  assert_int_equal(event->confirmed_blocks, shortest - request->local_blocks);
  assert_int_equal(event->computed_tokens, shortest * BLOCK_TOKENS);
  assert_int_equal(event->recompute_tokens, request->tokens - shortest * BLOCK_TOKENS);
  assert_true(is_good_everywhere(e, request, shortest));
  assert_int_equal(request->bars, 0);
  request->errors_expected = load_blocks(request) - shortest;
  e->rewound++;
  e->partial += event->confirmed_blocks > 0;
}

static void on_terminate(engine *e, engine_request *request, const kvf_recovery_event *event)
{
  uint32_t good = good_blocks(request);
  uint32_t bars = request->bars;
  uint32_t to_compute = request->prompt_tokens - good * BLOCK_TOKENS;
  bool too_long = e->recompute_max_tokens != 0 && to_compute > e->recompute_max_tokens;
  bars |= too_long && good < load_blocks(request) ? (uint32_t)KVF_BAR_TOO_LONG : 0;
  bars |= request->unsafe ? (uint32_t)KVF_BAR_UNSAFE : 0;
  bars |= request->told != 0 ? (uint32_t)KVF_BAR_USED : 0;
  assert_int_not_equal(bars, 0);
  assert_int_equal(event->bars, bars);
  assert_false(request->terminated);
  request->terminated = true;
  uint32_t until = request->told != 0 ? request->kept : load_blocks(request);
  request->errors_expected = until - good;
  e->terminated++;
}

static void on_decision(engine *e, engine_request *request, const kvf_recovery_event *event)
{
  assert_false(request->ended);
  assert_int_equal(request->reported, e->all_ranks);
  if (event->kind == KVF_RECOVERY_TERMINATE) {
    on_terminate(e, request, event);
    request->phase = DONE;
  } else {
    assert_int_equal(request->told, 0);
    for (uint32_t rank = 0; rank < e->ranks; rank++) {
      assert_int_equal(request->loads[rank].state, LOAD_QUIET);
    }
    (event->kind == KVF_RECOVERY_READY ? on_ready : on_rewind)(e, request, event);
    request->phase = RUNNING;
    request->computed_tokens = event->computed_tokens;
  }
  request->told = event->kind;
  request->kept = good_blocks(request);
}

static void act(engine *e, const kvf_recovery_event *event)
{
  engine_request *request = &e->requests[event->user];
  assert_int_equal(request->id, event->request_id);
  assert_true(request->phase == PARKED || request->phase == RUNNING || request->phase == DONE);
  switch (event->kind) {
    case KVF_RECOVERY_READY:
    case KVF_RECOVERY_REWIND:
    case KVF_RECOVERY_TERMINATE:
      on_decision(e, request, event);
      break;
    case KVF_RECOVERY_ABORT:
      assert_false(request->aborted);
      assert_true(request->ended || request->terminated);
      assert_int_equal(event->ranks_mask, e->all_ranks & ~request->quiet);
      request->aborted = true;
      e->aborted++;
      for (uint32_t rank = 0; rank < e->ranks; rank++) {
        request->loads[rank].aborted = true;
      }
      break;
    case KVF_RECOVERY_RELEASE:
      assert_false(request->released);
      assert_int_equal(request->quiet, e->all_ranks);
      for (uint32_t rank = 0; rank < e->ranks; rank++) {
        assert_int_equal(request->loads[rank].state, LOAD_QUIET);
      }
      request->released = true;
      break;
  }
}

/* Every table says the same: no rank goes into the next step's collectives with a plan of its own. */
static void take_events(engine *e)
{
  kvf_recovery_event event;
  uint32_t count = 0;
  while (kvf_recovery_next_event(e->tables[0], &event)) {
    for (uint32_t t = 1; t < e->tables_count; t++) {
      kvf_recovery_event other;
      assert_true(kvf_recovery_next_event(e->tables[t], &other));
      assert_memory_equal(&event, &other, sizeof(event));
    }
    act(e, &event);
    assert_true(count++ < EVENTS);
  }
  for (uint32_t t = 1; t < e->tables_count; t++) {
    assert_false(kvf_recovery_next_event(e->tables[t], &event));
  }
}

static void take_errors(engine *e)
{
  for (uint32_t t = 0; t < e->tables_count; t++) {
    kvf_recovery_error errors[5];
    size_t count;
    while ((count = kvf_recovery_drain_errors(e->tables[t], errors, 1 + pick(e, 5))) > 0) {
      for (size_t i = 0; t == 0 && i < count; i++) {
        engine_request *request = NULL;
        for (uint32_t r = 0; r < REQUESTS; r++) {
          request =
              e->requests[r].phase != GONE && e->requests[r].id == errors[i].request_id ? &e->requests[r] : request;
        }
        assert_non_null(request);
        uint32_t position = errors[i].position;
        assert_int_equal(request->block_ids[position], errors[i].block_id);
        assert_true(position >= request->kept);
        assert_int_equal(request->drained_mask & (1u << position), 0);
        request->drained_mask |= 1u << position;
        request->errors_expected--;
      }
    }
  }
  for (uint32_t r = 0; r < REQUESTS; r++) {
    assert_int_equal(e->requests[r].errors_expected, 0);
  }
}

/* ---- the scheduler ---- */

static void arrive(engine *e, engine_request *request)
{
  uint32_t blocks = 1 + pick(e, PROMPT_BLOCKS);
  *request = (engine_request){.phase = WAITING,
                              .id = e->next_id++,
                              .family = pick(e, FAMILIES),
                              .blocks = blocks,
                              .prompt_tokens = blocks * BLOCK_TOKENS - pick(e, BLOCK_TOKENS)};
}

static void admit(engine *e, engine_request *request)
{
  if (!engine_take_blocks(e, request)) {
    return;
  }
  uint32_t local_tokens = request->local_blocks * BLOCK_TOKENS;
  request->tokens = local_tokens + pick(e, request->prompt_tokens - local_tokens + 1);
  request->bars = fault(e, 12) ? 1u << pick(e, 5) : 0;
  uint32_t ids[PROMPT_BLOCKS];
  for (uint32_t position = 0; position < load_blocks(request); position++) {
    ids[position] = position < request->local_blocks ? KVF_BLOCK_NONE : request->block_ids[position];
  }
  const uint32_t counts[] = {load_blocks(request)};
  const kvf_recovery_request admission = {.request_id = request->id,
                                          .user = index_of(e, request),
                                          .blocks = {ids, counts, 1},
                                          .local_prefix_tokens = local_tokens,
                                          .tokens = request->tokens,
                                          .prompt_tokens = request->prompt_tokens,
                                          .bars = request->bars};
  kvf_status status = kvf_recovery_admit(e->tables[0], &admission);
  for (uint32_t t = 1; t < e->tables_count; t++) {
    assert_int_equal(kvf_recovery_admit(e->tables[t], &admission), status);
  }
  if (status != KVF_OK) {
    assert_int_equal(status, KVF_NO_MEMORY);
    engine_give_back(e, request, request->blocks);
    return;
  }
  request->prefix = load_blocks(request);
  request->phase = PARKED;
  engine_start_loads(e, request);
}

/* One block of context on all ranks, from what is there before it. */
static void compute(engine *e, engine_request *request)
{
  if (request->computed_tokens == request->prompt_tokens) {
    return;
  }
  uint32_t position = request->computed_tokens / BLOCK_TOKENS;
  uint32_t end = (position + 1) * BLOCK_TOKENS;
  end = end < request->prompt_tokens ? end : request->prompt_tokens;
  assert_true(is_good_everywhere(e, request, position));
  for (uint32_t rank = 0; rank < e->ranks; rank++) {
    assert_int_equal(e->owners[request->block_ids[position]], 1 + index_of(e, request));
    e->memory[rank][request->block_ids[position]] = content(request->family, position);
  }
  uint32_t loaded_end = end < request->tokens ? end : request->tokens;
  request->recomputed_tokens += loaded_end > request->computed_tokens ? loaded_end - request->computed_tokens : 0;
  request->computed_tokens = end;
}

static void run(engine *e, engine_request *request)
{
  compute(e, request);
  if (request->computed_tokens < request->prompt_tokens) {
    return;
  }
  uint32_t lost = request->told == KVF_RECOVERY_REWIND ? request->tokens - request->kept * BLOCK_TOKENS : 0;
  assert_int_equal(request->recomputed_tokens, lost);
  assert_true(is_good_everywhere(e, request, request->blocks));
  engine_publish(e, request);
  e->finished++;
  tell_bar(e, request, KVF_BAR_GENERATED);
  request->phase = DONE;
}

static void step_request(engine *e, engine_request *request)
{
  request->age++;
  if (request->phase == UNUSED || request->phase == GONE) {
    if (e->faults && pick(e, 6) == 0) {
      arrive(e, request);
    }
    return;
  }
  if (request->phase == WAITING) {
    request->age = 0;
    admit(e, request);
    return;
  }
  if (request->phase == PARKED && request->told == 0 && !request->ended && request->age == PATIENCE) {
    lose_ranks(e, request);
  }
  if (request->phase == RUNNING && !request->ended) {
    if (request->kept > request->local_blocks && fault(e, 60)) {
      fail_late(e, request);
      return;
    }
    run(e, request);
  }
  if (fault(e, 40) || (request->phase == DONE && pick(e, 3) == 0)) { /* cancelled, or over */
    tell_end(e, request);
    request->phase = request->phase == RUNNING ? DONE : request->phase;
  }
}

static void leave(engine *e, engine_request *request)
{
  if ((request->phase == PARKED || request->phase == DONE) && request->ended && request->released) {
    engine_give_back(e, request, request->blocks);
    request->phase = GONE;
  }
}

/* Nobody waits who has been decided on. */
static void check_told(const engine *e)
{
  uint32_t open = 0;
  for (uint32_t r = 0; r < REQUESTS; r++) {
    const engine_request *request = &e->requests[r];
    bool in_table = request->phase == PARKED || request->phase == RUNNING || request->phase == DONE;
    bool all_in = request->reported == e->all_ranks && request->quiet == e->all_ranks;
    open += in_table;
    assert_false(in_table && all_in && !request->ended && request->told == 0);
    assert_false(in_table && request->quiet == e->all_ranks && (request->ended || request->told != 0) &&
                 !request->released);
  }
  for (uint32_t t = 0; t < e->tables_count; t++) {
    kvf_recovery_stats stats;
    kvf_recovery_get_stats(e->tables[t], &stats);
    assert_int_equal(stats.open, open);
    assert_int_equal(stats.admitted - stats.released, stats.loading);
    assert_true(stats.open > 0 || stats.loading == 0);
  }
}

static void step(engine *e)
{
  for (uint32_t r = 0; r < REQUESTS; r++) {
    step_request(e, &e->requests[r]);
    leave(e, &e->requests[r]);
  }
  for (uint32_t r = 0; r < REQUESTS; r++) {
    for (uint32_t rank = 0; rank < e->ranks; rank++) {
      if (e->requests[r].phase != GONE && pick(e, 2) == 0) {
        engine_step_load(e, &e->requests[r], rank);
      }
    }
  }
  exchange(e);
  take_events(e);
  take_errors(e);
  for (uint32_t r = 0; r < REQUESTS; r++) {
    leave(e, &e->requests[r]);
  }
  check_told(e);
}

/* ---- whole schedules ---- */

static void check_empty(const engine *e)
{
  bool cached[POOL] = {false};
  for (uint32_t family = 0; family < FAMILIES; family++) {
    for (uint32_t position = 0; position < PROMPT_BLOCKS; position++) {
      if (e->cache[family][position] != 0) {
        cached[e->cache[family][position] - 1] = true;
      }
    }
  }
  for (uint32_t block = 0; block < POOL; block++) {
    assert_int_equal(e->references[block], cached[block]);
    assert_int_equal(e->owners[block], 0);
  }
}

static bool is_busy(const engine *e)
{
  for (uint32_t r = 0; r < REQUESTS; r++) {
    if (e->requests[r].phase != UNUSED && e->requests[r].phase != GONE) {
      return true;
    }
  }
  return false;
}

static void open_tables(engine *e)
{
  const kvf_recovery_options options = {.ranks = e->ranks,
                                        .block_tokens = BLOCK_TOKENS,
                                        .requests_max = TABLE,
                                        .recompute_max_tokens = e->recompute_max_tokens,
                                        .groups = 1,
                                        .pool_blocks = {POOL}};
  for (uint32_t t = 0; t < e->tables_count; t++) {
    assert_int_equal(kvf_recovery_open(&options, &e->tables[t]), KVF_OK);
  }
}

static engine world;

static void run_world(uint64_t seed)
{
  engine *e = &world;
  memset(e, 0, sizeof(*e));
  e->prng.state = seed;
  e->ranks = 1 + pick(e, RANKS);
  e->all_ranks = (UINT64_C(1) << e->ranks) - 1;
  e->tables_count = pick(e, 2) == 0 ? 1 : e->ranks;
  e->recompute_max_tokens = pick(e, 3) == 0 ? 1 + pick(e, PROMPT_BLOCKS * BLOCK_TOKENS) : 0;
  e->next_id = 1;
  e->faults = true;
  open_tables(e);
  for (uint32_t i = 0; i < STEPS; i++) {
    step(e);
  }
  e->faults = false;
  for (uint32_t i = 0; is_busy(e); i++) {
    assert_true(i < STEPS_TO_SETTLE);
    step(e);
  }
  check_empty(e);
  for (uint32_t t = 0; t < e->tables_count; t++) {
    kvf_recovery_close(e->tables[t]);
  }
}

SEEDS_TEST(every_schedule_keeps_the_promises)
{
  uint64_t runs = 0;
  uint64_t seen[] = {0, 0, 0, 0, 0, 0};
  for (uint64_t seed; test_next_seed(RUNS, &seed); runs++) {
    run_world(seed);
    const uint64_t counts[] = {world.ready,      world.rewound, world.partial,
                               world.terminated, world.aborted, world.finished};
    for (size_t i = 0; i < sizeof(seen) / sizeof(seen[0]); i++) {
      seen[i] += counts[i];
    }
  }
  for (size_t i = 0; runs == RUNS && i < sizeof(seen) / sizeof(seen[0]); i++) {
    assert_true(seen[i] >= runs); /* each happens, and not rarely */
  }
}
