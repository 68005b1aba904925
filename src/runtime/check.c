/* What `kvferry check` asks: of another node who it is, what it speaks and how fast; of this host, its memory. */
#include "kvferry/check.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"
#include "core/session.h"
#include "memory/memory.h"
#include "runtime/control_socket.h"
#include "runtime/key_file.h"
#include "runtime/random.h"
#include "transport/socket.h"
#include "transport/thread.h"
#include "wire/ping_message.h"

#define ROUND_TRIPS 9
#define UNDER_WAY_MAX 6 /* PINGs that want bytes, so that the network is not idle for a round trip */
#define FILLS_MAX 256   /* answers with bytes, in all */
#define FILLS_FOR_NS KVF_NS_PER_S

_Static_assert(KVF_FRAME_HEADER_BYTES + KVF_PING_BYTES_MAX + KVF_PING_FILL_BYTES_MAX <=
                   KVF_OUTBOX_BYTES_MAX / UNDER_WAY_MAX,
               "the answers under way fit the node's outbox");
_Static_assert(KVF_PING_FILL_BYTES_MAX <= KVF_CHECK_BYTES_PER_S / FILLS_MAX, "one check is within what a node gives");

typedef struct probe {
  const kvf_config *config;
  const char *text;
  kvf_check_result *out;
  char *message;
  kvf_address address;
  kvf_key keys[KVF_KEYS_MAX];
  kvf_tls_use tls;
  kvf_control_socket *socket;
  uint64_t deadline_ns; /* of what is being waited for */
} probe;

static void expect_within(probe *p, uint64_t ns)
{
  p->deadline_ns = kvf_time_add(kvf_clock_now(), kvf_time_add(ns, kvf_ms_to_ns(p->config->handshake_timeout_ms)));
}

/* May return early. KVF_DEADLINE: none of the events came in time. */
static kvf_status wait_for(const probe *p, short events)
{
  struct pollfd fd = {.fd = p->socket->fd, .events = events};
  return poll(&fd, 1, kvf_thread_wait_ms(kvf_clock_now(), p->deadline_ns)) == 0 ? KVF_DEADLINE : KVF_OK;
}

static kvf_status find(probe *p)
{
  kvf_status status = kvf_address_resolve(p->text, NULL, &p->address, p->message);
  if (status == KVF_OK && p->address.port == 0) {
    return kvf_fail(KVF_INVALID, p->message, "an address to check is HOST:PORT");
  }
  if (status == KVF_OK) {
    kvf_address_format(&p->address, p->out->address);
  }
  return status;
}

static kvf_status open_keys(probe *p)
{
  size_t count = 1; /* also without a key, whose bytes are 0 then */
  kvf_status status = KVF_OK;
  if (p->config->key_file[0] != '\0') {
    status = kvf_key_file_read(p->config->key_file, p->keys, &count, p->message);
    if (status == KVF_OK) {
      p->message[0] = '\0'; /* a node warns, too */
    }
  }
  return status == KVF_OK ? kvf_tls_use_open(p->config, p->keys, count, &p->tls, p->message) : status;
}

static kvf_status connect_to(probe *p)
{
  uint64_t began_ns = kvf_clock_now();
  expect_within(p, 0);
  p->socket = kvf_control_socket_new(0, -1, true);
  if (p->socket == NULL) {
    return KVF_NO_MEMORY;
  }
  p->socket->fd = kvf_socket_connect(&p->address, p->config->handshake_timeout_ms, 0);
  if (p->socket->fd < 0) {
    return kvf_fail(KVF_PEER_DOWN, p->message, "%s", strerror(errno));
  }
  p->out->encrypted = kvf_tls_is_due(&p->tls, &p->address);
  if (p->out->encrypted && kvf_control_socket_secure(p->socket, p->tls.context) != KVF_OK) {
    return KVF_NO_MEMORY;
  }
  int error = wait_for(p, POLLOUT) == KVF_OK ? kvf_socket_error(p->socket->fd) : ETIMEDOUT;
  if (error != 0) {
    return kvf_fail(KVF_PEER_DOWN, p->message, "%s", strerror(error));
  }
  p->out->connect_ns = kvf_clock_now() - began_ns;
  return KVF_OK;
}

static kvf_status send_frame(const probe *p, kvf_frame_type type, const void *body, size_t bytes)
{
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(type, (uint32_t)bytes, header);
  kvf_status status = kvf_control_socket_queue(p->socket, header, sizeof(header));
  return status == KVF_OK ? kvf_control_socket_queue(p->socket, body, bytes) : status;
}

