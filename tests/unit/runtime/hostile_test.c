/* Hostile input over real sockets against a running node (P6, P8). Each is closed, with a counter and a log line that
 * names the cause and the peer; a healthy consumer that loads all the while does not notice; and what the attack cost
 * in descriptors and threads is given back. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

/* clang-format off */
/* clang-format on */

#include "pair.h"
#include "stranger.h"
#include "test.h"

#define PATIENCE_MS 10000
#define KEY "a key of sixteen"
#define BLOCKS 8

/* ---- a healthy consumer that goes on ---- */

typedef struct healthy {
  pair *p;
  pthread_t thread;
  atomic_bool stop;
  atomic_uint loads;
  atomic_uint failures;
  int first_status;
} healthy;

static kvf_status load_once(pair *p, uint32_t seed)
{
  pair_ticket ticket;
  pair_result result;
  uint64_t id = 0;
  pair_offer(&p->producer, 0, BLOCKS, seed, true, &ticket);
  kvf_status status = pair_request(&p->consumer, &ticket, &ticket.prompt, &id);
  if (status == KVF_OK) {
    status = pair_load(&p->consumer, &ticket, id, 20);
  }
  if (status != KVF_OK) {
    return status;
  }
  pair_wait(&p->consumer, id, PATIENCE_MS, &result);
  status = result.quiet && result.decided ? (kvf_status)result.report.status : KVF_DEADLINE;
  for (uint32_t i = 0; status == KVF_OK && i < BLOCKS; i++) {
    status = pair_holds(&p->consumer, 20 + i, seed, i) ? KVF_OK : KVF_CHECKSUM;
  }
  (void)kvf_lease_end(p->producer.node, &ticket.lease);
  (void)kvf_lease_release(p->producer.node, ticket.lease.id);
  return status;
}

static void *load_on(void *context)
{
  healthy *h = context;
  for (uint32_t seed = 1; !atomic_load(&h->stop); seed++) {
    kvf_status status = load_once(h->p, seed % 1000);
    if (status != KVF_OK && atomic_fetch_add(&h->failures, 1) == 0) {
      h->first_status = status;
    }
    atomic_fetch_add(&h->loads, 1);
  }
  return NULL;
}

/* ---- the world ---- */

typedef struct costs {
  size_t descriptors;
  size_t threads;
} costs;

typedef struct world {
  pair p;
  healthy healthy;
  char key_file[64];
  costs before;
} world;

static costs count_costs(void)
{
  return (costs){.descriptors = pair_count_entries("/proc/self/fd"), .threads = pair_count_entries("/proc/self/task")};
}

static int open_world(void **state)
{
  world *w = calloc(1, sizeof(*w));
  assert_non_null(w);
  stranger_key_file(KEY, w->key_file);
  const pair_option options[] = {{"key_file", w->key_file},
                                 {"transports", "tcp"},
                                 {"connections_max", "64"},
                                 {"handshake_timeout_ms", "1000"},
                                 {"stall_timeout_ms", "10000"}, /* a slow machine is no stall */
                                 {NULL, NULL}};
  pair_open(&w->p, options);
  w->healthy.p = &w->p;
  assert_int_equal(pthread_create(&w->healthy.thread, NULL, load_on, &w->healthy), 0);
  uint64_t until_ms = pair_now_ms() + PATIENCE_MS;
  while (atomic_load(&w->healthy.loads) < 2 && pair_now_ms() < until_ms) {
    pair_sleep_ms(1);
  }
  assert_true(atomic_load(&w->healthy.loads) >= 2);
  w->before = count_costs();
  *state = w;
  return 0;
}

/* Loads have gone on, and go on, without a retry; descriptors and threads are as many as before. */
static void assert_undisturbed(world *w)
{
  unsigned before = atomic_load(&w->healthy.loads);
  uint64_t until_ms = pair_now_ms() + PATIENCE_MS;
  costs now = count_costs();
  while ((atomic_load(&w->healthy.loads) < before + 3 || now.descriptors != w->before.descriptors ||
          now.threads != w->before.threads) &&
         pair_now_ms() < until_ms) {
    pair_sleep_ms(1);
    now = count_costs();
  }
  assert_true(atomic_load(&w->healthy.loads) >= before + 3);
  assert_int_equal(now.descriptors, w->before.descriptors);
  assert_int_equal(now.threads, w->before.threads);
  if (atomic_load(&w->healthy.failures) > 0) {
    fail_msg("a healthy load has failed: %s", kvf_status_name(w->healthy.first_status));
  }
  assert_int_equal(pair_stat(&w->p.consumer, "load_retries", ""), 0);
  assert_int_equal(pair_stat(&w->p.consumer, "peer_failures", ""), 0);
}

