/* A count, then each rail's description with its length. */
#include "wire/rails_description.h"

kvf_status kvf_rails_description_write(const kvf_rails_description *description, void *out, size_t capacity,
                                       size_t *out_bytes)
{
  bool good = description->count > 0 && description->count <= KVF_RAILS_MAX;
  kvf_codec codec = kvf_writer_of(out, capacity);
  kvf_code_u32_in(&codec, &(uint32_t){description->count}, 1);
  for (uint32_t i = 0; good && i < description->count; i++) {
    kvf_code_u16(&codec, &(uint16_t){description->each[i].bytes});
    kvf_put_bytes(&codec, description->each[i].data, description->each[i].bytes);
    good = description->each[i].bytes > 0;
  }
  return good ? kvf_writer_end(&codec, true, out_bytes) : KVF_LIMIT;
}

kvf_status kvf_rails_description_read(const void *data, size_t bytes, kvf_rails_description *out)
{
  kvf_codec codec = kvf_reader_of(data, bytes);
  *out = (kvf_rails_description){.count = 0};
  kvf_code_u32_in(&codec, &out->count, 1);
  bool good = out->count > 0 && out->count <= KVF_RAILS_MAX;
  for (uint32_t i = 0; good && i < out->count; i++) {
    kvf_code_u16(&codec, &out->each[i].bytes);
    out->each[i].data = kvf_get_span(&codec, out->each[i].bytes);
    good = out->each[i].bytes > 0;
  }
  return kvf_reader_end(&codec, good);
}
