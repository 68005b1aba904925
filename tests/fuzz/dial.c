/* The dialing side of control connections: a whole core that loads and renews, and servers who answer it as they like.
 * Some have the key (a producer gone mad), some do not (a stranger at its address).
 *
 * Checked: nothing is dialed that no accepted ticket names; a server without the key is never trusted and hears no more
 * than HELLO; each load has one outcome, by its deadline, and then one quiet, when its reads have ended; a block counts
 * as good only if a live fence was shown after its read; no block is read anew before its last read has ended; each
 * request has one verdict; at the end nothing is left. */
#include <stdlib.h>
#include <string.h>

#include "server_frames.h"
#include "wires.h"

#define MS KVF_NS_PER_MS
#define PRODUCERS 3
#define LOADS_MAX 12
#define REQUESTS_MAX 8
#define READS_MAX 64
#define POSITIONS 4
#define BLOCK_TOKENS 16
#define DIGEST 9
#define FIRST_PORT 80
#define FRAME_BYTES_MAX 2048
#define SLACK_NS (20 * MS) /* the core is ticked at least that often where time counts */

typedef struct load_model {
  uint64_t deadline_ns;
  uint32_t producer;
  bool wanted[POSITIONS];
  bool good[POSITIONS];
  bool has_outcome;
  bool is_quiet;
} load_model;

typedef struct read_model {
  uint64_t read_id; /* 0: not in use */
  uint32_t load;
  uint32_t count;
  uint32_t positions[POSITIONS];
} read_model;

typedef struct request_model {
  uint64_t id;
  bool begun;
  bool cancelled;
  bool has_verdict;
  uint64_t verdict_by_ns;
} request_model;

static kvf_core core;
static kvf_core_config config;
static wires all;
static uint64_t dials[WIRES_MAX]; /* that wait for an answer; 0: none */
static bool is_named[PRODUCERS];  /* by an accepted ticket */
static uint32_t open_paths[WIRES_MAX];
static uint32_t open_paths_count;
static load_model loads[LOADS_MAX];
static uint32_t loads_count;
static read_model reads[READS_MAX];
static request_model requests[REQUESTS_MAX];
static uint32_t requests_count;

static kvf_incarnation incarnation_of(uint32_t producer)
{
  kvf_incarnation incarnation;
  memset(&incarnation, 'P' + (int)producer, sizeof(incarnation));
  return incarnation;
}

static kvf_lease lease_of(uint32_t load)
{
  return (kvf_lease){.id = 100 + load, .slot = load, .token = {(uint8_t)load}};
}

/* ---- what the core wants ---- */

static void start_dial(const kvf_peer_action *action)
{
  uint32_t producer = (uint32_t)action->address.port - FIRST_PORT;
  fuzz_check(producer < PRODUCERS && is_named[producer]);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    if (dials[i] == 0) {
      dials[i] = action->conn_id;
      return;
    }
  }
  kvf_core_on_dialed(&core, all.now_ns, action->conn_id, KVF_PEER_DOWN);
}

static void open_path(const kvf_peer_action *action)
{
  uint32_t producer = (uint32_t)action->address.port - FIRST_PORT;
  kvf_incarnation incarnation = incarnation_of(producer);
  fuzz_check(memcmp(&action->incarnation, &incarnation, sizeof(incarnation)) == 0);
  fuzz_check(action->welcome->transports_count > 0 && open_paths_count < WIRES_MAX);
  open_paths[open_paths_count++] = action->path;
  if (open_paths_count == WIRES_MAX) {
    kvf_core_on_link(&core, all.now_ns, open_paths[--open_paths_count], KVF_TRANSFER_SETUP);
  }
}

static void start_read(const kvf_load_action *action)
{
  uint32_t load = (uint32_t)(action->lease.id - 100);
  fuzz_check(action->lease.id >= 100 && load < loads_count && !loads[load].is_quiet && !loads[load].has_outcome);
  read_model *place = NULL;
  for (size_t i = 0; i < READS_MAX; i++) {
    place = reads[i].read_id == 0 ? &reads[i] : place;
  }
  fuzz_check(place != NULL && action->items_count <= POSITIONS);
  for (uint32_t i = 0; i < action->items_count; i++) {
    uint32_t position = action->items[i].position;
    fuzz_check(position < POSITIONS && loads[load].wanted[position] && !loads[load].good[position]);
    for (size_t k = 0; k < READS_MAX; k++) {
      for (uint32_t n = 0; reads[k].read_id != 0 && reads[k].load == load && n < reads[k].count; n++) {
        fuzz_check(reads[k].positions[n] != position);
      }
    }
    place->positions[i] = position;
  }
  place->read_id = action->read_id;
  place->load = load;
  place->count = action->items_count;
}

