#include "recovery_engine.h"

/* ---- the pool ---- */

static uint32_t free_block(engine *e)
{
  for (uint32_t block = 0; block < POOL; block++) {
    if (e->references[block] == 0) {
      return block;
    }
  }
  return POOL;
}

/* The cache holds a reference of its own. */
static void evict(engine *e)
{
  for (uint32_t family = 0; family < FAMILIES; family++) {
    for (uint32_t position = PROMPT_BLOCKS; position-- > 0;) {
      uint32_t cached = e->cache[family][position];
      if (cached != 0 && e->references[cached - 1] == 1) {
        e->references[cached - 1] = 0;
        e->cache[family][position] = 0;
        return;
      }
    }
  }
}

static uint32_t allocate(engine *e, const engine_request *request)
{
  if (free_block(e) == POOL) {
    evict(e);
  }
  uint32_t block = free_block(e);
  if (block < POOL) {
    assert_int_equal(e->owners[block], 0);
    e->references[block] = 1;
    e->owners[block] = 1 + index_of(e, request);
  }
  return block;
}

void engine_give_back(engine *e, engine_request *request, uint32_t blocks)
{
  for (uint32_t position = 0; position < blocks; position++) {
    uint32_t block = request->block_ids[position];
    assert_true(e->references[block] > 0);
    e->references[block]--;
    if (e->owners[block] == 1 + index_of(e, request)) {
      e->owners[block] = 0;
    }
  }
}

bool engine_take_blocks(engine *e, engine_request *request)
{
  uint32_t local = 0;
  while (local < request->prompt_tokens / BLOCK_TOKENS && e->cache[request->family][local] != 0 && pick(e, 8) != 0) {
    request->block_ids[local] = e->cache[request->family][local] - 1;
    e->references[request->block_ids[local]]++;
    local++;
  }
  request->local_blocks = local;
  for (uint32_t position = local; position < request->blocks; position++) {
    request->block_ids[position] = allocate(e, request);
    if (request->block_ids[position] == POOL) {
      engine_give_back(e, request, position);
      return false;
    }
  }
  return true;
}

void engine_publish(engine *e, const engine_request *request)
{
  for (uint32_t position = 0; position < request->prompt_tokens / BLOCK_TOKENS; position++) {
    uint32_t *cached = &e->cache[request->family][position];
    if (*cached == 0) {
      *cached = request->block_ids[position] + 1;
      e->references[*cached - 1]++;
      e->owners[*cached - 1] = 0;
    }
  }
}

/* ---- the ranks ---- */

static void send(engine *e, message_kind kind, uint32_t request, uint32_t rank, const kvf_report *report)
{
  engine_message message = {.kind = kind, .request = request, .rank = rank, .delay = e->faults ? pick(e, 6) : 0};
  if (report != NULL) {
    message.report = *report;
  }
  for (uint32_t i = 0; i < MESSAGES; i++) {
    if (e->messages[i].kind == MESSAGE_NONE) {
      e->messages[i] = message;
      return;
    }
  }
  fail_msg("too many messages");
}

/* Nothing may write where the engine has been told to go on, or where the block is not this request's. */
static void write_block(engine *e, engine_request *request, uint32_t rank, uint32_t position, uint64_t value)
{
  uint32_t block = request->block_ids[position];
  assert_true(request->told != KVF_RECOVERY_READY && request->told != KVF_RECOVERY_REWIND);
  assert_false(request->released);
  assert_int_equal(e->owners[block], 1 + index_of(e, request));
  e->memory[rank][block] = value;
}

static void outcome(engine *e, engine_request *request, uint32_t rank, kvf_status status)
{
  engine_load *load = &request->loads[rank];
  uint32_t blocks = load_blocks(request);
  load->state = LOAD_OVER;
  const kvf_report report = {.request_id = request->id,
                             .ranks_mask = UINT64_C(1) << rank,
                             .blocks = blocks,
                             .prefix = load->done,
                             .status = load->done == blocks ? KVF_OK : status};
  bool by_blocks = report.status != KVF_OK && load->done >= request->local_blocks && pick(e, 3) == 0;
  send(e, by_blocks ? MESSAGE_BLOCKS : MESSAGE_REPORT, index_of(e, request), rank, &report);
  if (!by_blocks && fault(e, 4)) {
    send(e, MESSAGE_REPORT, index_of(e, request), rank, &report);
  }
}

void engine_step_load(engine *e, engine_request *request, uint32_t rank)
{
  static const kvf_status reasons[] = {KVF_TRANSFER_FAILED, KVF_PEER_DOWN, KVF_LEASE_EXPIRED, KVF_DEADLINE,
                                       KVF_CHECKSUM};
  engine_load *load = &request->loads[rank];
  uint32_t blocks = load_blocks(request);
  if (load->state == LOAD_OVER && load->done < blocks && fault(e, 2)) {
    write_block(e, request, rank, load->done, 13); /* a read that had not stopped yet */
  } else if (load->state == LOAD_OVER && !load->quiet_sent) {
    load->quiet_sent = true;
    load->state = LOAD_QUIET;
    send(e, MESSAGE_QUIET, index_of(e, request), rank, NULL);
  } else if (load->state == LOAD_GOING && load->hangs) {
    load->hangs = e->faults; /* its process is replaced in the end */
    load->aborted = true;
  } else if (load->state == LOAD_GOING && load->aborted) {
    outcome(e, request, rank, KVF_ABORTED);
  } else if (load->state == LOAD_GOING && load->done == blocks) {
    outcome(e, request, rank, KVF_OK);
  } else if (load->state == LOAD_GOING && load->done == load->fail_at) {
    write_block(e, request, rank, load->done, 7);
    outcome(e, request, rank, reasons[pick(e, 5)]);
  } else if (load->state == LOAD_GOING) {
    write_block(e, request, rank, load->done, content(request->family, load->done));
    load->done++;
  }
}

void engine_start_loads(engine *e, engine_request *request)
{
  uint32_t loaded = load_blocks(request) - request->local_blocks;
  for (uint32_t rank = 0; rank < e->ranks; rank++) {
    bool fails = loaded > 0 && fault(e, 3);
    request->loads[rank] = (engine_load){.state = LOAD_GOING,
                                         .done = request->local_blocks,
                                         .fail_at = fails ? request->local_blocks + pick(e, loaded) : UINT32_MAX,
                                         .hangs = fault(e, 60)};
  }
}
