#include "wire/ping_message.h"

#include "wire/cursor.h"

kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, ping->seq);
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out)
{
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_ping ping = {.seq = kvf_get_u64(&decoder)};
  kvf_status status = kvf_decoder_end(&decoder);
  if (status == KVF_OK) {
    *out = ping;
  }
  return status;
}
