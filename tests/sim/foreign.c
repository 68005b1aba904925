/* A consumer of another make, with the key: its readers acknowledge each for itself, and more than once, as the
 * protocol allows and our own control node never does. */
#include <string.h>

#include "wire/handshake_message.h"
#include "wire/lease_message.h"
#include "world.h"

#define REQUEST_ID 77

static void say(sim_world *world, sim_conn *conn, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  static uint8_t frame[KVF_FRAME_HEADER_BYTES + KVF_PROOF_BYTES_MAX];
  kvf_frame_header_encode(type, (uint32_t)bytes, frame);
  memcpy(frame + KVF_FRAME_HEADER_BYTES, body, bytes);
  sim_conn_send(world, conn, 1, frame, (uint32_t)(KVF_FRAME_HEADER_BYTES + bytes));
}

void sim_foreign_come(sim_world *world)
{
  sim_tape *tape = &world->tape;
  sim_engine *engine = &world->engines[sim_choose(tape, world->producers)];
  uint32_t offer = engine->paused_until_ns > world->now_ns
                       ? SIM_NOBODY
                       : sim_offer_make(world, engine, sim_choose(tape, SIM_PROMPTS));
  sim_conn *conn = offer == SIM_NOBODY ? NULL : sim_conn_new(world);
  if (conn != NULL) {
    conn->stranger = SIM_STRANGER_FOREIGN;
    conn->offer = offer;
    world->offers[offer].others++;
    conn->end[0].open = true;
    conn->end[1].node = engine->index * SIM_NODES_EACH;
    sim_note(world, conn->end[1].node, "a foreign consumer comes for lease %", world->offers[offer].lease.id, 0, 0);
    sim_conn_connect(world, conn);
  }
}

static kvf_status make_hello(const sim_world *world, uint8_t *body, size_t capacity, size_t *bytes)
{
  kvf_hello hello = {
      .version_min = KVF_PROTOCOL_VERSION, .version_max = KVF_PROTOCOL_VERSION, .role = KVF_ROLE_CONTROL};
  kvf_status status = kvf_handshake_key_id(&world->key, hello.key_id);
  return status == KVF_OK ? kvf_hello_encode(&hello, body, capacity, bytes) : status;
}

void sim_foreign_start(sim_world *world, sim_conn *conn)
{
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  if (make_hello(world, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_HELLO, body, bytes);
  }
}

static void on_challenge(sim_world *world, sim_conn *conn, const uint8_t *challenge, size_t challenge_bytes)
{
  static uint8_t body[KVF_PROOF_BYTES_MAX];
  static kvf_proof proof;
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  size_t hello_bytes = 0;
  size_t bytes = 0;
  const kvf_config *config = &world->nodes[conn->end[1].node].core.self.config;
  proof.identity_count = config->identity_fields;
  memcpy(proof.identity, config->identity, proof.identity_count * sizeof(proof.identity[0]));
  if (make_hello(world, hello, sizeof(hello), &hello_bytes) == KVF_OK &&
      kvf_handshake_client_proof(&world->key, hello, hello_bytes, challenge, challenge_bytes, proof.proof) == KVF_OK &&
      kvf_proof_encode(&proof, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_PROOF, body, bytes);
  }
}

static void say_renew(sim_world *world, sim_conn *conn)
{
  static kvf_renew renew;
  uint8_t body[256];
  size_t bytes = 0;
  renew.seq = 1;
  renew.count = 1;
  renew.items[0] = (kvf_renew_item){.lease = world->offers[conn->offer].lease, .request_id = REQUEST_ID};
  if (kvf_renew_encode(&renew, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_RENEW, body, bytes);
  }
}

static void say_finish(sim_world *world, sim_conn *conn, uint8_t reader)
{
  static kvf_finish finish;
  uint8_t body[256];
  size_t bytes = 0;
  finish.seq = 2;
  finish.count = 1;
  finish.items[0] = (kvf_finish_item){.lease = world->offers[conn->offer].lease,
                                      .request_id = REQUEST_ID,
                                      .kind = KVF_FINISH_COMPLETED,
                                      .reader = reader,
                                      .readers = 2};
  if (kvf_finish_encode(&finish, body, sizeof(body), &bytes) == KVF_OK) {
    say(world, conn, KVF_FRAME_FINISH, body, bytes);
  }
}

/* The first reader says it twice before the second does at all. */
static void on_frame(sim_world *world, sim_conn *conn, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  static const uint8_t readers[] = {0, 0, 1};
  if (type == KVF_FRAME_CHALLENGE) {
    on_challenge(world, conn, body, bytes);
  } else if (type == KVF_FRAME_WELCOME) {
    say_renew(world, conn);
  } else if (type == KVF_FRAME_LEASE_STATES && conn->said < sizeof(readers)) {
    say_finish(world, conn, readers[conn->said++]);
  }
}

void sim_foreign_hear(sim_world *world, sim_conn *conn)
{
  sim_pipe *pipe = &conn->pipe[0];
  kvf_frame_header header;
  while (pipe->arrived >= KVF_FRAME_HEADER_BYTES &&
         kvf_frame_header_decode(pipe->data, KVF_FRAME_BODY_BYTES_MAX, &header) == KVF_OK &&
         pipe->arrived >= KVF_FRAME_HEADER_BYTES + header.body_bytes) {
    uint32_t whole = KVF_FRAME_HEADER_BYTES + header.body_bytes;
    on_frame(world, conn, header.type, pipe->data + KVF_FRAME_HEADER_BYTES, header.body_bytes);
    pipe->arrived -= whole;
    pipe->bytes -= whole;
    memmove(pipe->data, pipe->data + whole, pipe->bytes);
  }
}
