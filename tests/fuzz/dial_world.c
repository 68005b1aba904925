/* Plays the runtime and the engine to the core, and checks after each step what it has said. */
#include "dial_world.h"

#include <string.h>

#define SLACK_NS (20 * MS) /* the core is ticked at least that often where time counts */

dial_world world;

kvf_incarnation dial_incarnation(uint32_t producer)
{
  kvf_incarnation incarnation;
  memset(&incarnation, 'P' + (int)producer, sizeof(incarnation));
  return incarnation;
}

kvf_lease dial_lease(uint32_t load)
{
  return (kvf_lease){.id = 100 + load, .slot = load, .token = {(uint8_t)load}};
}

kvf_prompt dial_prompt(void)
{
  return (kvf_prompt){.tokens = POSITIONS * BLOCK_TOKENS};
}

/* ---- what the core wants ---- */

static void start_dial(const kvf_peer_action *action)
{
  uint32_t producer = (uint32_t)action->address.port - FIRST_PORT;
  fuzz_check(producer < PRODUCERS && world.is_named[producer]);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    if (world.dials[i] == 0) {
      world.dials[i] = action->conn_id;
      return;
    }
  }
  kvf_core_on_dialed(world.core, world.all.now_ns, action->conn_id, KVF_PEER_DOWN);
}

static void open_path(const kvf_peer_action *action)
{
  uint32_t producer = (uint32_t)action->address.port - FIRST_PORT;
  kvf_incarnation incarnation = dial_incarnation(producer);
  fuzz_check(memcmp(&action->incarnation, &incarnation, sizeof(incarnation)) == 0);
  fuzz_check(action->welcome->transports_count > 0 && world.open_paths_count < WIRES_MAX);
  world.open_paths[world.open_paths_count++] = action->link_id;
  if (world.open_paths_count == WIRES_MAX) {
    kvf_core_on_link(world.core, world.all.now_ns, world.open_paths[--world.open_paths_count], KVF_TRANSFER_SETUP);
  }
}

static void start_read(const kvf_load_read *action)
{
  uint32_t load = (uint32_t)(action->transfer.lease.id - 100);
  fuzz_check(action->transfer.lease.id >= 100 && load < world.loads_count && !world.loads[load].is_released &&
             !world.loads[load].has_outcome);
  read_model *place = NULL;
  for (size_t i = 0; i < READS_MAX; i++) {
    place = world.reads[i].read_id == 0 ? &world.reads[i] : place;
  }
  fuzz_check(place != NULL && action->transfer.items_count <= POSITIONS);
  for (uint32_t i = 0; i < action->transfer.items_count; i++) {
    uint32_t position = action->transfer.items[i].position;
    fuzz_check(position < POSITIONS && world.loads[load].wanted[position] && !world.loads[load].good[position]);
    for (size_t k = 0; k < READS_MAX; k++) {
      for (uint32_t n = 0; world.reads[k].read_id != 0 && world.reads[k].load == load && n < world.reads[k].count;
           n++) {
        fuzz_check(world.reads[k].positions[n] != position);
      }
    }
    place->positions[i] = position;
  }
  place->read_id = action->transfer.id;
  place->load = load;
  place->count = action->transfer.items_count;
}

void dial_end_read(read_model *read, kvf_status status, const kvf_fence_sample *sample, bool is_good)
{
  uint64_t read_id = read->read_id;
  for (uint32_t i = 0; is_good && i < read->count; i++) {
    world.loads[read->load].good[read->positions[i]] = true;
  }
  read->read_id = 0;
  kvf_core_on_read_done(world.core, world.all.now_ns, read_id, status, 0, sample, 0, &(kvf_read_work){0});
}

static void cancel_read(uint64_t read_id)
{
  for (size_t i = 0; i < READS_MAX; i++) {
    if (world.reads[i].read_id == read_id && read_id % 2 == 0) { /* the others end when the tape says so */
      dial_end_read(&world.reads[i], KVF_CANCELLED, NULL, false);
      return;
    }
  }
}