/* Its body is good until kvf_control_socket_drop_frame(). */
static kvf_status receive(const probe *p, kvf_frame_type wanted, size_t limit, const uint8_t **body, size_t *bytes)
{
  kvf_frame_type type;
  kvf_refused refused;
  kvf_status status;
  while ((status = kvf_control_socket_frame(p->socket, limit, &type, body, bytes)) == KVF_NOT_FOUND) {
    status = kvf_control_socket_fill(p->socket);
    if (status == KVF_NOT_FOUND && kvf_control_socket_flush(p->socket) == KVF_OK) {
      status = wait_for(p, kvf_control_socket_waits_to_send(p->socket) ? POLLIN | POLLOUT : POLLIN);
    }
    if (status != KVF_OK) {
      return status == KVF_NOT_FOUND ? KVF_PEER_DOWN : status;
    }
  }
  if (status != KVF_OK || type == wanted) {
    return status;
  }
  if (type != KVF_FRAME_REFUSED || kvf_refused_decode(*body, *bytes, &refused) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  bool known = refused.status == KVF_INCOMPATIBLE || refused.status == KVF_HANDSHAKE_REFUSED;
  return kvf_fail(known ? (kvf_status)refused.status : KVF_PROTOCOL, p->message, "%s", refused.message);
}

/* ---- the handshake ---- */

static kvf_status answer_challenge(const probe *p, const uint8_t *hello, size_t hello_bytes)
{
  const uint8_t *body;
  size_t bytes;
  kvf_challenge challenge;
  uint8_t expected[KVF_HASH_BYTES];
  kvf_proof proof = {0};
  uint8_t frame[KVF_HASH_BYTES + 1]; /* no identity fields */
  size_t frame_bytes = 0;
  kvf_status status = receive(p, KVF_FRAME_CHALLENGE, KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX, &body, &bytes);
  if (status != KVF_OK) {
    return status;
  }
  if (kvf_challenge_decode(body, bytes, &challenge) != KVF_OK || !kvf_protocol_is_known(challenge.version)) {
    return KVF_PROTOCOL;
  }
  if (kvf_handshake_server_proof(p->keys, hello, hello_bytes, &challenge, expected) != KVF_OK ||
      kvf_handshake_client_proof(p->keys, hello, hello_bytes, body, bytes, proof.proof) != KVF_OK ||
      kvf_proof_encode(&proof, frame, sizeof(frame), &frame_bytes) != KVF_OK) {
    return KVF_NO_MEMORY;
  }
  if (!kvf_equal_secret(expected, challenge.proof, sizeof(expected))) {
    return kvf_fail(KVF_HANDSHAKE_REFUSED, p->message, "it does not have our key (option key_file)");
  }
  kvf_control_socket_drop_frame(p->socket, bytes);
  return send_frame(p, KVF_FRAME_PROOF, frame, frame_bytes);
}

static kvf_status take_welcome(const probe *p)
{
  const uint8_t *body;
  size_t bytes;
  kvf_welcome welcome;
  kvf_status status = receive(p, KVF_FRAME_WELCOME, KVF_FRAME_BODY_BYTES_MAX, &body, &bytes);
  if (status == KVF_OK) {
    status = kvf_welcome_decode(body, bytes, &welcome);
  }
  if (status != KVF_OK) {
    return status;
  }
  kvf_check_result *out = p->out;
  out->protocol_min = welcome.version_min;
  out->protocol_max = welcome.version_max;
  (void)snprintf(out->version, sizeof(out->version), "%s", welcome.library);
  for (uint32_t i = 0; i < welcome.transports_count; i++) {
    size_t at = strlen(out->transports);
    (void)snprintf(out->transports + at, sizeof(out->transports) - at, "%s%s", &","[i == 0],
                   welcome.transports[i].name);
  }
  kvf_welcome_free(&welcome);
  kvf_control_socket_drop_frame(p->socket, bytes);
  return KVF_OK;
}

static kvf_status shake_hands(probe *p)
{
  uint64_t began_ns = kvf_clock_now();
  kvf_hello hello = {
      .version_min = KVF_PROTOCOL_VERSION_MIN, .version_max = KVF_PROTOCOL_VERSION, .role = KVF_ROLE_CHECK};
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  if (!kvf_random(hello.nonce, sizeof(hello.nonce)) || kvf_handshake_key_id(p->keys, hello.key_id) != KVF_OK ||
      kvf_hello_encode(&hello, body, sizeof(body), &bytes) != KVF_OK) {
    return KVF_NO_MEMORY;
  }
  kvf_status status = send_frame(p, KVF_FRAME_HELLO, body, bytes);
  status = status == KVF_OK ? answer_challenge(p, body, bytes) : status;
  status = status == KVF_OK ? take_welcome(p) : status;
  p->out->handshake_ns = status == KVF_OK ? kvf_clock_now() - began_ns : 0;
  return status;
}

/* ---- what is measured ---- */

static kvf_status send_ping(const probe *p, uint32_t wanted_bytes)
{
  uint8_t body[KVF_PING_BYTES_MAX];
  size_t bytes = 0;
  kvf_status status = kvf_ping_encode(&(kvf_ping){.wanted_bytes = wanted_bytes}, body, sizeof(body), &bytes);
  return status == KVF_OK ? send_frame(p, KVF_FRAME_PING, body, bytes) : status;
}

static kvf_status receive_pong(const probe *p, kvf_ping *pong)
{
  const uint8_t *body;
  size_t bytes;
  kvf_status status = receive(p, KVF_FRAME_PONG, KVF_FRAME_BODY_BYTES_MAX, &body, &bytes);
  if (status == KVF_OK) {
    status = kvf_ping_decode(body, bytes, pong);
    kvf_control_socket_drop_frame(p->socket, bytes);
  }
  return status;
}

static kvf_status measure_round_trip(probe *p)
{
  uint64_t shortest_ns = KVF_TIME_NEVER;
  kvf_status status = KVF_OK;
  expect_within(p, 0);
  for (size_t i = 0; i < ROUND_TRIPS && status == KVF_OK; i++) {
    uint64_t began_ns = kvf_clock_now();
    kvf_ping pong;
    status = send_ping(p, 0);
    status = status == KVF_OK ? receive_pong(p, &pong) : status;
    shortest_ns = kvf_time_min(shortest_ns, kvf_clock_now() - began_ns);
  }
  p->out->round_trip_ns = status == KVF_OK ? shortest_ns : 0;
  return status;
}

static kvf_status measure_speed(probe *p)
{
  const uint64_t began_ns = kvf_clock_now();
  uint32_t asked = 0;
  uint32_t answered = 0;
  kvf_ping pong = {.fill_bytes = 1};
  kvf_status status = KVF_OK;
  expect_within(p, FILLS_FOR_NS);
  do {
    bool goes_on = pong.fill_bytes > 0 && kvf_clock_now() < began_ns + FILLS_FOR_NS;
    for (; status == KVF_OK && goes_on && asked < FILLS_MAX && asked - answered < UNDER_WAY_MAX; asked++) {
      status = send_ping(p, KVF_PING_FILL_BYTES_MAX);
    }
    status = status == KVF_OK ? receive_pong(p, &pong) : status;
    p->out->bytes += status == KVF_OK ? pong.fill_bytes : 0;
  } while (status == KVF_OK && ++answered < asked);
  double seconds = (double)(kvf_clock_now() - began_ns) / (double)KVF_NS_PER_S;
  p->out->bytes_per_s = (uint64_t)((double)p->out->bytes / seconds);
  return status;
}

/* ---- all of it ---- */

kvf_status kvf_check_node(const kvf_config *config, const char *address, kvf_check_result *out,
                          char message[KVF_MESSAGE_BYTES_MAX])
{
  static kvf_status (*const steps[])(probe *p) = {find,        open_keys,          connect_to,
                                                  shake_hands, measure_round_trip, measure_speed};
  probe p = {.config = config, .text = address, .out = out, .message = message};
  *out = (kvf_check_result){.own_protocol = KVF_PROTOCOL_VERSION};
  message[0] = '\0';
  kvf_status status = KVF_OK;
  for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]) && status == KVF_OK; i++) {
    status = steps[i](&p);
  }
  if (status == KVF_DEADLINE) {
    status = out->handshake_ns == 0 ? KVF_HANDSHAKE_TIMEOUT : KVF_PEER_DOWN;
  }
  if (p.socket != NULL) {
    const char *why = kvf_control_socket_why(p.socket);
    status = status != KVF_OK && why[0] != '\0' ? kvf_fail(KVF_HANDSHAKE_REFUSED, message, "%s", why) : status;
    kvf_control_socket_free(p.socket);
  }
  if (message[0] == '\0') {
    (void)kvf_fail(status, message, "%s", kvf_status_describe(status)->meaning);
  }
  kvf_tls_context_free(p.tls.context);
  kvf_forget(p.keys, sizeof(p.keys));
  return kvf_answer_as(status, message);
}

