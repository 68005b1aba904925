/* What a prompt's hash depends on, and that it is the same in every version. */
#include "kvferry/types.h"
#include "test.h"

static const uint32_t ids[] = {11, 12, 13, 14};

static kvf_prompt hash_of(const uint32_t *token_ids, uint32_t tokens, const void *salt, size_t salt_bytes)
{
  kvf_prompt prompt;
  assert_int_equal(kvf_prompt_hash(token_ids, tokens, salt, salt_bytes, &prompt), KVF_OK);
  assert_int_equal(prompt.tokens, tokens);
  return prompt;
}

static bool same(kvf_prompt a, kvf_prompt b)
{
  return memcmp(a.hash, b.hash, sizeof(a.hash)) == 0;
}

TEST(same_input_same_hash)
{
  const uint32_t copy[] = {11, 12, 13, 14};
  assert_true(same(hash_of(ids, 4, "s", 1), hash_of(copy, 4, "s", 1)));
  assert_true(same(hash_of(ids, 4, NULL, 0), hash_of(ids, 4, "", 0)));
}

/* Nodes of different versions must agree on it: this is SHA-256 of a text, two little-endian lengths, salt and ids. */
TEST(hash_is_stable)
{
  const uint8_t expected[32] = {0x49, 0x89, 0x5e, 0xb7, 0x67, 0x1b, 0xf1, 0xdd, 0x42, 0x5d, 0x27,
                                0x58, 0x49, 0x03, 0x29, 0x7a, 0xba, 0x3b, 0xc8, 0xfc, 0x39, 0x37,
                                0x7f, 0x6f, 0xc5, 0x66, 0xbc, 0x17, 0x99, 0xf6, 0xd0, 0x91};
  assert_memory_equal(hash_of(ids, 4, "salt", 4).hash, expected, sizeof(expected));
}

TEST(every_part_counts)
{
  const uint32_t other[] = {11, 12, 13, 15};
  kvf_prompt prompt = hash_of(ids, 4, "s", 1);
  assert_false(same(prompt, hash_of(other, 4, "s", 1)));
  assert_false(same(prompt, hash_of(ids, 3, "s", 1)));
  assert_false(same(prompt, hash_of(ids, 4, "t", 1)));
  assert_false(same(prompt, hash_of(ids, 4, NULL, 0)));
}

TEST(salt_does_not_pass_for_tokens)
{
  assert_false(same(hash_of(ids + 1, 3, ids, 4), hash_of(ids, 4, NULL, 0)));
  assert_false(same(hash_of(ids + 2, 2, ids, 8), hash_of(ids + 1, 3, ids, 4)));
}

static kvf_prompt computed_by(const void *model, size_t bytes)
{
  kvf_prompt prompt = hash_of(ids, 4, NULL, 0);
  assert_int_equal(kvf_prompt_set_model(&prompt, model, bytes), KVF_OK);
  return prompt;
}

TEST(model_is_beside_the_hash)
{
  const kvf_prompt prompt = hash_of(ids, 4, NULL, 0);
  const kvf_prompt a = computed_by("weights a", 9);
  assert_true(same(a, prompt));
  assert_memory_equal(a.model, computed_by("weights a", 9).model, sizeof(a.model));
  assert_memory_not_equal(a.model, computed_by("weights b", 9).model, sizeof(a.model));
  assert_memory_not_equal(a.model, computed_by("weights ", 8).model, sizeof(a.model));
  assert_memory_not_equal(a.model, prompt.model, sizeof(a.model));
}

TEST(null_arguments_are_refused)
{
  kvf_prompt prompt = {.tokens = 77};
  assert_int_equal(kvf_prompt_hash(NULL, 4, NULL, 0, &prompt), KVF_INVALID);
  assert_int_equal(kvf_prompt_hash(ids, 4, NULL, 1, &prompt), KVF_INVALID);
  assert_int_equal(kvf_prompt_hash(ids, 4, NULL, 0, NULL), KVF_INVALID);
  assert_int_equal(kvf_prompt_set_model(&prompt, NULL, 0), KVF_INVALID);
  assert_int_equal(kvf_prompt_set_model(NULL, "m", 1), KVF_INVALID);
  assert_int_equal(prompt.tokens, 77);
}
