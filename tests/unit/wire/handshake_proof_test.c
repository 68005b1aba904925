/* Proofs, session key and key id: that they differ, and what each is bound to. */
#include "wire/handshake_message.h"

#include "wire_test.h"

static const kvf_key key = {.data = "a shared key", .bytes = 12};

typedef struct transcript {
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  uint8_t challenge[KVF_CHALLENGE_BYTES_MAX];
} transcript;

/* Everything that a handshake derives from its transcript. */
typedef struct derived {
  uint8_t server_proof[KVF_HASH_BYTES];
  uint8_t client_proof[KVF_HASH_BYTES];
  uint8_t session_key[KVF_HASH_BYTES];
} derived;

static transcript some_transcript(void)
{
  transcript made;
  fill(made.hello, sizeof(made.hello), 1);
  fill(made.challenge, sizeof(made.challenge), 100);
  return made;
}

static derived derive(const kvf_key *with, const transcript *from)
{
  derived out;
  kvf_key session;
  kvf_challenge challenge;
  assert_int_equal(kvf_challenge_decode(from->challenge, sizeof(from->challenge), &challenge), KVF_OK);
  assert_int_equal(kvf_handshake_server_proof(with, from->hello, sizeof(from->hello), &challenge, out.server_proof),
                   KVF_OK);
  assert_int_equal(kvf_handshake_client_proof(with, from->hello, sizeof(from->hello), from->challenge,
                                              sizeof(from->challenge), out.client_proof),
                   KVF_OK);
  assert_int_equal(kvf_handshake_session_key(with, from->hello, sizeof(from->hello), from->challenge,
                                             sizeof(from->challenge), &session),
                   KVF_OK);
  assert_int_equal(session.bytes, KVF_HASH_BYTES);
  memcpy(out.session_key, session.data, KVF_HASH_BYTES);
  return out;
}

static bool differ(const uint8_t *a, const uint8_t *b)
{
  return memcmp(a, b, KVF_HASH_BYTES) != 0;
}

TEST(test_key_id)
{
  uint8_t id[KVF_KEY_ID_BYTES];
  uint8_t mac[KVF_HASH_BYTES];
  kvf_span label = {"kvferry key id", 14};
  assert_int_equal(kvf_handshake_key_id(&key, id), KVF_OK);
  assert_int_equal(kvf_hmac(&key, &label, 1, mac), KVF_OK);
  assert_memory_equal(id, mac, sizeof(id));
}

/* `kvferry key` prints it: tests/python/test_key.py has the same. */
TEST(test_key_id_of_a_known_key)
{
  static const uint8_t expected[KVF_KEY_ID_BYTES] = {0x17, 0x67, 0xe6, 0xc9, 0x2f, 0x5a, 0x53, 0x42};
  const kvf_key known = {.data = "0123456789abcdef", .bytes = 16};
  uint8_t id[KVF_KEY_ID_BYTES];
  assert_int_equal(kvf_handshake_key_id(&known, id), KVF_OK);
  assert_memory_equal(id, expected, sizeof(id));
}

TEST(test_three_secrets_from_one_transcript)
{
  transcript from = some_transcript();
  derived one = derive(&key, &from);
  derived two = derive(&key, &from);
  assert_memory_equal(&one, &two, sizeof(one));
  assert_true(differ(one.server_proof, one.client_proof));
  assert_true(differ(one.server_proof, one.session_key));
  assert_true(differ(one.client_proof, one.session_key));
}

TEST(test_another_key)
{
  transcript from = some_transcript();
  kvf_key other = key;
  other.data[0]++;
  derived one = derive(&key, &from);
  derived two = derive(&other, &from);
  assert_true(differ(one.server_proof, two.server_proof));
  assert_true(differ(one.client_proof, two.client_proof));
  assert_true(differ(one.session_key, two.session_key));
}

TEST(test_every_byte_is_bound)
{
  transcript from = some_transcript();
  derived one = derive(&key, &from);
  for (size_t i = 0; i < sizeof(from.hello); i++) {
    transcript changed = from;
    changed.hello[i] ^= 1;
    derived two = derive(&key, &changed);
    assert_true(differ(one.server_proof, two.server_proof));
    assert_true(differ(one.client_proof, two.client_proof));
    assert_true(differ(one.session_key, two.session_key));
  }
  for (size_t i = 0; i < sizeof(from.challenge); i++) {
    transcript changed = from;
    changed.challenge[i] ^= 1;
    derived two = derive(&key, &changed);
    /* The server's proof cannot cover itself. */
    bool is_proof = i >= sizeof(from.challenge) - KVF_HASH_BYTES;
    assert_int_equal(differ(one.server_proof, two.server_proof), !is_proof);
    assert_true(differ(one.client_proof, two.client_proof));
    assert_true(differ(one.session_key, two.session_key));
  }
}

TEST(test_lengths_are_fixed)
{
  transcript from = some_transcript();
  uint8_t out[KVF_HASH_BYTES];
  kvf_key session = {.bytes = 77};
  kvf_challenge challenge = {.version = 1};
  assert_int_equal(kvf_handshake_server_proof(&key, from.hello, sizeof(from.hello) - 1, &challenge, out), KVF_INVALID);
  assert_int_equal(
      kvf_handshake_client_proof(&key, from.hello, sizeof(from.hello) - 1, from.challenge, sizeof(from.challenge), out),
      KVF_INVALID);
  assert_int_equal(kvf_handshake_session_key(&key, from.hello, sizeof(from.hello), from.challenge,
                                             sizeof(from.challenge) - 1, &session),
                   KVF_INVALID);
  assert_int_equal(session.bytes, 77);
}