static void end_read(read_model *read, kvf_status status, const kvf_fence_sample *sample, bool is_good)
{
  uint64_t read_id = read->read_id;
  for (uint32_t i = 0; is_good && i < read->count; i++) {
    loads[read->load].good[read->positions[i]] = true;
  }
  read->read_id = 0;
  kvf_core_on_read_done(&core, all.now_ns, read_id, status, sample, 0);
}

static void cancel_read(uint64_t read_id)
{
  for (size_t i = 0; i < READS_MAX; i++) {
    if (reads[i].read_id == read_id && read_id % 2 == 0) { /* the others end when the tape says so */
      end_read(&reads[i], KVF_CANCELLED, NULL, false);
      return;
    }
  }
}

static void on_load(const kvf_event *event)
{
  fuzz_check(event->user < loads_count);
  load_model *load = &loads[event->user];
  if (event->kind == KVF_EVENT_QUIET) {
    fuzz_check(load->has_outcome && !load->is_quiet);
    load->is_quiet = true;
    for (size_t i = 0; i < READS_MAX; i++) {
      fuzz_check(reads[i].read_id == 0 || reads[i].load != event->user);
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
  fuzz_check(event->user < requests_count);
  request_model *request = &requests[event->user];
  fuzz_check(request->id == event->id && request->begun && !request->cancelled && !request->has_verdict);
  request->has_verdict = true;
  fuzz_check(event->u.verdict.keep_blocks <= POSITIONS);
}

static void settle(void)
{
  kvf_effect effect;
  kvf_event event;
  while (kvf_core_next_effect(&core, all.now_ns, &effect)) {
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
        cancel_read(effect.read.read_id);
        break;
      case KVF_EFFECT_CLOSE_LINK:
        break;
      case KVF_EFFECT_STORE:
        fuzz_fail(__FILE__, __LINE__, "a fence store of a node that publishes nothing");
    }
  }
  while (kvf_core_next_event(&core, all.now_ns, &event)) {
    if (event.kind == KVF_EVENT_VERDICT) {
      on_verdict(&event);
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
  fuzz_check(type == KVF_FRAME_HELLO || type == KVF_FRAME_PROOF || type == KVF_FRAME_RENEW ||
             type == KVF_FRAME_FINISH || type == KVF_FRAME_PING);
}

static void check_world(void)
{
  for (size_t i = 0; i < WIRES_MAX; i++) {
    const wire *each = &all.list[i];
    if (each->conn_id != 0 && !each->has_key) {
      fuzz_check(kvf_core_frame_limit(&core, each->conn_id) == KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX);
    }
  }
  for (uint32_t i = 0; i < loads_count; i++) {
    fuzz_check(loads[i].has_outcome || all.now_ns <= loads[i].deadline_ns + SLACK_NS);
  }
  for (uint32_t i = 0; i < requests_count; i++) {
    const request_model *request = &requests[i];
    bool waits = request->begun && !request->cancelled && !request->has_verdict;
    fuzz_check(!waits || all.now_ns <= request->verdict_by_ns + SLACK_NS);
  }
}

static void pass(uint64_t ns)
{
  all.now_ns += ns;
  kvf_core_tick(&core, all.now_ns);
  wires_settle(&all);
}

/* ---- what the engine does ---- */

static void make_ticket(uint32_t producer, kvf_lease lease, kvf_ticket *ticket, uint32_t ids[POSITIONS])
{
  memset(ticket, 0, sizeof(*ticket));
  ticket->ranks = 1;
  ticket->rank[0].incarnation = incarnation_of(producer);
  ticket->rank[0].address = (kvf_address){.ip = {[15] = 1}, .port = (uint16_t)(FIRST_PORT + producer)};
  ticket->lease = lease;
  ticket->prompt.tokens = POSITIONS * BLOCK_TOKENS;
  ticket->block_tokens = BLOCK_TOKENS;
  ticket->ttl_ms = 1000;
  memcpy(ticket->compat, core.self.compat, sizeof(ticket->compat));
  ticket->groups = 1;
  ticket->counts[0] = POSITIONS;
  ticket->ids = ids;
  for (uint32_t i = 0; i < POSITIONS; i++) {
    ids[i] = i;
  }
}

static void start_load(fuzz_tape *tape)
{
  static kvf_ticket ticket;
  uint32_t ids[POSITIONS];
  uint32_t destination[POSITIONS];
  uint32_t count = POSITIONS;
  uint8_t choice = fuzz_u8(tape);
  uint32_t producer = choice % PRODUCERS;
  uint8_t times = fuzz_u8(tape);
  if (loads_count == LOADS_MAX) {
    return;
  }
  load_model *model = &loads[loads_count];
  uint32_t timeout_ms = 1 + times * 8u;
  *model = (load_model){.producer = producer, .deadline_ns = all.now_ns + timeout_ms * MS};
  make_ticket(producer, lease_of(loads_count), &ticket, ids);
  for (uint32_t i = 0; i < POSITIONS; i++) {
    model->wanted[i] = i > 0 || (choice & 0x80) == 0;
    destination[i] = model->wanted[i] ? i + POSITIONS * (loads_count % 3) : KVF_BLOCK_NONE;
  }
  kvf_load load = {.request_id = 1000 + loads_count,
                   .prompt = ticket.prompt,
                   .destination = {.ids = destination, .counts = &count, .groups = 1},
                   .timeout_ms = timeout_ms,
                   .user = loads_count};
  load.prompt.hash[0] = (choice & 0x7c) == 0x7c ? 1 : 0; /* another prompt than the ticket's */
  ticket.compat[0] ^= (choice & 0x7c) == 0x78 ? 1 : 0;   /* another model */
  bool wrong = (choice & 0x7c) == 0x7c || (choice & 0x7c) == 0x78;
  loads_count++;
  kvf_status status = kvf_core_load_start(&core, all.now_ns, &ticket, DIGEST, &load);
  fuzz_check(status == KVF_OK || status == KVF_NO_MEMORY || wrong);
  fuzz_check(!wrong || status == KVF_BAD_TICKET || status == KVF_INCOMPATIBLE);
  if (status == KVF_OK) {
    is_named[producer] = true;
  } else {
    loads_count--;
  }
}

static void open_request(fuzz_tape *tape)
{
  static kvf_ticket ticket;
  uint32_t ids[POSITIONS];
  uint32_t producer = fuzz_choose(tape, PRODUCERS);
  kvf_request_options options = {.policy = KVF_POLICY_RECOMPUTE, .load_timeout_ms = 1 + fuzz_u8(tape) * 8u};
  options.policy = (kvf_policy)(options.load_timeout_ms % 3);
  if (requests_count == REQUESTS_MAX) {
    return;
  }
  request_model *model = &requests[requests_count];
  *model =
      (request_model){.verdict_by_ns = options.load_timeout_ms * MS + kvf_ms_to_ns(config.options.quiet_timeout_ms)};
  make_ticket(producer, lease_of(LOADS_MAX + requests_count), &ticket, ids);
  fuzz_check(kvf_requests_open(&core.requests, all.now_ns, &ticket, &ticket.prompt, &options, requests_count,
                               &model->id) == KVF_OK);
  is_named[producer] = true;
  requests_count++;
}

static void act_on_request(fuzz_tape *tape)
{
  uint8_t choice = fuzz_u8(tape);
  if (requests_count == 0) {
    return;
  }
  request_model *request = &requests[(choice >> 4) % requests_count];
  switch (choice & 3) {
    case 0:
    case 1:
      if (kvf_requests_begin(&core.requests, all.now_ns, request->id) == KVF_OK) {
        fuzz_check(!request->begun && !request->cancelled);
        request->begun = true;
        request->verdict_by_ns += all.now_ns;
      }
      break;
    case 2: {
      kvf_report report = {.request_id = request->id, .blocks = POSITIONS, .ranks_mask = 1};
      report.prefix = fuzz_choose(tape, POSITIONS + 1);
      report.status = report.prefix == POSITIONS ? KVF_OK : KVF_TRANSFER_FAILED;
      kvf_status status = kvf_requests_report(&core.requests, all.now_ns, &report);
      fuzz_check(status != KVF_OK || (request->begun && !request->cancelled));
      break;
    }
    default:
      (void)kvf_requests_cancel(&core.requests, all.now_ns, request->id);
      request->cancelled = true;
      break;
  }
}

/* ---- what servers do ---- */

static void answer_dial(fuzz_tape *tape)
{
  uint8_t choice = fuzz_u8(tape);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    uint64_t conn_id = dials[i];
    if (conn_id == 0) {
      continue;
    }
    dials[i] = 0;
    bool there = kvf_conns_find(&core.conns, conn_id) != NULL; /* the core may have given up */
    bool accepted = there && choice < 0xe0 && wires_add(&all, conn_id, (choice & 1) == 0) != NULL;
    kvf_core_on_dialed(&core, all.now_ns, conn_id, accepted ? KVF_OK : KVF_PEER_DOWN);
    return;
  }
}

static wire *some_wire(fuzz_tape *tape)
{
  wire *chosen = &all.list[fuzz_choose(tape, WIRES_MAX)];
  return chosen->conn_id == 0 ? NULL : chosen;
}

static void send_any(fuzz_tape *tape, wire *from, size_t cut, bool is_frame)
{
  size_t got;
  kvf_frame_type type = (kvf_frame_type)(1 + (is_frame ? fuzz_choose(tape, KVF_FRAME_PONG) : 0));
  const uint8_t *bytes = fuzz_bytes(tape, fuzz_u16(tape) % FRAME_BYTES_MAX, &got);
  if (is_frame) {
    wires_feed_frame(&all, from, type, bytes, got, cut);
  } else {
    wires_feed(&all, from, bytes, got, cut);
  }
}

static void send_answer(fuzz_tape *tape, wire *from, kvf_frame_type type, size_t cut)
{
  static uint8_t body[SERVER_BODY_BYTES];
  uint64_t ids[REQUESTS_MAX];
  size_t bytes = 0;
  for (uint32_t i = 0; i < requests_count; i++) {
    ids[i] = requests[i].id;
  }
  if (type == KVF_FRAME_CHALLENGE) {
    bytes = server_challenge(tape, from, &config.key, body);
  } else if (type == KVF_FRAME_WELCOME) {
    bytes = server_welcome(tape, body);
  } else if (type == KVF_FRAME_REFUSED) {
    bytes = server_refused(tape, body);
  } else {
    bytes = server_states(tape, ids, requests_count, lease_of(LOADS_MAX).id, body);
  }
  if (bytes > 0) {
    wires_feed_frame(&all, from, type, body, bytes, cut);
  }
}

/* The proper next step of the handshake. */
static void shake_hands(fuzz_tape *tape)
{
  wire *from = some_wire(tape);
  if (from == NULL) {
    return;
  }
  uint64_t conn_id = from->conn_id;
  send_answer(tape, from, KVF_FRAME_CHALLENGE, 0);
  if (from->conn_id == conn_id) {
    send_answer(tape, from, KVF_FRAME_WELCOME, 0);
  }
}

static void send_something(fuzz_tape *tape)
{
  wire *from = some_wire(tape);
  uint8_t choice = fuzz_u8(tape);
  size_t cut = choice >> 4;
  if (from == NULL) {
    return;
  }
  switch (choice & 7) {
    case 0:
      send_any(tape, from, cut, true);
      break;
    case 1:
      send_any(tape, from, cut, false);
      break;
    case 2:
      send_answer(tape, from, KVF_FRAME_CHALLENGE, cut);
      break;
    case 3:
      send_answer(tape, from, KVF_FRAME_WELCOME, cut);
      break;
    case 4:
      send_answer(tape, from, KVF_FRAME_LEASE_STATES, cut);
      break;
    case 5:
      send_answer(tape, from, KVF_FRAME_REFUSED, cut);
      break;
    case 6:
      wires_feed_frame(&all, from, KVF_FRAME_PONG, "\1\0\0\0\0\0\0", 8, cut);
      break;
    default:
      wires_close(&all, from);
      break;
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
    kvf_core_on_link_down(&core, all.now_ns, (choice >> 3) & 15, status == KVF_OK ? KVF_PEER_DOWN : status);
  } else if (open_paths_count > 0) {
    kvf_core_on_link(&core, all.now_ns, open_paths[--open_paths_count], status);
  }
}

/* A fence sample that is live, or differs in one thing. */
static kvf_fence_sample make_sample(fuzz_tape *tape, const read_model *read, bool *is_live)
{
  uint8_t choice = fuzz_u8(tape);
  kvf_fence_sample sample = {
      .head = {.magic = KVF_FENCE_MAGIC, .incarnation = incarnation_of(loads[read->load].producer), .slots = 64},
      .entry = {.word = kvf_fence_word_live(lease_of(read->load).id), .digest = DIGEST}};
  *is_live = choice < 0xa0;
  if (choice >= 0xf0) {
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
    read = reads[(which + i) % READS_MAX].read_id != 0 ? &reads[(which + i) % READS_MAX] : NULL;
  }
  if (read == NULL) {
    kvf_fence_sample nothing = {0};
    kvf_core_on_read_done(&core, all.now_ns, which, KVF_OK, &nothing, 0); /* late, or never asked for */
    return;
  }
  if ((choice & 0x80) != 0) {
    kvf_core_on_read_progress(&core, all.now_ns, read->read_id);
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
  switch (fuzz_u8(tape) % 12) {
    case 0:
      for (unsigned ms = fuzz_u8(tape); ms > 0; ms -= ms < 10 ? ms : 10) {
        pass((ms < 10 ? ms : 10) * MS);
        check_world();
      }
      break;
    case 1:
      start_load(tape);
      break;
    case 2:
      if (loads_count > 0) {
        (void)kvf_core_load_abort(&core, all.now_ns, 1000 + fuzz_u8(tape) % loads_count);
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
  wires_settle(&all);
}

static void open_world(void)
{
  memset(&all, 0, sizeof(all));
  memset(dials, 0, sizeof(dials));
  memset(is_named, 0, sizeof(is_named));
  memset(reads, 0, sizeof(reads));
  all.core = &core;
  all.now_ns = 1000 * MS;
  all.on_in = on_in;
  all.on_out = on_out;
  all.settle = settle;
  loads_count = 0;
  requests_count = 0;
  open_paths_count = 0;
  wires_core_config(&config, "the key of the cluster", 'c');
  config.options.chunk_bytes = WIRES_BLOCK_BYTES; /* one block a read */
  fuzz_check(kvf_core_init(&core, &config, all.now_ns) == KVF_OK);
  wires_set_memory(&core);
}

static void end_reads(void)
{
  for (size_t i = 0; i < READS_MAX; i++) {
    if (reads[i].read_id != 0) {
      end_read(&reads[i], KVF_CANCELLED, NULL, false);
    }
  }
}

/* Nobody answers any more: everything comes to its end by itself. */
static void close_world(void)
{
  fuzz_tape refuse = {.data = (const uint8_t *)"\xff", .bytes = 1};
  wires_close_all(&all);
  for (unsigned i = 0; i < 400; i++) {
    refuse.at = 0;
    answer_dial(&refuse);
    end_reads();
    pass(10 * MS);
    check_world();
  }
  for (uint32_t i = 0; i < loads_count; i++) {
    fuzz_check(loads[i].has_outcome && loads[i].is_quiet);
  }
  fuzz_check(kvf_loads_stats(core.loads)->open == 0 && core.load_peers == NULL);
  kvf_core_free(&core);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static bool is_warm;
  if (!is_warm) { /* what OpenSSL allocates once */
    fuzz_tape none = {0};
    open_world();
    start_load(&none);
    wires_settle(&all);
    answer_dial(&none);
    wires_settle(&all);
    shake_hands(&none);
    close_world();
    is_warm = true;
  }
  fuzz_tape tape = {.data = data, .bytes = bytes};
  size_t heap = fuzz_heap_bytes();
  open_world();
  while (!fuzz_is_over(&tape)) {
    step(&tape);
    check_world();
  }
  close_world();
  fuzz_check(fuzz_heap_bytes() == heap);
  return 0;
}

/* A load that is done; one whose lease is over half-way; a request that is renewed, begun and reported; a stranger at
 * the producer's address; garbage from one who has the key. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  static const struct {
    const char *tape;
    size_t bytes;
  } seeds[] = {
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
  if (i >= sizeof(seeds) / sizeof(seeds[0])) {
    return false;
  }
  fuzz_put(out, seeds[i].tape, seeds[i].bytes);
  return true;
}
