/* Somebody else listens where a good ticket points to (P2, P6, P8). The load ends with a typed failure, in time, with a
 * log line that names the cause and the peer; the true producer is loaded from as ever, and no descriptor is left. */
#include <unistd.h>

/* clang-format off */
/* clang-format on */

#include "pair.h"
#include "stranger.h"
#include "test.h"
#include "transport/socket.h"
#include "wire/address.h"

#define PATIENCE_MS 10000
#define BLOCKS 8

typedef struct world {
  pair p;
  char key_file[64];
  int listener;
  char name[KVF_ADDRESS_TEXT_BYTES]; /* the impostor's */
  pair_ticket ticket;                /* points to it */
} world;

/* Tickets name the impostor's address, with the producer's incarnation. */
static void point_to(world *w, const kvf_address *address)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  kvf_rank_record self;
  assert_int_equal(kvf_node_address(w->p.producer.node, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_rank_record_decode(record, bytes, &self), KVF_OK);
  self.address = address == NULL ? self.address : *address;
  assert_int_equal(kvf_rank_record_encode(&self, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_node_set_ranks(w->p.producer.node, record, &bytes, 1), KVF_OK);
}

static int open_world(void **state)
{
  world *w = calloc(1, sizeof(*w));
  kvf_address address;
  kvf_address bound;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_non_null(w);
  stranger_key_file("a key of sixteen", w->key_file);
  const pair_option options[] = {{"key_file", w->key_file}, {"handshake_timeout_ms", "1000"}, {NULL, NULL}};
  pair_open(&w->p, options);
  assert_int_equal(kvf_address_parse("127.0.0.1", 0, &address), KVF_OK);
  assert_int_equal(kvf_socket_listen(&address, &w->listener, &bound, message), KVF_OK);
  kvf_address_format(&bound, w->name);
  point_to(w, &bound);
  pair_offer(&w->p.producer, 0, BLOCKS, 1, true, &w->ticket);
  point_to(w, NULL);
  *state = w;
  return 0;
}

static int close_world(void **state)
{
  world *w = *state;
  (void)close(w->listener);
  pair_close(&w->p);
  (void)unlink(w->key_file);
  free(w);
  return 0;
}

#define WORLD_TEST(name) TEST_WITH(name, open_world, close_world)

static size_t count_descriptors(void)
{
  return pair_count_entries("/proc/self/fd");
}

/* As many again as they were; a background probe may have one more for a while. */
static void assert_descriptors(size_t expected)
{
  uint64_t until_ms = pair_now_ms() + PATIENCE_MS;
  size_t now = count_descriptors();
  while (now != expected && pair_now_ms() < until_ms) {
    pair_sleep_ms(1);
    now = count_descriptors();
  }
  assert_int_equal(now, expected);
}

/* Takes the consumer's connection and its hello. */
static int accept_hello(const world *w)
{
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  int fd = peer_accept(w->listener);
  assert_true(peer_receive_frame(fd, KVF_FRAME_HELLO, hello, sizeof(hello)) > 0);
  return fd;
}

static void start_load(world *w, uint64_t *id)
{
  assert_int_equal(pair_request(&w->p.consumer, &w->ticket, &w->ticket.prompt, id), KVF_OK);
  assert_int_equal(pair_load(&w->p.consumer, &w->ticket, *id, 20), KVF_OK);
}

static void assert_failed(world *w, uint64_t id, kvf_status status, const char *cause)
{
  pair_result result;
  pair_wait(&w->p.consumer, id, PATIENCE_MS, &result);
  assert_true(result.quiet);
  assert_string_equal(kvf_status_name(result.report.status), kvf_status_name(status));
  assert_int_equal(result.report.prefix, 0);
  assert_true(result.decided);
  if (!pair_wait_log(&w->p.consumer, cause, w->name, PATIENCE_MS)) {
    fail_msg("no line about %s says \"%s\"", w->name, cause);
  }
}

static void assert_true_producer_serves(world *w)
{
  pair_ticket ticket;
  pair_result result;
  uint64_t id = 0;
  pair_offer(&w->p.producer, 1, BLOCKS, 2, true, &ticket);
  assert_int_equal(pair_request(&w->p.consumer, &ticket, &ticket.prompt, &id), KVF_OK);
  assert_int_equal(pair_load(&w->p.consumer, &ticket, id, 40), KVF_OK);
  pair_wait(&w->p.consumer, id, PATIENCE_MS, &result);
  assert_int_equal(result.report.status, KVF_OK);
  for (uint32_t i = 0; i < BLOCKS; i++) {
    assert_true(pair_holds(&w->p.consumer, 40 + i, 2, i));
  }
}

/* Sends the consumer's hello this answer; the load must fail with `status`. */
static void answer_with(world *w, const void *answer, size_t bytes, kvf_status status, const char *cause)
{
  uint64_t id = 0;
  size_t before = count_descriptors();
  start_load(w, &id);
  int fd = accept_hello(w);
  peer_send(fd, answer, bytes);
  assert_failed(w, id, status, cause);
  peer_expect_closed(fd);
  (void)close(fd);
  assert_descriptors(before);
  assert_true_producer_serves(w);
}

WORLD_TEST(garbage)
{
  answer_with(*state, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, KVF_PROTOCOL, "protocol: malformed message");
}

/* P6, P8: it has not proved the key yet. */
WORLD_TEST(oversized_length)
{
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_CHALLENGE, KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX + 1, header);
  answer_with(*state, header, sizeof(header), KVF_PROTOCOL, "protocol: malformed message");
}

