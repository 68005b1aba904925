#include "wire/ping_message.h"

#include "wire_test.h"

DECODER(ping)

TEST(test_round_trip)
{
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
