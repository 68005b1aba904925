/* A worker's address, then address and key of each memory, and the checksum over all. */
#include "wire/ucx_description.h"

#include <string.h>

#include "base/crypto.h"
#include "wire/fields.h"

#define SUM_BYTES 16

static kvf_status sum_of(const void *data, size_t bytes, uint8_t sum[SUM_BYTES])
{
  uint8_t hash[KVF_HASH_BYTES];
  const kvf_span span = {data, bytes};
  kvf_status status = kvf_sha256(&span, 1, hash);
  memcpy(sum, hash, SUM_BYTES);
  return status;
}

/* 1 to `most` bytes. */
static void code_view(kvf_codec *codec, const void **data, uint16_t *bytes, uint16_t most)
{
  kvf_code_u16(codec, bytes);
  if (*bytes == 0 || *bytes > most) {
    kvf_codec_fail(codec);
  } else if (codec->reads) {
    *data = kvf_get_span(codec, *bytes);
  } else {
    kvf_put_bytes(codec, *data, *bytes);
  }
}

static void code_key(kvf_codec *codec, kvf_ucx_memory_key *memory)
{
  kvf_code_u64(codec, &memory->address);
  code_view(codec, &memory->key, &memory->key_bytes, KVF_UCX_KEY_BYTES_MAX);
}

/* All but the sum. Both ways it fails over the limits. */
static void code_fields(kvf_codec *codec, kvf_ucx_description *description, kvf_ucx_memory_key *memories)
{
  uint32_t magic = KVF_UCX_DESCRIPTION_MAGIC;
  kvf_code_u32(codec, &magic);
  kvf_code_incarnation(codec, &description->incarnation);
  kvf_code_u16(codec, &description->ucx_major);
  kvf_code_u16(codec, &description->ucx_minor);
  code_view(codec, &description->worker, &description->worker_bytes, KVF_UCX_ADDRESS_BYTES_MAX);
  kvf_code_u32(codec, &description->table_slots);
  code_key(codec, &description->table);
  kvf_code_u32_in(codec, &description->regions_count, 2);
  kvf_code_u32_in(codec, &description->checksums_count, 2);
  if (magic != KVF_UCX_DESCRIPTION_MAGIC || description->table_slots == 0 || description->regions_count == 0 ||
      description->regions_count > KVF_REGIONS_MAX || description->checksums_count > KVF_GROUPS_MAX) {
    kvf_codec_fail(codec);
  }
  for (uint32_t i = 0; !codec->failed && i < description->regions_count + description->checksums_count; i++) {
    code_key(codec, &memories[i]);
  }
}

kvf_status kvf_ucx_description_write(const kvf_ucx_description *description, void *out, size_t capacity,
                                     size_t *out_bytes)
{
  uint8_t sum[SUM_BYTES];
  kvf_codec codec = kvf_writer_of(out, capacity);
  code_fields(&codec, (kvf_ucx_description *)description, (kvf_ucx_memory_key *)description->memories);
  kvf_status status = codec.failed ? KVF_LIMIT : sum_of(out, codec.at, sum);
  if (status != KVF_OK) {
    return status;
  }
  kvf_put_bytes(&codec, sum, sizeof(sum));
  return kvf_writer_end(&codec, true, out_bytes);
}

kvf_status kvf_ucx_description_read(const void *data, size_t bytes, kvf_ucx_memory_key *memories,
                                    kvf_ucx_description *out)
{
  uint8_t sum[SUM_BYTES];
  if (bytes < SUM_BYTES) {
    return KVF_PROTOCOL;
  }
  size_t fields_bytes = bytes - SUM_BYTES;
  kvf_status status = sum_of(data, fields_bytes, sum);
  if (status != KVF_OK) {
    return status;
  }
  if (memcmp(sum, (const uint8_t *)data + fields_bytes, SUM_BYTES) != 0) {
    return KVF_PROTOCOL;
  }
  kvf_codec codec = kvf_reader_of(data, fields_bytes);
  out->memories = memories;
  code_fields(&codec, out, memories);
  return kvf_reader_end(&codec, true);
}
