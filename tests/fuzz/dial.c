/* The dialing side of control connections: a whole core that loads and renews, and servers who answer it as they like.
 * Some have the key (a producer gone mad), some do not (a stranger at its address). The target plays the runtime and
 * the engine to the core, and keeps a model of what it may say.
 *
 * Checked: nothing is dialed that no accepted ticket names; a server without the key is never trusted and hears no more
 * than HELLO; each load has one outcome, by its deadline, and then one release, when its reads have ended; a block
 * counts as good only if a live fence was shown after its read; no block is read anew before its last read has ended;
 * each request has one verdict; each find has one event, by its deadline, and a ticket only of its prompt; at the end
 * nothing is left. */
#include <string.h>

#include "find/finder.h"
#include "wire/find_message.h"
#include "wire/lease_message.h"
#include "wires.h"

#define SLACK_NS (20 * MS) /* the core is ticked at least that often where time counts */
#define PRODUCERS 3
#define LOADS_MAX 12
#define REQUESTS_MAX 8
#define READS_MAX 64
#define FINDS_MAX 16
#define POSITIONS 4
#define BLOCK_TOKENS 16
#define DIGEST 9
#define FIRST_PORT 80
#define FIRST_LEASE 100
#define FIRST_REQUEST 1000

typedef struct load_model {
  uint64_t deadline_ns;
  uint32_t producer;
  bool wanted[POSITIONS];
  bool is_read[POSITIONS]; /* now */
  bool good[POSITIONS];
  bool has_outcome;
  bool is_released;
} load_model;

typedef struct read_model {
  uint64_t read_id; /* 0: not in use */
  load_model *load;
  uint32_t count;
  uint32_t positions[POSITIONS];
} read_model;

typedef struct request_model {
  uint64_t id;
  bool begun;
  bool cancelled;
  bool has_verdict;
  bool is_let_go; /* its rank is said to be released */
  bool is_released;
  uint64_t verdict_by_ns;
} request_model;

typedef struct find_model {
  uint64_t id;
  uint64_t deadline_ns;
  bool is_over;
} find_model;

static struct {
  kvf_core *core;
  kvf_finder finder;
  kvf_core_config config;
  kvf_ticket ticket; /* of an engine like this one */
  wires all;
  uint64_t dials[WIRES_MAX]; /* that wait for an answer; 0: none */
  bool is_named[PRODUCERS];  /* by an accepted ticket */
  uint32_t open_paths[WIRES_MAX];
  uint32_t open_paths_count;
  load_model loads[LOADS_MAX];
  uint32_t loads_count;
  read_model reads[READS_MAX];
  request_model requests[REQUESTS_MAX];
  uint32_t requests_count;
  find_model finds[FINDS_MAX];
  uint32_t finds_count;
} world;

/* What all ask for. */
static const kvf_prompt prompt = {.tokens = POSITIONS * BLOCK_TOKENS};

static kvf_incarnation incarnation_of(uint32_t producer)
{
  kvf_incarnation incarnation;
  memset(&incarnation, 'P' + (int)producer, sizeof(incarnation));
  return incarnation;
}

/* ---- what the core wants ---- */

static uint32_t producer_of(const kvf_peer_action *action)
{
  const uint32_t producer = (uint32_t)action->address.port - FIRST_PORT;
  fuzz_check(producer < PRODUCERS);
  return producer;
}

static void start_dial(const kvf_peer_action *action)
{
  fuzz_check(world.is_named[producer_of(action)]);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    if (world.dials[i] == 0) {
      world.dials[i] = action->conn_id;
      return;
    }
  }
  kvf_core_on_dialed(world.core, world.all.now_ns, action->conn_id, KVF_PEER_DOWN);
}

static void tell_path(kvf_status status)
{
  kvf_core_on_link(world.core, world.all.now_ns, world.open_paths[--world.open_paths_count], status);
}

static void open_path(const kvf_peer_action *action)
{
  const kvf_incarnation incarnation = incarnation_of(producer_of(action));
  fuzz_check(memcmp(&action->incarnation, &incarnation, sizeof(incarnation)) == 0);
  fuzz_check(action->welcome->transports_count > 0 && world.open_paths_count < WIRES_MAX);
  world.open_paths[world.open_paths_count++] = action->link_id;
  if (world.open_paths_count == WIRES_MAX) {
    tell_path(KVF_TRANSFER_SETUP);
  }
}

