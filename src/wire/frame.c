#include "wire/frame.h"

#include <assert.h>

#include "wire/cursor.h"

const char *kvf_frame_type_name(kvf_frame_type type)
{
  switch (type) {
    case KVF_FRAME_HELLO:
      return "hello";
    case KVF_FRAME_CHALLENGE:
      return "challenge";
    case KVF_FRAME_PROOF:
      return "proof";
    case KVF_FRAME_WELCOME:
      return "welcome";
    case KVF_FRAME_REFUSED:
      return "refused";
    case KVF_FRAME_RENEW:
      return "renew";
    case KVF_FRAME_FINISH:
      return "finish";
    case KVF_FRAME_LEASE_STATES:
      return "lease_states";
    case KVF_FRAME_PING:
      return "ping";
    case KVF_FRAME_PONG:
      return "pong";
    case KVF_FRAME_DATA_CHALLENGE:
      return "data_challenge";
    case KVF_FRAME_DATA_HELLO:
      return "data_hello";
    case KVF_FRAME_DATA_READY:
      return "data_ready";
    case KVF_FRAME_READ:
      return "read";
    case KVF_FRAME_CHUNK:
      return "chunk";
    case KVF_FRAME_TRAILER:
      return "trailer";
    case KVF_FRAME_CANCEL:
      return "cancel";
    default:
      return "unknown";
  }
}

static bool is_known(uint8_t type)
{
  return (type >= KVF_FRAME_HELLO && type <= KVF_FRAME_PONG) ||
         (type >= KVF_FRAME_DATA_CHALLENGE && type <= KVF_FRAME_CANCEL);
}

void kvf_frame_header_encode(kvf_frame_type type, uint32_t body_bytes, uint8_t out[KVF_FRAME_HEADER_BYTES])
{
  assert(is_known((uint8_t)type) && body_bytes <= KVF_FRAME_BODY_BYTES_MAX);
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