static int close_world(void **state)
{
  world *w = *state;
  atomic_store(&w->healthy.stop, true);
  (void)pthread_join(w->healthy.thread, NULL);
  pair_close(&w->p);
  (void)unlink(w->key_file);
  free(w);
  return 0;
}

#define WORLD_TEST(name) TEST_WITH(name, open_world, close_world)

static void assert_counted(world *w, const char *name, const char *reason, uint64_t count)
{
  assert_true(pair_wait_stat(&w->p.producer, name, reason, count, PATIENCE_MS));
  assert_int_equal(pair_stat(&w->p.producer, name, reason), count);
}

/* The line that names this peer, and why. */
static void assert_logged(world *w, const stranger *s, const char *cause)
{
  if (!pair_wait_log(&w->p.producer, cause, s->name, PATIENCE_MS)) {
    fail_msg("no line about %s says \"%s\"", s->name, cause);
  }
}

static void connect_to(world *w, stranger *s)
{
  stranger_connect(s, w->p.producer.node, KEY);
}

/* ---- the control port ---- */

static void assert_protocol_error(world *w, stranger *s, uint64_t count)
{
  peer_expect_closed(s->fd);
  stranger_close(s);
  assert_counted(w, "sessions_refused", "protocol", count);
  assert_logged(w, s, "protocol");
  assert_undisturbed(w);
}

WORLD_TEST(garbage)
{
  world *w = *state;
  static const char said[][17] = {"GET / HTTP/1.1\r\n", "\xff\xff\xff\xff\xff\xff\xff\xff"};
  for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
    stranger s;
    connect_to(w, &s);
    peer_send(s.fd, said[i], sizeof(said[i]) - 1);
    assert_protocol_error(w, &s, i + 1);
  }
}

