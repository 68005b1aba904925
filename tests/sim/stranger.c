/* Somebody without the key, who hears what others say on the network and connects to producers (P8). */
#include <string.h>

#include "wire/handshake_message.h"
#include "wire/lease_message.h"
#include "world.h"

#define FRAME_TYPE_AT 4
#define CROWD 8

static uint64_t sessions_before;
static uint64_t ended_before;

static uint64_t ended_by_others(const sim_node *node)
{
  const uint64_t *ended = node->core.leases.counters.ended;
  return ended[KVF_LEASE_END_COMPLETED] + ended[KVF_LEASE_END_ABANDONED];
}

void sim_stranger_before(sim_world *world, const sim_node *node)
{
  (void)world;
  sessions_before = HASH_CNT(by_id, node->core.sessions.by_id);
  ended_before = ended_by_others(node);
}

void sim_stranger_after(sim_world *world, const sim_node *node)
{
  if (HASH_CNT(by_id, node->core.sessions.by_id) > sessions_before) {
    sim_fail(world, "P8", "node %u takes a stranger for one who has the key", node->index);
  }
  if (ended_by_others(node) != ended_before) {
    sim_fail(world, "P8", "node %u: a stranger has ended a lease", node->index);
  }
}

/* ---- what it hears and does to others' messages ---- */

static void remember(sim_world *world, const uint8_t *data, uint32_t bytes)
{
  if (data[FRAME_TYPE_AT] == KVF_FRAME_HELLO) {
    world->heard_bytes = 0;
  }
  if (bytes <= sizeof(world->heard) - world->heard_bytes) {
    memcpy(world->heard + world->heard_bytes, data, bytes);
    world->heard_bytes += bytes;
  }
}

void sim_stranger_overhear(sim_world *world, sim_conn *conn, uint32_t to, uint8_t *data, uint32_t bytes)
{
  if (bytes <= KVF_FRAME_HEADER_BYTES || conn->stranger != SIM_STRANGER_NONE) {
    return;
  }
  uint8_t type = data[FRAME_TYPE_AT];
  if (to == 1 && (type == KVF_FRAME_HELLO || type == KVF_FRAME_PROOF)) {
    remember(world, data, bytes);
  }
  if ((type == KVF_FRAME_HELLO || type == KVF_FRAME_CHALLENGE || type == KVF_FRAME_PROOF ||
       type == KVF_FRAME_REFUSED) &&
      sim_strikes(world, SIM_FAULT_ALTER, 6)) {
    uint32_t most = bytes - KVF_FRAME_HEADER_BYTES;
    uint32_t at = KVF_FRAME_HEADER_BYTES + sim_choose(&world->tape, most);
    sim_note(world, SIM_NOBODY, "frame % is altered at byte %", type, at, 0);
    data[at] ^= (uint8_t)(1 << sim_choose(&world->tape, 8));
  }
}

/* ---- what it says itself ---- */

static void come(sim_world *world)
{
  sim_tape *tape = &world->tape;
  const sim_engine *engine = &world->engines[sim_choose(tape, world->engines_count)];
  sim_conn *conn = sim_conn_new(world);
  if (conn == NULL) {
    return;
  }
  conn->stranger = (sim_stranger_kind)(1 + sim_choose(tape, SIM_STRANGER_OTHER_KEY));
  conn->end[0].open = true;
  conn->end[1].node = engine->index * SIM_NODES_EACH + sim_choose(tape, engine->ranks);
  sim_note(world, conn->end[1].node, "a stranger of kind % comes", conn->stranger, 0, 0);
  sim_conn_connect(world, conn);
}

void sim_stranger_come(sim_world *world)
{
  for (uint32_t i = sim_choose(&world->tape, 4) == 3 ? CROWD : 1; i > 0; i--) {
    come(world);
  }
}

static void say(sim_world *world, sim_conn *conn, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  uint8_t frame[KVF_FRAME_HEADER_BYTES + 256];
  if (bytes <= 256) {
    kvf_frame_header_encode(type, (uint32_t)bytes, frame);
    memcpy(frame + KVF_FRAME_HEADER_BYTES, body, bytes);
    sim_conn_send(world, conn, 1, frame, (uint32_t)(KVF_FRAME_HEADER_BYTES + bytes));
  }
}

