/* PING there and back, and how many bytes it may want. */
#include "wire/ping_message.h"

#include "wire_test.h"

DECODER(ping)

TEST(test_round_trip)
{
  kvf_ping ping = {.seq = UINT64_C(0x0102030405060708), .wanted_bytes = KVF_PING_FILL_BYTES_MAX};
  uint8_t body[KVF_PING_BYTES_MAX];
  CHECK_ROUND_TRIP(ping, &ping, body);
  uint8_t filled[KVF_PING_BYTES_MAX + 20];
  ping.fill_bytes = 20;
  CHECK_ROUND_TRIP(ping, &ping, filled);
  ping.fill_bytes = KVF_PING_FILL_BYTES_MAX;
  CHECK_CAPACITY(ping, &ping, KVF_PING_BYTES_MAX + KVF_PING_FILL_BYTES_MAX);
}

TEST(test_limits)
{
  static uint8_t body[KVF_PING_BYTES_MAX + KVF_PING_FILL_BYTES_MAX + 1];
  const uint32_t over = KVF_PING_FILL_BYTES_MAX + 1;
  size_t bytes = 0;
  assert_int_equal(kvf_ping_encode(&(kvf_ping){.wanted_bytes = over}, body, sizeof(body), &bytes), KVF_INVALID);
  assert_int_equal(kvf_ping_encode(&(kvf_ping){.fill_bytes = over}, body, sizeof(body), &bytes), KVF_INVALID);
  memcpy(body + 8, &over, sizeof(over));
  assert_int_equal(decode_ping(body, KVF_PING_BYTES_MAX), KVF_PROTOCOL);
  memset(body, 0, KVF_PING_BYTES_MAX);
  memcpy(body + 12, &over, sizeof(over));
  assert_int_equal(decode_ping(body, sizeof(body)), KVF_PROTOCOL);
}
