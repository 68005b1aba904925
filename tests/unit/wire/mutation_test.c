/* Every decoder on random and mutated bodies, from a fixed seed: none reads out of bounds (run under the address
 * sanitizer), and whatever one takes, its encoder writes again. */
#include "base/prng.h"
#include "ticket_tool.h"
#include "wire/data_message.h"
#include "wire/frame.h"
#include "wire/handshake_message.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"

#define BODIES 6000 /* for each of the decoders */
#define BODY_BYTES_MAX 4096
#define ROOM_BYTES (KVF_READ_ITEMS_MAX * KVF_DATA_READ_RUN_BYTES + KVF_DATA_READ_HEAD_BYTES)

static uint8_t again[ROOM_BYTES];

/* Takes a body, or not; if so it must come out of the encoder as it went in. */
#define SAME_AGAIN(name)                                                                      \
  static bool take_##name(const uint8_t *body, size_t body_bytes)                             \
  {                                                                                           \
    static kvf_##name message;                                                                \
    size_t again_bytes = 0;                                                                   \
    if (kvf_##name##_decode(body, body_bytes, &message) != KVF_OK) {                          \
      return false;                                                                           \
    }                                                                                         \
    assert_int_equal(kvf_##name##_encode(&message, again, ROOM_BYTES, &again_bytes), KVF_OK); \
    assert_int_equal(again_bytes, body_bytes);                                                \
    assert_memory_equal(again, body, body_bytes);                                             \
    return true;                                                                              \
  }

SAME_AGAIN(hello)
SAME_AGAIN(challenge)
SAME_AGAIN(proof)
SAME_AGAIN(refused)
SAME_AGAIN(renew)
SAME_AGAIN(finish)
SAME_AGAIN(lease_states)
SAME_AGAIN(ping)
SAME_AGAIN(data_challenge)
SAME_AGAIN(data_hello)
SAME_AGAIN(data_ready)
SAME_AGAIN(data_chunk)
SAME_AGAIN(data_trailer)
SAME_AGAIN(data_cancel)

/* Runs may be split in several ways: what is written again is at most as long. */
static bool take_welcome(const uint8_t *body, size_t body_bytes)
{
  kvf_welcome welcome;
  size_t again_bytes = 0;
  if (kvf_welcome_decode(body, body_bytes, &welcome) != KVF_OK) {
    return false;
  }
  assert_int_equal(kvf_welcome_encode(&welcome, again, kvf_welcome_bytes_max(&welcome), &again_bytes), KVF_OK);
  assert_true(again_bytes <= body_bytes);
  kvf_welcome_free(&welcome);
  return true;
}

static bool take_read(const uint8_t *body, size_t body_bytes)
{
  kvf_data_read read;
  size_t again_bytes = 0;
  if (kvf_data_read_decode(body, body_bytes, &read) != KVF_OK) {
    return false;
  }
  kvf_read_item *items = malloc(read.items_count * sizeof(*items));
  assert_non_null(items);
  kvf_data_read_items(&read, items);
  assert_int_equal(kvf_data_read_encode(&read, items, again, ROOM_BYTES, &again_bytes), KVF_OK);
  assert_true(again_bytes <= body_bytes);
  free(items);
  return true;
}

static bool take_frame(const uint8_t *body, size_t body_bytes)
{
  kvf_frame_header header;
  if (body_bytes != KVF_FRAME_HEADER_BYTES ||
      kvf_frame_header_decode(body, KVF_FRAME_BODY_BYTES_MAX, &header) != KVF_OK) {
    return false;
  }
  kvf_frame_header_encode(header.type, header.body_bytes, again);
  assert_memory_equal(again, body, body_bytes);
  return true;
}

static bool take_record(const uint8_t *body, size_t body_bytes)
{
  kvf_rank_record record;
  size_t again_bytes = 0;
  if (kvf_rank_record_decode(body, body_bytes, &record) != KVF_OK) {
    return false;
  }
  assert_int_equal(kvf_rank_record_encode(&record, again, ROOM_BYTES, &again_bytes), KVF_OK);
  assert_memory_equal(again, body, body_bytes);
  return true;
}

/* The body is the payload: sealed, as a holder of the key could. */
static bool take_ticket(const uint8_t *body, size_t body_bytes)
{
  static char text[2 * BODY_BYTES_MAX];
  kvf_key key = key_of("key");
  kvf_ticket ticket;
  size_t text_bytes = seal(body, body_bytes, &key, text);
  size_t again_bytes = 0;
  if (kvf_ticket_decode(text, text_bytes, mac_of(&key), 1, &ticket) != KVF_OK) {
    return false;
  }
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&key), (char *)again, ROOM_BYTES, &again_bytes), KVF_OK);
  assert_int_equal(again_bytes, text_bytes);
  assert_memory_equal(again, text, text_bytes);
  kvf_ticket_free(&ticket);
  return true;
}

