/* The accepting side of control connections: a whole core, strangers and holders of the key, in the tape's order. All
 * may send any bytes, cut anywhere; holders of the key also send what only they can.
 *
 * Checked: a stranger is never trusted, is sent no more than the handshake, and neither ends a lease nor lengthens its
 * life; whatever ends a lease has a cause that this file has seen; each lease is given back once, after its fence entry
 * has been stored; a ticket is given to one find, while its lease is live; sessions are bounded; at the end nothing is
 * left. */
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "core/core_state.h"
#include "find/finder.h"
#include "wire/find_message.h"
#include "wire/handshake_message.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"
#include "wires.h"

#define LEASES_MAX 12
#define SLOTS 4

/* All that a stranger may ever be sent: a challenge, and why it is refused. */
#define STRANGER_OUT_BYTES_MAX (2 * KVF_FRAME_HEADER_BYTES + KVF_CHALLENGE_BYTES_MAX + KVF_REFUSED_BYTES_MAX)

typedef struct lease_model {
  kvf_lease lease;
  uint64_t renewed_ns; /* by a holder of the key; at first: when it was published */
  uint64_t published_ns;
  bool completed; /* a consumer has acknowledged, with the lease's token */
  bool aborted;   /* one has aborted, with the lease's token; those that only detach end nothing */
  bool revoked;
  bool over_stored;
  bool given_back;
  bool is_found; /* its offer was given to this consumer's find */
  uint8_t finder;
  uint64_t find_id;
} lease_model;

static kvf_core core;
static kvf_finder finder;
static kvf_core_config config;
static wires all;
static lease_model leases[LEASES_MAX];
static uint32_t leases_count;
static kvf_lease_store held[SLOTS]; /* stores that have not been reported */
static bool is_held[SLOTS];
static bool hold_stores;

/* ---- what the core wants ---- */

static void stored(const kvf_lease_store *store)
{
  for (uint32_t i = 0; i < leases_count; i++) {
    lease_model *model = &leases[i];
    model->over_stored = model->over_stored ||
                         (model->lease.slot == store->slot && store->entry.word > kvf_fence_word_live(model->lease.id));
  }
  kvf_core_on_stored(&core, store);
}

static void on_ended(const kvf_event *event)
{
  fuzz_check(event->kind == KVF_EVENT_LEASE_ENDED && event->user < leases_count);
  lease_model *model = &leases[event->user];
  fuzz_check(event->id == model->lease.id && !model->given_back && model->over_stored);
  model->given_back = true;
  const kvf_config *options = &core.context.config;
  switch (event->u.lease_end) {
    case KVF_LEASE_END_COMPLETED:
      fuzz_check(model->completed);
      break;
    case KVF_LEASE_END_ABANDONED:
      fuzz_check(model->aborted);
      break;
    case KVF_LEASE_END_EXPIRED:
      fuzz_check(all.now_ns >= model->published_ns + kvf_ms_to_ns(options->lease_ttl_ms));
      break;
    case KVF_LEASE_END_REVOKED:
      fuzz_check(model->revoked);
      break;
    default:
      fuzz_fail(__FILE__, __LINE__, "a cause that there is not");
  }
  fuzz_check(kvf_lease_slots_release(&core.slots, model->lease.id) == KVF_OK);
}

static void settle(void)
{
  kvf_effect effect;
  kvf_event event;
  while (kvf_core_next_effect(&core, all.now_ns, &effect)) {
    fuzz_check(effect.kind == KVF_EFFECT_STORE && effect.store.slot < SLOTS); /* nobody makes this node dial or read */
    fuzz_check(!is_held[effect.store.slot]);
    if (hold_stores) {
      held[effect.store.slot] = effect.store;
      is_held[effect.store.slot] = true;
    } else {
      stored(&effect.store);
    }
  }
  while (kvf_core_next_event(&core, all.now_ns, &event)) {
    on_ended(&event);
  }
}

static void release_stores(void)
{
  hold_stores = false;
  for (uint32_t slot = 0; slot < SLOTS; slot++) {
    if (is_held[slot]) {
      is_held[slot] = false;
      stored(&held[slot]);
    }
  }
  wires_settle(&all);
}

/* ---- what goes by ---- */

static lease_model *find_lease(const kvf_lease *lease)
{
  for (uint32_t i = 0; i < leases_count; i++) {
    const kvf_lease *own = &leases[i].lease;
    if (own->id == lease->id && own->slot == lease->slot && memcmp(own->token, lease->token, sizeof(own->token)) == 0) {
      return &leases[i];
    }
  }
  return NULL;
}

