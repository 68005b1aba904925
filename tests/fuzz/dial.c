/* The dialing side of control connections: a whole core that loads and renews, and servers who answer it as they like.
 * Some have the key (a producer gone mad), some do not (a stranger at its address).
 *
 * Checked: nothing is dialed that no accepted ticket names; a server without the key is never trusted and hears no more
 * than HELLO; each load has one outcome, by its deadline, and then one release, when its reads have ended; a block
 * counts as good only if a live fence was shown after its read; no block is read anew before its last read has ended;
 * each request has one verdict; each find has one event, by its deadline, and a ticket only of its prompt; at the end
 * nothing is left. */
#include <string.h>

#include "dial_world.h"
#include "wire/find_message.h"
#include "wire/lease_message.h"

/* ---- what a server may answer ----
 *
 * Well-formed frames, right or wrong as the tape says. Each writes a body and returns its length; 0: there is nothing
 * that could be said now. */

#define SERVER_BODY_BYTES 16384

/* Right if the wire has the key. */
static size_t server_challenge(fuzz_tape *tape, wire *from, const kvf_key *key, uint8_t body[SERVER_BODY_BYTES])
{
  static const kvf_key other = {"another key, as long", 20};
  size_t bytes = 0;
  uint8_t choice = fuzz_u8(tape);
  kvf_hello hello;
  kvf_challenge challenge = {.version = (choice & 0xf0) == 0xf0 ? KVF_PROTOCOL_VERSION + 1 : KVF_PROTOCOL_VERSION,
                             .nonce = {1, 2}};
  if (kvf_hello_decode(from->hello, from->hello_bytes, &hello) != KVF_OK) {
    return 0;
  }
  const kvf_incarnation nobody = {0};
  const bool may_be_any = memcmp(&hello.expected, &nobody, sizeof(nobody)) == 0;
  challenge.server = may_be_any ? dial_incarnation(0) : hello.expected;
  challenge.server.bytes[0] ^= (choice & 0xf0) == 0xe0 ? 1 : 0;
  from->is_other = from->is_other || (from->challenge_bytes == 0 && (choice & 0xf0) == 0xe0);
  fuzz_check(kvf_handshake_server_proof(from->has_key ? key : &other, from->hello, from->hello_bytes, &challenge,
                                        challenge.proof) == KVF_OK);
  fuzz_check(kvf_challenge_encode(&challenge, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

static size_t server_welcome(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES])
{
  size_t bytes = 0;
  uint8_t choice = fuzz_u8(tape);
  uint8_t description[2] = {1, 2};
  kvf_region_layout regions[3];
  for (uint32_t i = 0; i < 3; i++) {
    regions[i] = (kvf_region_layout){.stride_bytes = WIRES_BLOCK_BYTES,
                                     .block_bytes = WIRES_BLOCK_BYTES,
                                     .blocks = WIRES_BLOCKS,
                                     .heads = 1,
                                     .heads_total = 1};
  }
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
  fuzz_check(kvf_welcome_encode(&welcome, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

static size_t server_refused(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES])
{
  static const int32_t statuses[] = {KVF_INCOMPATIBLE, KVF_HANDSHAKE_REFUSED, KVF_PROTOCOL, -12345};
  size_t bytes = 0;
  kvf_refused refused = {.status = statuses[fuzz_choose(tape, 4)], .message = "%s%n"};
  fuzz_check(kvf_refused_encode(&refused, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

/* Of these requests, each with a lease of the id `first_lease_id` plus its place. */
static size_t server_states(fuzz_tape *tape, const uint64_t *request_ids, uint32_t count, uint64_t first_lease_id,
                            uint8_t body[SERVER_BODY_BYTES])
{
  static kvf_lease_states states;
  size_t bytes = 0;
  uint8_t choice = fuzz_u8(tape);
  states.seq = fuzz_u8(tape);
  states.count = 1 + (choice & 3);
  for (uint32_t i = 0; i < states.count; i++) {
    uint8_t which = fuzz_u8(tape);
    uint32_t place = count == 0 ? which : which % count;
    states.items[i] = (kvf_lease_states_item){.lease_id = first_lease_id + place,
                                              .slot = (uint32_t)(first_lease_id - 100) + place,
                                              .request_id = count == 0 ? which : request_ids[place],
                                              .state = 1 + ((which >> 4) & 3)};
  }
  fuzz_check(kvf_lease_states_encode(&states, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

/* To a find: its ticket, one of another prompt, an altered one, or none. */
static size_t server_found(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES])
{
  static char text[SERVER_BODY_BYTES];
  uint32_t ids[POSITIONS] = {0};
  uint8_t choice = fuzz_u8(tape);
  kvf_ticket ticket = {.version = KVF_TICKET_VERSION_MAX,
                       .ranks = 1,
                       .rank = {{.address = {.port = FIRST_PORT}, .dealt = 1}},
                       .prompt = dial_prompt(),
                       .block_tokens = BLOCK_TOKENS,
                       .ttl_ms = 1000,
                       .groups = 1,
                       .group_tokens = {BLOCK_TOKENS},
                       .counts = {POSITIONS},
                       .ids = ids};
  kvf_found found = {.id = 1 + choice % FINDS_MAX, .status = KVF_FOUND_TICKET, .text = text};
  size_t bytes = 0;
  size_t macs = 0;
  ticket.prompt.hash[0] = (choice & 0xf0) == 0xe0 ? 1 : 0;
  fuzz_check(kvf_ticket_encode(&ticket, kvf_core_macs(world.core, &macs), text, sizeof(text) - KVF_FIND_BYTES_MAX,
                               &found.text_bytes) == KVF_OK);
  text[found.text_bytes / 2] ^= (choice & 0xf0) == 0xf0 ? 1 : 0;
  if (choice < 0x60) {
    found.status = KVF_FOUND_NOTHING;
    found.text_bytes = 0;
  }
  fuzz_check(kvf_found_encode(&found, body, SERVER_BODY_BYTES, &bytes) == KVF_OK);
  return bytes;
}

/* ---- what the engine does ---- */

static void make_ticket(uint32_t producer, kvf_lease lease, kvf_ticket *ticket, uint32_t ids[POSITIONS])
{
  memset(ticket, 0, sizeof(*ticket));
  ticket->ranks = 1;
  ticket->rank[0].incarnation = dial_incarnation(producer);
  ticket->rank[0].dealt = 1;
  ticket->rank[0].address = (kvf_address){.ip = {[15] = 1}, .port = (uint16_t)(FIRST_PORT + producer)};
  ticket->lease = lease;
  ticket->prompt.tokens = POSITIONS * BLOCK_TOKENS;
  ticket->block_tokens = ticket->group_tokens[0] = BLOCK_TOKENS;
  ticket->ttl_ms = 1000;
  memcpy(ticket->compat, world.compat, sizeof(ticket->compat));
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
  if (world.loads_count == LOADS_MAX) {
    return;
  }
  load_model *model = &world.loads[world.loads_count];
  uint32_t timeout_ms = 1 + times * 8u;
  *model = (load_model){.producer = producer, .deadline_ns = world.all.now_ns + timeout_ms * MS};
  make_ticket(producer, dial_lease(world.loads_count), &ticket, ids);
  for (uint32_t i = 0; i < POSITIONS; i++) {
    model->wanted[i] = i > 0 || (choice & 0x80) == 0;
    destination[i] = model->wanted[i] ? i + POSITIONS * (world.loads_count % 3) : KVF_BLOCK_NONE;
  }
  kvf_load_params load = {.request_id = 1000 + world.loads_count,
                          .prompt = ticket.prompt,
                          .destination = {.ids = destination, .counts = &count, .groups = 1},
                          .timeout_ms = timeout_ms,
                          .user = world.loads_count};
  load.prompt.hash[0] = (choice & 0x7c) == 0x7c ? 1 : 0; /* another prompt than the ticket's */
  ticket.compat[0] ^= (choice & 0x7c) == 0x78 ? 1 : 0;   /* another model */
  bool wrong = (choice & 0x7c) == 0x7c || (choice & 0x7c) == 0x78;
  world.loads_count++;
  const kvf_sources sources = {.count = 1, .tickets = {&ticket}, .digests = {DIGEST}};
  kvf_status status = kvf_core_load_start(world.core, world.all.now_ns, &sources, &load, 0);
  fuzz_check(status == KVF_OK || status == KVF_NO_MEMORY || status == KVF_NO_RESOURCE || wrong);
  fuzz_check(!wrong || status == KVF_BAD_TICKET || status == KVF_INCOMPATIBLE);
  if (status == KVF_OK) {
    world.is_named[producer] = true;
  } else {
    world.loads_count--;
  }
}

static void open_request(fuzz_tape *tape)
{
  static kvf_ticket ticket;
  uint32_t ids[POSITIONS];
  uint32_t producer = fuzz_choose(tape, PRODUCERS);
  kvf_request_options options = {.policy = KVF_POLICY_RECOMPUTE, .load_timeout_ms = 1 + fuzz_u8(tape) * 8u};
  options.policy = (kvf_policy)(options.load_timeout_ms % 3);
  if (world.requests_count == REQUESTS_MAX) {
    return;
  }
  request_model *model = &world.requests[world.requests_count];
  *model = (request_model){.verdict_by_ns =
                               options.load_timeout_ms * MS + kvf_ms_to_ns(world.config.options.release_timeout_ms)};
  make_ticket(producer, dial_lease(LOADS_MAX + world.requests_count), &ticket, ids);
  const kvf_sources sources = {.count = 1, .tickets = {&ticket}};
  fuzz_check(kvf_core_request_open(world.core, world.all.now_ns, &sources, &ticket.prompt, &options,
                                   world.requests_count, &model->id, NULL) == KVF_OK);
  world.is_named[producer] = true;
  world.requests_count++;
}

static void act_on_request(fuzz_tape *tape)
{
  uint8_t choice = fuzz_u8(tape);
  if (world.requests_count == 0) {
    return;
  }
  request_model *request = &world.requests[(choice >> 4) % world.requests_count];
  switch (choice & 3) {
    case 0:
    case 1:
      if (kvf_core_request_begin(world.core, world.all.now_ns, request->id) == KVF_OK) {
        fuzz_check(!request->begun && !request->cancelled);
        request->begun = true;
        request->verdict_by_ns += world.all.now_ns;
      }
      break;
    case 2: {
      if ((choice & 4) != 0) {
        dial_let_go(request, choice >> 3 & 1);
        break;
      }
      kvf_report report = {.request_id = request->id, .blocks = POSITIONS, .ranks_mask = 1};
      report.prefix = fuzz_choose(tape, POSITIONS + 1);
      report.status = report.prefix == POSITIONS ? KVF_OK : KVF_TRANSFER_FAILED;
      kvf_status status = kvf_core_request_report(world.core, world.all.now_ns, &report);
      fuzz_check(status != KVF_OK || (request->begun && !request->cancelled));
      break;
    }
    default:
      (void)kvf_core_request_cancel(world.core, world.all.now_ns, request->id, KVF_FINISH_ABORTED);
      request->cancelled = true;
      break;
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

static void send_answer(fuzz_tape *tape, wire *from, kvf_frame_type type, size_t cut)
{
  static uint8_t body[SERVER_BODY_BYTES];
  uint64_t ids[REQUESTS_MAX];
  size_t bytes = 0;
  for (uint32_t i = 0; i < world.requests_count; i++) {
    ids[i] = world.requests[i].id;
  }
  if (type == KVF_FRAME_CHALLENGE) {
    bytes = server_challenge(tape, from, &world.config.key, body);
  } else if (type == KVF_FRAME_WELCOME) {
    bytes = server_welcome(tape, body);
  } else if (type == KVF_FRAME_REFUSED) {
    bytes = server_refused(tape, body);
  } else if (type == KVF_FRAME_FOUND) {
    bytes = server_found(tape, body);
  } else {
    bytes = server_states(tape, ids, world.requests_count, dial_lease(LOADS_MAX).id, body);
  }
  if (bytes > 0) {
    wires_feed_frame(&world.all, from, type, body, bytes, cut);
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
  send_answer(tape, from, KVF_FRAME_CHALLENGE, 0);
  if (from->conn_id == conn_id) {
    send_answer(tape, from, KVF_FRAME_WELCOME, 0);
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
      wires_feed_any(&world.all, from, tape, cut, true);
      break;
    case 1:
      wires_feed_any(&world.all, from, tape, cut, false);
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
      if (cut >= 8) {
        send_answer(tape, from, KVF_FRAME_FOUND, cut == 15 ? cut : 0);
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
      send_answer(&none, from, KVF_FRAME_CHALLENGE, 0);
    }
  }
}

static void start_find(fuzz_tape *tape)
{
  const kvf_prompt prompt = dial_prompt();
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
    kvf_core_on_link(world.core, world.all.now_ns, world.open_paths[--world.open_paths_count], status);
  }
}

/* A fence sample that is live, or differs in one thing. */
static kvf_fence_sample make_sample(fuzz_tape *tape, const read_model *read, bool *is_live)
{
  uint8_t choice = fuzz_u8(tape);
  kvf_fence_sample sample = {.head = {.magic = KVF_FENCE_MAGIC,
                                      .incarnation = dial_incarnation(world.loads[read->load].producer),
                                      .slots = 64},
                             .entry = {.word = kvf_fence_word_live(dial_lease(read->load).id), .digest = DIGEST}};
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
  dial_end_read(read, status, &sample, status == KVF_OK && is_live);
}

/* ---- */

static void step(fuzz_tape *tape)
{
  const uint8_t op = fuzz_u8(tape);
  switch (op % 12) {
    case 0:
      for (unsigned ms = fuzz_u8(tape); ms > 0; ms -= ms < 10 ? ms : 10) {
        dial_pass((ms < 10 ? ms : 10) * MS);
        dial_check();
      }
      break;
    case 1:
      start_load(tape);
      break;
    case 2:
      if (op >= 0x80) {
        start_find(tape);
      } else if (world.loads_count > 0) {
        (void)kvf_core_load_abort(world.core, world.all.now_ns, 1000 + fuzz_u8(tape) % world.loads_count);
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
      dial_end_read(&world.reads[i], KVF_CANCELLED, NULL, false);
    }
  }
}

/* Nobody answers any more: everything comes to its end by itself. */
static void close_world(void)
{
  wires_close_all(&world.all);
  for (unsigned i = 0; i < 400 && !dial_is_settled(); i++) {
    fuzz_tape refuse = {.data = (const uint8_t *)"\xff", .bytes = 1};
    answer_dial(&refuse);
    end_reads();
    for (uint32_t k = 0; k < world.requests_count; k++) {
      dial_let_go(&world.requests[k], false);
    }
    dial_pass(10 * MS);
    dial_check();
  }
  fuzz_check(dial_is_settled());
  dial_close();
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
  static const fuzz_world driven = {dial_open, warm_up, step, dial_check, close_world};
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