/* The last that is not in use. */
static read_model *free_read(void)
{
  for (size_t i = READS_MAX; i > 0; i--) {
    if (world.reads[i - 1].read_id == 0) {
      return &world.reads[i - 1];
    }
  }
  fuzz_fail(__FILE__, __LINE__, "reads without an end");
}

static void start_read(const kvf_transfer *transfer)
{
  const uint64_t number = transfer->lease.id - FIRST_LEASE;
  fuzz_check(number < world.loads_count && transfer->items_count <= POSITIONS);
  load_model *load = &world.loads[number];
  read_model *read = free_read();
  fuzz_check(!load->is_released && !load->has_outcome);
  *read = (read_model){.read_id = transfer->id, .load = load, .count = transfer->items_count};
  for (uint32_t i = 0; i < read->count; i++) {
    const uint32_t position = transfer->items[i].position;
    fuzz_check(position < POSITIONS && load->wanted[position] && !load->good[position] && !load->is_read[position]);
    load->is_read[position] = true;
    read->positions[i] = position;
  }
}

/* `is_good`: with a live fence's sample. */
static void end_read(read_model *read, kvf_status status, const kvf_fence_sample *sample, bool is_good)
{
  const uint64_t read_id = read->read_id;
  for (uint32_t i = 0; i < read->count; i++) {
    read->load->is_read[read->positions[i]] = false;
    read->load->good[read->positions[i]] |= is_good;
  }
  read->read_id = 0;
  kvf_core_on_read_done(world.core, world.all.now_ns, read_id, status, 0, sample, 0, &(kvf_read_work){0});
}

static void cancel_read(uint64_t read_id)
{
  for (size_t i = 0; i < READS_MAX; i++) {
    if (world.reads[i].read_id == read_id && read_id % 2 == 0) { /* the others end when the tape says so */
      end_read(&world.reads[i], KVF_CANCELLED, NULL, false);
      return;
    }
  }
}

static void on_outcome(load_model *load, const kvf_report *report)
{
  fuzz_check(!load->has_outcome && report->blocks == POSITIONS && report->prefix <= POSITIONS);
  load->has_outcome = true;
  for (uint32_t i = 0; i < report->prefix; i++) {
    fuzz_check(!load->wanted[i] || load->good[i]);
  }
  fuzz_check(report->status != KVF_OK || report->prefix == POSITIONS);
}

static void on_load_released(load_model *load)
{
  fuzz_check(load->has_outcome && !load->is_released);
  load->is_released = true;
  for (uint32_t i = 0; i < POSITIONS; i++) {
    fuzz_check(!load->is_read[i]);
  }
}

static void on_request(request_model *request, const kvf_event *event)
{
  const kvf_verdict *verdict = &event->u.verdict;
  fuzz_check(request->id == event->id && !request->is_released);
  if (event->kind == KVF_EVENT_VERDICT) {
    fuzz_check(!request->cancelled && !request->has_verdict && verdict->keep_blocks <= POSITIONS);
    fuzz_check(request->begun || (verdict->action != KVF_ACTION_USE && verdict->keep_blocks == 0));
    request->has_verdict = true;
    return;
  }
  request->is_released = event->kind == KVF_EVENT_REQUEST_RELEASED;
  fuzz_check(request->begun && (request->cancelled || request->has_verdict));
  fuzz_check(request->is_let_go || !request->is_released);
}

