#include "wire/rails_description.h"

kvf_status kvf_rails_description_write(const kvf_rails_description *description, void *out, size_t capacity,
                                       size_t *out_bytes)
{
  bool good = description->count > 0 && description->count <= KVF_RAILS_MAX;
  for (uint32_t i = 0; good && i < description->count; i++) {
    good = description->each[i].bytes > 0;
  }
  if (!good) {
    return KVF_LIMIT;
  }
  kvf_encoder encoder = kvf_encoder_of(out, capacity);
  kvf_put_u8(&encoder, (uint8_t)description->count);
  for (uint32_t i = 0; i < description->count; i++) {
    kvf_put_u16(&encoder, description->each[i].bytes);
    kvf_put_bytes(&encoder, description->each[i].data, description->each[i].bytes);
  }
  return kvf_encoder_end(&encoder, out_bytes);
}

kvf_status kvf_rails_description_read(const void *data, size_t bytes, kvf_rails_description *out)
{
  kvf_decoder decoder = kvf_decoder_of(data, bytes);
  *out = (kvf_rails_description){.count = kvf_get_u8(&decoder)};
  if (out->count == 0 || out->count > KVF_RAILS_MAX) {
    return KVF_PROTOCOL;
  }
  for (uint32_t i = 0; i < out->count; i++) {
    out->each[i].bytes = kvf_get_u16(&decoder);
    out->each[i].data = kvf_get_span(&decoder, out->each[i].bytes);
    if (out->each[i].bytes == 0) {
      kvf_decoder_fail(&decoder);
    }
  }
  return kvf_decoder_end(&decoder);
}
