/* Asks and answers over UCX, there and back, and those that break a rule. */
#include "wire/ucx_message.h"

#include "wire_test.h"

TEST(an_ask_comes_back)
{
  const kvf_ucx_ask in = {
      .token = 0x0123456789abcdef, .memory = 3, .slot = 77, .offset = UINT64_C(1) << 40, .word = 99, .bytes = 4096};
  uint8_t bytes[KVF_UCX_ASK_BYTES];
  kvf_ucx_ask out;
  kvf_ucx_ask_write(&in, bytes);
  assert_int_equal(kvf_ucx_ask_read(bytes, sizeof(bytes), &out), KVF_OK);
  assert_int_equal(out.token, in.token);
  assert_int_equal(out.memory, in.memory);
  assert_int_equal(out.slot, in.slot);
  assert_int_equal(out.offset, in.offset);
  assert_int_equal(out.word, in.word);
  assert_int_equal(out.bytes, in.bytes);
}

static kvf_status read_back(const kvf_ucx_ask *ask)
{
  uint8_t bytes[KVF_UCX_ASK_BYTES];
  kvf_ucx_ask out;
  kvf_ucx_ask_write(ask, bytes);
  return kvf_ucx_ask_read(bytes, sizeof(bytes), &out);
}

TEST(an_ask_is_for_bytes_of_a_lease_or_for_a_look)
{
  const uint32_t most = KVF_UCX_ANSWER_DATA_BYTES_MAX;
  const struct {
    kvf_ucx_ask ask;
    kvf_status status;
  } cases[] = {
      {{.slot = 1, .word = 3, .bytes = 1}, KVF_OK},
      {{.slot = 1, .word = 3, .bytes = most}, KVF_OK},
      {{.slot = 1, .word = 3, .bytes = 0}, KVF_PROTOCOL},
      {{.slot = 1, .word = 3, .bytes = most + 1}, KVF_PROTOCOL},
      {{.slot = 1, .word = 3, .bytes = UINT32_MAX}, KVF_PROTOCOL},
      {{.slot = 1, .word = 4, .bytes = 1}, KVF_PROTOCOL}, /* an ended lease's */
      {{.slot = KVF_UCX_SLOT_NONE, .word = 3, .bytes = 1}, KVF_PROTOCOL},
      {{.memory = KVF_UCX_MEMORY_TABLE, .slot = 1, .word = 3}, KVF_OK},
      {{.memory = KVF_UCX_MEMORY_TABLE, .slot = KVF_UCX_SLOT_NONE}, KVF_OK},
      {{.memory = KVF_UCX_MEMORY_TABLE, .slot = 1, .word = 3, .bytes = 16}, KVF_PROTOCOL},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    assert_int_equal(read_back(&cases[i].ask), cases[i].status);
  }
}

TEST(an_answer_comes_back)
{
  for (uint32_t kind = KVF_UCX_ANSWER_REFUSED; kind <= KVF_UCX_ANSWER_DATA; kind++) {
    const kvf_ucx_answer in = {
        .token = UINT64_MAX - 1,
        .kind = (kvf_ucx_answer_kind)kind,
        .bytes = kind == KVF_UCX_ANSWER_DATA ? KVF_UCX_ANSWER_DATA_BYTES_MAX : 0,
        .sample = {.head = {.magic = KVF_FENCE_MAGIC, .incarnation = {{1, 2, 3}}, .slots = 4, .generation = 6},
                   .entry = {.word = 5, .digest = UINT64_MAX}}};
    uint8_t bytes[KVF_UCX_ANSWER_BYTES];
    kvf_ucx_answer out;
    kvf_ucx_answer_write(&in, bytes);
    assert_int_equal(kvf_ucx_answer_read(bytes, sizeof(bytes), &out), KVF_OK);
    assert_int_equal(out.token, in.token);
    assert_int_equal(out.kind, in.kind);
    assert_int_equal(out.bytes, in.bytes);
    assert_memory_equal(&out.sample, &in.sample, sizeof(in.sample));
  }
}