/* What is found is a ticket of the key, and of the prompt. */
static void on_find(find_model *find, const kvf_event *event)
{
  static char text[KVF_TICKET_BYTES_MAX];
  static kvf_ticket ticket;
  size_t bytes = 0;
  size_t macs = 0;
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

static void carry_out(const kvf_effect *effect)
{
  switch (effect->kind) {
    case KVF_EFFECT_DIAL:
      start_dial(&effect->link);
      break;
    case KVF_EFFECT_OPEN_LINK:
      open_path(&effect->link);
      break;
    case KVF_EFFECT_READ:
      start_read(&effect->read.transfer);
      break;
    case KVF_EFFECT_CANCEL:
      cancel_read(effect->read.transfer.id);
      break;
    case KVF_EFFECT_CLOSE_LINK:
      break;
    case KVF_EFFECT_STORE:
      fuzz_fail(__FILE__, __LINE__, "a fence store of a node that publishes nothing");
  }
}

static void take_event(const kvf_event *event)
{
  switch (event->kind) {
    case KVF_EVENT_LOAD:
      fuzz_check(event->user < world.loads_count);
      on_outcome(&world.loads[event->user], &event->u.report);
      break;
    case KVF_EVENT_RELEASED:
      fuzz_check(event->user < world.loads_count);
      on_load_released(&world.loads[event->user]);
      break;
    case KVF_EVENT_TICKET:
      fuzz_check(event->user < world.finds_count);
      on_find(&world.finds[event->user], event);
      break;
    case KVF_EVENT_LEASE_ENDED:
      fuzz_fail(__FILE__, __LINE__, "a lease of a node that publishes nothing");
    default:
      fuzz_check(event->user < world.requests_count);
      on_request(&world.requests[event->user], event);
      break;
  }
}

static void settle(void)
{
  kvf_effect effect;
  kvf_event event;
  while (kvf_core_next_effect(world.core, world.all.now_ns, &effect)) {
    carry_out(&effect);
  }
  while (kvf_core_next_event(world.core, world.all.now_ns, &event)) {
    take_event(&event);
  }
}

static void on_out(wire *to, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  (void)body;
  (void)bytes;
  fuzz_check(type == KVF_FRAME_HELLO || to->has_key);
  fuzz_check(type == KVF_FRAME_HELLO || type == KVF_FRAME_PROOF || type == KVF_FRAME_LEASES || type == KVF_FRAME_PING ||
             type == KVF_FRAME_FIND);
}

/* Whether it has come, or may still come. */
static void check_time(bool has_come, uint64_t by_ns)
{
  fuzz_check(has_come || world.all.now_ns <= by_ns + SLACK_NS);
}

static void check_world(void)
{
  for (size_t i = 0; i < WIRES_MAX; i++) {
    const wire *each = &world.all.list[i];
    if (each->conn_id != 0 && (!each->has_key || each->is_other)) {
      fuzz_check(kvf_core_frame_limit(world.core, each->conn_id) == KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
    }
  }
  for (uint32_t i = 0; i < world.loads_count; i++) {
    check_time(world.loads[i].has_outcome, world.loads[i].deadline_ns);
  }
  for (uint32_t i = 0; i < world.finds_count; i++) {
    check_time(world.finds[i].is_over, world.finds[i].deadline_ns);
  }
  for (uint32_t i = 0; i < world.requests_count; i++) {
    const request_model *request = &world.requests[i];
    check_time(!request->begun || request->cancelled || request->has_verdict, request->verdict_by_ns);
  }
}

/* At most 10 ms, where time counts. */
static void pass(uint64_t ms)
{
  world.all.now_ns += ms * MS;
  kvf_core_tick(world.core, world.all.now_ns);
  wires_settle(&world.all);
  check_world();
}

/* What the tickets of an engine like this one say. */
static void learn_ticket(void)
{
  static uint32_t ids[POSITIONS] = {0, 1, 2, 3};
  const uint32_t count = POSITIONS;
  const kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  const kvf_lease lease = {.id = FIRST_LEASE};
  const kvf_rank_record record = kvf_core_record(world.core, &(kvf_address){.port = 1}, &(kvf_address){.port = 0});
  fuzz_check(kvf_core_set_ranks(world.core, &record, 1) == KVF_OK);
  fuzz_check(kvf_core_ticket(world.core, &lease, &blocks, &prompt, &world.ticket) == KVF_OK);
}

static void open_world(void)
{
  memset(&world, 0, sizeof(world));
  wires_core_config(&world.config, "the key of the cluster", 'c');
  world.config.options.chunk_bytes = WIRES_BLOCK_BYTES; /* one block a read */
  world.all.now_ns = 1000 * MS;
  world.all.on_out = on_out;
  world.all.settle = settle;
  fuzz_check(kvf_core_create(&world.config, world.all.now_ns, &world.core) == KVF_OK);
  kvf_finder_init(&world.finder, world.core);
  world.all.core = world.core;
  wires_set_memory(world.core);
  learn_ticket();
  const kvf_address known = {.ip = {[15] = 1}, .port = FIRST_PORT};
  fuzz_check(kvf_core_add_static(world.core, "p:80", &known) == KVF_OK);
}

/* ---- what a server may answer: well-formed messages, right or wrong as the tape says ---- */

/* Right if the wire has the key. */
static void send_challenge(fuzz_tape *tape, wire *from, size_t cut)
{
  static const kvf_key other = {"another key, as long", 20};
  uint8_t choice = fuzz_u8(tape);
  kvf_hello hello;
  kvf_challenge challenge = {.version = (choice & 0xf0) == 0xf0 ? KVF_PROTOCOL_VERSION + 1 : KVF_PROTOCOL_VERSION,
                             .nonce = {1, 2}};
  if (kvf_hello_decode(from->hello, from->hello_bytes, &hello) != KVF_OK) {
    return;
  }
  const kvf_incarnation nobody = {0};
  const bool may_be_any = memcmp(&hello.expected, &nobody, sizeof(nobody)) == 0;
  challenge.server = may_be_any ? incarnation_of(0) : hello.expected;
  challenge.server.bytes[0] ^= (choice & 0xf0) == 0xe0 ? 1 : 0;
  from->is_other = from->is_other || (from->challenge_bytes == 0 && (choice & 0xf0) == 0xe0);
  fuzz_check(kvf_handshake_server_proof(from->has_key ? &world.config.key : &other, from->hello, from->hello_bytes,
                                        &challenge, challenge.proof) == KVF_OK);
  WIRES_SEND(&world.all, from, KVF_FRAME_CHALLENGE, challenge, &challenge, cut);
}

static void send_welcome(fuzz_tape *tape, wire *from, size_t cut)
{
  uint8_t choice = fuzz_u8(tape);
  uint8_t description[2] = {1, 2};
  kvf_region_layout regions[3] = {wires_region, wires_region, wires_region};
  kvf_welcome welcome = {.session_id = 5,
                         .ranks = 1 + (choice & 1),
                         .rank = (choice & 1),
                         .block_tokens = (choice & 0x10) != 0 ? 32 : 16,
                         .regions_count = (choice >> 1) & 3,
                         .regions = regions,
                         .transports_count = 1 + ((choice >> 3) & 1),
                         .transports = {{.name = "tcp", .description = description, .description_bytes = 1},
                                        {.name = "local", .description = description, .description_bytes = 2}}};
  welcome.regions_count = welcome.regions_count == 0 ? 1 : welcome.regions_count - 1;
  welcome.transports_count = (choice & 0x60) == 0x60 ? 0 : welcome.transports_count;
  WIRES_SEND(&world.all, from, KVF_FRAME_WELCOME, welcome, &welcome, cut);
}

static void send_refused(fuzz_tape *tape, wire *from, size_t cut)
{
  static const int32_t statuses[] = {KVF_INCOMPATIBLE, KVF_HANDSHAKE_REFUSED, KVF_PROTOCOL, -12345};
  const kvf_refused refused = {.status = statuses[fuzz_choose(tape, 4)], .message = "%s%n"};
  WIRES_SEND(&world.all, from, KVF_FRAME_REFUSED, refused, &refused, cut);
}

/* Of the requests, which have the leases behind the loads'. */
static void send_states(fuzz_tape *tape, wire *from, size_t cut)
{
  static kvf_lease_states states;
  uint8_t choice = fuzz_u8(tape);
  states.seq = fuzz_u8(tape);
  states.count = 1 + (choice & 3);
  for (uint32_t i = 0; i < states.count; i++) {
    uint8_t which = fuzz_u8(tape);
    uint32_t place = world.requests_count == 0 ? which : which % world.requests_count;
    states.items[i] =
        (kvf_lease_states_item){.lease_id = FIRST_LEASE + LOADS_MAX + place,
                                .slot = LOADS_MAX + place,
                                .request_id = world.requests_count == 0 ? which : world.requests[place].id,
                                .state = 1 + ((which >> 4) & 3)};
  }
  WIRES_SEND(&world.all, from, KVF_FRAME_LEASE_STATES, lease_states, &states, cut);
}

static kvf_ticket make_ticket(uint32_t producer, uint32_t lease)
{
  kvf_ticket ticket = world.ticket;
  ticket.rank[0].incarnation = incarnation_of(producer);
  ticket.rank[0].address = (kvf_address){.ip = {[15] = 1}, .port = (uint16_t)(FIRST_PORT + producer)};
  ticket.rank[0].layers.count = producer == 1 ? 0 : ticket.rank[0].layers.count; /* all of them */
  ticket.lease = (kvf_lease){.id = FIRST_LEASE + lease, .slot = lease, .token = {(uint8_t)lease}};
  return ticket;
}

/* To a find: its ticket, one of another prompt, an altered one, or none. */
static void send_found(fuzz_tape *tape, wire *from, size_t cut)
{
  static char text[KVF_TICKET_BYTES_MAX];
  uint8_t choice = fuzz_u8(tape);
  kvf_ticket ticket = make_ticket(0, 0);
  kvf_found found = {.id = 1 + choice % FINDS_MAX, .status = KVF_FOUND_TICKET, .text = text};
  size_t macs = 0;
  ticket.prompt.hash[0] = (choice & 0xf0) == 0xe0 ? 1 : 0;
  fuzz_check(kvf_ticket_encode(&ticket, kvf_core_macs(world.core, &macs), text, sizeof(text), &found.text_bytes) ==
             KVF_OK);
  text[found.text_bytes / 2] ^= (choice & 0xf0) == 0xf0 ? 1 : 0;
  if (choice < 0x60) {
    found.status = KVF_FOUND_NOTHING;
    found.text_bytes = 0;
  }
  WIRES_SEND(&world.all, from, KVF_FRAME_FOUND, found, &found, cut);
}

/* ---- what the engine does ---- */

static void start_load(fuzz_tape *tape)
{
  uint32_t destination[POSITIONS];
  const uint32_t count = POSITIONS;
  const uint8_t choice = fuzz_u8(tape);
  const uint32_t producer = choice % PRODUCERS;
  const uint32_t timeout_ms = 1 + fuzz_u8(tape) * 8u;
  const uint32_t number = world.loads_count;
  if (number == LOADS_MAX) {
    return;
  }
  load_model *model = &world.loads[number];
  *model = (load_model){.producer = producer, .deadline_ns = world.all.now_ns + timeout_ms * MS};
  kvf_ticket ticket = make_ticket(producer, number);
  for (uint32_t i = 0; i < POSITIONS; i++) {
    model->wanted[i] = i > 0 || (choice & 0x80) == 0;
    destination[i] = model->wanted[i] ? i + POSITIONS * (number % 3) : KVF_BLOCK_NONE;
  }
  kvf_load_params load = {.request_id = FIRST_REQUEST + number,
                          .prompt = prompt,
                          .destination = {.ids = destination, .counts = &count, .groups = 1},
                          .timeout_ms = timeout_ms,
                          .user = number};
  load.prompt.hash[0] = (choice & 0x7c) == 0x7c ? 1 : 0; /* another prompt than the ticket's */
  const bool is_other_model = (choice & 0x7c) == 0x78;
  ticket.compat[0] ^= is_other_model ? 1 : 0;
  ticket.fields = is_other_model && (choice & 1) == 0 ? 0 : ticket.fields; /* it need not say in what */
  bool wrong = (choice & 0x7c) == 0x7c || is_other_model;
  world.loads_count++;
  const kvf_sources sources = {.count = 1, .tickets = {&ticket}, .digests = {DIGEST}};
  kvf_status status = kvf_core_load_start(world.core, world.all.now_ns, &sources, &load, 0);
  fuzz_check(status == KVF_OK || status == KVF_NO_MEMORY || status == KVF_NO_RESOURCE || wrong);
  fuzz_check(!wrong || status == KVF_BAD_TICKET || status == KVF_INCOMPATIBLE);
  world.loads_count -= status != KVF_OK;
  world.is_named[producer] = world.is_named[producer] || status == KVF_OK;
}

static void open_request(fuzz_tape *tape)
{
  uint32_t producer = fuzz_choose(tape, PRODUCERS);
  kvf_request_options options = {.load_timeout_ms = 1 + fuzz_u8(tape) * 8u};
  options.policy = (kvf_policy)(options.load_timeout_ms % 3);
  if (world.requests_count == REQUESTS_MAX) {
    return;
  }
  request_model *model = &world.requests[world.requests_count];
  *model = (request_model){.verdict_by_ns =
                               options.load_timeout_ms * MS + kvf_ms_to_ns(world.config.options.release_timeout_ms)};
  kvf_ticket ticket = make_ticket(producer, LOADS_MAX + world.requests_count);
  const kvf_sources sources = {.count = 1, .tickets = {&ticket}};
  fuzz_check(kvf_core_request_open(world.core, world.all.now_ns, &sources, &prompt, &options, world.requests_count,
                                   &model->id, NULL) == KVF_OK);
  world.is_named[producer] = true;
  world.requests_count++;
}

/* Says that the only rank is released, or that it is stuck. */
static void let_go(request_model *request, bool is_stuck)
{
  kvf_status status = is_stuck ? kvf_core_request_stuck(world.core, request->id)
                               : kvf_core_request_released(world.core, world.all.now_ns, request->id, 1);
  fuzz_check(status == KVF_OK || is_stuck || !request->begun || request->is_released);
  request->is_let_go = request->is_let_go || (!is_stuck && status == KVF_OK);
}

static void begin_request(request_model *request)
{
  if (kvf_core_request_begin(world.core, world.all.now_ns, request->id) == KVF_OK) {
    fuzz_check(!request->begun && !request->cancelled);
    request->begun = true;
    request->verdict_by_ns += world.all.now_ns;
  }
}

static void report(fuzz_tape *tape, const request_model *request)
{
  kvf_report said = {.request_id = request->id, .blocks = POSITIONS, .ranks_mask = 1};
  said.prefix = fuzz_choose(tape, POSITIONS + 1);
  said.status = said.prefix == POSITIONS ? KVF_OK : KVF_TRANSFER_FAILED;
  kvf_status status = kvf_core_request_report(world.core, world.all.now_ns, &said);
  fuzz_check(status != KVF_OK || (request->begun && !request->cancelled));
}

static void act_on_request(fuzz_tape *tape)
{
  uint8_t choice = fuzz_u8(tape);
  if (world.requests_count == 0) {
    return;
  }
  request_model *request = &world.requests[(choice >> 4) % world.requests_count];
  if ((choice & 3) < 2) {
    begin_request(request);
  } else if ((choice & 3) == 3) {
    (void)kvf_core_request_cancel(world.core, world.all.now_ns, request->id, KVF_FINISH_ABORTED);
    request->cancelled = true;
  } else if ((choice & 4) != 0) {
    let_go(request, choice >> 3 & 1);
  } else {
    report(tape, request);
  }
}

/* ---- what servers do ---- */

static void answer_dial(fuzz_tape *tape)
{
  uint8_t choice = fuzz_u8(tape);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    uint64_t conn_id = world.dials[i];
    if (conn_id == 0) {
      continue;
    }
    world.dials[i] = 0;
    bool there = kvf_core_has_conn(world.core, conn_id); /* the core may have given up */
    bool accepted = there && choice < 0xe0 && wires_add(&world.all, conn_id, (choice & 1) == 0) != NULL;
    kvf_core_on_dialed(world.core, world.all.now_ns, conn_id, accepted ? KVF_OK : KVF_PEER_DOWN);
    return;
  }
}

/* The proper next step of the handshake. */
static void shake_hands(fuzz_tape *tape)
{
  wire *from = wires_choose(&world.all, tape);
  if (from == NULL) {
    return;
  }
  uint64_t conn_id = from->conn_id;
  send_challenge(tape, from, 0);
  if (from->conn_id == conn_id) {
    send_welcome(tape, from, 0);
  }
}

static void send_something(fuzz_tape *tape)
{
  wire *from = wires_choose(&world.all, tape);
  uint8_t choice = fuzz_u8(tape);
  size_t cut = choice >> 4;
  if (from == NULL) {
    return;
  }
  switch (choice & 7) {
    case 0:
    case 1:
      wires_feed_any(&world.all, from, tape, cut, (choice & 1) == 0);
      break;
    case 2:
      send_challenge(tape, from, cut);
      break;
    case 3:
      send_welcome(tape, from, cut);
      break;
    case 4:
      send_states(tape, from, cut);
      break;
    case 5:
      send_refused(tape, from, cut);
      break;
    case 6:
      if (cut >= 8) {
        send_found(tape, from, cut == 15 ? cut : 0);
      } else {
        wires_feed_frame(&world.all, from, KVF_FRAME_PONG, "\1\0\0\0\0\0\0", 8, cut);
      }
      break;
    default:
      wires_close(&world.all, from);
      break;
  }
}

/* The peer that is to be asked is dialed, and says who it is. */
static void be_named(void)
{
  fuzz_tape none = {0};
  wires_settle(&world.all);
  answer_dial(&none);
  wires_settle(&world.all);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    wire *from = &world.all.list[i];
    if (from->conn_id != 0 && from->hello_bytes > 0 && from->challenge_bytes == 0) {
      send_challenge(&none, from, 0);
    }
  }
}

