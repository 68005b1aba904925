#include <stdlib.h>
#include <string.h>

#include "core/peer_internal.h"
#include "wire/ping_message.h"

void kvf_peer_answer_path(kvf_peers *peers, kvf_peer *peer, uint32_t path, kvf_status status)
{
  if (peer->path_wanted) {
    peer->path_wanted = false;
    peer->path_answered = true;
    peer->answered_path = path;
    peer->path_status = status;
    kvf_list_ensure_back(&peers->notices, &peer->notice);
  }
}

void kvf_peer_answer_open(kvf_peers *peers, kvf_peer *peer, kvf_status status)
{
  if (peer->open_wanted) {
    peer->open_wanted = false;
    peer->open_answered = true;
    peer->open_status = status;
    kvf_list_ensure_back(&peers->notices, &peer->notice);
  }
}

static void answer_all(kvf_peers *peers, kvf_peer *peer, kvf_status status)
{
  kvf_peer_answer_path(peers, peer, 0, status);
  kvf_peer_answer_open(peers, peer, status);
}

static uint64_t keepalive_ns(const kvf_peers *peers)
{
  return kvf_ms_to_ns(peers->self->config.idle_timeout_ms) / 3;
}

void kvf_peer_rearm(kvf_peers *peers, kvf_peer *peer, uint64_t now_ns)
{
  const kvf_config *config = &peers->self->config;
  uint64_t handshake_ns = kvf_ms_to_ns(config->handshake_timeout_ms);
  uint64_t at = kvf_time_add(now_ns, kvf_ms_to_ns(config->idle_timeout_ms));
  switch (peer->state) {
    case KVF_PEER_IDLE:
      if (peer->gone == KVF_OK) {
        at = kvf_time_min(at, kvf_breaker_next_deadline(&peer->breaker));
      }
      break;
    case KVF_PEER_READY:
      at = kvf_time_add(now_ns, keepalive_ns(peers));
      if (peer->awaited_since_ns != 0) {
        at = kvf_time_min(at, kvf_time_add(peer->awaited_since_ns, handshake_ns));
      }
      break;
    default:
      at = kvf_time_add(now_ns, handshake_ns);
      break;
  }
  kvf_wheel_arm(peers->wheel, &peer->timer, at);
}

void kvf_peer_disconnect(kvf_peers *peers, kvf_peer *peer)
{
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    kvf_peer_drop_link(peers, &peer->links[i]);
  }
  if (peer->conn != NULL) {
    kvf_conns_hang_up(peers->conns, peer->conn);
    peer->conn = NULL;
  }
  if (peer->welcome != NULL) {
    kvf_welcome_free(peer->welcome);
    free(peer->welcome);
    peer->welcome = NULL;
  }
  peer->dial_pending = false;
  peer->awaited_since_ns = 0;
  peer->state = KVF_PEER_IDLE;
}

void kvf_peer_count_failure(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  peers->counters.failures++;
  peer->failures++;
  peer->tally.last_failure = status;
  peer->tally.last_failure_ns = now_ns;
}

void kvf_peer_fail(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status, const char *what)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&peer->key.address, address);
  kvf_self_log(peers->self, now_ns, status, peer->index, KVF_LOG_WARN, "peer %s: %s: %s", address,
               kvf_status_name(status), what);
  kvf_peer_count_failure(peers, now_ns, peer, status);
  kvf_peer_disconnect(peers, peer);
  if (status == KVF_PEER_RESTARTED) {
    /* For ever: the proof covers the incarnation. A refusal it does not cover, nor the fields that are refused. */
    peer->gone = status;
  } else {
    peers->counters.breaker_opened++;
    kvf_breaker_fail(&peer->breaker, now_ns, status);
  }
  answer_all(peers, peer, status);
  kvf_peer_rearm(peers, peer, now_ns);
}

static void dial(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  peer->conn = kvf_conns_add(peers->conns);
  if (peer->conn == NULL) {
    answer_all(peers, peer, KVF_NO_MEMORY);
    kvf_peer_rearm(peers, peer, now_ns);
    return;
  }
  peers->counters.dials++;
  peer->conn->peer = peer;
  peer->state = KVF_PEER_DIALING;
  peer->dial_pending = true;
  kvf_list_ensure_back(&peers->actions, &peer->action);
  kvf_peer_rearm(peers, peer, now_ns);
}

bool kvf_peer_may_try(kvf_breaker *breaker, uint64_t now_ns)
{
  if (kvf_breaker_wants_probe(breaker, now_ns)) {
    kvf_breaker_probing(breaker, now_ns);
    return true;
  }
  return kvf_breaker_allows(breaker);
}

