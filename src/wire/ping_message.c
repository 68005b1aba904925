#include "wire/ping_message.h"

#include "wire/cursor.h"
#include "wire/frame.h"

_Static_assert(KVF_PING_BYTES_MAX + KVF_PONG_FILL_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX, "every PONG fits a frame");

size_t kvf_pong_bytes(const kvf_pong *pong)
{
  return KVF_PING_BYTES_MAX + (size_t)pong->fill_bytes;
}

static void put_head(kvf_encoder *encoder, uint64_t seq, uint32_t bytes)
{
  kvf_put_u64(encoder, seq);
  kvf_put_u32(encoder, bytes);
}

kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes)
{
  if (ping->wanted_bytes > KVF_PONG_FILL_BYTES_MAX) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  put_head(&encoder, ping->seq, ping->wanted_bytes);
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_pong_encode(const kvf_pong *pong, void *body, size_t capacity, size_t *body_bytes)
{
  if (pong->fill_bytes > KVF_PONG_FILL_BYTES_MAX) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  put_head(&encoder, pong->seq, pong->fill_bytes);
  static const uint8_t fill[4096];
  for (size_t left = pong->fill_bytes; left > 0;) {
    size_t part = left < sizeof(fill) ? left : sizeof(fill);
    kvf_put_bytes(&encoder, fill, part);
    left -= part;
  }
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out)
{
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_ping ping = {.seq = kvf_get_u64(&decoder)};
  ping.wanted_bytes = kvf_get_u32(&decoder);
  if (kvf_decoder_end(&decoder) != KVF_OK || ping.wanted_bytes > KVF_PONG_FILL_BYTES_MAX) {
    return KVF_PROTOCOL;
  }
  *out = ping;
  return KVF_OK;
}

kvf_status kvf_pong_decode(const void *body, size_t body_bytes, kvf_pong *out)
{
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_pong pong = {.seq = kvf_get_u64(&decoder)};
  pong.fill_bytes = kvf_get_u32(&decoder);
  (void)kvf_get_span(&decoder, pong.fill_bytes);
  if (kvf_decoder_end(&decoder) != KVF_OK || pong.fill_bytes > KVF_PONG_FILL_BYTES_MAX) {
    return KVF_PROTOCOL;
  }
  *out = pong;
  return KVF_OK;
}
