/* Messages of the handshake but for WELCOME: there and back, and the rules of each. */
#include "wire/handshake_message.h"

#include <stdio.h>

#include "wire_test.h"

DECODER(hello)
DECODER(challenge)
DECODER(proof)
DECODER(refused)

static uint8_t body[KVF_PROOF_BYTES_MAX + 2]; /* more than the largest message */
static size_t bytes;

static kvf_hello some_hello(void)
{
  kvf_hello hello = {.version_min = 1, .version_max = 0x0302, .role = KVF_ROLE_RANK, .rank = KVF_RANKS_MAX - 1};
  fill(&hello.client, sizeof(hello.client), 1);
  fill(&hello.expected, sizeof(hello.expected), 50);
  fill(hello.nonce, sizeof(hello.nonce), 100);
  fill(hello.key_id, sizeof(hello.key_id), 150);
  return hello;
}

TEST(test_hello_round_trip)
{
  kvf_hello hello = some_hello();
  kvf_hello back;
  CHECK_CAPACITY(hello, &hello, KVF_HELLO_BYTES_MAX);
  assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_hello, body, bytes);
  assert_int_equal(kvf_hello_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.version_min, hello.version_min);
  assert_int_equal(back.version_max, hello.version_max);
  assert_int_equal(back.role, hello.role);
  assert_int_equal(back.rank, hello.rank);
  assert_memory_equal(&back.client, &hello.client, sizeof(hello.client));
  assert_memory_equal(&back.expected, &hello.expected, sizeof(hello.expected));
  assert_memory_equal(back.nonce, hello.nonce, sizeof(hello.nonce));
  assert_memory_equal(back.key_id, hello.key_id, sizeof(hello.key_id));
}

TEST(test_hello_rules)
{
  static const struct {
    uint32_t rank;
    uint16_t version_min, version_max;
    uint8_t role;
    bool valid;
  } rows[] = {{0, 1, 1, 1, true}, {0, 0, 1, 1, false}, {0, 2, 1, 1, false}, {0, 1, 1, 0, false},
              {0, 1, 1, 3, true}, {0, 1, 1, 4, false}, {63, 1, 1, 2, true}, {64, 1, 1, 2, false}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_hello hello = some_hello();
    assert_int_equal(kvf_hello_encode(&hello, body, sizeof(body), &bytes), KVF_OK);
    hello.version_min = rows[i].version_min;
    hello.version_max = rows[i].version_max;
    hello.role = rows[i].role;
    hello.rank = rows[i].rank;
    uint8_t other[KVF_HELLO_BYTES_MAX];
    assert_int_equal(kvf_hello_encode(&hello, other, sizeof(other), &bytes), rows[i].valid ? KVF_OK : KVF_INVALID);
    /* The same fields, as a peer would write them. */
    body[0] = (uint8_t)rows[i].version_min;
    body[1] = 0;
    body[2] = (uint8_t)rows[i].version_max;
    body[3] = 0;
    body[4] = rows[i].role;
    body[KVF_HELLO_BYTES_MAX - 4] = (uint8_t)rows[i].rank;
    assert_int_equal(decode_hello(body, KVF_HELLO_BYTES_MAX), rows[i].valid ? KVF_OK : KVF_PROTOCOL);
  }
}

TEST(test_challenge_round_trip)
{
  kvf_challenge challenge = {.version = 0x0102};
  fill(&challenge.server, sizeof(challenge.server), 1);
  fill(challenge.nonce, sizeof(challenge.nonce), 50);
  fill(challenge.proof, sizeof(challenge.proof), 100);
  uint8_t exact[KVF_CHALLENGE_BYTES_MAX];
  CHECK_ROUND_TRIP(challenge, &challenge, exact);

  challenge.version = 0;
  assert_int_equal(kvf_challenge_encode(&challenge, exact, sizeof(exact), &bytes), KVF_INVALID);
  exact[0] = 0;
  exact[1] = 0;
  assert_int_equal(decode_challenge(exact, sizeof(exact)), KVF_PROTOCOL);
}