WORLD_TEST(tls_where_none_is_spoken)
{
  world *w = *state;
  stranger s;
  connect_to(w, &s);
  peer_send(s.fd, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_counted(w, "sessions_refused", "handshake_refused", 1);
  assert_logged(w, &s, "handshake_refused: it speaks TLS, which this node does not (option tls)");
  assert_undisturbed(w);
}

WORLD_TEST(oversized_length)
{
  world *w = *state;
  static const uint32_t lengths[] = {KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX + 1, KVF_FRAME_BODY_BYTES_MAX};
  for (size_t i = 0; i < 2; i++) {
    stranger s;
    uint8_t header[KVF_FRAME_HEADER_BYTES];
    connect_to(w, &s);
    kvf_frame_header_encode(KVF_FRAME_HELLO, lengths[i], header);
    peer_send(s.fd, header, sizeof(header));
    assert_protocol_error(w, &s, i + 1);
  }
  stranger s; /* more than any frame may have, from one who has proved the key */
  kvf_welcome welcome;
  connect_to(w, &s);
  stranger_shake_hands(&s, &welcome);
  kvf_welcome_free(&welcome);
  peer_send(s.fd, "\x01\x00\x04\x00\x06\x00\x00\x00", KVF_FRAME_HEADER_BYTES);
  assert_protocol_error(w, &s, 3);
}

WORLD_TEST(well_formed_frame_of_the_wrong_type)
{
  world *w = *state;
  stranger s;
  kvf_welcome welcome;
  connect_to(w, &s);
  peer_send_frame(s.fd, KVF_FRAME_PING, "\0\0\0\0\0\0\0\0", 8);
  assert_protocol_error(w, &s, 1);
  connect_to(w, &s); /* of the other side's */
  stranger_hello(&s);
  stranger_challenge(&s);
  peer_send_frame(s.fd, KVF_FRAME_CHALLENGE, s.challenge, s.challenge_bytes);
  assert_protocol_error(w, &s, 2);
  connect_to(w, &s); /* of the data connection's, in an open session */
  stranger_shake_hands(&s, &welcome);
  kvf_welcome_free(&welcome);
  peer_send_frame(s.fd, KVF_FRAME_READ, "read", 4);
  assert_protocol_error(w, &s, 3);
}

WORLD_TEST(malformed_bodies)
{
  world *w = *state;
  stranger s;
  kvf_welcome welcome;
  connect_to(w, &s);
  peer_send_frame(s.fd, KVF_FRAME_HELLO, "hello", 5);
  assert_protocol_error(w, &s, 1);
  connect_to(w, &s);
  stranger_hello(&s);
  stranger_challenge(&s);
  peer_send_frame(s.fd, KVF_FRAME_PROOF, "proof", 5);
  assert_protocol_error(w, &s, 2);
  connect_to(w, &s);
  stranger_shake_hands(&s, &welcome);
  kvf_welcome_free(&welcome);
  peer_send_frame(s.fd, KVF_FRAME_FINISH, "finish", 6);
  assert_protocol_error(w, &s, 3);
}

/* A frame that breaks off, and the end of the stream. */
WORLD_TEST(truncated_frame)
{
  world *w = *state;
  stranger s;
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  connect_to(w, &s);
  kvf_frame_header_encode(KVF_FRAME_HELLO, 81, header);
  peer_send(s.fd, header, sizeof(header));
  peer_send(s.fd, "half a hello", 12);
  stranger_close(&s);
  assert_counted(w, "sessions_abandoned", "", 1);
  assert_logged(w, &s, "peer_down: it went before its handshake had ended");
  assert_undisturbed(w);
}

/* A frame that breaks off, and nothing more. */
WORLD_TEST(frame_that_never_ends)
{
  world *w = *state;
  stranger s;
  connect_to(w, &s);
  peer_send(s.fd, "\x51\x00\x00", 3);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_counted(w, "sessions_timed_out", "", 1);
  assert_logged(w, &s, "handshake_timeout");
  assert_undisturbed(w);
}

WORLD_TEST(silence)
{
  world *w = *state;
  stranger s;
  connect_to(w, &s);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_counted(w, "sessions_timed_out", "", 1);
  assert_logged(w, &s, "handshake_timeout");
  assert_undisturbed(w);
}

WORLD_TEST(half_handshake)
{
  world *w = *state;
  stranger s;
  connect_to(w, &s);
  stranger_hello(&s);
  stranger_challenge(&s);
  peer_expect_closed(s.fd);
  stranger_close(&s);
  assert_counted(w, "sessions_timed_out", "", 1);
  assert_logged(w, &s, "handshake_timeout");
  assert_undisturbed(w);
}

WORLD_TEST(reset_during_the_handshake)
{
  world *w = *state;
  stranger s;
  connect_to(w, &s);
  stranger_reset(&s);
  assert_counted(w, "sessions_abandoned", "", 1);
  assert_logged(w, &s, "it went before its handshake had ended");
  connect_to(w, &s);
  stranger_hello(&s);
  stranger_challenge(&s);
  stranger_reset(&s);
  assert_counted(w, "sessions_abandoned", "", 2);
  assert_logged(w, &s, "it went before its handshake had ended");
  assert_undisturbed(w);
}

WORLD_TEST(wrong_key)
{
  world *w = *state;
  stranger s;
  stranger_connect(&s, w->p.producer.node, "another key, as long as that one");
  stranger_hello(&s);
  kvf_refused refused = stranger_expect_refused(&s);
  assert_int_equal(refused.status, KVF_HANDSHAKE_REFUSED);
  assert_non_null(strstr(refused.message, "key_file"));
  stranger_close(&s);
  assert_counted(w, "sessions_refused", "handshake_refused", 1);
  assert_logged(w, &s, "handshake_refused");
  connect_to(w, &s); /* who knows the key's name, but not the key */
  stranger_hello(&s);
  stranger_challenge(&s);
  s.key.data[0] ^= 1;
  stranger_proof(&s, "test", PAIR_BLOCK_TOKENS);
  refused = stranger_expect_refused(&s);
  assert_int_equal(refused.status, KVF_HANDSHAKE_REFUSED);
  stranger_close(&s);
  assert_counted(w, "sessions_refused", "handshake_refused", 2);
  assert_logged(w, &s, "handshake_refused");
  assert_undisturbed(w);
}

WORLD_TEST(incompatible_peer)
{
  world *w = *state;
  stranger s;
  connect_to(w, &s);
  stranger_hello(&s);
  stranger_challenge(&s);
  stranger_proof(&s, "another", PAIR_BLOCK_TOKENS);
  kvf_refused refused = stranger_expect_refused(&s);
  assert_int_equal(refused.status, KVF_INCOMPATIBLE);
  assert_string_equal(refused.message, "model differs: producer has \"test\", consumer has \"another\"");
  stranger_close(&s);
  assert_counted(w, "sessions_refused", "incompatible", 1);
  assert_logged(w, &s, "incompatible: model differs");
  assert_undisturbed(w);
}

WORLD_TEST(peer_of_another_version)
{
  world *w = *state;
  stranger s;
  kvf_hello hello = {
      .version_min = KVF_PROTOCOL_VERSION + 1, .version_max = KVF_PROTOCOL_VERSION + 5, .role = KVF_ROLE_RANK};
  uint8_t body[KVF_HELLO_BYTES_MAX];
  size_t bytes = 0;
  connect_to(w, &s);
  assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s.fd, KVF_FRAME_HELLO, body, bytes);
  assert_int_equal(stranger_expect_refused(&s).status, KVF_INCOMPATIBLE);
  stranger_close(&s);
  assert_counted(w, "sessions_refused", "incompatible", 1);
  assert_logged(w, &s, "no protocol version in common");
  assert_undisturbed(w);
}

#define CROWD 300