/* As if the request were over: what would end the lease. */
static void say_finish(sim_world *world, sim_conn *conn)
{
  uint8_t body[256];
  size_t bytes = 0;
  kvf_leases leases = {.seq = 1, .count = 1};
  if (world->offers_count == 0) {
    return;
  }
  uint32_t back = sim_choose(&world->tape, world->offers_count < 4 ? world->offers_count : 4);
  const sim_offer *offer = &world->offers[world->offers_count - 1 - back];
  leases.items[0] = (kvf_leases_item){
      .lease = offer->lease, .request_id = 1 + sim_choose(&world->tape, 4), .kind = KVF_FINISH_COMPLETED};
  if (kvf_leases_encode(&leases, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_LEASES, body, bytes);
  }
}

static void say_garbage(sim_world *world, sim_conn *conn)
{
  uint8_t data[64];
  uint32_t bytes = 1 + sim_choose(&world->tape, sizeof(data));
  for (uint32_t i = 0; i < bytes; i++) {
    data[i] = (uint8_t)sim_choose(&world->tape, 256);
  }
  sim_conn_send(world, conn, 1, data, bytes);
}

static void say_hello(sim_world *world, sim_conn *conn)
{
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  kvf_hello hello = {
      .version_min = KVF_PROTOCOL_VERSION, .version_max = KVF_PROTOCOL_VERSION, .role = KVF_ROLE_CONTROL};
  if (kvf_handshake_key_id(&world->key, hello.key_id) == KVF_OK && /* anybody who listens knows it */
      kvf_hello_encode(&hello, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_HELLO, body, bytes);
  }
}

static void say_proof(sim_world *world, sim_conn *conn)
{
  static uint8_t body[KVF_PROOF_BYTES_MAX];
  static kvf_proof proof;
  size_t bytes = 0;
  proof = (kvf_proof){.identity_count = 0};
  for (uint32_t i = 0; i < sizeof(proof.proof); i++) {
    proof.proof[i] = (uint8_t)sim_choose(&world->tape, 256);
  }
  if (kvf_proof_encode(&proof, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_PROOF, body, bytes);
  }
}

/* What an impostor says to who dials: it has no key, and may have heard anything. */
static void answer(sim_world *world, sim_conn *conn)
{
  uint8_t frame[KVF_FRAME_HEADER_BYTES + 256];
  size_t bytes = 0;
  kvf_frame_type type = KVF_FRAME_REFUSED;
  kvf_refused refused = {.status = KVF_INCOMPATIBLE, .message = "go away"};
  kvf_challenge challenge = {.version = KVF_PROTOCOL_VERSION,
                             .server = sim_incarnation(sim_choose(&world->tape, SIM_NODES_MAX), 1)};
  kvf_status status = KVF_OK;
  switch (sim_choose(&world->tape, 4)) {
    case 0:
      return;
    case 1:
      status = kvf_refused_encode(&refused, frame + KVF_FRAME_HEADER_BYTES, 256, &bytes);
      break;
    case 2:
      type = KVF_FRAME_CHALLENGE;
      status = kvf_challenge_encode(&challenge, frame + KVF_FRAME_HEADER_BYTES, 256, &bytes);
      break;
    default:
      type = KVF_FRAME_WELCOME;
      bytes = 1 + sim_choose(&world->tape, 100);
      memset(frame + KVF_FRAME_HEADER_BYTES, (int)sim_choose(&world->tape, 256), bytes);
      break;
  }
  if (status == KVF_OK) {
    kvf_frame_header_encode(type, (uint32_t)bytes, frame);
    sim_conn_send(world, conn, 0, frame, (uint32_t)(KVF_FRAME_HEADER_BYTES + bytes));
  }
}

/* The first time it is connected, later something has come from the node. */
void sim_stranger_hear(sim_world *world, sim_conn *conn)
{
  switch (conn->stranger) {
    case SIM_STRANGER_IMPOSTOR:
      answer(world, conn);
      break;
    case SIM_STRANGER_GARBAGE:
      say_garbage(world, conn);
      break;
    case SIM_STRANGER_FRAMES:
      say_finish(world, conn);
      break;
    case SIM_STRANGER_REPLAY:
      sim_conn_send(world, conn, 1, world->heard, world->heard_bytes);
      say_finish(world, conn);
      break;
    case SIM_STRANGER_OTHER_KEY:
      if (conn->pipe[0].fin || conn->said > 0) {
        say_proof(world, conn);
        say_finish(world, conn);
      } else {
        say_hello(world, conn);
      }
      conn->said++;
      break;
    default:
      break;
  }
}