/* The largest proof that there is. */
static void fill_proof(kvf_proof *proof)
{
  memset(proof, 0, sizeof(*proof));
  fill(proof->proof, sizeof(proof->proof), 7);
  proof->identity_count = KVF_IDENTITY_FIELDS_MAX;
  for (uint32_t i = 0; i < proof->identity_count; i++) {
    memset(proof->identity[i].name, 'a' + (int)i % 26, KVF_IDENTITY_BYTES_MAX - 1);
    memset(proof->identity[i].value, 'A' + (int)i % 26, KVF_IDENTITY_BYTES_MAX - 1);
  }
}

TEST(test_proof_round_trip)
{
  kvf_proof proof;
  kvf_proof back;
  fill_proof(&proof);
  CHECK_CAPACITY(proof, &proof, KVF_PROOF_BYTES_MAX);
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(kvf_proof_decode(body, bytes, &back), KVF_OK);
  assert_memory_equal(&back, &proof, sizeof(proof));

  proof.identity_count = 2;
  (void)snprintf(proof.identity[0].name, sizeof(proof.identity[0].name), "%s", "dtype");
  (void)snprintf(proof.identity[0].value, sizeof(proof.identity[0].value), "%s", "");
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_proof, body, bytes);
  assert_int_equal(kvf_proof_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.identity_count, 2);
  assert_string_equal(back.identity[0].name, "dtype");
  assert_string_equal(back.identity[0].value, "");
  assert_string_equal(back.identity[1].name, proof.identity[1].name);
}

TEST(test_proof_rules)
{
  kvf_proof proof;
  fill_proof(&proof);
  proof.identity_count++;
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_INVALID);
  proof.identity_count--;
  proof.identity[31].value[5] = '\n';
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_INVALID);
  proof.identity[31].value[5] = 'x';
  memset(proof.identity[31].name, 'n', sizeof(proof.identity[31].name)); /* it does not end */
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_INVALID);
  proof.identity[31].name[0] = '\0';
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_INVALID);

  memset(body, 0, sizeof(body));
  for (uint8_t count = 32; count <= 33; count++) {
    body[32] = count;
    for (size_t i = 0; i < count; i++) {
      put(body + 33 + i * 3, "\x01n\x00", 3);
    }
    assert_int_equal(decode_proof(body, 33 + count * (size_t)3), count == 32 ? KVF_OK : KVF_PROTOCOL);
  }
  body[32] = 1;
  put(body + 33, "\x00\x01v", 3); /* a field without a name */
  assert_int_equal(decode_proof(body, 36), KVF_PROTOCOL);
  put(body + 33, "\x01n\x01\x1b", 4);
  assert_int_equal(decode_proof(body, 37), KVF_PROTOCOL);
}

TEST(test_refused_round_trip)
{
  kvf_refused refused = {.status = KVF_INCOMPATIBLE};
  kvf_refused back;
  memset(refused.message, 'm', sizeof(refused.message) - 1);
  CHECK_CAPACITY(refused, &refused, KVF_REFUSED_BYTES_MAX);
  (void)snprintf(refused.message, sizeof(refused.message), "%s", "dtype differs");
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_refused, body, bytes);
  assert_int_equal(kvf_refused_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.status, KVF_INCOMPATIBLE);
  assert_string_equal(back.message, "dtype differs");
}

TEST(test_refused_rules)
{
  kvf_refused refused = {.status = -1, .message = "caf\xc3\xa9\n"};
  kvf_refused back;
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(kvf_refused_decode(body, bytes, &back), KVF_OK);
  assert_string_equal(back.message, "caf???");
  body[bytes - 1] = 0xe9;
  assert_int_equal(decode_refused(body, bytes), KVF_PROTOCOL);
  body[bytes - 1] = '\n';
  assert_int_equal(decode_refused(body, bytes), KVF_PROTOCOL);
  body[bytes - 1] = '~';
  assert_int_equal(decode_refused(body, bytes), KVF_OK);
  memset(body, 0, 4); /* refused with KVF_OK */
  assert_int_equal(decode_refused(body, bytes), KVF_PROTOCOL);
  memset(refused.message, 'm', sizeof(refused.message)); /* one that does not end is cut */
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(kvf_refused_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(strlen(back.message), sizeof(back.message) - 1);
  refused.status = KVF_OK;
  assert_int_equal(kvf_refused_encode(&refused, body, sizeof(body), &bytes), KVF_INVALID);
}
