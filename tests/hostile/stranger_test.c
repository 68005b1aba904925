/* Hostile input over real sockets (P2, P6, P8), at a node's two ports, and from somebody who listens where a good
 * ticket points to. Each is closed, with a counter or a typed failure, and a log line that names the cause and the
 * peer; a healthy consumer that loads all the while does not notice; and what it cost is given back. */
#include "../sides/peer.h"

#include <sys/socket.h>
#include <unistd.h>

#include "pair.h"
#include "test.h"
#include "transport/socket.h"
#include "wire/find_message.h"
#include "wire/rank_record.h"

#define KEY "a key of sixteen"
#define SLACK_BYTES 131072
#define LINE_EVERY_MS 220 /* more of one kind a second are not logged */

static pair_node producer;
static pair_node consumer; /* whom an impostor answers */
static beside healthy;
static char key_file[64];

static void open_scene(void)
{
  stranger_key_file(KEY, key_file);
  const pair_option options[] = {{"key_file", key_file},
                                 {"transports", "tcp"},
                                 {"connections_max", "64"},
                                 {"handshake_timeout_ms", "1000"},
                                 {"stall_timeout_ms", "10000"}, /* a slow machine is no stall */
                                 {NULL, NULL}};
  pair_open_node(&producer, options);
  pair_open_node(&consumer, options);
  beside_start(&healthy, &producer, options);
}

static void close_scene(void)
{
  beside_stop(&healthy);
  pair_close_node(&consumer);
  pair_close_node(&producer);
  (void)unlink(key_file);
}

#define SCENE_TEST(name) TEST_WITH(name, open_scene, close_scene)

static void assert_logged(pair_node *node, const char *cause, const char *name)
{
  if (!pair_wait_log(node, cause, name, PAIR_PATIENCE_MS)) {
    fail_msg("no line about %s says \"%s\"", name, cause);
  }
}

static void send_header(const stranger *s, kvf_frame_type type, uint32_t body_bytes)
{
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(type, body_bytes, header);
  peer_send(s->fd, header, sizeof(header));
}

static void greet(stranger *s)
{
  stranger_hello(s);
  stranger_challenge(s);
}

static void expect_refused(stranger *s, kvf_status status, const char *text)
{
  kvf_refused refused = stranger_expect_refused(s);
  assert_int_equal(refused.status, status);
  assert_non_null(strstr(refused.message, text));
}

/* Attacks that are bytes, a frame after a step of the handshake, or a frame's header alone, which promises more. */
#define SENDS(name, text)                     \
  static void name(stranger *s)               \
  {                                           \
    peer_send(s->fd, text, sizeof(text) - 1); \
  }
#define SENDS_FRAME(name, step, type, text)               \
  static void name(stranger *s)                           \
  {                                                       \
    step(s);                                              \
    peer_send_frame(s->fd, type, text, sizeof(text) - 1); \
  }
#define SENDS_HEADER(name, type, body_bytes) \
  static void name(stranger *s)              \
  {                                          \
    send_header(s, type, body_bytes);        \
  }

static void send_nothing(stranger *s)
{
  (void)s;
}

/* ---- what is done to either port, or to one who asks ---- */

SENDS(send_http, "GET / HTTP/1.1\r\n\r\n")
SENDS(send_ones, "\xff\xff\xff\xff\xff\xff\xff\xff")
SENDS(send_part_of_a_header, "\x51\x00\x00")
SENDS_FRAME(send_read, send_nothing, KVF_FRAME_READ, "read")

static void reset_halfway(stranger *s)
{
  greet(s);
  stranger_reset(s);
}

/* ---- the control port ---- */

