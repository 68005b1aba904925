/* Sessions: handshakes and frames of accepted connections. */
#include "core/session.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/check_list.h"
#include "core/states.h"
#include "kvferry/kvferry.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"

void kvf_sessions_init(kvf_sessions *sessions, kvf_context *context, const kvf_pool *pool, kvf_lease_table *leases)
{
  *sessions = (kvf_sessions){.context = context, .pool = pool, .leases = leases};
  kvf_crowd_init(&sessions->unproven);
  kvf_crowd_init(&sessions->open);
  sessions->check_budget.tokens_per_s = KVF_CHECK_BYTES_PER_S;
}

static const unsigned next_states[] = {
    [KVF_SESSION_WAIT_HELLO] = KVF_BIT(KVF_SESSION_WAIT_PROOF),
    [KVF_SESSION_WAIT_PROOF] = KVF_BIT(KVF_SESSION_OPEN),
    [KVF_SESSION_OPEN] = 0,
};

static void move(kvf_session *session, kvf_session_state next)
{
  KVF_CHECK_MOVE(next_states, session->state, next);
  session->state = next;
}

static void end_session(kvf_sessions *sessions, kvf_session *session)
{
  kvf_wheel_disarm(&sessions->context->wheel, &session->timer);
  if (session->state == KVF_SESSION_OPEN) {
    HASH_DELETE(by_id, sessions->by_id, session);
    kvf_crowd_leave(&sessions->open, &session->place);
  } else {
    kvf_crowd_leave(&sessions->unproven, &session->place);
  }
  if (session->conn != NULL) {
    kvf_conns_hang_up(session->conn);
  }
  kvf_forget(&session->key, sizeof(session->key));
  free(session);
}

static void end_crowd(kvf_sessions *sessions, const kvf_crowd *crowd)
{
  kvf_crowd_member *member;
  while ((member = kvf_crowd_victim(crowd)) != NULL) {
    end_session(sessions, KVF_CONTAINER_OF(member, kvf_session, place));
  }
}

void kvf_sessions_free(kvf_sessions *sessions)
{
  end_crowd(sessions, &sessions->unproven);
  end_crowd(sessions, &sessions->open);
}

void kvf_sessions_end_readers(kvf_sessions *sessions)
{
  kvf_session *session;
  kvf_session *next;
  HASH_ITER(by_id, sessions->by_id, session, next)
  {
    if (session->role == KVF_ROLE_RANK) {
      end_session(sessions, session);
    }
  }
}

/* One line on a connection that is refused or closed: `how` it ends, and why. */
static void log_end(kvf_sessions *sessions, const kvf_address *from, uint64_t now_ns, const char *how,
                    kvf_status reason, kvf_log_level level, const char *what)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  uint32_t host; /* not the port, since each new connection has another one */
  memcpy(&host, &from->ip[12], sizeof(host));
  kvf_address_format(from, address);
  kvf_context_log(sessions->context, now_ns, reason, host, level, "%s a connection from %s: %s: %s", how, address,
                  kvf_status_name(reason), what);
}

/* For one more of a crowd that may be so large. */
static void make_room(kvf_sessions *sessions, uint64_t now_ns, const kvf_crowd *crowd, uint32_t most, const char *why)
{
  if (crowd->count >= most) {
    kvf_session *victim = KVF_CONTAINER_OF(kvf_crowd_victim(crowd), kvf_session, place);
    sessions->counters.evicted++;
    log_end(sessions, &victim->address, now_ns, "closed", KVF_LIMIT, KVF_LOG_WARN, why);
    end_session(sessions, victim);
  }
  assert(crowd->count < most);
}

kvf_status kvf_sessions_accept(kvf_sessions *sessions, uint64_t now_ns, kvf_address address, uint64_t *conn_id)
{
  const uint32_t most = sessions->context->config.connections_max / KVF_SESSIONS_UNPROVEN_SHARE + 1;
  const kvf_host host = kvf_address_host(&address);
  make_room(sessions, now_ns, &sessions->unproven, most, "too many connections have not proved their key");
  kvf_session *session = calloc(1, sizeof(*session));
  if (session == NULL) {
    return KVF_NO_MEMORY;
  }
  session->conn = kvf_conns_add(&sessions->context->conns);
  if (session->conn == NULL || kvf_crowd_join(&sessions->unproven, &session->place, &host) != KVF_OK) {
    if (session->conn != NULL) {
      kvf_conns_drop(session->conn);
    }
    free(session);
    return KVF_NO_MEMORY;
  }
  session->conn->session = session;
  session->address = address;
  kvf_timer_init(&session->timer, KVF_TIMER_SESSION);
  sessions->counters.accepted++;
  kvf_wheel_arm(&sessions->context->wheel, &session->timer,
                kvf_time_add(now_ns, kvf_ms_to_ns(sessions->context->config.handshake_timeout_ms)));
  *conn_id = session->conn->id;
  return KVF_OK;
}

