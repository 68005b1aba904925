/* A question for a ticket and its answer, there and back; answers that break a rule. */
#include "wire/find_message.h"

#include "wire_test.h"

DECODER(find_question)
DECODER(found)

TEST(test_find_round_trip)
{
  kvf_find_question question = {.id = UINT64_C(0x0102030405060708)};
  uint8_t body[KVF_FIND_BYTES_MAX];
  fill(question.key, sizeof(question.key), 3);
  CHECK_ROUND_TRIP(find_question, &question, body);
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