static void start_find(fuzz_tape *tape)
{
  const kvf_find_key key = kvf_find_key_of_prompt(&prompt);
  const uint8_t choice = fuzz_u8(tape);
  const uint32_t timeout_ms = 1 + choice * 8u;
  if (world.finds_count == FINDS_MAX) {
    return;
  }
  find_model *find = &world.finds[world.finds_count];
  *find = (find_model){.deadline_ns = world.all.now_ns + timeout_ms * MS};
  fuzz_check(kvf_finds_start(&world.finder.finds, world.all.now_ns, &key, NULL, timeout_ms, world.finds_count,
                             &find->id) == KVF_OK);
  world.finds_count++;
  world.is_named[0] = true; /* by the option peers */
  if ((choice & 1) == 0) {
    be_named();
  }
}

/* ---- what transports do ---- */

static void act_on_path(fuzz_tape *tape)
{
  static const kvf_status statuses[] = {KVF_OK,           KVF_OK,        KVF_PEER_DOWN,         KVF_TRANSFER_SETUP,
                                        KVF_INCOMPATIBLE, KVF_NO_MEMORY, KVF_HANDSHAKE_TIMEOUT, KVF_PROTOCOL};
  uint8_t choice = fuzz_u8(tape);
  kvf_status status = statuses[choice & 7];
  if ((choice & 0x80) != 0) {
    kvf_core_on_link_down(world.core, world.all.now_ns, (choice >> 3) & 15, status == KVF_OK ? KVF_PEER_DOWN : status);
  } else if (world.open_paths_count > 0) {
    tell_path(status);
  }
}

