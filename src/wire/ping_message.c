#include "wire/ping_message.h"

#include "wire/cursor.h"
#include "wire/frame.h"

_Static_assert(KVF_PING_BYTES_MAX + KVF_PING_FILL_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX, "every PONG fits a frame");

static bool is_valid(const kvf_ping *ping)
{
  return ping->wanted_bytes <= KVF_PING_FILL_BYTES_MAX && ping->fill_bytes <= KVF_PING_FILL_BYTES_MAX;
}

kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes)
{
  if (!is_valid(ping)) {
    return KVF_INVALID;
  }
  static const uint8_t fill[4096];
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, ping->seq);
  kvf_put_u32(&encoder, ping->wanted_bytes);
  kvf_put_u32(&encoder, ping->fill_bytes);
  for (uint32_t left = ping->fill_bytes, part; left > 0; left -= part) {
    part = left < sizeof(fill) ? left : sizeof(fill);
    kvf_put_bytes(&encoder, fill, part);
  }
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out)
{
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_ping ping = {.seq = kvf_get_u64(&decoder)};
  ping.wanted_bytes = kvf_get_u32(&decoder);
  ping.fill_bytes = kvf_get_u32(&decoder);
  (void)kvf_get_span(&decoder, ping.fill_bytes);
  return kvf_decoder_give(&decoder, is_valid(&ping), out, &ping, sizeof(ping));
}
