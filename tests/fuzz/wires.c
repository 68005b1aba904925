/* Bytes that the target chooses go into the core by recv(), and each frame that comes out is decoded. */
#include "wires.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "wire/find_message.h"
#include "wire/handshake_message.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"

/* More than the socket grows by at once. */
#define SOCKET_SLACK_BYTES 8192

/* What recv() gives next. */
static const uint8_t *incoming;
static size_t incoming_bytes;
static size_t incoming_cut;

ssize_t __wrap_recv(int fd, void *buffer, size_t room, int flags);
ssize_t __wrap_recv(int fd, void *buffer, size_t room, int flags)
{
  (void)fd;
  (void)flags;
  size_t bytes = incoming_bytes < room ? incoming_bytes : room;
  bytes = incoming_cut > 0 && incoming_cut < bytes ? incoming_cut : bytes;
  if (bytes == 0) {
    errno = EAGAIN;
    return -1;
  }
  memcpy(buffer, incoming, bytes);
  incoming += bytes;
  incoming_bytes -= bytes;
  return (ssize_t)bytes;
}

wire *wires_add(wires *all, uint64_t conn_id, bool has_key)
{
  for (size_t i = 0; i < WIRES_MAX; i++) {
    wire *place = &all->list[i];
    if (place->conn_id == 0) {
      *place = (wire){.conn_id = conn_id, .has_key = has_key};
      place->socket = kvf_control_socket_new(conn_id, -1, false);
      fuzz_check(place->socket != NULL);
      return place;
    }
  }
  return NULL;
}

static void forget(wire *gone)
{
  kvf_control_socket_free(gone->socket);
  gone->conn_id = 0;
}

/* ---- out ---- */

/* What we send, our own decoders must take. */
static void check_decodes(kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  static union {
    kvf_hello hello;
    kvf_challenge challenge;
    kvf_proof proof;
    kvf_refused refused;
    kvf_leases leases;
    kvf_lease_states states;
    kvf_find_question question;
    kvf_found found;
    kvf_ping ping;
  } out;
  kvf_welcome welcome;
  switch (type) {
    case KVF_FRAME_HELLO:
      fuzz_check(kvf_hello_decode(body, bytes, &out.hello) == KVF_OK);
      break;
    case KVF_FRAME_CHALLENGE:
      fuzz_check(kvf_challenge_decode(body, bytes, &out.challenge) == KVF_OK);
      break;
    case KVF_FRAME_PROOF:
      fuzz_check(kvf_proof_decode(body, bytes, &out.proof) == KVF_OK);
      break;
    case KVF_FRAME_WELCOME:
      fuzz_check(kvf_welcome_decode(body, bytes, &welcome) == KVF_OK);
      kvf_welcome_free(&welcome);
      break;
    case KVF_FRAME_REFUSED:
      fuzz_check(kvf_refused_decode(body, bytes, &out.refused) == KVF_OK);
      break;
    case KVF_FRAME_LEASES:
      fuzz_check(kvf_leases_decode(body, bytes, &out.leases) == KVF_OK);
      break;
    case KVF_FRAME_LEASE_STATES:
      fuzz_check(kvf_lease_states_decode(body, bytes, &out.states) == KVF_OK);
      break;
    case KVF_FRAME_FIND:
      fuzz_check(kvf_find_question_decode(body, bytes, &out.question) == KVF_OK);
      break;
    case KVF_FRAME_FOUND:
      fuzz_check(kvf_found_decode(body, bytes, &out.found) == KVF_OK);
      break;
    case KVF_FRAME_PING:
    case KVF_FRAME_PONG:
      fuzz_check(kvf_ping_decode(body, bytes, &out.ping) == KVF_OK);
      break;
    default:
      fuzz_fail(__FILE__, __LINE__, "not a frame of control connections");
  }
}

static void keep(uint8_t *to, size_t room, size_t *to_bytes, const uint8_t *body, size_t bytes)
{
  if (bytes <= room) {
    memcpy(to, body, bytes);
    *to_bytes = bytes;
  }
}