/* A fence sample that is live, or differs in one thing. */
static kvf_fence_sample make_sample(fuzz_tape *tape, const read_model *read, bool *is_live)
{
  uint8_t choice = fuzz_u8(tape);
  kvf_fence_sample sample = {
      .head = {.magic = KVF_FENCE_MAGIC, .incarnation = incarnation_of(read->load->producer), .slots = 64},
      .entry = {.word = kvf_fence_word_live(FIRST_LEASE + (uint64_t)(read->load - world.loads)), .digest = DIGEST}};
  *is_live = choice < 0xa0;
  if (choice >= 0xf8) {
    sample.head.generation ^= 1;
  } else if (choice >= 0xf0) {
    sample.head.magic ^= 1;
  } else if (choice >= 0xe0) {
    sample.head.incarnation.bytes[choice & 15] ^= 1;
  } else if (choice >= 0xd0) {
    sample.entry.digest ^= 1;
  } else if (choice >= 0xa0) {
    sample.entry.word = (choice & 1) != 0 ? sample.entry.word + 1 + (choice & 6) : fuzz_u8(tape);
  }
  return sample;
}

static void act_on_read(fuzz_tape *tape)
{
  static const kvf_status statuses[] = {KVF_OK,
                                        KVF_OK,
                                        KVF_TRANSFER_FAILED,
                                        KVF_PEER_DOWN,
                                        KVF_CANCELLED,
                                        KVF_PROTOCOL,
                                        KVF_LEASE_UNKNOWN,
                                        KVF_NOT_PUBLISHED,
                                        KVF_LEASE_EXPIRED,
                                        KVF_BAD_TICKET,
                                        KVF_NO_MEMORY,
                                        KVF_OK};
  unsigned which = fuzz_choose(tape, READS_MAX);
  uint8_t choice = fuzz_u8(tape);
  read_model *read = NULL;
  for (size_t i = 0; i < READS_MAX && read == NULL; i++) {
    read = world.reads[(which + i) % READS_MAX].read_id != 0 ? &world.reads[(which + i) % READS_MAX] : NULL;
  }
  if (read == NULL) {
    kvf_fence_sample nothing = {0};
    kvf_core_on_read_done(world.core, world.all.now_ns, which, KVF_OK, 0, &nothing, 0,
                          &(kvf_read_work){0}); /* late, or never asked for */
    return;
  }
  if ((choice & 0x80) != 0) {
    kvf_core_on_read_progress(world.core, world.all.now_ns, read->read_id);
    return;
  }
  bool is_live = false;
  kvf_status status = statuses[choice % (sizeof(statuses) / sizeof(statuses[0]))];
  kvf_fence_sample sample = make_sample(tape, read, &is_live);
  end_read(read, status, &sample, status == KVF_OK && is_live);
}

