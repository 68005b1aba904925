/* The one body of PING and PONG: a number, how many bytes are wanted, and the filler. */
#include "wire/ping_message.h"

#include "wire/codec.h"
#include "wire/frame.h"

_Static_assert(KVF_PING_BYTES_MAX + KVF_PING_FILL_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX, "every PONG fits a frame");

static bool is_valid(const kvf_ping *ping)
{
  return ping->wanted_bytes <= KVF_PING_FILL_BYTES_MAX && ping->fill_bytes <= KVF_PING_FILL_BYTES_MAX;
}

static void code_head(kvf_codec *codec, kvf_ping *ping)
{
  kvf_code_u64(codec, &ping->seq);
  kvf_code_u32(codec, &ping->wanted_bytes);
  kvf_code_u32(codec, &ping->fill_bytes);
}

kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes)
{
  static const uint8_t fill[4096];
  const bool valid = is_valid(ping);
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_head(&codec, (kvf_ping *)ping);
  for (uint32_t left = valid ? ping->fill_bytes : 0, part; left > 0; left -= part) {
    part = left < sizeof(fill) ? left : sizeof(fill);
    kvf_put_bytes(&codec, fill, part);
  }
  return kvf_writer_end(&codec, valid, body_bytes);
}

kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_head(&codec, out);
  (void)kvf_get_span(&codec, out->fill_bytes);
  return kvf_reader_end(&codec, is_valid(out));
}