static void note(wire *at, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  if (type == KVF_FRAME_HELLO) {
    keep(at->hello, sizeof(at->hello), &at->hello_bytes, body, bytes);
  } else if (type == KVF_FRAME_CHALLENGE) {
    keep(at->challenge, sizeof(at->challenge), &at->challenge_bytes, body, bytes);
  } else if (type == KVF_FRAME_PROOF) {
    keep(at->proof, sizeof(at->proof), &at->proof_bytes, body, bytes);
  }
}

static void take_output(void *context, const kvf_core_output *output)
{
  wires *all = context;
  fuzz_check(output->bytes <= KVF_OUTBOX_BYTES_MAX);
  for (size_t i = 0; i < WIRES_MAX; i++) {
    wire *to = &all->list[i];
    if (to->conn_id != output->conn_id) {
      continue;
    }
    for (size_t at = 0; at < output->bytes;) {
      kvf_frame_header header;
      fuzz_check(output->bytes - at >= KVF_FRAME_HEADER_BYTES);
      fuzz_check(kvf_frame_header_decode(output->data + at, KVF_FRAME_BODY_BYTES_MAX, &header) == KVF_OK);
      at += KVF_FRAME_HEADER_BYTES;
      fuzz_check(output->bytes - at >= header.body_bytes);
      check_decodes(header.type, output->data + at, header.body_bytes);
      note(to, header.type, output->data + at, header.body_bytes);
      to->welcomed = to->welcomed || header.type == KVF_FRAME_WELCOME;
      all->on_out(to, header.type, output->data + at, header.body_bytes);
      at += header.body_bytes;
    }
    to->out_bytes += output->bytes;
    if (output->hang_up) {
      forget(to);
    }
    return;
  }
}

void wires_settle(wires *all)
{
  do {
    all->settle();
    kvf_core_take_output(all->core, take_output, all);
    all->settle();
  } while (kvf_core_has_output(all->core));
}

/* ---- in ---- */

/* As the runtime's control thread does. Returns whether the connection is still there. */
static bool deliver(wires *all, wire *from)
{
  uint64_t conn_id = from->conn_id;
  kvf_status status = KVF_OK;
  kvf_core_on_heard(all->core, conn_id);
  while (status == KVF_OK) {
    kvf_frame_type type;
    const uint8_t *body;
    size_t bytes;
    size_t limit = kvf_core_frame_limit(all->core, conn_id);
    from->limit = limit > from->limit ? limit : from->limit;
    status = kvf_control_socket_frame(from->socket, limit, &type, &body, &bytes);
    if (status == KVF_OK) {
      fuzz_check(bytes <= limit);
      note(from, type, body, bytes);
      if (all->on_in != NULL) {
        all->on_in(from, type, body, bytes);
      }
      kvf_core_on_frame(all->core, all->now_ns, conn_id, type, body, bytes);
      kvf_control_socket_drop_frame(from->socket, bytes);
    } else if (status == KVF_PROTOCOL) {
      kvf_core_on_malformed(all->core, all->now_ns, conn_id);
    }
    fuzz_check(from->socket->in_capacity <= from->limit + KVF_FRAME_HEADER_BYTES + SOCKET_SLACK_BYTES);
    wires_settle(all);
    if (from->conn_id != conn_id) {
      return false;
    }
  }
  fuzz_check(status == KVF_NOT_FOUND);
  return true;
}

static void feed(wires *all, wire *from, const void *data, size_t bytes, size_t cut)
{
  incoming = data;
  incoming_bytes = bytes;
  incoming_cut = cut;
  while (incoming_bytes > 0 && from->conn_id != 0) {
    fuzz_check(kvf_control_socket_fill(from->socket) == KVF_OK);
    if (!deliver(all, from)) {
      break;
    }
  }
  incoming_bytes = 0;
}