/* ---- */

static void step(fuzz_tape *tape)
{
  const uint8_t op = fuzz_u8(tape);
  switch (op % 12) {
    case 0:
      for (unsigned ms = fuzz_u8(tape); ms > 0; ms -= ms < 10 ? ms : 10) {
        pass(ms < 10 ? ms : 10);
      }
      break;
    case 1:
      start_load(tape);
      break;
    case 2:
      if (op >= 0x80) {
        start_find(tape);
      } else if (world.loads_count > 0) {
        (void)kvf_core_load_abort(world.core, world.all.now_ns, FIRST_REQUEST + fuzz_u8(tape) % world.loads_count);
      }
      break;
    case 3:
      open_request(tape);
      break;
    case 4:
      act_on_request(tape);
      break;
    case 5:
      answer_dial(tape);
      break;
    case 6:
    case 7:
      shake_hands(tape);
      break;
    case 8:
      act_on_path(tape);
      break;
    case 9:
    case 10:
      act_on_read(tape);
      break;
    default:
      send_something(tape);
      break;
  }
  wires_settle(&world.all);
}

static void end_reads(void)
{
  for (size_t i = 0; i < READS_MAX; i++) {
    if (world.reads[i].read_id != 0) {
      end_read(&world.reads[i], KVF_CANCELLED, NULL, false);
    }
  }
}