static uint8_t client_of(const wire *at)
{
  kvf_hello hello = {0};
  return kvf_hello_decode(at->hello, at->hello_bytes, &hello) == KVF_OK ? hello.client.bytes[0] : 0;
}

static uint8_t role_of(const wire *at)
{
  kvf_hello hello = {0};
  return kvf_hello_decode(at->hello, at->hello_bytes, &hello) == KVF_OK ? hello.role : 0;
}

/* Notes what a holder of the key has said of leases; who only checks has no say. */
static void on_in(wire *from, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  static kvf_leases said;
  if (!from->has_key || !from->welcomed || role_of(from) == KVF_ROLE_CHECK) {
    return;
  }
  if (type == KVF_FRAME_LEASES && kvf_leases_decode(body, bytes, &said) == KVF_OK) {
    for (uint32_t i = 0; i < said.count; i++) {
      const kvf_leases_item *item = &said.items[i];
      lease_model *model = find_lease(&item->lease);
      if (model != NULL && item->kind == KVF_FINISH_NONE &&
          all.now_ns < model->renewed_ns + kvf_ms_to_ns(config.options.lease_ttl_ms)) {
        model->renewed_ns = all.now_ns;
      }
      if (model != NULL) {
        model->completed = model->completed || item->kind == KVF_FINISH_COMPLETED;
        model->aborted = model->aborted || item->kind == KVF_FINISH_ABORTED;
      }
    }
  }
}

static bool may_be_live(const lease_model *model)
{
  return !model->given_back && !model->over_stored && !model->revoked &&
         all.now_ns < model->renewed_ns + kvf_ms_to_ns(config.options.lease_ttl_ms) &&
         all.now_ns < model->published_ns + kvf_ms_to_ns(config.options.lease_max_ms);
}

/* A ticket, whose text is the lease's place in our list, is given to one find, while its lease is live. */
static void on_found(const wire *to, const uint8_t *body, size_t bytes)
{
  kvf_found found;
  fuzz_check(role_of(to) != KVF_ROLE_CHECK && kvf_found_decode(body, bytes, &found) == KVF_OK);
  if (found.status == KVF_FOUND_TICKET) {
    fuzz_check(found.text_bytes == 1 && (uint8_t)found.text[0] < leases_count);
    lease_model *model = &leases[(uint8_t)found.text[0]];
    fuzz_check(may_be_live(model));
    fuzz_check(!model->is_found || (model->finder == client_of(to) && model->find_id == found.id));
    model->is_found = true;
    model->finder = client_of(to);
    model->find_id = found.id;
  }
}

/* Who only checks is told of no memory, and nobody else gets made-up bytes. */
static void check_role(const wire *to, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  bool checks = role_of(to) == KVF_ROLE_CHECK;
  kvf_ping pong;
  kvf_welcome welcome;
  fuzz_check(type != KVF_FRAME_LEASE_STATES || !checks);
  if (type == KVF_FRAME_PONG) {
    fuzz_check(kvf_ping_decode(body, bytes, &pong) == KVF_OK && (pong.fill_bytes == 0 || checks));
  } else if (type == KVF_FRAME_WELCOME && checks) {
    fuzz_check(kvf_welcome_decode(body, bytes, &welcome) == KVF_OK);
    fuzz_check(welcome.regions_count == 0 && welcome.transports[0].description_bytes == 0);
    kvf_welcome_free(&welcome);
  }
}

static void on_out(wire *to, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  check_role(to, type, body, bytes);
  bool handshake = type == KVF_FRAME_CHALLENGE || type == KVF_FRAME_REFUSED;
  fuzz_check(handshake || to->has_key);
  fuzz_check(handshake || type == KVF_FRAME_WELCOME || type == KVF_FRAME_LEASE_STATES || type == KVF_FRAME_PONG ||
             type == KVF_FRAME_FOUND);
  if (type == KVF_FRAME_FOUND) {
    on_found(to, body, bytes);
  }
}