void kvf_peer_advance(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  peer->used_ns = now_ns;
  if (!peer->path_wanted && !peer->open_wanted) {
    return;
  }
  if (peer->gone != KVF_OK) {
    peers->counters.fast_failures++;
    answer_all(peers, peer, peer->gone);
  } else if (peer->state == KVF_PEER_READY) {
    kvf_peer_answer_open(peers, peer, KVF_OK);
    if (peer->path_wanted) {
      kvf_peer_choose_link(peers, now_ns, peer);
    }
  } else if (peer->state == KVF_PEER_IDLE) {
    if (kvf_peer_may_try(&peer->breaker, now_ns)) {
      dial(peers, now_ns, peer);
    } else {
      peers->counters.fast_failures++;
      answer_all(peers, peer, KVF_PEER_DOWN);
    }
  }
}

static kvf_status send_hello(kvf_peers *peers, kvf_peer *peer)
{
  kvf_self *self = peers->self;
  kvf_hello hello = {.version_min = KVF_PROTOCOL_VERSION,
                     .version_max = KVF_PROTOCOL_VERSION,
                     .role = peers->is_control ? KVF_ROLE_CONTROL : KVF_ROLE_RANK,
                     .client = self->incarnation,
                     .expected = peer->key.incarnation,
                     .rank = self->config.rank};
  kvf_status status = kvf_entropy_draw(&self->entropy, hello.nonce, sizeof(hello.nonce));
  if (status == KVF_OK) {
    status = kvf_handshake_key_id(&self->key, hello.key_id);
  }
  if (status == KVF_OK) {
    status = kvf_hello_encode(&hello, peer->hello, sizeof(peer->hello), &peer->hello_bytes);
  }
  uint8_t *body;
  if (status == KVF_OK) {
    status = kvf_conn_frame_begin(peer->conn, peer->hello_bytes, &body);
  }
  if (status == KVF_OK) {
    memcpy(body, peer->hello, peer->hello_bytes);
    kvf_conn_frame_end(peers->conns, peer->conn, KVF_FRAME_HELLO, peer->hello_bytes);
  }
  return status;
}

void kvf_peers_on_dialed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_status status)
{
  if (peer->state != KVF_PEER_DIALING) {
    return;
  }
  if (status == KVF_OK) {
    status = send_hello(peers, peer);
  }
  if (status != KVF_OK) {
    kvf_peer_fail(peers, now_ns, peer, status, "cannot connect");
    return;
  }
  peer->state = KVF_PEER_WAIT_CHALLENGE; /* the dial's timer goes on: it bounds connect and handshake together */
}

static void on_challenge(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_self *self = peers->self;
  kvf_challenge challenge;
  uint8_t expected[KVF_HASH_BYTES];
  if (kvf_challenge_decode(body, body_bytes, &challenge) != KVF_OK || challenge.version != KVF_PROTOCOL_VERSION) {
    kvf_peer_fail(peers, now_ns, peer, KVF_PROTOCOL, "malformed challenge");
    return;
  }
  if (kvf_handshake_server_proof(&self->key, peer->hello, peer->hello_bytes, &challenge, expected) != KVF_OK ||
      !kvf_equal_secret(expected, challenge.proof, sizeof(expected))) {
    kvf_peer_fail(peers, now_ns, peer, KVF_HANDSHAKE_REFUSED, "it does not have our key (option key_file)");
    return;
  }
  if (memcmp(&challenge.server, &peer->key.incarnation, sizeof(challenge.server)) != 0) {
    kvf_peer_fail(peers, now_ns, peer, KVF_PEER_RESTARTED, "another process answers at its address");
    return;
  }
  kvf_proof proof = {.identity_count = self->config.identity_fields};
  memcpy(proof.identity, self->config.identity, proof.identity_count * sizeof(proof.identity[0]));
  size_t bytes = 0;
  uint8_t *frame;
  if (kvf_handshake_client_proof(&self->key, peer->hello, peer->hello_bytes, body, body_bytes, proof.proof) != KVF_OK ||
      kvf_handshake_session_key(&self->key, peer->hello, peer->hello_bytes, body, body_bytes, &peer->session_key) !=
          KVF_OK ||
      kvf_conn_frame_begin(peer->conn, KVF_PROOF_BYTES_MAX, &frame) != KVF_OK ||
      kvf_proof_encode(&proof, frame, KVF_PROOF_BYTES_MAX, &bytes) != KVF_OK) {
    kvf_peer_fail(peers, now_ns, peer, KVF_NO_MEMORY, "cannot prove the key");
    return;
  }
  kvf_conn_frame_end(peers->conns, peer->conn, KVF_FRAME_PROOF, bytes);
  peer->state = KVF_PEER_WAIT_WELCOME;
}

static void on_welcome(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_welcome *welcome = calloc(1, sizeof(*welcome));
  kvf_status status = welcome == NULL ? KVF_NO_MEMORY : kvf_welcome_decode(body, body_bytes, welcome);
  if (status != KVF_OK) {
    free(welcome);
    kvf_peer_fail(peers, now_ns, peer, status, "malformed welcome");
    return;
  }
  peer->welcome = welcome;
  peer->state = KVF_PEER_READY;
  peers->counters.handshakes++;
  peer->handshakes++;
  kvf_breaker_succeed(&peer->breaker);
  kvf_peer_rearm(peers, peer, now_ns);
  kvf_peer_advance(peers, now_ns, peer);
}