/* More than may be open at once: the oldest strangers make room for the newest, never for or of a proved peer. */
WORLD_TEST(crowd)
{
  world *w = *state;
  static int fds[CROWD];
  stranger last;
  for (size_t i = 0; i < CROWD; i++) {
    fds[i] = stranger_dial(w->p.producer.node);
    assert_true(fds[i] >= 0);
  }
  connect_to(w, &last);
  assert_counted(w, "sessions_accepted", "", CROWD + 2); /* the consumer, the crowd, the last */
  assert_true(pair_stat(&w->p.producer, "sessions_evicted", "") > 0);
  assert_true(pair_wait_log(&w->p.producer, "limit: too many connections have not proved their key",
                            "127.0.0.1:", PATIENCE_MS));
  for (size_t i = 0; i < CROWD; i++) {
    peer_expect_closed(fds[i]);
    (void)close(fds[i]);
  }
  peer_expect_closed(last.fd);
  stranger_close(&last);
  assert_int_equal(
      pair_stat(&w->p.producer, "sessions_evicted", "") + pair_stat(&w->p.producer, "sessions_timed_out", ""),
      CROWD + 1);
  assert_int_equal(pair_stat(&w->p.producer, "sessions_open", ""), 1);
  assert_undisturbed(w);
}

/* ---- the data port ---- */

/* A session of one's own, to learn where the data port is. */
static void connect_data(world *w, stranger *control, stranger *data)
{
  kvf_welcome welcome;
  connect_to(w, control);
  stranger_shake_hands(control, &welcome);
  memset(data, 0, sizeof(*data));
  data->fd = -1;
  for (uint32_t i = 0; i < welcome.transports_count; i++) {
    const kvf_transport_offer *offer = &welcome.transports[i];
    if (strcmp(offer->name, "tcp") == 0) {
      data->fd = peer_connect_to_node(offer->description, offer->description_bytes);
    }
  }
  kvf_welcome_free(&welcome);
  assert_true(data->fd >= 0);
  stranger_find_name(data);
}

static void attack_data(world *w, void (*attack)(stranger *data), const char *reason, const char *cause)
{
  stranger control;
  stranger data;
  connect_data(w, &control, &data);
  attack(&data);
  if (data.fd >= 0) {
    peer_expect_closed(data.fd);
    stranger_close(&data);
  }
  assert_logged(w, &data, cause);
  assert_counted(w, "data_connections_ended", reason, 1);
  stranger_close(&control);
  assert_undisturbed(w);
}

static void send_garbage(stranger *data)
{
  peer_send(data->fd, "GET / HTTP/1.1\r\n\r\n", 18);
}

static void send_long_frame(stranger *data)
{
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_DATA_HELLO, KVF_FRAME_BODY_BYTES_MAX, header);
  peer_send(data->fd, header, sizeof(header));
}

static void send_read_first(stranger *data)
{
  peer_send_frame(data->fd, KVF_FRAME_READ, "read", 4);
}

static void send_malformed_hello(stranger *data)
{
  peer_send_frame(data->fd, KVF_FRAME_DATA_HELLO, "hello", 5);
}

static void send_wrong_proof(stranger *data)
{
  kvf_key key = {.bytes = 32};
  peer_hello(data->fd, 12345, &key);
}

static void send_nothing(stranger *data)
{
  (void)data;
}

static void break_off(stranger *data)
{
  uint8_t challenge[KVF_DATA_CHALLENGE_BYTES_MAX];
  /* Closing with something unread would be a reset. */
  (void)peer_receive_frame(data->fd, KVF_FRAME_DATA_CHALLENGE, challenge, sizeof(challenge));
  peer_send(data->fd, "\x2c\x00\x00", 3);
  stranger_close(data);
}

WORLD_TEST(data_garbage)
{
  attack_data(*state, send_garbage, "protocol", "not a frame, or one that is too long");
}

WORLD_TEST(data_oversized_length)
{
  attack_data(*state, send_long_frame, "protocol", "not a frame, or one that is too long");
}

WORLD_TEST(data_wrong_type)
{
  attack_data(*state, send_read_first, "protocol", "unexpected frame read before its handshake");
}

WORLD_TEST(data_malformed_hello)
{
  attack_data(*state, send_malformed_hello, "protocol", "malformed data_hello");
}

WORLD_TEST(data_wrong_proof)
{
  attack_data(*state, send_wrong_proof, "handshake_refused", "unknown session, or wrong proof of its key");
}

WORLD_TEST(data_silence)
{
  attack_data(*state, send_nothing, "handshake_timeout", "it did not prove its key in time");
}

WORLD_TEST(data_truncated_frame)
{
  attack_data(*state, break_off, "peer_down", "the peer left before it had proved its key");
}

WORLD_TEST(data_reset)
{
  attack_data(*state, stranger_reset, "peer_down", "Connection reset by peer");
}