static void check_world(void)
{
  uint32_t trusted = 0;
  for (size_t i = 0; i < WIRES_MAX; i++) {
    const wire *each = &all.list[i];
    if (each->conn_id == 0) {
      continue;
    }
    bool is_trusted = kvf_core_frame_limit(&core, each->conn_id) == KVF_FRAME_BODY_BYTES_MAX;
    trusted += is_trusted;
    fuzz_check(is_trusted == each->welcomed && (each->has_key || !is_trusted));
    fuzz_check(each->has_key || each->out_bytes <= STRANGER_OUT_BYTES_MAX);
  }
  fuzz_check(HASH_CNT(by_id, core.sessions.by_id) == trusted);
  fuzz_check(core.sessions.open.count == trusted && trusted <= config.options.connections_max);
  fuzz_check(core.sessions.unproven.count <= config.options.connections_max / KVF_SESSIONS_UNPROVEN_SHARE + 1);
  for (uint32_t i = 0; i < leases_count; i++) {
    const lease_model *model = &leases[i];
    if (kvf_lease_table_authorize(&core.leases, all.now_ns, &model->lease, NULL, 0) == KVF_OK) {
      fuzz_check(may_be_live(model));
    }
  }
}

/* ---- what happens ---- */

/* One of two, so that some leases are of equal ones. */
static kvf_prompt prompt_of(uint32_t i)
{
  return (kvf_prompt){.tokens = 1 + (i & 1)};
}

static void publish(fuzz_tape *tape)
{
  kvf_lease lease;
  uint32_t ids[] = {3, 5};
  uint32_t count = 2;
  kvf_blocks blocks = {.ids = ids, .counts = &count, .groups = 1};
  bool other_token = fuzz_choose(tape, 8) == 7; /* a ticket of which another rank's lease has the same id and slot */
  if (leases_count == LEASES_MAX || kvf_core_lease_reserve(&core, NULL, count, 0, &lease) != KVF_OK) {
    return;
  }
  lease.token[0] ^= other_token ? 1 : 0;
  leases[leases_count] = (lease_model){.lease = lease, .renewed_ns = all.now_ns, .published_ns = all.now_ns};
  leases_count++;
  fuzz_check(kvf_core_publish(&core, all.now_ns, &lease, &blocks, 9, leases_count - 1, false) == KVF_OK);
  const kvf_prompt prompt = prompt_of(leases_count);
  const kvf_find_key key = kvf_find_key_of_prompt(&prompt);
  const char text = (char)(leases_count - 1);
  fuzz_check(kvf_offers_add(&finder.offers, all.now_ns, &lease, &key, &text, 1) == KVF_OK);
}

static void revoke(fuzz_tape *tape)
{
  if (leases_count > 0) {
    lease_model *model = &leases[fuzz_u8(tape) % leases_count];
    model->revoked = true;
    (void)kvf_core_lease_end(&core, all.now_ns, &model->lease);
  }
}

static wire *accept_wire(bool has_key)
{
  uint64_t conn_id = 0;
  for (size_t i = 0; i < WIRES_MAX; i++) {
    if (all.list[i].conn_id == 0) {
      const kvf_address from = {.ip = {[0] = (uint8_t)(i % 3)}, .port = 9};
      fuzz_check(kvf_core_on_accepted(&core, all.now_ns, from, &conn_id) == KVF_OK);
      wire *added = wires_add(&all, conn_id, has_key);
      wires_settle(&all);
      return added;
    }
  }
  return NULL;
}

static kvf_hello make_hello(fuzz_tape *tape)
{
  kvf_hello hello = {.version_min = KVF_PROTOCOL_VERSION,
                     .version_max = KVF_PROTOCOL_VERSION,
                     .role = KVF_ROLE_CONTROL,
                     .expected = config.incarnation};
  uint8_t choices = fuzz_u8(tape);
  hello.role = (choices & 1) != 0 ? KVF_ROLE_RANK : KVF_ROLE_CONTROL;
  hello.role = (choices & 8) != 0 ? KVF_ROLE_CHECK : hello.role;
  hello.client.bytes[0] = (choices >> 1) & 1; /* one of two consumers */
  hello.version_max = KVF_PROTOCOL_VERSION + ((choices & 4) != 0 ? 6 : 0);
  fuzz_check(kvf_handshake_key_id(&config.key, hello.key_id) == KVF_OK); /* anyone on the way can have seen it */
  hello.key_id[0] ^= (choices & 0xf0) == 0xf0 ? 1 : 0;
  return hello;
}