SENDS(send_tls, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
SENDS_HEADER(send_long_hello, KVF_FRAME_HELLO, KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX + 1)
SENDS_HEADER(send_longest_hello, KVF_FRAME_HELLO, KVF_FRAME_BODY_BYTES_MAX)

/* More than any frame may have, from one who has proved the key. */
static void send_too_long(stranger *s)
{
  stranger_shake_hands(s);
  peer_send(s->fd, "\x01\x00\x04\x00\x06\x00\x00\x00", KVF_FRAME_HEADER_BYTES);
}

SENDS_FRAME(send_ping_first, send_nothing, KVF_FRAME_PING, "\0\0\0\0\0\0\0\0")

static void ask_for_a_ticket_first(stranger *s)
{
  static const uint8_t find[KVF_FIND_BYTES_MAX];
  peer_send_frame(s->fd, KVF_FRAME_FIND, find, sizeof(find));
}

SENDS_FRAME(ask_malformed, stranger_shake_hands, KVF_FRAME_FIND, "a ticket, please")

static void send_challenge_back(stranger *s)
{
  greet(s);
  peer_send_frame(s->fd, KVF_FRAME_CHALLENGE, s->challenge, s->challenge_bytes);
}

static void send_read_in_session(stranger *s)
{
  stranger_shake_hands(s);
  send_read(s);
}

SENDS_FRAME(send_malformed_hello, send_nothing, KVF_FRAME_HELLO, "hello")
SENDS_FRAME(send_malformed_proof, greet, KVF_FRAME_PROOF, "proof")
SENDS_FRAME(send_malformed_finish, stranger_shake_hands, KVF_FRAME_LEASES, "leases")

static void break_off_hello(stranger *s)
{
  send_header(s, KVF_FRAME_HELLO, 81);
  peer_send(s->fd, "half a hello", 12);
  stranger_close(s);
}

static void have_another_key(stranger *s)
{
  memcpy(s->key.data, "another key, as ", s->key.bytes);
  stranger_hello(s);
  expect_refused(s, KVF_HANDSHAKE_REFUSED, "key_file");
}

static void know_the_name_of_the_key_alone(stranger *s)
{
  greet(s);
  s->key.data[0] ^= 1;
  stranger_proof(s, "test", PAIR_BLOCK_TOKENS);
  expect_refused(s, KVF_HANDSHAKE_REFUSED, "");
}

static void have_another_model(stranger *s)
{
  greet(s);
  stranger_proof(s, "another", PAIR_BLOCK_TOKENS);
  expect_refused(s, KVF_INCOMPATIBLE, "model differs: producer has \"test\", consumer has \"another\"");
}

static void have_another_version(stranger *s)
{
  kvf_hello hello = {
      .version_min = KVF_PROTOCOL_VERSION + 1, .version_max = KVF_PROTOCOL_VERSION + 5, .role = KVF_ROLE_RANK};
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s->fd, KVF_FRAME_HELLO, body, bytes);
  expect_refused(s, KVF_INCOMPATIBLE, "");
}

typedef struct attack {
  void (*attack)(stranger *s); /* may close it */
  const char *counter;
  const char *reason;
  const char *cause; /* of the log line */
} attack;

static void assert_seen(const attack *row, stranger *by, uint64_t counted)
{
  if (by->fd >= 0) {
    peer_expect_closed(by->fd);
    stranger_close(by);
  }
  assert_logged(&producer, row->cause, by->name);
  assert_true(pair_wait_stat(&producer, row->counter, row->reason, counted + 1, PAIR_PATIENCE_MS));
  assert_int_equal(pair_stat(&producer, row->counter, row->reason), counted + 1);
}

static void assert_undisturbed(void)
{
  beside_expect_undisturbed(&healthy, SLACK_BYTES);
  sleep_ms(LINE_EVERY_MS);
}

SCENE_TEST(at_the_control_port)
{
  static const attack attacks[] = {
      {send_http, "sessions_refused", "protocol", "protocol"},
      {send_ones, "sessions_refused", "protocol", "protocol"},
      {send_tls, "sessions_refused", "handshake_refused",
       "handshake_refused: it speaks TLS, which this node does not (option tls)"},
      {send_long_hello, "sessions_refused", "protocol", "protocol"},
      {send_longest_hello, "sessions_refused", "protocol", "protocol"},
      {send_too_long, "sessions_refused", "protocol", "protocol"},
      {send_ping_first, "sessions_refused", "protocol", "protocol"},
      {ask_for_a_ticket_first, "sessions_refused", "protocol", "protocol"},
      {ask_malformed, "sessions_refused", "protocol", "protocol"},
      {send_challenge_back, "sessions_refused", "protocol", "protocol"},
      {send_read_in_session, "sessions_refused", "protocol", "protocol"},
      {send_malformed_hello, "sessions_refused", "protocol", "protocol"},
      {send_malformed_proof, "sessions_refused", "protocol", "protocol"},
      {send_malformed_finish, "sessions_refused", "protocol", "protocol"},
      {break_off_hello, "sessions_abandoned", "",
       "peer_down: it closed the connection before the end of its handshake"},
      {send_part_of_a_header, "sessions_timed_out", "", "handshake_timeout"},
      {send_nothing, "sessions_timed_out", "", "handshake_timeout"},
      {greet, "sessions_timed_out", "", "handshake_timeout"},
      {stranger_reset, "sessions_abandoned", "", "it closed the connection before the end of its handshake"},
      {reset_halfway, "sessions_abandoned", "", "it closed the connection before the end of its handshake"},
      {have_another_key, "sessions_refused", "handshake_refused", "handshake_refused"},
      {know_the_name_of_the_key_alone, "sessions_refused", "handshake_refused", "handshake_refused"},
      {have_another_model, "sessions_refused", "incompatible", "incompatible: model differs"},
      {have_another_version, "sessions_refused", "incompatible", "no protocol version in common"},
  };
  for (size_t i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++) {
    stranger by;
    uint64_t counted = pair_stat(&producer, attacks[i].counter, attacks[i].reason);
    stranger_connect(&by, pair_record(producer.node).address, KEY);
    attacks[i].attack(&by);
    assert_seen(&attacks[i], &by, counted);
    assert_undisturbed();
  }
}