static bool is_settled(void)
{
  bool settled = true;
  for (uint32_t i = 0; i < world.loads_count; i++) {
    settled = settled && world.loads[i].has_outcome && world.loads[i].is_released;
  }
  for (uint32_t i = 0; i < world.requests_count; i++) {
    settled = settled && (!world.requests[i].begun || world.requests[i].is_released);
  }
  for (uint32_t i = 0; i < world.finds_count; i++) {
    settled = settled && world.finds[i].is_over;
  }
  return settled;
}

/* Nobody answers any more: everything comes to its end by itself. */
static void close_world(void)
{
  static kvf_stat stats[KVF_STATS_MAX];
  wires_close_all(&world.all);
  for (unsigned i = 0; i < 400 && !is_settled(); i++) {
    fuzz_tape refuse = {.data = (const uint8_t *)"\xff", .bytes = 1};
    answer_dial(&refuse);
    end_reads();
    for (uint32_t k = 0; k < world.requests_count; k++) {
      let_go(&world.requests[k], false);
    }
    pass(10);
  }
  fuzz_check(is_settled());
  for (size_t i = kvf_core_stats(world.core, stats, KVF_STATS_MAX); i > 0; i--) {
    fuzz_check(strcmp(stats[i - 1].name, "loads_open") != 0 || stats[i - 1].value == 0);
  }
  kvf_core_destroy(world.core);
}