void kvf_session_on_heard(kvf_sessions *sessions, kvf_session *session)
{
  if (session->place.stage == KVF_CROWD_SILENT && session->state != KVF_SESSION_OPEN) {
    kvf_crowd_move(&sessions->unproven, &session->place, KVF_CROWD_HEARD);
  }
}

static void count_abandoned(kvf_sessions *sessions, uint64_t now_ns, const kvf_address *from)
{
  sessions->counters.abandoned++;
  log_end(sessions, from, now_ns, "closed", KVF_PEER_DOWN, KVF_LOG_INFO,
          "it closed the connection before the end of its handshake");
}

void kvf_sessions_on_reset(kvf_sessions *sessions, uint64_t now_ns, const kvf_address *from)
{
  sessions->counters.accepted++;
  count_abandoned(sessions, now_ns, from);
}

/* Counts it, says why, then hangs up. */
static void refuse(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, kvf_status status,
                   const char *message)
{
  assert(status != KVF_OK);
  kvf_refused refused = {.status = status};
  sessions->counters.refused_key += status == KVF_HANDSHAKE_REFUSED;
  sessions->counters.refused_incompatible += status == KVF_INCOMPATIBLE;
  sessions->counters.protocol_errors += status == KVF_PROTOCOL;
  (void)snprintf(refused.message, sizeof(refused.message), "%s", message);
  uint8_t *body;
  size_t bytes = 0;
  if (kvf_conn_frame_begin(session->conn, KVF_REFUSED_BYTES_MAX, &body) == KVF_OK &&
      kvf_refused_encode(&refused, body, KVF_REFUSED_BYTES_MAX, &bytes) == KVF_OK) {
    kvf_conn_frame_end(session->conn, KVF_FRAME_REFUSED, bytes);
  }
  log_end(sessions, &session->address, now_ns, "refused", status, KVF_LOG_WARN, message);
  end_session(sessions, session);
}

/* False if there is no memory for it. */
static bool send_challenge(kvf_sessions *sessions, kvf_session *session)
{
  assert(session->shared != NULL);
  kvf_context *context = sessions->context;
  kvf_challenge challenge = {.version = session->version, .server = context->self.incarnation};
  size_t bytes = 0;
  return kvf_entropy_draw(&context->entropy, challenge.nonce, sizeof(challenge.nonce)) == KVF_OK &&
         kvf_handshake_server_proof(session->shared, session->hello, sizeof(session->hello), &challenge,
                                    challenge.proof) == KVF_OK &&
         kvf_challenge_encode(&challenge, session->challenge, sizeof(session->challenge), &bytes) == KVF_OK &&
         kvf_conn_send(session->conn, KVF_FRAME_CHALLENGE, session->challenge, bytes) == KVF_OK;
}

static const kvf_key *find_key(const kvf_context *context, const uint8_t id[KVF_KEY_ID_BYTES])
{
  const kvf_mac *macs = context->self.macs;
  if (kvf_equal_secret(macs[0].key_id, id, KVF_KEY_ID_BYTES)) {
    return &context->self.key;
  }
  const bool is_other = context->self.macs_count > 1 && kvf_equal_secret(macs[1].key_id, id, KVF_KEY_ID_BYTES);
  return is_other ? &context->self.other_key : NULL;
}

static void on_hello(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, const uint8_t *body,
                     size_t body_bytes)
{
  kvf_hello hello;
  if (kvf_hello_decode(body, body_bytes, &hello) != KVF_OK || body_bytes != sizeof(session->hello)) {
    refuse(sessions, session, now_ns, KVF_PROTOCOL, "malformed hello");
    return;
  }
  if (hello.version_min > KVF_PROTOCOL_VERSION || hello.version_max < KVF_PROTOCOL_VERSION_MIN) {
    char message[KVF_MESSAGE_BYTES_MAX];
    (void)snprintf(message, sizeof(message), "no protocol version in common: this node speaks %d to %d (kvferry %s)",
                   KVF_PROTOCOL_VERSION_MIN, KVF_PROTOCOL_VERSION, KVF_VERSION_TEXT);
    refuse(sessions, session, now_ns, KVF_INCOMPATIBLE, message);
    return;
  }
  session->shared = find_key(sessions->context, hello.key_id);
  if (session->shared == NULL) {
    refuse(sessions, session, now_ns, KVF_HANDSHAKE_REFUSED,
           "the two nodes do not have the same key (option key_file)");
    return;
  }
  session->client = hello.client;
  session->role = hello.role;
  session->version = hello.version_max < KVF_PROTOCOL_VERSION ? hello.version_max : KVF_PROTOCOL_VERSION;
  memcpy(session->hello, body, sizeof(session->hello));
  if (!send_challenge(sessions, session)) {
    end_session(sessions, session);
    return;
  }
  move(session, KVF_SESSION_WAIT_PROOF);
  kvf_crowd_move(&sessions->unproven, &session->place, KVF_CROWD_KNOWN);
}