void wires_feed_frame(wires *all, wire *from, kvf_frame_type type, const void *body, size_t bytes, size_t cut)
{
  uint8_t *frame = malloc(KVF_FRAME_HEADER_BYTES + bytes);
  fuzz_check(frame != NULL);
  kvf_frame_header_encode(type, (uint32_t)bytes, frame);
  if (bytes > 0) {
    memcpy(frame + KVF_FRAME_HEADER_BYTES, body, bytes);
  }
  feed(all, from, frame, KVF_FRAME_HEADER_BYTES + bytes, cut);
  free(frame);
}

void wires_feed_any(wires *all, wire *from, fuzz_tape *tape, size_t cut, bool is_frame)
{
  size_t got;
  kvf_frame_type type = (kvf_frame_type)(1 + (is_frame ? fuzz_choose(tape, KVF_FRAME_FOUND) : 0));
  const uint8_t *bytes = fuzz_bytes(tape, fuzz_u16(tape) % WIRES_ANY_BYTES, &got);
  if (is_frame) {
    wires_feed_frame(all, from, type, bytes, got, cut);
  } else {
    feed(all, from, bytes, got, cut);
  }
}

wire *wires_choose(wires *all, fuzz_tape *tape)
{
  wire *chosen = &all->list[fuzz_choose(tape, WIRES_MAX)];
  return chosen->conn_id == 0 ? NULL : chosen;
}

void wires_close(wires *all, wire *from)
{
  if (from->conn_id != 0) {
    uint64_t conn_id = from->conn_id;
    forget(from);
    kvf_core_on_closed(all->core, all->now_ns, conn_id);
    wires_settle(all);
  }
}

void wires_close_all(wires *all)
{
  for (size_t i = 0; i < WIRES_MAX; i++) {
    wires_close(all, &all->list[i]);
  }
}

/* ---- a node ---- */

void wires_core_config(kvf_core_config *out, const char *key, uint8_t name)
{
  memset(out, 0, sizeof(*out));
  kvf_config *options = &out->options;
  kvf_config_init(options);
  options->connections_max = 6;
  options->handshake_timeout_ms = 100;
  options->idle_timeout_ms = 2000;
  options->breaker_cooldown_ms = 50;
  options->breaker_cooldown_max_ms = 200;
  options->lease_slots = 4;
  options->lease_ttl_ms = 1000;
  options->lease_max_ms = 4000;
  options->lease_pool_share_percent = 100;
  options->loads_max = 8;
  options->load_timeout_ms = 1000;
  options->stall_timeout_ms = 100;
  options->release_timeout_ms = 500;
  options->chunk_bytes = 4096;
  (void)snprintf(options->transports, sizeof(options->transports), "tcp");
  fuzz_check(kvf_config_identity(options, "model", "m") == KVF_OK);
  memset(&out->incarnation, name, sizeof(out->incarnation));
  memset(out->secret, name, sizeof(out->secret));
  out->key.bytes = strlen(key);
  memcpy(out->key.data, key, out->key.bytes);
}

const kvf_region_layout wires_region = {.stride_bytes = WIRES_BLOCK_BYTES,
                                        .block_bytes = WIRES_BLOCK_BYTES,
                                        .blocks = WIRES_BLOCKS,
                                        .heads = 1,
                                        .heads_total = 1};

void wires_set_memory(kvf_core *core)
{
  kvf_welcome welcome = {.ranks = 1, .block_tokens = 16, .regions_count = 1, .transports_count = 1};
  welcome.regions = calloc(1, sizeof(*welcome.regions));
  welcome.transports[0].description = calloc(1, 1);
  fuzz_check(welcome.regions != NULL && welcome.transports[0].description != NULL);
  welcome.regions[0] = wires_region;
  (void)snprintf(welcome.transports[0].name, sizeof(welcome.transports[0].name), "tcp");
  welcome.transports[0].description_bytes = 1;
  fuzz_check(kvf_core_set_memory(core, &welcome) == KVF_OK);
}
