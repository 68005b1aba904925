/* Messages of data connections but for READ: there and back, their rules, and what the proofs bind. */
#include "wire/data_message.h"

#include "wire_test.h"

DECODER(data_challenge)
DECODER(data_hello)
DECODER(data_ready)
DECODER(data_chunk)
DECODER(data_trailer)
DECODER(data_cancel)

TEST(test_challenge_round_trip)
{
  kvf_data_challenge challenge;
  uint8_t body[KVF_DATA_CHALLENGE_BYTES_MAX];
  fill(&challenge, sizeof(challenge), 1);
  CHECK_ROUND_TRIP(data_challenge, &challenge, body);
}

TEST(test_hello_round_trip)
{
  kvf_data_hello hello = {.session_id = UINT64_C(0x0102030405060708), .generation = UINT64_MAX - 1};
  uint8_t body[KVF_DATA_HELLO_BYTES_MAX];
  fill(hello.proof, sizeof(hello.proof), 1);
  fill(hello.nonce, sizeof(hello.nonce), 2);
  CHECK_ROUND_TRIP(data_hello, &hello, body);
}

typedef kvf_status (*prove_fn)(const kvf_key *session_key, const kvf_data_challenge *challenge,
                               const kvf_data_hello *hello, uint8_t out[KVF_HASH_BYTES]);

TEST(test_proofs_bind_everything)
{
  static const prove_fn proves[2] = {kvf_data_hello_proof, kvf_data_ready_proof};
  kvf_key keys[2] = {{.data = "session one", .bytes = 11}, {.data = "session two", .bytes = 11}};
  kvf_data_challenge challenges[2] = {{.nonce = {1}}, {.nonce = {2}}};
  kvf_data_hello hellos[4] = {
      {.session_id = 1}, {.session_id = 2}, {.session_id = 1, .generation = 1}, {.session_id = 1, .nonce = {1}}};
  uint8_t proofs[2 * 2 * 2 * 4][KVF_HASH_BYTES];
  for (size_t i = 0; i < sizeof(proofs) / sizeof(proofs[0]); i++) {
    assert_int_equal(proves[i % 2](&keys[i / 2 % 2], &challenges[i / 4 % 2], &hellos[i / 8], proofs[i]), KVF_OK);
    for (size_t other = 0; other < i; other++) {
      assert_memory_not_equal(proofs[i], proofs[other], KVF_HASH_BYTES);
    }
  }
}

/* The consumer's proof is not part of what it proves, but of what the producer does. */
TEST(test_ready_proves_the_hello_proof)
{
  kvf_key key = {.data = "session", .bytes = 7};
  kvf_data_challenge challenge = {.nonce = {1}};
  kvf_data_hello hello = {.session_id = 1};
  kvf_data_hello proved = hello;
  uint8_t proofs[2][KVF_HASH_BYTES];
  fill(proved.proof, sizeof(proved.proof), 1);
  assert_int_equal(kvf_data_hello_proof(&key, &challenge, &hello, proofs[0]), KVF_OK);
  assert_int_equal(kvf_data_hello_proof(&key, &challenge, &proved, proofs[1]), KVF_OK);
  assert_memory_equal(proofs[0], proofs[1], KVF_HASH_BYTES);
  assert_int_equal(kvf_data_ready_proof(&key, &challenge, &hello, proofs[0]), KVF_OK);
  assert_int_equal(kvf_data_ready_proof(&key, &challenge, &proved, proofs[1]), KVF_OK);
  assert_memory_not_equal(proofs[0], proofs[1], KVF_HASH_BYTES);
}

TEST(test_ready_round_trip)
{
  kvf_data_ready ready;
  uint8_t body[KVF_DATA_READY_BYTES_MAX];
  fill(ready.proof, sizeof(ready.proof), 1);
  CHECK_ROUND_TRIP(data_ready, &ready, body);
}

TEST(test_chunk_round_trip)
{
  kvf_data_chunk chunk = {.read_id = UINT64_C(0x0102030405060708), .payload_bytes = UINT64_MAX};
  kvf_data_chunk back;
  uint8_t body[KVF_DATA_CHUNK_BYTES_MAX];
  size_t bytes = 0;
  CHECK_CAPACITY(data_chunk, &chunk, KVF_DATA_CHUNK_BYTES_MAX);
  assert_int_equal(kvf_data_chunk_encode(&chunk, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_data_chunk, body, bytes);
  assert_int_equal(kvf_data_chunk_decode(body, bytes, &back), KVF_OK);
  assert_true(back.read_id == chunk.read_id);
  assert_true(back.payload_bytes == chunk.payload_bytes);
  assert_int_equal(back.status, KVF_OK);

  body[11] = 0x80; /* a status, and a payload */
  assert_int_equal(decode_data_chunk(body, bytes), KVF_PROTOCOL);
  memset(body + 12, 0, 8);
  assert_int_equal(decode_data_chunk(body, bytes), KVF_OK);
  body[11] = 0x7f; /* a status above 0 */
  assert_int_equal(decode_data_chunk(body, bytes), KVF_PROTOCOL);
}

TEST(test_chunk_rules)
{
  static const struct {
    kvf_data_chunk chunk;
    kvf_status status;
  } rows[] = {{{1, KVF_LEASE_EXPIRED, 0}, KVF_OK},
              {{1, KVF_LEASE_EXPIRED, 1}, KVF_INVALID},
              {{1, 1, 0}, KVF_INVALID},
              {{1, KVF_OK, 0}, KVF_OK},
              {{0, KVF_OK, 0}, KVF_INVALID}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    uint8_t body[KVF_DATA_CHUNK_BYTES_MAX];
    size_t bytes = 0;
    assert_int_equal(kvf_data_chunk_encode(&rows[i].chunk, body, sizeof(body), &bytes), rows[i].status);
  }
}

TEST(test_trailer_round_trip)
{
  kvf_data_trailer trailer = {.read_id = 1, .word = UINT64_C(0x0102030405060708), .digest = UINT64_MAX};
  uint8_t body[KVF_DATA_TRAILER_BYTES_MAX];
  size_t bytes = 0;
  CHECK_ROUND_TRIP(data_trailer, &trailer, body);
  body[0] = 0;
  assert_int_equal(decode_data_trailer(body, sizeof(body)), KVF_PROTOCOL);
  trailer.read_id = 0;
  assert_int_equal(kvf_data_trailer_encode(&trailer, body, sizeof(body), &bytes), KVF_INVALID);
}

TEST(test_cancel_round_trip)
{
  kvf_data_cancel cancel = {.read_id = UINT64_C(0x0102030405060708)};
  uint8_t body[KVF_DATA_CANCEL_BYTES_MAX];
  size_t bytes = 0;
  CHECK_ROUND_TRIP(data_cancel, &cancel, body);
  memset(body, 0, sizeof(body));
  assert_int_equal(decode_data_cancel(body, sizeof(body)), KVF_PROTOCOL);
  cancel.read_id = 0;
  assert_int_equal(kvf_data_cancel_encode(&cancel, body, sizeof(body), &bytes), KVF_INVALID);
}