/* False if there is no memory for it. */
static bool open_session(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns)
{
  assert(session->state == KVF_SESSION_WAIT_PROOF);
  kvf_context *context = sessions->context;
  const kvf_host host = kvf_address_host(&session->address);
  make_room(sessions, now_ns, &sessions->open, context->config.connections_max,
            "connections_max is reached, and this connection was used least recently");
  if (kvf_entropy_draw(&context->entropy, &session->id, sizeof(session->id)) != KVF_OK ||
      kvf_handshake_session_key(session->shared, session->hello, sizeof(session->hello), session->challenge,
                                sizeof(session->challenge), &session->key) != KVF_OK) {
    return false;
  }
  HASH_ADD(by_id, sessions->by_id, id, sizeof(session->id), session);
  if (session->by_id.tbl == NULL) {
    return false;
  }
  kvf_crowd_leave(&sessions->unproven, &session->place);
  move(session, KVF_SESSION_OPEN);
  if (session->role != KVF_ROLE_CHECK &&
      memcmp(&session->client, &context->self.incarnation, sizeof(session->client)) != 0) {
    sessions->had_consumer = true;
  }
  if (kvf_crowd_join(&sessions->open, &session->place, &host) != KVF_OK) {
    return false;
  }
  session->conn->is_trusted = true;
  kvf_wheel_arm(&sessions->context->wheel, &session->timer,
                kvf_time_add(now_ns, kvf_ms_to_ns(context->config.idle_timeout_ms)));
  return true;
}

/* A control node reads no blocks: it need not know where they are. Who only checks is told the transports' names. */
static kvf_welcome welcome_for(const kvf_sessions *sessions, const kvf_session *session)
{
  const kvf_config *config = &sessions->context->config;
  const kvf_welcome *own = &sessions->pool->welcome;
  kvf_welcome told = {.rank = config->rank, .ranks = config->ranks, .block_tokens = config->block_tokens};
  if (session->role == KVF_ROLE_RANK && sessions->pool->exists) {
    told = *own; /* borrowed */
  } else if (session->role == KVF_ROLE_CHECK) {
    told.transports_count = own->transports_count;
    for (uint32_t i = 0; i < own->transports_count; i++) {
      memcpy(told.transports[i].name, own->transports[i].name, sizeof(told.transports[i].name));
    }
  }
  told.session_id = session->id;
  told.version_min = KVF_PROTOCOL_VERSION_MIN;
  told.version_max = KVF_PROTOCOL_VERSION;
  (void)snprintf(told.library, sizeof(told.library), "%s", KVF_VERSION_TEXT);
  return told;
}

/* False if there is no memory for it. */
static bool send_welcome(const kvf_sessions *sessions, const kvf_session *session)
{
  assert(session->state == KVF_SESSION_OPEN);
  const kvf_welcome told = welcome_for(sessions, session);
  const size_t room = kvf_welcome_bytes_max(&told);
  size_t bytes = 0;
  uint8_t *body;
  if (kvf_conn_frame_begin(session->conn, room, &body) != KVF_OK ||
      kvf_welcome_encode(&told, body, room, &bytes) != KVF_OK) {
    return false;
  }
  kvf_conn_frame_end(session->conn, KVF_FRAME_WELCOME, bytes);
  return true;
}