/* ---- the data port ---- */

SENDS_HEADER(send_long_data_hello, KVF_FRAME_DATA_HELLO, KVF_FRAME_BODY_BYTES_MAX)
SENDS_FRAME(send_malformed_data_hello, send_nothing, KVF_FRAME_DATA_HELLO, "hello")

static void send_wrong_proof(stranger *data)
{
  kvf_key key = {.bytes = 32};
  peer_hello(data->fd, 12345, &key);
}

static void break_off_data_hello(stranger *data)
{
  uint8_t challenge[KVF_DATA_CHALLENGE_BYTES_MAX];
  /* Closing with something unread would be a reset. */
  (void)peer_receive_frame(data->fd, KVF_FRAME_DATA_CHALLENGE, challenge, sizeof(challenge));
  peer_send(data->fd, "\x2c\x00\x00", 3);
  stranger_close(data);
}

SCENE_TEST(at_the_data_port)
{
  static const char ended[] = "data_connections_ended";
  static const attack attacks[] = {
      {send_http, ended, "protocol", "not a frame, or one that is too long"},
      {send_long_data_hello, ended, "protocol", "not a frame, or one that is too long"},
      {send_read, ended, "protocol", "unexpected frame read before its handshake"},
      {send_malformed_data_hello, ended, "protocol", "malformed data_hello"},
      {send_wrong_proof, ended, "handshake_refused", "unknown session, or wrong proof of its key"},
      {send_nothing, ended, "handshake_timeout", "it did not prove its key in time"},
      {break_off_data_hello, ended, "peer_down", "the peer left before it had proved its key"},
      {stranger_reset, ended, "peer_down", "Connection reset by peer"},
  };
  for (size_t i = 0; i < sizeof(attacks) / sizeof(attacks[0]); i++) {
    stranger control;
    uint64_t counted = pair_stat(&producer, attacks[i].counter, attacks[i].reason);
    stranger_open(&control, pair_record(producer.node).address, KEY);
    stranger data = stranger_connect_data(&control);
    attacks[i].attack(&data);
    assert_seen(&attacks[i], &data, counted);
    stranger_close(&control);
    assert_undisturbed();
  }
}

/* ---- an impostor: it answers the consumer's hello ---- */

/* It has not proved the key yet. */
SENDS_HEADER(answer_long, KVF_FRAME_CHALLENGE, KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX + 1)
SENDS_HEADER(answer_pong, KVF_FRAME_PONG, 0)
SENDS_FRAME(answer_malformed, send_nothing, KVF_FRAME_CHALLENGE, "\0\0\0\0\0\0\0\0\0")

