#include "wire/ping_message.h"

#include "wire_test.h"

DECODER(ping)

TEST(test_round_trip)
{
  kvf_ping ping = {.seq = UINT64_C(0x0102030405060708)};
  uint8_t body[KVF_PING_BYTES_MAX];
  CHECK_ROUND_TRIP(ping, &ping, body);
}
