/* The four fields of a frame's header, which types are known, and their names. */
#include "wire/frame.h"

#include <assert.h>

#include "wire/codec.h"

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
    [KVF_FRAME_FIND] = "find",
    [KVF_FRAME_FOUND] = "found",
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

typedef struct header_fields {
  uint32_t body_bytes;
  uint8_t type;
  uint8_t zero_8;
  uint16_t zero_16;
} header_fields;

static void code_header(kvf_codec *codec, header_fields *header)
{
  kvf_code_u32(codec, &header->body_bytes);
  kvf_code_u8(codec, &header->type);
  kvf_code_u8(codec, &header->zero_8);
  kvf_code_u16(codec, &header->zero_16);
}

void kvf_frame_header_encode(kvf_frame_type type, uint32_t body_bytes, uint8_t out[KVF_FRAME_HEADER_BYTES])
{
  assert(is_known(type) && body_bytes <= KVF_FRAME_BODY_BYTES_MAX);
  kvf_codec codec = kvf_writer_of(out, KVF_FRAME_HEADER_BYTES);
  code_header(&codec, &(header_fields){.body_bytes = body_bytes, .type = (uint8_t)type});
}

kvf_status kvf_frame_header_decode(const uint8_t data[KVF_FRAME_HEADER_BYTES], uint32_t body_bytes_max,
                                   kvf_frame_header *out)
{
  header_fields header;
  kvf_codec codec = kvf_reader_of(data, KVF_FRAME_HEADER_BYTES);
  code_header(&codec, &header);
  if (header.body_bytes > body_bytes_max || !is_known(header.type) || header.zero_8 != 0 || header.zero_16 != 0) {
    return KVF_PROTOCOL;
  }
  *out = (kvf_frame_header){.type = (kvf_frame_type)header.type, .body_bytes = header.body_bytes};
  return KVF_OK;
}