/* With the key, or with another; `stolen` is a proof of another connection. */
static void send_proof(wire *from, const kvf_key *key, const wire *stolen, size_t cut)
{
  static kvf_proof proof;
  if (stolen != NULL) {
    wires_feed_frame(&all, from, KVF_FRAME_PROOF, stolen->proof, stolen->proof_bytes, cut);
    return;
  }
  proof = (kvf_proof){.identity_count = core.context.config.identity_fields};
  memcpy(proof.identity, core.context.config.identity, sizeof(proof.identity));
  if (from->challenge_bytes == KVF_CHALLENGE_BYTES_MAX && from->hello_bytes == KVF_HELLO_BYTES_MAX) {
    fuzz_check(kvf_handshake_client_proof(key, from->hello, from->hello_bytes, from->challenge, from->challenge_bytes,
                                          proof.proof) == KVF_OK);
  }
  WIRES_SEND(&all, from, KVF_FRAME_PROOF, proof, &proof, cut);
}

/* A proper handshake up to, and perhaps with, the proof. */
static void shake_hands(fuzz_tape *tape, bool has_key)
{
  static const kvf_key other = {"another key, as long", 20};
  const kvf_hello hello = make_hello(tape);
  wire *from = accept_wire(has_key);
  if (from == NULL) {
    return;
  }
  uint64_t conn_id = from->conn_id;
  WIRES_SEND(&all, from, KVF_FRAME_HELLO, hello, &hello, 0);
  unsigned next = fuzz_choose(tape, 4);
  if (from->conn_id != conn_id || next == 3) {
    return;
  }
  const wire *stolen = has_key || next != 1 ? NULL : wires_choose(&all, tape);
  send_proof(from, has_key ? &config.key : &other, stolen, 0);
}

/* A lease as a message names it: one of ours, perhaps damaged. */
static kvf_lease name_lease(fuzz_tape *tape)
{
  kvf_lease lease = {0};
  uint8_t choice = fuzz_u8(tape);
  if (leases_count > 0) {
    lease = leases[(choice & 15) % leases_count].lease;
  }
  switch (choice >> 4) {
    case 13:
      lease.token[fuzz_choose(tape, sizeof(lease.token))] ^= 1;
      break;
    case 14:
      lease.slot = fuzz_u32(tape);
      break;
    case 15:
      lease.id = (lease.id + fuzz_u8(tape)) % KVF_LEASE_ID_MAX;
      break;
    default:
      break;
  }
  return lease;
}

static void speak_of_leases(fuzz_tape *tape, wire *from)
{
  static kvf_leases said;
  uint8_t choice = fuzz_u8(tape);
  bool is_renew = (choice & 1) == 0;
  uint32_t count = 1 + ((choice >> 1) & 7);
  size_t cut = choice >> 4;
  for (uint32_t i = 0; i < count; i++) {
    kvf_lease lease = name_lease(tape);
    uint8_t who = fuzz_u8(tape);
    uint8_t kind = (who & 8) != 0 ? KVF_FINISH_ABORTED : KVF_FINISH_COMPLETED;
    kind = (who & 16) != 0 ? KVF_FINISH_DETACHED : kind;
    said.items[i] =
        (kvf_leases_item){.lease = lease, .request_id = who & 7, .kind = is_renew ? (uint8_t)KVF_FINISH_NONE : kind};
  }
  said.count = count;
  WIRES_SEND(&all, from, KVF_FRAME_LEASES, leases, &said, cut);
}

static void ask(wire *from, uint8_t choice)
{
  const kvf_prompt prompt = prompt_of(choice);
  const kvf_find_key key = kvf_find_key_of_prompt(&prompt);
  kvf_find_question question = {.id = (choice >> 1) & 3};
  fuzz_check(kvf_find_key_seal(&key, &core.context.self.macs[0], question.key) == KVF_OK);
  WIRES_SEND(&all, from, KVF_FRAME_FIND, find_question, &question, (choice & 8) != 0 ? 20 : 0);
}

static void send_something(fuzz_tape *tape, unsigned what)
{
  wire *from = wires_choose(&all, tape);
  if (from == NULL) {
    return;
  }
  const size_t cut = fuzz_u8(tape);
  const kvf_ping ping = {.wanted_bytes = cut < 0x80 ? 0 : KVF_PING_FILL_BYTES_MAX};
  kvf_hello hello;
  switch (what) {
    case 0:
    case 1:
      wires_feed_any(&all, from, tape, cut, what == 1);
      break;
    case 2:
      hello = make_hello(tape);
      WIRES_SEND(&all, from, KVF_FRAME_HELLO, hello, &hello, cut);
      break;
    case 3:
      send_proof(from, from->has_key ? &config.key : &(kvf_key){{0}, 0}, NULL, cut);
      break;
    case 4:
      if (cut >= 0x40 && cut < 0x80) {
        ask(from, (uint8_t)cut);
      } else {
        WIRES_SEND(&all, from, KVF_FRAME_PING, ping, &ping, cut);
      }
      break;
    default:
      speak_of_leases(tape, from);
      break;
  }
}