static void on_refused(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes)
{
  kvf_refused refused;
  if (kvf_refused_decode(body, body_bytes, &refused) != KVF_OK) {
    kvf_peer_fail(peers, now_ns, peer, KVF_PROTOCOL, "malformed refusal");
    return;
  }
  bool known = refused.status == KVF_INCOMPATIBLE || refused.status == KVF_HANDSHAKE_REFUSED;
  kvf_peer_fail(peers, now_ns, peer, known ? (kvf_status)refused.status : KVF_PROTOCOL, refused.message);
}

bool kvf_peer_is_trusted(const kvf_peer *peer)
{
  return peer->state == KVF_PEER_WAIT_WELCOME || peer->state == KVF_PEER_READY;
}

void kvf_peers_answered(kvf_peers *peers, kvf_peer *peer)
{
  (void)peers;
  peer->awaited_since_ns = 0;
}

void kvf_peers_on_malformed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  kvf_peer_fail(peers, now_ns, peer, KVF_PROTOCOL, "malformed message");
}

void kvf_peers_on_insecure(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, const char *why)
{
  kvf_peer_fail(peers, now_ns, peer, peer->state == KVF_PEER_READY ? KVF_PROTOCOL : KVF_HANDSHAKE_REFUSED, why);
}

void kvf_peer_on_frame(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer, kvf_frame_type type, const uint8_t *body,
                       size_t body_bytes)
{
  kvf_peers_answered(peers, peer);
  if (type == KVF_FRAME_REFUSED) {
    on_refused(peers, now_ns, peer, body, body_bytes);
  } else if (peer->state == KVF_PEER_WAIT_CHALLENGE && type == KVF_FRAME_CHALLENGE) {
    on_challenge(peers, now_ns, peer, body, body_bytes);
  } else if (peer->state == KVF_PEER_WAIT_WELCOME && type == KVF_FRAME_WELCOME) {
    on_welcome(peers, now_ns, peer, body, body_bytes);
  } else if (peer->state == KVF_PEER_READY && type == KVF_FRAME_PONG) {
    peer->ponged = true;
    kvf_list_ensure_back(&peers->notices, &peer->notice);
  } else {
    kvf_peer_fail(peers, now_ns, peer, KVF_PROTOCOL, "a message that does not belong here");
  }
}

void kvf_peer_on_closed(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  bool was_ready = peer->state == KVF_PEER_READY;
  peer->conn = NULL; /* the socket is gone: nothing to hang up */
  if (!was_ready) {
    kvf_peer_fail(peers, now_ns, peer, KVF_PEER_DOWN, "closed the connection during the handshake");
    return;
  }
  /* The next dial tells whether the process is gone; a load that waits for a path causes it now. */
  kvf_peer_disconnect(peers, peer);
  kvf_peer_rearm(peers, peer, now_ns);
  kvf_peer_advance(peers, now_ns, peer);
}

static bool is_unused(const kvf_peers *peers, uint64_t now_ns, const kvf_peer *peer)
{
  return peer->users == 0 && now_ns >= kvf_time_add(peer->used_ns, kvf_ms_to_ns(peers->self->config.idle_timeout_ms));
}

static void on_ready_timer(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  const kvf_config *config = &peers->self->config;
  if (peer->awaited_since_ns != 0 &&
      now_ns >= kvf_time_add(peer->awaited_since_ns, kvf_ms_to_ns(config->handshake_timeout_ms))) {
    kvf_peer_fail(peers, now_ns, peer, KVF_PEER_DOWN, "does not answer");
    return;
  }
  if (is_unused(peers, now_ns, peer)) {
    kvf_peer_disconnect(peers, peer);
  } else {
    kvf_peers_ping(peers, now_ns, peer->index); /* so that its side does not close an idle connection */
  }
  kvf_peer_rearm(peers, peer, now_ns);
}

void kvf_peer_on_timer(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  if (peer->state == KVF_PEER_READY) {
    on_ready_timer(peers, now_ns, peer);
  } else if (peer->state != KVF_PEER_IDLE) {
    kvf_peer_fail(peers, now_ns, peer, KVF_HANDSHAKE_TIMEOUT, "no handshake in time");
  } else if (is_unused(peers, now_ns, peer)) {
    return; /* unarmed from here: kvf_peers_acquire() makes room among such peers when it needs it */
  } else if (peer->gone == KVF_OK && kvf_breaker_wants_probe(&peer->breaker, now_ns)) {
    kvf_breaker_probing(&peer->breaker, now_ns);
    dial(peers, now_ns, peer);
  } else {
    kvf_peer_rearm(peers, peer, now_ns);
  }
}