static void on_proof(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, const uint8_t *body,
                     size_t body_bytes)
{
  kvf_context *context = sessions->context;
  kvf_proof proof;
  uint8_t expected[KVF_HASH_BYTES];
  char difference[KVF_MESSAGE_BYTES_MAX];
  if (kvf_proof_decode(body, body_bytes, &proof) != KVF_OK) {
    refuse(sessions, session, now_ns, KVF_PROTOCOL, "malformed proof");
    return;
  }
  if (kvf_handshake_client_proof(session->shared, session->hello, sizeof(session->hello), session->challenge,
                                 sizeof(session->challenge), expected) != KVF_OK ||
      !kvf_equal_secret(expected, proof.proof, sizeof(expected))) {
    refuse(sessions, session, now_ns, KVF_HANDSHAKE_REFUSED, "the proof of the key is wrong (option key_file)");
    return;
  }
  /* Who only checks has no blocks to mean something by. */
  if (session->role != KVF_ROLE_CHECK &&
      !kvf_context_matches(context, proof.identity, proof.identity_count, difference)) {
    refuse(sessions, session, now_ns, KVF_INCOMPATIBLE, difference);
    return;
  }
  if (!open_session(sessions, session, now_ns) || !send_welcome(sessions, session)) {
    end_session(sessions, session);
  }
}

