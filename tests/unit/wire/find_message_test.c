#include "wire/find_message.h"

#include "ticket_tool.h"
#include "wire_test.h"

DECODER(find)
DECODER(found)

TEST(test_find_round_trip)
{
  kvf_find find = {.id = UINT64_C(0x0102030405060708)};
  uint8_t body[KVF_FIND_BYTES_MAX];
  fill(find.tag, sizeof(find.tag), 3);
  CHECK_ROUND_TRIP(find, &find, body);
  assert_memory_equal(body, "\x08\x07\x06\x05\x04\x03\x02\x01", 8);
}

TEST(test_found_round_trip)
{
  static char text[KVF_TICKET_BYTES_MAX];
  fill(text, sizeof(text), 1);
  kvf_found found = {.id = 7, .status = KVF_FOUND_TICKET, .text = text, .text_bytes = sizeof(text)};
  CHECK_CAPACITY(found, &found, KVF_FOUND_BYTES_MAX);
  static const size_t lengths[] = {1, 2, 100, KVF_TICKET_BYTES_MAX};
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
    const size_t bytes = lengths[i];
    static uint8_t body[KVF_FOUND_BYTES_MAX];
    kvf_found back;
    size_t body_bytes = 0;
    found.text_bytes = bytes;
    assert_int_equal(kvf_found_encode(&found, body, sizeof(body), &body_bytes), KVF_OK);
    assert_int_equal(body_bytes, 9 + bytes);
    uint8_t *exact = exact_copy(body, body_bytes);
    assert_int_equal(kvf_found_decode(exact, body_bytes, &back), KVF_OK);
    assert_int_equal(back.id, 7);
    assert_int_equal(back.text_bytes, bytes);
    assert_memory_equal(back.text, text, bytes);
    free(exact);
  }
}

TEST(test_nothing_found)
{
  const kvf_found found = {.id = 7};
  uint8_t body[9];
  size_t bytes = 0;
  CHECK_CAPACITY(found, &found, sizeof(body));
  assert_int_equal(kvf_found_encode(&found, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_found, body, bytes);
}

TEST(test_found_rules)
{
  static uint8_t body[KVF_FOUND_BYTES_MAX + 1];
  static char text[KVF_TICKET_BYTES_MAX + 1];
  size_t bytes = 77;
  for (unsigned status = 0; status < 256; status++) {
    body[8] = (uint8_t)status;
    assert_int_equal(decode_found(body, 9), status == KVF_FOUND_NOTHING ? KVF_OK : KVF_PROTOCOL);
    assert_int_equal(decode_found(body, 10), status == KVF_FOUND_TICKET ? KVF_OK : KVF_PROTOCOL);
    assert_int_equal(decode_found(body, sizeof(body)), KVF_PROTOCOL);
    const kvf_found found = {.status = (uint8_t)status, .text = text, .text_bytes = status != KVF_FOUND_TICKET};
    assert_int_equal(kvf_found_encode(&found, body, sizeof(body), &bytes),
                     KVF_INVALID); /* nothing with a ticket, a ticket without one */
  }
  const kvf_found longer = {.status = KVF_FOUND_TICKET, .text = text, .text_bytes = sizeof(text)};
  assert_int_equal(kvf_found_encode(&longer, body, sizeof(body), &bytes), KVF_INVALID);
  assert_int_equal(bytes, 77);
}

/* ---- tags ---- */

static void tag_of(const kvf_key *key, const kvf_prompt *prompt, uint8_t out[KVF_HASH_BYTES])
{
  assert_int_equal(kvf_find_prompt_tag(mac_of(key), prompt, out), KVF_OK);
}

/* Each of the prompt's fields counts, and so does the key. */
TEST(test_tags_differ)
{
  const kvf_key key = key_of("a key of sixteen");
  const kvf_key other_key = key_of("another key here");
  const kvf_prompt prompt = {.hash = {1}, .model = {2}, .tokens = 3};
  kvf_prompt others[] = {prompt, prompt, prompt};
  others[0].hash[31] = 1;
  others[1].model[31] = 1;
  others[2].tokens = 4;
  uint8_t tag[KVF_HASH_BYTES];
  uint8_t other[KVF_HASH_BYTES];
  tag_of(&key, &prompt, tag);
  tag_of(&key, &prompt, other);
  assert_memory_equal(tag, other, sizeof(tag));
  tag_of(&other_key, &prompt, other);
  assert_memory_not_equal(tag, other, sizeof(tag));
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    tag_of(&key, &others[i], other);
    assert_memory_not_equal(tag, other, sizeof(tag));
  }
}

/* A name of another kind is another tag, also where the one's label begins the other's. */
TEST(test_labels_stand_for_themselves)
{
  const kvf_key key = key_of("a key of sixteen");
  const kvf_span names[] = {{"bc", 2}, {"c", 1}};
  uint8_t tags[2][KVF_HASH_BYTES];
  assert_int_equal(kvf_find_tag(mac_of(&key), "a", &names[0], 1, tags[0]), KVF_OK);
  assert_int_equal(kvf_find_tag(mac_of(&key), "ab", &names[1], 1, tags[1]), KVF_OK);
  assert_memory_not_equal(tags[0], tags[1], KVF_HASH_BYTES);
}

/* HMAC-SHA-256 of known bytes: another implementation of the protocol makes the same. */
TEST(test_known_tag)
{
  const kvf_key key = key_of("a key of sixteen");
  const kvf_prompt prompt = {.hash = {1}, .model = {2}, .tokens = 0x01020304};
  static const uint8_t tokens[] = {4, 3, 2, 1};
  const kvf_span spans[] = {
      {"kvferry find prompt", 20}, {prompt.hash, 32}, {prompt.model, 32}, {tokens, sizeof(tokens)}};
  uint8_t expected[KVF_HASH_BYTES];
  uint8_t tag[KVF_HASH_BYTES];
  assert_int_equal(kvf_hmac(&key, spans, 4, expected), KVF_OK);
  tag_of(&key, &prompt, tag);
  assert_memory_equal(tag, expected, sizeof(tag));
}
