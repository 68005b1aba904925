/* Random numbers that are drawn from a secret: equal secrets draw the same, and no draw holds the secret. */
#include "core/context.h"
#include "test.h"

#define DRAWS 64

static kvf_entropy entropy_of(uint8_t first)
{
  kvf_entropy entropy = {.secret = {first}};
  return entropy;
}

TEST(draws_differ)
{
  kvf_entropy entropy = entropy_of(1);
  uint8_t drawn[DRAWS][KVF_HASH_BYTES];
  for (size_t i = 0; i < DRAWS; i++) {
    assert_int_equal(kvf_entropy_draw(&entropy, drawn[i], sizeof(drawn[i])), KVF_OK);
    for (size_t j = 0; j < i; j++) {
      assert_memory_not_equal(drawn[i], drawn[j], sizeof(drawn[i]));
    }
  }
}

TEST(equal_secrets_draw_the_same)
{
  kvf_entropy a = entropy_of(1);
  kvf_entropy b = entropy_of(1);
  kvf_entropy other = entropy_of(2);
  uint8_t from_a[KVF_HASH_BYTES];
  uint8_t from_b[KVF_HASH_BYTES];
  uint8_t from_other[KVF_HASH_BYTES];
  for (size_t i = 0; i < DRAWS; i++) {
    assert_int_equal(kvf_entropy_draw(&a, from_a, sizeof(from_a)), KVF_OK);
    assert_int_equal(kvf_entropy_draw(&b, from_b, sizeof(from_b)), KVF_OK);
    assert_int_equal(kvf_entropy_draw(&other, from_other, sizeof(from_other)), KVF_OK);
    assert_memory_equal(from_a, from_b, sizeof(from_a));
    assert_memory_not_equal(from_a, from_other, sizeof(from_a));
  }
}

/* Nobody who sees a draw, a nonce say, learns the secret or the next one from it. */
TEST(draws_do_not_hold_the_secret)
{
  kvf_entropy entropy;
  uint8_t drawn[KVF_HASH_BYTES];
  memset(&entropy, 0x5a, sizeof(entropy));
  assert_int_equal(kvf_entropy_draw(&entropy, drawn, sizeof(drawn)), KVF_OK);
  assert_memory_not_equal(drawn, entropy.secret, 4);
}

TEST(writes_what_was_asked_for)
{
  kvf_entropy entropy = entropy_of(1);
  uint8_t drawn[KVF_HASH_BYTES] = {0};
  const uint8_t zeros[KVF_HASH_BYTES] = {0};
  assert_int_equal(kvf_entropy_draw(&entropy, drawn, 0), KVF_OK);
  assert_memory_equal(drawn, zeros, sizeof(drawn));
  assert_int_equal(kvf_entropy_draw(&entropy, drawn, 8), KVF_OK);
  assert_memory_not_equal(drawn, zeros, 8);
  assert_memory_equal(drawn + 8, zeros, sizeof(drawn) - 8);
}

/* Two copies of one process: what the system gives to each is all that tells them apart. */
TEST(stirred_differently_equal_secrets_part)
{
  kvf_entropy a = entropy_of(1);
  kvf_entropy b = entropy_of(1);
  uint8_t from_a[KVF_HASH_BYTES];
  uint8_t from_b[KVF_HASH_BYTES];
  uint8_t fresh[KVF_HASH_BYTES] = {0};
  for (size_t i = 0; i < KVF_HASH_BYTES; i++) { /* each byte counts */
    kvf_entropy_stir(&a, fresh);
    fresh[i] = 1;
    kvf_entropy_stir(&b, fresh);
    fresh[i] = 0;
    assert_int_equal(kvf_entropy_draw(&a, from_a, sizeof(from_a)), KVF_OK);
    assert_int_equal(kvf_entropy_draw(&b, from_b, sizeof(from_b)), KVF_OK);
    assert_memory_not_equal(from_a, from_b, 4);
  }
}