static void on_load(const kvf_event *event)
{
  fuzz_check(event->user < world.loads_count);
  load_model *load = &world.loads[event->user];
  if (event->kind == KVF_EVENT_RELEASED) {
    fuzz_check(load->has_outcome && !load->is_released);
    load->is_released = true;
    for (size_t i = 0; i < READS_MAX; i++) {
      fuzz_check(world.reads[i].read_id == 0 || world.reads[i].load != event->user);
    }
    return;
  }
  const kvf_report *report = &event->u.report;
  fuzz_check(!load->has_outcome && report->blocks == POSITIONS && report->prefix <= POSITIONS);
  load->has_outcome = true;
  for (uint32_t i = 0; i < report->prefix; i++) {
    fuzz_check(!load->wanted[i] || load->good[i]);
  }
  fuzz_check(report->status != KVF_OK || report->prefix == POSITIONS);
}

static void on_verdict(const kvf_event *event)
{
  fuzz_check(event->user < world.requests_count);
  request_model *request = &world.requests[event->user];
  fuzz_check(request->id == event->id && !request->cancelled && !request->has_verdict);
  request->has_verdict = true;
  fuzz_check(event->u.verdict.keep_blocks <= POSITIONS);
  fuzz_check(request->begun || (event->u.verdict.action != KVF_ACTION_USE && event->u.verdict.keep_blocks == 0));
}

static void on_request(const kvf_event *event)
{
  fuzz_check(event->user < world.requests_count);
  request_model *request = &world.requests[event->user];
  fuzz_check(request->id == event->id && request->begun && (request->cancelled || request->has_verdict));
  fuzz_check(!request->is_released);
  if (event->kind == KVF_EVENT_REQUEST_RELEASED) {
    fuzz_check(request->is_let_go);
    request->is_released = true;
  }
}

/* What is found is a ticket of the key, and of the prompt. */
static void on_find(const kvf_event *event)
{
  static char text[KVF_TICKET_BYTES_MAX];
  static kvf_ticket ticket;
  const kvf_prompt prompt = dial_prompt();
  size_t bytes = 0;
  size_t macs = 0;
  fuzz_check(event->user < world.finds_count);
  find_model *find = &world.finds[event->user];
  fuzz_check(find->id == event->id && !find->is_over);
  find->is_over = true;
  kvf_status status = kvf_finds_take(&world.finder.finds, world.all.now_ns, find->id, text, sizeof(text), &bytes);
  fuzz_check(status == (event->u.found == KVF_OK ? KVF_OK : KVF_NOT_FOUND));
  if (status == KVF_OK) {
    fuzz_check(kvf_ticket_decode(text, bytes, kvf_core_macs(world.core, &macs), 1, &ticket) == KVF_OK);
    fuzz_check(memcmp(&ticket.prompt, &prompt, sizeof(prompt)) == 0);
    kvf_ticket_free(&ticket);
  }
}

static void settle(void)
{
  kvf_effect effect;
  kvf_event event;
  while (kvf_core_next_effect(world.core, world.all.now_ns, &effect)) {
    switch (effect.kind) {
      case KVF_EFFECT_DIAL:
        start_dial(&effect.link);
        break;
      case KVF_EFFECT_OPEN_LINK:
        open_path(&effect.link);
        break;
      case KVF_EFFECT_READ:
        start_read(&effect.read);
        break;
      case KVF_EFFECT_CANCEL:
        cancel_read(effect.read.transfer.id);
        break;
      case KVF_EFFECT_CLOSE_LINK:
        break;
      case KVF_EFFECT_STORE:
        fuzz_fail(__FILE__, __LINE__, "a fence store of a node that publishes nothing");
    }
  }
  while (kvf_core_next_event(world.core, world.all.now_ns, &event)) {
    if (event.kind == KVF_EVENT_VERDICT) {
      on_verdict(&event);
    } else if (event.kind == KVF_EVENT_REQUEST_RELEASED || event.kind == KVF_EVENT_REQUEST_STUCK) {
      on_request(&event);
    } else if (event.kind == KVF_EVENT_TICKET) {
      on_find(&event);
    } else {
      on_load(&event);
    }
  }
}

static void on_in(wire *from, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  (void)from;
  (void)type;
  (void)body;
  (void)bytes;
}

static void on_out(wire *to, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  (void)body;
  (void)bytes;
  fuzz_check(type == KVF_FRAME_HELLO || to->has_key);
  fuzz_check(type == KVF_FRAME_HELLO || type == KVF_FRAME_PROOF || type == KVF_FRAME_LEASES || type == KVF_FRAME_PING ||
             type == KVF_FRAME_FIND);
}

