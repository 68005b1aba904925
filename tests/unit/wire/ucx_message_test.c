#include "wire/ucx_message.h"

#include "wire_test.h"

static void an_ask_comes_back(void **state)
{
  (void)state;
  const kvf_ucx_ask in = {
      .token = 0x0123456789abcdef, .memory = KVF_UCX_MEMORY_TABLE, .bytes = 4096, .offset = 1u << 31};
  uint8_t bytes[KVF_UCX_ASK_BYTES];
  kvf_ucx_ask out;
  kvf_ucx_ask_write(&in, bytes);
  assert_int_equal(kvf_ucx_ask_read(bytes, sizeof(bytes), &out), KVF_OK);
  assert_int_equal(out.token, in.token);
  assert_int_equal(out.memory, in.memory);
  assert_int_equal(out.bytes, in.bytes);
  assert_int_equal(out.offset, in.offset);
}

static void an_ask_for_nothing_or_too_much_is_malformed(void **state)
{
  (void)state;
  const uint32_t lengths[] = {0, KVF_UCX_ANSWER_DATA_BYTES_MAX + 1, UINT32_MAX};
  for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
    uint8_t bytes[KVF_UCX_ASK_BYTES];
    kvf_ucx_ask out;
    kvf_ucx_ask_write(&(kvf_ucx_ask){.bytes = lengths[i]}, bytes);
    assert_int_equal(kvf_ucx_ask_read(bytes, sizeof(bytes), &out), KVF_PROTOCOL);
  }
}

static void an_answer_comes_back(void **state)
{
  (void)state;
  for (int refused = 0; refused < 2; refused++) {
    const kvf_ucx_answer in = {.token = UINT64_MAX - 1, .is_refused = refused != 0};
    uint8_t bytes[KVF_UCX_ANSWER_BYTES];
    kvf_ucx_answer out;
    kvf_ucx_answer_write(&in, bytes);
    assert_int_equal(kvf_ucx_answer_read(bytes, sizeof(bytes), &out), KVF_OK);
    assert_int_equal(out.token, in.token);
    assert_int_equal(out.is_refused, in.is_refused);
  }
}

static void an_answer_of_another_kind_is_malformed(void **state)
{
  (void)state;
  uint8_t bytes[KVF_UCX_ANSWER_BYTES];
  kvf_ucx_answer out;
  kvf_ucx_answer_write(&(kvf_ucx_answer){.token = 1}, bytes);
  bytes[8] = 2;
  assert_int_equal(kvf_ucx_answer_read(bytes, sizeof(bytes), &out), KVF_PROTOCOL);
}

static void other_lengths_are_malformed(void **state)
{
  (void)state;
  uint8_t bytes[KVF_UCX_ASK_BYTES + 1] = {0};
  kvf_ucx_ask ask;
  kvf_ucx_answer answer;
  kvf_ucx_ask_write(&(kvf_ucx_ask){.bytes = 1}, bytes);
  for (size_t length = 0; length <= sizeof(bytes); length++) {
    void *exact = exact_copy(bytes, length);
    assert_int_equal(kvf_ucx_ask_read(exact, length, &ask), length == KVF_UCX_ASK_BYTES ? KVF_OK : KVF_PROTOCOL);
    free(exact);
  }
  memset(bytes, 0, sizeof(bytes));
  for (size_t length = 0; length <= sizeof(bytes); length++) {
    void *exact = exact_copy(bytes, length);
    assert_int_equal(kvf_ucx_answer_read(exact, length, &answer),
                     length == KVF_UCX_ANSWER_BYTES ? KVF_OK : KVF_PROTOCOL);
    free(exact);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_ask_comes_back),           cmocka_unit_test(an_ask_for_nothing_or_too_much_is_malformed),
      cmocka_unit_test(an_answer_comes_back),        cmocka_unit_test(an_answer_of_another_kind_is_malformed),
      cmocka_unit_test(other_lengths_are_malformed),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