static kvf_status on_leases(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, const uint8_t *body,
                            size_t body_bytes)
{
  kvf_leases leases;
  if (session->role == KVF_ROLE_CHECK || kvf_leases_decode(body, body_bytes, &leases) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  kvf_lease_states states = {.seq = leases.seq, .count = leases.count};
  for (uint32_t i = 0; i < leases.count; i++) {
    const kvf_leases_item *item = &leases.items[i];
    const kvf_consumer_key key = {.incarnation = session->client, .request_id = item->request_id};
    kvf_lease_state state =
        kvf_lease_table_on_consumer(sessions->leases, now_ns, &item->lease, &key, (kvf_finish_kind)item->kind);
    if (state == KVF_LEASE_STATE_CROWDED && session->version < KVF_PROTOCOL_CROWDED) {
      state = KVF_LEASE_STATE_NOT_PUBLISHED; /* the peer tries again until its deadline */
    }
    states.items[i] = (kvf_lease_states_item){item->lease.id, item->lease.slot, item->request_id, (uint8_t)state};
  }
  uint8_t answer[KVF_LEASE_STATES_BYTES_MAX];
  size_t bytes = 0;
  kvf_status status = kvf_lease_states_encode(&states, answer, sizeof(answer), &bytes);
  return status == KVF_OK ? kvf_conn_send(session->conn, KVF_FRAME_LEASE_STATES, answer, bytes) : status;
}

static kvf_status on_ping(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, const uint8_t *body,
                          size_t body_bytes)
{
  kvf_ping ping;
  uint8_t *answer;
  size_t bytes = 0;
  if (kvf_ping_decode(body, body_bytes, &ping) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  kvf_ping pong = {.seq = ping.seq};
  if (session->role == KVF_ROLE_CHECK && kvf_budget_take(&sessions->check_budget, now_ns, ping.wanted_bytes)) {
    pong.fill_bytes = ping.wanted_bytes;
  }
  const size_t room = KVF_PING_BYTES_MAX + (size_t)pong.fill_bytes;
  kvf_status status = kvf_conn_frame_begin(session->conn, room, &answer);
  if (status == KVF_OK) {
    status = kvf_ping_encode(&pong, answer, room, &bytes);
  }
  if (status == KVF_OK) {
    kvf_conn_frame_end(session->conn, KVF_FRAME_PONG, bytes);
  }
  return status;
}

static void on_open_frame(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, kvf_frame_type type,
                          const uint8_t *body, size_t body_bytes)
{
  kvf_status status = KVF_PROTOCOL;
  if (type == KVF_FRAME_LEASES) {
    status = on_leases(sessions, session, now_ns, body, body_bytes);
  } else if (sessions->guest != NULL && type == sessions->guest->question && session->role != KVF_ROLE_CHECK) {
    status = sessions->guest->on_question(sessions->guest, now_ns, session, body, body_bytes);
  } else if (type == KVF_FRAME_PING) {
    status = on_ping(sessions, session, now_ns, body, body_bytes);
  }
  if (status == KVF_PROTOCOL) {
    refuse(sessions, session, now_ns, KVF_PROTOCOL, "malformed or unexpected message");
  } else if (status != KVF_OK) {
    if (status == KVF_LIMIT) {
      kvf_session_on_unread(sessions, session, now_ns);
    }
    end_session(sessions, session);
  } else {
    kvf_crowd_move(&sessions->open, &session->place, session->place.stage);
    kvf_wheel_arm(&sessions->context->wheel, &session->timer,
                  kvf_time_add(now_ns, kvf_ms_to_ns(sessions->context->config.idle_timeout_ms)));
  }
}

void kvf_session_on_frame(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, kvf_frame_type type,
                          const uint8_t *body, size_t body_bytes)
{
  if (session->state == KVF_SESSION_OPEN) {
    on_open_frame(sessions, session, now_ns, type, body, body_bytes);
  } else if (session->state == KVF_SESSION_WAIT_HELLO && type == KVF_FRAME_HELLO) {
    on_hello(sessions, session, now_ns, body, body_bytes);
  } else if (session->state == KVF_SESSION_WAIT_PROOF && type == KVF_FRAME_PROOF) {
    on_proof(sessions, session, now_ns, body, body_bytes);
  } else {
    refuse(sessions, session, now_ns, KVF_PROTOCOL, "an unexpected message during the handshake");
  }
}

void kvf_session_on_malformed(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns)
{
  refuse(sessions, session, now_ns, KVF_PROTOCOL,
         "not a frame, or a larger one than is allowed before the handshake has ended");
}

void kvf_session_on_insecure(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns, const char *why)
{
  refuse(sessions, session, now_ns, session->state == KVF_SESSION_OPEN ? KVF_PROTOCOL : KVF_HANDSHAKE_REFUSED, why);
}

void kvf_session_on_closed(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns)
{
  if (session->state != KVF_SESSION_OPEN) {
    count_abandoned(sessions, now_ns, &session->address);
  }
  session->conn = NULL;
  end_session(sessions, session);
}

void kvf_session_on_timer(kvf_sessions *sessions, kvf_session *session, uint64_t now_ns)
{
  sessions->counters.timed_out++;
  if (session->state != KVF_SESSION_OPEN) {
    log_end(sessions, &session->address, now_ns, "closed", KVF_HANDSHAKE_TIMEOUT, KVF_LOG_WARN,
            "no handshake within handshake_timeout_ms");
  }
  end_session(sessions, session);
}

void kvf_session_on_unread(kvf_sessions *sessions, const kvf_session *session, uint64_t now_ns)
{
  sessions->counters.unread++;
  log_end(sessions, &session->address, now_ns, "closed", KVF_LIMIT, KVF_LOG_WARN,
          "it sends requests and does not read the answers");
}

bool kvf_sessions_key(const kvf_sessions *sessions, uint64_t session_id, kvf_key *out)
{
  kvf_session *session;
  HASH_FIND(by_id, sessions->by_id, &session_id, sizeof(session_id), session);
  if (session == NULL || session->role == KVF_ROLE_CHECK) {
    return false;
  }
  *out = session->key;
  return true;
}

#ifndef NDEBUG

static void check_session(const kvf_sessions *sessions, const kvf_session *session, bool is_open)
{
  const kvf_context *context = sessions->context;
  assert(is_open == (session->state == KVF_SESSION_OPEN));
  assert(session->conn->session == session && !session->conn->hanging_up);
  assert(session->conn->is_trusted == is_open);
  assert(kvf_timer_is_armed(&session->timer));
  assert(is_open || (session->place.stage == KVF_CROWD_KNOWN) == (session->state == KVF_SESSION_WAIT_PROOF));
  if (session->state != KVF_SESSION_WAIT_HELLO) {
    assert(session->shared == &context->self.key || session->shared == &context->self.other_key);
    assert(session->version >= KVF_PROTOCOL_VERSION_MIN && session->version <= KVF_PROTOCOL_VERSION);
  }
}

static void check_crowd(const kvf_sessions *sessions, const kvf_crowd *crowd)
{
  uint32_t count = 0;
  for (const kvf_list *at = crowd->groups.next; at != &crowd->groups; at = at->next) {
    const kvf_crowd_group *group = KVF_CONTAINER_OF(at, kvf_crowd_group, in_crowd);
    for (unsigned stage = 0; stage < KVF_CROWD_STAGES; stage++) {
      const kvf_list *members = &group->members[stage];
      for (const kvf_list *node = members->next; node != members; node = node->next, count++) {
        const kvf_crowd_member *member = KVF_CONTAINER_OF(node, kvf_crowd_member, in_group);
        assert(member->group == group && member->stage == (kvf_crowd_stage)stage);
        check_session(sessions, KVF_CONTAINER_OF(member, kvf_session, place), crowd == &sessions->open);
      }
    }
  }
  assert(count == crowd->count);
}

uint32_t kvf_sessions_check(const kvf_sessions *sessions)
{
  const uint32_t most = sessions->context->config.connections_max;
  check_crowd(sessions, &sessions->open);
  check_crowd(sessions, &sessions->unproven);
  assert(sessions->open.count == HASH_CNT(by_id, sessions->by_id));
  assert(sessions->open.count <= most && sessions->unproven.count <= most / KVF_SESSIONS_UNPROVEN_SHARE + 1);
  return sessions->open.count + sessions->unproven.count;
}

#endif
