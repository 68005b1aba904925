/* Keys and their seals. */
#include "find/key.h"

#include "../wire/ticket_tool.h"
#include "test.h"

static void seal_of(const kvf_key *shared, const kvf_prompt *prompt, uint8_t out[KVF_HASH_BYTES])
{
  const kvf_find_key key = kvf_find_key_of_prompt(prompt);
  assert_int_equal(kvf_find_key_seal(&key, mac_of(shared), out), KVF_OK);
}

/* Each of the prompt's fields counts, and so does the shared key. */
TEST(seals_differ)
{
  const kvf_key shared = key_of("a key of sixteen");
  const kvf_key other_shared = key_of("another key here");
  const kvf_prompt prompt = {.hash = {1}, .model = {2}, .tokens = 3};
  kvf_prompt others[] = {prompt, prompt, prompt};
  others[0].hash[31] = 1;
  others[1].model[31] = 1;
  others[2].tokens = 4;
  uint8_t seal[KVF_HASH_BYTES];
  uint8_t other[KVF_HASH_BYTES];
  seal_of(&shared, &prompt, seal);
  seal_of(&shared, &prompt, other);
  assert_memory_equal(seal, other, sizeof(seal));
  seal_of(&other_shared, &prompt, other);
  assert_memory_not_equal(seal, other, sizeof(seal));
  const kvf_find_key key = kvf_find_key_of_prompt(&prompt);
  for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
    seal_of(&shared, &others[i], other);
    assert_memory_not_equal(seal, other, sizeof(seal));
    const kvf_ticket ticket = {.prompt = others[i]};
    assert_false(kvf_find_key_fits(&key, &ticket));
  }
  const kvf_ticket ticket = {.prompt = prompt};
  assert_true(kvf_find_key_fits(&key, &ticket));
}

/* HMAC-SHA-256 of known bytes: another implementation of the protocol makes the same. */
TEST(known_seal)
{
  const kvf_key shared = key_of("a key of sixteen");
  const kvf_prompt prompt = {.hash = {1}, .model = {2}, .tokens = 0x01020304};
  static const uint8_t tokens[] = {4, 3, 2, 1};
  const kvf_span spans[] = {
      {"kvferry find prompt", 20}, {prompt.hash, 32}, {prompt.model, 32}, {tokens, sizeof(tokens)}};
  uint8_t expected[KVF_HASH_BYTES];
  uint8_t seal[KVF_HASH_BYTES];
  assert_int_equal(kvf_hmac(&shared, spans, 4, expected), KVF_OK);
  seal_of(&shared, &prompt, seal);
  assert_memory_equal(seal, expected, sizeof(seal));
}
