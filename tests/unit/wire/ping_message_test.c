#include "wire/ping_message.h"

#include "wire_test.h"

DECODER(ping)

static void test_round_trip(void **state)
{
  (void)state;
  kvf_ping ping = {.seq = UINT64_C(0x0102030405060708)};
  kvf_ping back;
  uint8_t body[KVF_PING_BYTES_MAX];
  size_t bytes = 0;
  CHECK_CAPACITY(ping, &ping, KVF_PING_BYTES_MAX);
  assert_int_equal(kvf_ping_encode(&ping, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_ping, body, bytes);
  assert_int_equal(kvf_ping_decode(body, bytes, &back), KVF_OK);
  assert_true(back.seq == ping.seq);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
