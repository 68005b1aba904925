/* OpenSSL without memory: nothing is written, and nothing is believed, that could not be hashed. Linked with --wrap for
 * kvf_sha256, kvf_hmac, kvf_mac_init and kvf_mac_make. */
#include "ticket_tool.h"
#include "wire/handshake_message.h"

kvf_status __real_kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __real_kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __real_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __real_kvf_mac_init(kvf_mac *mac, const kvf_key *key);
kvf_status __wrap_kvf_mac_init(kvf_mac *mac, const kvf_key *key);

static bool fails;

kvf_status __wrap_kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return fails ? KVF_NO_MEMORY : __real_kvf_sha256(spans, count, out);
}

kvf_status __wrap_kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return fails ? KVF_NO_MEMORY : __real_kvf_hmac(key, spans, count, out);
}

kvf_status __wrap_kvf_mac_init(kvf_mac *mac, const kvf_key *key)
{
  if (fails) {
    *mac = (kvf_mac){.keyed = NULL};
    return KVF_NO_MEMORY;
  }
  return __real_kvf_mac_init(mac, key);
}

kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return fails ? KVF_NO_MEMORY : __real_kvf_mac_make(mac, spans, count, out);
}

TEST(test_record)
{
  kvf_rank_record record = {.address = {.port = 80}, .rank = 3, .dealt = 1};
  kvf_rank_record back = {.rank = 77};
  uint8_t data[KVF_RANK_RECORD_BYTES];
  size_t bytes = 77;
  fails = true;
  assert_int_equal(kvf_rank_record_encode(&record, data, sizeof(data), &bytes), KVF_NO_MEMORY);
  assert_int_equal(bytes, 77);
  fails = false;
  assert_int_equal(kvf_rank_record_encode(&record, data, sizeof(data), &bytes), KVF_OK);
  fails = true;
  assert_int_equal(kvf_rank_record_decode(data, bytes, &back), KVF_NO_MEMORY);
  fails = false;
  assert_int_equal(back.rank, 77);
}

TEST(test_ticket)
{
  static char text[KVF_TICKET_BYTES_MAX];
  kvf_ticket ticket = some_ticket();
  kvf_ticket back = {.ranks = 77};
  size_t bytes = 77;
  const kvf_mac *mac = mac_of(&usual_key);
  fails = true;
  assert_int_equal(kvf_ticket_encode(&ticket, mac, text, sizeof(text), &bytes), KVF_NO_MEMORY);
  assert_int_equal(bytes, 77);
  fails = false;
  assert_int_equal(kvf_ticket_encode(&ticket, mac, text, sizeof(text), &bytes), KVF_OK);
  fails = true;
  assert_int_equal(kvf_ticket_decode(text, bytes, mac, 1, &back), KVF_NO_MEMORY);
  fails = false;
  assert_int_equal(back.ranks, 77);
}

TEST(test_handshake)
{
  kvf_key key = key_of("a shared key");
  kvf_challenge challenge = {.version = 1};
  uint8_t hello[KVF_HELLO_BYTES_MAX] = {0};
  uint8_t body[KVF_CHALLENGE_BYTES_MAX] = {0};
  uint8_t out[KVF_HASH_BYTES];
  uint8_t id[KVF_KEY_ID_BYTES] = {77};
  kvf_key session = {.bytes = 77};
  fails = true;
  assert_int_equal(kvf_handshake_key_id(&key, id), KVF_NO_MEMORY);
  assert_int_equal(kvf_handshake_server_proof(&key, hello, sizeof(hello), &challenge, out), KVF_NO_MEMORY);
  assert_int_equal(kvf_handshake_client_proof(&key, hello, sizeof(hello), body, sizeof(body), out), KVF_NO_MEMORY);
  assert_int_equal(kvf_handshake_session_key(&key, hello, sizeof(hello), body, sizeof(body), &session), KVF_NO_MEMORY);
  fails = false;
  assert_int_equal(id[0], 77);
  assert_int_equal(session.bytes, 77);
  challenge.version = 0; /* none that could be sent */
  assert_int_equal(kvf_handshake_server_proof(&key, hello, sizeof(hello), &challenge, out), KVF_INVALID);
}