TEST(an_answer_has_bytes_where_its_kind_does)
{
  const uint32_t most = KVF_UCX_ANSWER_DATA_BYTES_MAX;
  const struct {
    uint32_t kind;
    uint32_t bytes;
    kvf_status status;
  } cases[] = {
      {KVF_UCX_ANSWER_REFUSED, 1, KVF_PROTOCOL},
      {KVF_UCX_ANSWER_LOOK, 1, KVF_PROTOCOL},
      {KVF_UCX_ANSWER_DATA, 0, KVF_PROTOCOL},
      {KVF_UCX_ANSWER_DATA, 1, KVF_OK},
      {KVF_UCX_ANSWER_DATA, most, KVF_OK},
      {KVF_UCX_ANSWER_DATA, most + 1, KVF_PROTOCOL},
      {KVF_UCX_ANSWER_DATA, UINT32_MAX, KVF_PROTOCOL},
      {KVF_UCX_ANSWER_DATA + 1, 0, KVF_PROTOCOL}, /* no kind at all */
      {KVF_UCX_ANSWER_DATA + 1, 1, KVF_PROTOCOL},
  };
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    uint8_t bytes[KVF_UCX_ANSWER_BYTES];
    kvf_ucx_answer out;
    kvf_ucx_answer_write(&(kvf_ucx_answer){.kind = (kvf_ucx_answer_kind)cases[i].kind, .bytes = cases[i].bytes}, bytes);
    assert_int_equal(kvf_ucx_answer_read(bytes, sizeof(bytes), &out), cases[i].status);
  }
}

/* 5 bytes, their answer, a look's answer, 1 byte, its answer. */
static size_t three_answers(uint8_t *out)
{
  size_t used = 5;
  kvf_ucx_answer_write(&(kvf_ucx_answer){.token = 1, .kind = KVF_UCX_ANSWER_DATA, .bytes = 5}, out + used);
  used += KVF_UCX_ANSWER_BYTES;
  kvf_ucx_answer_write(&(kvf_ucx_answer){.token = 2, .kind = KVF_UCX_ANSWER_LOOK}, out + used);
  used += KVF_UCX_ANSWER_BYTES + 1;
  kvf_ucx_answer_write(&(kvf_ucx_answer){.token = 3, .kind = KVF_UCX_ANSWER_DATA, .bytes = 1}, out + used);
  return used + KVF_UCX_ANSWER_BYTES;
}

TEST(answers_are_taken_from_the_last)
{
  uint8_t data[3 * KVF_UCX_ANSWER_BYTES + 6] = {0};
  size_t bytes = three_answers(data);
  const size_t begins[] = {2 * KVF_UCX_ANSWER_BYTES + 5, KVF_UCX_ANSWER_BYTES + 5, 0};
  assert_int_equal(bytes, sizeof(data));
  for (uint64_t i = 0; i < 3; i++) {
    kvf_ucx_answer out;
    assert_int_equal(kvf_ucx_answers_take_last(data, &bytes, &out), KVF_OK);
    assert_int_equal(out.token, 3 - i);
    assert_int_equal(bytes, begins[i]);
  }
}

/* Cut at the front: the answer there is about bytes that are missing, or is not whole itself. */
TEST(answers_without_their_bytes_are_malformed)
{
  uint8_t data[3 * KVF_UCX_ANSWER_BYTES + 6] = {0};
  const size_t whole = three_answers(data);
  for (size_t cut = 1; cut < KVF_UCX_ANSWER_BYTES + 5; cut++) {
    uint8_t *exact = exact_copy(data + cut, whole - cut);
    size_t bytes = whole - cut;
    kvf_ucx_answer out;
    assert_int_equal(kvf_ucx_answers_take_last(exact, &bytes, &out), KVF_OK);
    assert_int_equal(kvf_ucx_answers_take_last(exact, &bytes, &out), KVF_OK);
    assert_int_equal(kvf_ucx_answers_take_last(exact, &bytes, &out), KVF_PROTOCOL);
    free(exact);
  }
}

TEST(other_lengths_are_malformed)
{
  uint8_t bytes[KVF_UCX_ANSWER_BYTES + 1] = {0};
  kvf_ucx_ask ask;
  kvf_ucx_answer answer;
  kvf_ucx_ask_write(&(kvf_ucx_ask){.word = 1, .bytes = 1}, bytes);
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