WORLD_TEST(wrong_type)
{
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_PONG, 0, header);
  answer_with(*state, header, sizeof(header), KVF_PROTOCOL, "a message that does not belong here");
}

WORLD_TEST(malformed_challenge)
{
  uint8_t frame[KVF_FRAME_HEADER_BYTES + 9];
  memset(frame, 0, sizeof(frame));
  kvf_frame_header_encode(KVF_FRAME_CHALLENGE, 9, frame);
  answer_with(*state, frame, sizeof(frame), KVF_PROTOCOL, "malformed challenge");
}

WORLD_TEST(no_proof_of_the_key)
{
  kvf_challenge challenge = {.version = KVF_PROTOCOL_VERSION};
  uint8_t frame[KVF_FRAME_HEADER_BYTES + KVF_CHALLENGE_BYTES_MAX];
  size_t bytes = 0;
  memset(challenge.proof, 'x', sizeof(challenge.proof));
  assert_int_equal(kvf_challenge_encode(&challenge, frame + KVF_FRAME_HEADER_BYTES, KVF_CHALLENGE_BYTES_MAX, &bytes),
                   KVF_OK);
  kvf_frame_header_encode(KVF_FRAME_CHALLENGE, (uint32_t)bytes, frame);
  answer_with(*state, frame, KVF_FRAME_HEADER_BYTES + bytes, KVF_HANDSHAKE_REFUSED, "it does not have our key");
}

WORLD_TEST(silence)
{
  answer_with(*state, "", 0, KVF_HANDSHAKE_TIMEOUT, "handshake_timeout: no handshake in time");
}

WORLD_TEST(frame_that_never_ends)
{
  uint8_t header[KVF_FRAME_HEADER_BYTES];
  kvf_frame_header_encode(KVF_FRAME_CHALLENGE, 82, header);
  answer_with(*state, header, sizeof(header), KVF_HANDSHAKE_TIMEOUT, "handshake_timeout: no handshake in time");
}

/* What it says when it refuses must not begin a log line of its own. */
WORLD_TEST(refusal_with_control_characters)
{
  uint8_t frame[KVF_FRAME_HEADER_BYTES + KVF_REFUSED_BYTES_MAX];
  kvf_refused refused = {.status = KVF_INCOMPATIBLE};
  size_t bytes = 0;
  (void)snprintf(refused.message, sizeof(refused.message), "no x");
  assert_int_equal(kvf_refused_encode(&refused, frame + KVF_FRAME_HEADER_BYTES, KVF_REFUSED_BYTES_MAX, &bytes), KVF_OK);
  frame[KVF_FRAME_HEADER_BYTES + bytes - 2] = '\n';
  kvf_frame_header_encode(KVF_FRAME_REFUSED, (uint32_t)bytes, frame);
  answer_with(*state, frame, KVF_FRAME_HEADER_BYTES + bytes, KVF_PROTOCOL, "malformed refusal");
}

WORLD_TEST(end_of_the_stream)
{
  world *w = *state;
  uint64_t id = 0;
  start_load(w, &id);
  (void)close(accept_hello(w));
  assert_failed(w, id, KVF_PEER_DOWN, "closed the connection during the handshake");
  assert_true_producer_serves(w);
}

WORLD_TEST(reset)
{
  world *w = *state;
  stranger s = {0};
  uint64_t id = 0;
  start_load(w, &id);
  s.fd = accept_hello(w);
  stranger_reset(&s);
  assert_failed(w, id, KVF_PEER_DOWN, "closed the connection during the handshake");
  assert_true_producer_serves(w);
}