void dial_check(void)
{
  for (size_t i = 0; i < WIRES_MAX; i++) {
    const wire *each = &world.all.list[i];
    if (each->conn_id != 0 && (!each->has_key || each->is_other)) {
      fuzz_check(kvf_core_frame_limit(world.core, each->conn_id) == KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
    }
  }
  for (uint32_t i = 0; i < world.loads_count; i++) {
    fuzz_check(world.loads[i].has_outcome || world.all.now_ns <= world.loads[i].deadline_ns + SLACK_NS);
  }
  for (uint32_t i = 0; i < world.finds_count; i++) {
    fuzz_check(world.finds[i].is_over || world.all.now_ns <= world.finds[i].deadline_ns + SLACK_NS);
  }
  for (uint32_t i = 0; i < world.requests_count; i++) {
    const request_model *request = &world.requests[i];
    bool waits = request->begun && !request->cancelled && !request->has_verdict;
    fuzz_check(!waits || world.all.now_ns <= request->verdict_by_ns + SLACK_NS);
  }
}

void dial_pass(uint64_t ns)
{
  world.all.now_ns += ns;
  kvf_core_tick(world.core, world.all.now_ns);
  wires_settle(&world.all);
}

/* What the tickets of an engine like this one say. */
static void learn_compat(void)
{
  static kvf_ticket ticket;
  uint32_t id = 0;
  const uint32_t count = 1;
  const kvf_blocks blocks = {.ids = &id, .counts = &count, .groups = 1};
  const kvf_prompt prompt = {.tokens = 1};
  const kvf_lease lease = dial_lease(0);
  const kvf_rank_record record = kvf_core_record(world.core, &(kvf_address){.port = 1}, &(kvf_address){.port = 0});
  fuzz_check(kvf_core_set_ranks(world.core, &record, 1) == KVF_OK);
  fuzz_check(kvf_core_ticket(world.core, &lease, &blocks, &prompt, &ticket) == KVF_OK);
  memcpy(world.compat, ticket.compat, sizeof(world.compat));
}

void dial_open(void)
{
  memset(&world.all, 0, sizeof(world.all));
  memset(world.dials, 0, sizeof(world.dials));
  memset(world.is_named, 0, sizeof(world.is_named));
  memset(world.reads, 0, sizeof(world.reads));
  world.all.now_ns = 1000 * MS;
  world.all.on_in = on_in;
  world.all.on_out = on_out;
  world.all.settle = settle;
  world.loads_count = 0;
  world.requests_count = 0;
  world.finds_count = 0;
  world.open_paths_count = 0;
  wires_core_config(&world.config, "the key of the cluster", 'c');
  world.config.options.chunk_bytes = WIRES_BLOCK_BYTES; /* one block a read */
  fuzz_check(kvf_core_create(&world.config, world.all.now_ns, &world.core) == KVF_OK);
  kvf_finder_init(&world.finder, world.core);
  world.all.core = world.core;
  wires_set_memory(world.core);
  learn_compat();
  const kvf_address known = {.ip = {[15] = 1}, .port = FIRST_PORT};
  fuzz_check(kvf_core_add_static(world.core, "p:80", &known) == KVF_OK);
}

void dial_let_go(request_model *request, bool is_stuck)
{
  kvf_status status = is_stuck ? kvf_core_request_stuck(world.core, request->id)
                               : kvf_core_request_released(world.core, world.all.now_ns, request->id, 1);
  fuzz_check(status == KVF_OK || is_stuck || !request->begun || request->is_released);
  request->is_let_go = request->is_let_go || (!is_stuck && status == KVF_OK);
}

bool dial_is_settled(void)
{
  bool settled = true;
  for (uint32_t i = 0; i < world.loads_count; i++) {
    settled = settled && world.loads[i].has_outcome && world.loads[i].is_released;
  }
  for (uint32_t i = 0; i < world.requests_count; i++) {
    const request_model *request = &world.requests[i];
    settled = settled && (!request->begun || request->is_released);
  }
  for (uint32_t i = 0; i < world.finds_count; i++) {
    settled = settled && world.finds[i].is_over;
  }
  return settled;
}

void dial_close(void)
{
  static kvf_stat stats[KVF_STATS_MAX];
  const size_t count = kvf_core_stats(world.core, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    fuzz_check(strcmp(stats[i].name, "loads_open") != 0 || stats[i].value == 0);
  }
  kvf_core_destroy(world.core);
}