/* ---- memory ---- */

static const kvf_memory_ops *ops_of(kvf_memory_kind kind, char *message)
{
  const kvf_memory_ops *ops = kvf_memory_ops_of((uint32_t)kind);
  if (ops == NULL) {
    (void)kvf_fail(KVF_INVALID, message, "%d is not a kind of memory that this library knows", (int)kind);
  }
  return ops;
}

kvf_status kvf_check_memory(kvf_memory_kind kind, const char *library, char message[KVF_MESSAGE_BYTES_MAX])
{
  const kvf_memory_ops *ops = ops_of(kind, message);
  if (ops == NULL) {
    return kvf_answer_as(KVF_INVALID, message);
  }
  kvf_status status = ops->open != NULL
                          ? ops->open(library, message)
                          : kvf_fail(KVF_OK, message, "%s memory needs nothing", kvf_memory_kind_name((int)kind));
  return kvf_answer_as(status, message);
}

kvf_status kvf_check_device(kvf_memory_kind kind, uint32_t index, char message[KVF_MESSAGE_BYTES_MAX])
{
  const kvf_memory_ops *ops = ops_of(kind, message);
  if (ops == NULL) {
    return kvf_answer_as(KVF_INVALID, message);
  }
  kvf_status status = ops->describe != NULL ? ops->describe(index, message)
                                            : kvf_fail(KVF_NOT_FOUND, message, "%s memory has no devices",
                                                       kvf_memory_kind_name((int)kind));
  return kvf_answer_as(status, message);
}