static void challenge_as(stranger *s, kvf_incarnation server)
{
  kvf_challenge challenge = {.version = KVF_PROTOCOL_VERSION, .server = server};
  uint8_t body[KVF_CHALLENGE_BYTES_MAX];
  size_t bytes = 0;
  memset(challenge.proof, 'x', sizeof(challenge.proof));
  assert_int_equal(kvf_challenge_encode(&challenge, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s->fd, KVF_FRAME_CHALLENGE, body, bytes);
}

static void answer_without_proof(stranger *s)
{
  challenge_as(s, (kvf_incarnation){.bytes = {1}});
}

static void answer_as_nobody(stranger *s)
{
  challenge_as(s, (kvf_incarnation){.bytes = {0}});
}

SENDS_HEADER(answer_in_part, KVF_FRAME_CHALLENGE, 82)

/* What it says when it refuses must not begin a log line of its own. */
static void refuse_with_a_line_break(stranger *s)
{
  kvf_refused refused = {.status = KVF_INCOMPATIBLE, .message = "no x"};
  uint8_t body[KVF_REFUSED_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  body[bytes - 2] = '\n';
  peer_send_frame(s->fd, KVF_FRAME_REFUSED, body, bytes);
}

/* Tickets name this address, with the producer's incarnation. */
static void point_to(const kvf_address *address)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  kvf_rank_record context;
  assert_int_equal(kvf_node_address(producer.node, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_rank_record_decode(record, bytes, &context), KVF_OK);
  context.address = address == NULL ? context.address : *address;
  assert_int_equal(kvf_rank_record_encode(&context, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_node_set_ranks(producer.node, record, &bytes, 1), KVF_OK);
}

/* Takes the consumer's connection and its hello. */
static stranger accept_hello(int listener)
{
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  stranger by = {.fd = peer_accept(listener)};
  assert_true(peer_receive_frame(by.fd, KVF_FRAME_HELLO, hello, sizeof(hello)) > 0);
  return by;
}

static void be_answered_by(void (*answer)(stranger *s), kvf_status status, const char *cause)
{
  kvf_address address;
  char name[KVF_ADDRESS_TEXT_BYTES];
  char message[KVF_MESSAGE_BYTES_MAX];
  int listener = -1;
  pair_ticket ticket;
  pair_outcome out;
  assert_int_equal(kvf_address_parse("127.0.0.1", 0, &address), KVF_OK);
  assert_int_equal(kvf_socket_listen(&address, 1000, &listener, &address, message), KVF_OK);
  kvf_address_format(&address, name);
  (void)pthread_mutex_lock(&healthy.offers); /* the tickets of the loads beside name the true producer */
  point_to(&address);
  pair_offer(&producer, 17, PAIR_TRY_BLOCKS, 1, true, &ticket);
  point_to(NULL);
  (void)pthread_mutex_unlock(&healthy.offers);
  uint64_t id = pair_begin(&consumer, &ticket, 20);
  stranger by = accept_hello(listener);
  answer(&by);
  const pair_result result = pair_wait_for(&consumer, id, PAIR_PATIENCE_MS);
  assert_string_equal(kvf_status_name(result.report.status), kvf_status_name(status));
  assert_int_equal(result.report.prefix, 0);
  assert_logged(&consumer, cause, name);
  if (by.fd >= 0) {
    peer_expect_closed(by.fd);
    stranger_close(&by);
  }
  (void)close(listener);
  assert_int_equal(kvf_lease_end(producer.node, &ticket.lease), KVF_OK);
  (void)kvf_lease_release(producer.node, ticket.lease.id);
  pair_try(&producer, &consumer, 2, &out); /* the true producer serves */
  assert_int_equal(out.started, KVF_OK);
  assert_int_equal(out.status, KVF_OK);
}

SCENE_TEST(behind_a_ticket)
{
  static const struct {
    void (*answer)(stranger *s);
    kvf_status status;
    const char *cause;
  } answers[] = {
      {send_http, KVF_PROTOCOL, "protocol: malformed message"},
      {answer_long, KVF_PROTOCOL, "protocol: malformed message"},
      {answer_pong, KVF_PROTOCOL, "an unexpected message"},
      {answer_malformed, KVF_PROTOCOL, "malformed challenge"},
      {answer_as_nobody, KVF_PROTOCOL, "malformed challenge"},
      {answer_without_proof, KVF_HANDSHAKE_REFUSED, "it does not have our key"},
      {send_nothing, KVF_HANDSHAKE_TIMEOUT, "handshake_timeout: no handshake in time"},
      {answer_in_part, KVF_HANDSHAKE_TIMEOUT, "handshake_timeout: no handshake in time"},
      {refuse_with_a_line_break, KVF_PROTOCOL, "malformed refusal"},
      {stranger_close, KVF_PEER_DOWN, "closed the connection during the handshake"},
      {stranger_reset, KVF_PEER_DOWN, "closed the connection during the handshake"},
  };
  for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
    be_answered_by(answers[i].answer, answers[i].status, answers[i].cause);
    if (i == 0) {
      healthy.before = costs_settled(); /* with the connections to the true producer */
    }
    assert_undisturbed();
  }
}