static void warm_up(void)
{
  fuzz_tape none = {0};
  start_load(&none);
  wires_settle(&world.all);
  answer_dial(&none);
  wires_settle(&world.all);
  shake_hands(&none);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static const fuzz_world driven = {open_world, warm_up, step, check_world, close_world};
  fuzz_drive(&driven, data, bytes);
  return 0;
}

/* A load that is done; one whose lease is over half-way; a request that is renewed, begun and reported; a stranger at
 * the producer's address; garbage from one who has the key. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  static const fuzz_tape_seed seeds[] = {
      {"\x01\x00\x20\x05\x00\x06\x00\x00\x00\x08\x00\x09\x00\x00\x00\x09\x00\x00\x00\x09\x00\x00\x00\x09\x00\x00\x00",
       27},
      {"\x01\x01\x20\x05\x00\x06\x00\x00\x00\x08\x00\x09\x00\x00\x00\x09\x00\x00\xa1\x09\x00\x02\x00\x00\x20", 25},
      {"\x03\x00\x40\x05\x00\x06\x00\x00\x00\x04\x00\x00\x64\x0b\x00\x04\x00\x01\x00\x04\x02\x04\x0b\x00\x04\x00\x02"
       "\x20",
       28},
      {"\x01\x00\x20\x05\x01\x06\x00\x00\x00\x01\x00\x20\x00\xff\x00\xff", 16},
      {"\x01\x00\x20\x05\x00\x06\x00\x00\x00\x0b\x00\x00\x03\x10\x00\x00\x00\x00\x00\x00\x00\x00\x02\x02", 24},
      {"\x01\x00\x20\x01\x01\x20\x01\x02\x20\x05\x00\x05\x00\x05\x00\x06\x01\x00\x00\x08\x00\x00\x64\x02\x00\x08\x80",
       27},
  };
  return fuzz_put_nth(out, i, seeds, sizeof(seeds) / sizeof(seeds[0]));
}
