#include "wire/ping_message.h"

#include "wire_test.h"

DECODER(ping)
DECODER(pong)

TEST(test_ping)
{
  kvf_ping ping = {.seq = UINT64_C(0x0102030405060708), .wanted_bytes = KVF_PONG_FILL_BYTES_MAX};
  kvf_ping back;
  uint8_t body[KVF_PING_BYTES_MAX];
  size_t bytes = 0;
  CHECK_CAPACITY(ping, &ping, KVF_PING_BYTES_MAX);
  assert_int_equal(kvf_ping_encode(&ping, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_ping, body, bytes);
  assert_int_equal(kvf_ping_decode(body, bytes, &back), KVF_OK);
  assert_true(back.seq == ping.seq);
  assert_int_equal(back.wanted_bytes, ping.wanted_bytes);
  body[8]++;
  assert_int_equal(kvf_ping_decode(body, bytes, &back), KVF_PROTOCOL);
  ping.wanted_bytes++;
  assert_int_equal(kvf_ping_encode(&ping, body, sizeof(body), &bytes), KVF_INVALID);
}

static void check_pong(uint32_t fill_bytes)
{
  kvf_pong pong = {.seq = UINT64_C(0x0102030405060708), .fill_bytes = fill_bytes};
  kvf_pong back;
  size_t room = kvf_pong_bytes(&pong);
  size_t bytes = 0;
  CHECK_CAPACITY(pong, &pong, room);
  uint8_t *body = malloc(room);
  assert_non_null(body);
  assert_int_equal(kvf_pong_encode(&pong, body, room, &bytes), KVF_OK);
  assert_int_equal(kvf_pong_decode(body, bytes, &back), KVF_OK);
  assert_true(back.seq == pong.seq);
  assert_int_equal(back.fill_bytes, fill_bytes);
  assert_int_equal(kvf_pong_decode(body, bytes - 1, &back), KVF_PROTOCOL);
  if (bytes < 1000) {
    check_length(decode_pong, body, bytes);
  }
  free(body);
}

TEST(test_pong)
{
  check_pong(0);
  check_pong(1);
  check_pong(KVF_PONG_FILL_BYTES_MAX);
  kvf_pong over = {.fill_bytes = KVF_PONG_FILL_BYTES_MAX + 1};
  size_t room = kvf_pong_bytes(&over);
  size_t bytes = 77;
  uint8_t *body = calloc(1, room);
  assert_non_null(body);
  assert_int_equal(kvf_pong_encode(&over, body, room, &bytes), KVF_INVALID);
  memcpy(body + 8, &(uint32_t){over.fill_bytes}, sizeof(uint32_t));
  assert_int_equal(kvf_pong_decode(body, room, &over), KVF_PROTOCOL);
  free(body);
}