static void step(fuzz_tape *tape)
{
  uint8_t op = fuzz_u8(tape);
  switch (op % 16) {
    case 0:
      all.now_ns += fuzz_u8(tape) * UINT64_C(8) * MS;
      if (op < 0x80) { /* else the tick is late */
        kvf_core_tick(&core, all.now_ns);
      }
      break;
    case 1:
      (void)accept_wire((op & 0x80) != 0);
      break;
    case 2:
      shake_hands(tape, false);
      break;
    case 3:
    case 4:
      shake_hands(tape, true);
      break;
    case 5:
      publish(tape);
      break;
    case 6:
      revoke(tape);
      break;
    case 7:
      hold_stores = true;
      break;
    case 8:
      release_stores();
      break;
    case 9: {
      wire *gone = wires_choose(&all, tape);
      if (gone != NULL) {
        wires_close(&all, gone);
      }
      break;
    }
    default:
      send_something(tape, op % 16 - 10u);
      break;
  }
  wires_settle(&all);
}

static void open_world(void)
{
  memset(&all, 0, sizeof(all));
  memset(is_held, 0, sizeof(is_held));
  all.core = &core;
  all.now_ns = 1000 * MS;
  all.on_in = on_in;
  all.on_out = on_out;
  all.settle = settle;
  leases_count = 0;
  hold_stores = false;
  wires_core_config(&config, "the key of the cluster", 'p');
  fuzz_check(kvf_core_init(&core, &config, all.now_ns) == KVF_OK);
  kvf_finder_init(&finder, &core);
  wires_set_memory(&core);
}

/* Everyone leaves, all leases run out. */
static void close_world(void)
{
  wires_close_all(&all);
  release_stores();
  all.now_ns += kvf_ms_to_ns(config.options.lease_max_ms);
  kvf_core_tick(&core, all.now_ns);
  wires_settle(&all);
  check_world();
  for (uint32_t i = 0; i < leases_count; i++) {
    fuzz_check(leases[i].given_back);
  }
  fuzz_check(core.context.conns.by_id == NULL && HASH_CNT(by_id, core.sessions.by_id) == 0 &&
             core.sessions.unproven.count == 0);
  fuzz_check(core.leases.unreleased == 0 && kvf_lease_slots_live(&core.slots) == 0);
  fuzz_check(finder.offers.by_slot == NULL && finder.offers.buckets == NULL && finder.offers.bytes == 0);
  kvf_core_free(&core);
}

static void warm_up(void)
{
  fuzz_tape none = {0};
  shake_hands(&none, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static const fuzz_world driven = {open_world, warm_up, step, check_world, close_world};
  fuzz_drive(&driven, data, bytes);
  return 0;
}

/* A lease that is renewed and completed; one that is aborted while stores are held; strangers at every door; two
 * consumers. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  static const fuzz_tape_seed seeds[] = {
      {"\x05\x00\x03\x01\x00\x0f\x00\x00\x00\x00\x00\x0f\x00\x00\x01\x00\x00", 17},
      {"\x05\x00\x05\x00\x03\x00\x00\x07\x0f\x00\x00\x03\x00\x08\x01\x00\x08\x00\x40\x09\x00", 21},
      {"\x03\x00\x00\x05\x00\x02\x00\x00\x02\x00\x01\x00\x02\x00\x03\x0b\x01\x00\x05\x04\x00\x01\x02\x03\x04", 25},
      {"\x01\x0a\x00\x01\x10\x00GET / HTTP/1.1\r\n\x01\x0c\x00\x00\x00\x0d\x00\x00\x0e\x00\x00", 33},
      {"\x03\x01\x00\x0e\x00\x02\x0e\x00\x00\x05\x00\x06\x00\x00\xff\x00\xff", 17},
      {"\x01\x01\x01\x01\x03\x00\x00\x03\x00\x00\x03\x00\x00\x03\x00\x00\x03\x00\x00\x03\x00\x00", 22},
      {"\x05\x00\x03\x00\x00\x03\x02\x00\x0f\x00\x00\x01\x00\x80\x0f\x01\x00\x01\x00\x91\x0f\x01\x00\x01\x00\x81\x0f"
       "\x00\x00"
       "\x01\x00\x90",
       32},
  };
  return fuzz_put_nth(out, i, seeds, sizeof(seeds) / sizeof(seeds[0]));
}