static bool take_text(const uint8_t *body, size_t body_bytes)
{
  kvf_key key = key_of("key");
  kvf_ticket ticket;
  if (kvf_ticket_decode((const char *)body, body_bytes, mac_of(&key), 1, &ticket) != KVF_OK) {
    return false;
  }
  kvf_ticket_free(&ticket);
  return true;
}

static size_t seed_fixed(uint8_t *out, size_t bytes)
{
  fill(out, bytes, 1);
  return bytes;
}

static size_t seed_hello(uint8_t *out)
{
  kvf_hello hello = {.version_min = 1, .version_max = 3, .role = KVF_ROLE_CONTROL};
  size_t bytes = 0;
  assert_int_equal(kvf_hello_encode(&hello, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_challenge(uint8_t *out)
{
  return seed_fixed(out, KVF_CHALLENGE_BYTES_MAX);
}

static size_t seed_proof(uint8_t *out)
{
  static kvf_proof proof = {.identity_count = 2, .identity = {{"dtype", "float32"}, {"model", "small"}}};
  size_t bytes = 0;
  assert_int_equal(kvf_proof_encode(&proof, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_refused(uint8_t *out)
{
  kvf_refused refused = {.status = KVF_DRAINING, .message = "not now"};
  size_t bytes = 0;
  assert_int_equal(kvf_refused_encode(&refused, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_welcome(uint8_t *out)
{
  kvf_region_layout regions[3];
  for (uint32_t i = 0; i < 3; i++) {
    regions[i] = (kvf_region_layout){
        .stride_bytes = 64, .block_bytes = 64, .blocks = 9, .heads = 2, .heads_total = 2, .group = i / 2};
  }
  uint8_t description[] = {1, 2, 3};
  kvf_welcome welcome = {.rank = 1,
                         .ranks = 2,
                         .block_tokens = 16,
                         .regions_count = 3,
                         .regions = regions,
                         .transports_count = 1,
                         .transports = {{.name = "tcp", .description = description, .description_bytes = 3}}};
  size_t bytes = 0;
  assert_int_equal(kvf_welcome_encode(&welcome, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_renew(uint8_t *out)
{
  static kvf_renew renew = {.seq = 1, .count = 2, .items = {{.lease = {.id = 1}}, {.lease = {.id = 2}}}};
  size_t bytes = 0;
  assert_int_equal(kvf_renew_encode(&renew, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_finish(uint8_t *out)
{
  static kvf_finish finish = {
      .seq = 1, .count = 2, .items = {{.kind = 1, .reader = 0, .readers = 2}, {.kind = 2, .reader = 1, .readers = 2}}};
  size_t bytes = 0;
  assert_int_equal(kvf_finish_encode(&finish, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_states(uint8_t *out)
{
  static kvf_lease_states states = {
      .seq = 1, .count = 2, .items = {{.lease_id = 1, .state = 1}, {.lease_id = 2, .state = 4}}};
  size_t bytes = 0;
  assert_int_equal(kvf_lease_states_encode(&states, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_8(uint8_t *out)
{
  return seed_fixed(out, 8);
}

static size_t seed_32(uint8_t *out)
{
  return seed_fixed(out, 32);
}

static size_t seed_trailer(uint8_t *out)
{
  return seed_fixed(out, KVF_DATA_TRAILER_BYTES_MAX);
}

static size_t seed_data_hello(uint8_t *out)
{
  kvf_data_hello hello = {.session_id = 1};
  size_t bytes = 0;
  assert_int_equal(kvf_data_hello_encode(&hello, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_read(uint8_t *out)
{
  kvf_data_read read = {.read_id = 1, .heads = 1, .items_count = 4};
  kvf_read_item items[4] = {{.group = 0, .position = 5},
                            {.group = 0, .position = 6},
                            {.group = 1, .position = 7},
                            {.group = 1, .position = 9}};
  size_t bytes = 0;
  assert_int_equal(kvf_data_read_encode(&read, items, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_chunk(uint8_t *out)
{
  kvf_data_chunk chunk = {.read_id = 1, .status = KVF_OK, .payload_bytes = 9};
  size_t bytes = 0;
  assert_int_equal(kvf_data_chunk_encode(&chunk, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_frame(uint8_t *out)
{
  kvf_frame_header_encode(KVF_FRAME_READ, 100, out);
  return KVF_FRAME_HEADER_BYTES;
}

static size_t seed_record(uint8_t *out)
{
  kvf_rank_record record = {.address = {.port = 1}};
  size_t bytes = 0;
  assert_int_equal(kvf_rank_record_encode(&record, out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_text(uint8_t *out)
{
  uint32_t ids[TICKET_IDS];
  kvf_ticket ticket = some_ticket(ids);
  kvf_key key = key_of("key");
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(&ticket, mac_of(&key), (char *)out, BODY_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

static size_t seed_ticket(uint8_t *out)
{
  uint8_t text[BODY_BYTES_MAX];
  return unseal((const char *)text, seed_text(text), out);
}

static const struct {
  const char *name;
  size_t (*seed)(uint8_t *out);
  bool (*take)(const uint8_t *body, size_t body_bytes);
} decoders[] = {{"hello", seed_hello, take_hello},
                {"challenge", seed_challenge, take_challenge},
                {"proof", seed_proof, take_proof},
                {"refused", seed_refused, take_refused},
                {"welcome", seed_welcome, take_welcome},
                {"renew", seed_renew, take_renew},
                {"finish", seed_finish, take_finish},
                {"lease_states", seed_states, take_lease_states},
                {"ping", seed_8, take_ping},
                {"data_challenge", seed_32, take_data_challenge},
                {"data_hello", seed_data_hello, take_data_hello},
                {"data_ready", seed_32, take_data_ready},
                {"data_read", seed_read, take_read},
                {"data_chunk", seed_chunk, take_data_chunk},
                {"data_trailer", seed_trailer, take_data_trailer},
                {"data_cancel", seed_8, take_data_cancel},
                {"frame", seed_frame, take_frame},
                {"record", seed_record, take_record},
                {"ticket", seed_ticket, take_ticket},
                {"ticket_text", seed_text, take_text}};

/* Changes the body in one to four places, with a taste for the values that limits are made of. */
static size_t mutate(kvf_prng *prng, uint8_t *body, size_t bytes)
{
  static const uint8_t taste[] = {0, 1, 2, 0x3f, 0x40, 0x41, 0x7f, 0x80, 0xff};
  uint64_t changes = 1 + kvf_prng_below(prng, 4);
  for (uint64_t i = 0; i < changes && bytes > 0; i++) {
    size_t at = (size_t)kvf_prng_below(prng, bytes);
    switch (kvf_prng_below(prng, 5)) {
      case 0:
        body[at] ^= (uint8_t)(1u << kvf_prng_below(prng, 8));
        break;
      case 1:
        body[at] = (uint8_t)kvf_prng_next(prng);
        break;
      case 2:
        bytes = kvf_prng_below(prng, 4) == 0 ? at : bytes;
        break;
      case 3:
        memmove(body + at + 1, body + at, bytes - at);
        bytes++;
        break;
      default:
        body[at] = taste[kvf_prng_below(prng, sizeof(taste))];
        break;
    }
  }
  return bytes;
}

TEST(test_all_decoders)
{
  static uint8_t body[BODY_BYTES_MAX];
  kvf_prng prng = {20240607};
  for (size_t i = 0; i < sizeof(decoders) / sizeof(decoders[0]); i++) {
    unsigned taken = 0;
    for (unsigned k = 0; k < BODIES; k++) {
      size_t bytes = decoders[i].seed(body);
      if (k % 8 == 7) {
        bytes = (size_t)kvf_prng_below(&prng, 2 * bytes);
        for (size_t at = 0; at < bytes; at++) {
          body[at] = (uint8_t)kvf_prng_next(&prng);
        }
      } else if (k > 0) {
        bytes = mutate(&prng, body, bytes);
      }
      uint8_t *copy = exact_copy(body, bytes);
      taken += decoders[i].take(copy, bytes);
      free(copy);
    }
    /* At least the seed itself; not everything, or nothing would be checked. */
    if (taken == 0 || taken == BODIES) {
      fail_msg("%s took %u of %u", decoders[i].name, taken, BODIES);
    }
  }
}
