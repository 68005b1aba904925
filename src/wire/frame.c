#include "wire/frame.h"

#include <assert.h>

#include "wire/cursor.h"

static const char *const names[] = {
    [KVF_FRAME_HELLO] = "hello",
    [KVF_FRAME_CHALLENGE] = "challenge",
    [KVF_FRAME_PROOF] = "proof",
    [KVF_FRAME_WELCOME] = "welcome",
    [KVF_FRAME_REFUSED] = "refused",
    [KVF_FRAME_LEASES] = "leases",
    [KVF_FRAME_LEASE_STATES] = "lease_states",
    [KVF_FRAME_PING] = "ping",
    [KVF_FRAME_PONG] = "pong",
    [KVF_FRAME_DATA_CHALLENGE] = "data_challenge",
    [KVF_FRAME_DATA_HELLO] = "data_hello",
    [KVF_FRAME_DATA_READY] = "data_ready",
    [KVF_FRAME_READ] = "read",
    [KVF_FRAME_CHUNK] = "chunk",
    [KVF_FRAME_TRAILER] = "trailer",
    [KVF_FRAME_CANCEL] = "cancel",
};

static bool is_known(unsigned type)
{
  return type < sizeof(names) / sizeof(names[0]) && names[type] != NULL;
}

const char *kvf_frame_type_name(kvf_frame_type type)
{
  return is_known(type) ? names[type] : "unknown";
}

void kvf_frame_header_encode(kvf_frame_type type, uint32_t body_bytes, uint8_t out[KVF_FRAME_HEADER_BYTES])
{
  assert(is_known(type) && body_bytes <= KVF_FRAME_BODY_BYTES_MAX);
  kvf_encoder encoder = kvf_encoder_of(out, KVF_FRAME_HEADER_BYTES);
  kvf_put_u32(&encoder, body_bytes);
  kvf_put_u8(&encoder, (uint8_t)type);
  kvf_put_u8(&encoder, 0);
  kvf_put_u16(&encoder, 0);
}

kvf_status kvf_frame_header_decode(const uint8_t data[KVF_FRAME_HEADER_BYTES], uint32_t body_bytes_max,
                                   kvf_frame_header *out)
{
  kvf_decoder decoder = kvf_decoder_of(data, KVF_FRAME_HEADER_BYTES);
  uint32_t body_bytes = kvf_get_u32(&decoder);
  uint8_t type = kvf_get_u8(&decoder);
  uint8_t zero_8 = kvf_get_u8(&decoder);
  uint16_t zero_16 = kvf_get_u16(&decoder);
  if (body_bytes > body_bytes_max || !is_known(type) || zero_8 != 0 || zero_16 != 0) {
    return KVF_PROTOCOL;
  }
  *out = (kvf_frame_header){.type = (kvf_frame_type)type, .body_bytes = body_bytes};
  return KVF_OK;
}
