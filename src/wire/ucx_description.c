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

static void put_view(kvf_encoder *encoder, const void *data, uint16_t bytes)
{
  kvf_put_u16(encoder, bytes);
  kvf_put_bytes(encoder, data, bytes);
}

static void put_key(kvf_encoder *encoder, const kvf_ucx_memory_key *memory)
{
  kvf_put_u64(encoder, memory->address);
  put_view(encoder, memory->key, memory->key_bytes);
}

static bool within_limits(const kvf_ucx_description *description)
{
  bool good = description->worker_bytes > 0 && description->worker_bytes <= KVF_UCX_ADDRESS_BYTES_MAX &&
              description->table.key_bytes > 0 && description->table.key_bytes <= KVF_UCX_KEY_BYTES_MAX &&
              description->table_slots > 0 && description->regions_count > 0 &&
              description->regions_count <= KVF_REGIONS_MAX && description->checksums_count <= KVF_GROUPS_MAX;
  for (uint32_t i = 0; good && i < description->regions_count + description->checksums_count; i++) {
    uint16_t bytes = description->memories[i].key_bytes;
    good = bytes > 0 && bytes <= KVF_UCX_KEY_BYTES_MAX;
  }
  return good;
}

kvf_status kvf_ucx_description_write(const kvf_ucx_description *description, void *out, size_t capacity,
                                     size_t *out_bytes)
{
  size_t bytes = 0;
  uint8_t sum[SUM_BYTES];
  if (!within_limits(description)) {
    return KVF_LIMIT;
  }
  kvf_encoder encoder = kvf_encoder_of(out, capacity);
  kvf_put_u32(&encoder, KVF_UCX_DESCRIPTION_MAGIC);
  kvf_put_incarnation(&encoder, &description->incarnation);
  kvf_put_u16(&encoder, description->ucx_major);
  kvf_put_u16(&encoder, description->ucx_minor);
  put_view(&encoder, description->worker, description->worker_bytes);
  kvf_put_u32(&encoder, description->table_slots);
  put_key(&encoder, &description->table);
  kvf_put_u16(&encoder, (uint16_t)description->regions_count);
  kvf_put_u16(&encoder, (uint16_t)description->checksums_count);
  for (uint32_t i = 0; i < description->regions_count + description->checksums_count; i++) {
    put_key(&encoder, &description->memories[i]);
  }
  kvf_status status = kvf_encoder_end(&encoder, &bytes);
  if (status == KVF_OK) {
    status = sum_of(out, bytes, sum);
  }
  if (status != KVF_OK) {
    return status;
  }
  kvf_put_bytes(&encoder, sum, sizeof(sum));
  return kvf_encoder_end(&encoder, out_bytes);
}

/* A view of 1 to `most` bytes. */
static const void *get_view(kvf_decoder *decoder, uint16_t most, uint16_t *bytes)
{
  *bytes = kvf_get_u16(decoder);
  if (*bytes == 0 || *bytes > most) {
    kvf_decoder_fail(decoder);
  }
  return kvf_get_span(decoder, *bytes);
}

static void get_key(kvf_decoder *decoder, kvf_ucx_memory_key *out)
{
  out->address = kvf_get_u64(decoder);
  out->key = get_view(decoder, KVF_UCX_KEY_BYTES_MAX, &out->key_bytes);
}

static void get_fields(kvf_decoder *decoder, kvf_ucx_memory_key *memories, kvf_ucx_description *out)
{
  if (kvf_get_u32(decoder) != KVF_UCX_DESCRIPTION_MAGIC) {
    kvf_decoder_fail(decoder);
  }
  kvf_get_incarnation(decoder, &out->incarnation);
  out->ucx_major = kvf_get_u16(decoder);
  out->ucx_minor = kvf_get_u16(decoder);
  out->worker = get_view(decoder, KVF_UCX_ADDRESS_BYTES_MAX, &out->worker_bytes);
  out->table_slots = kvf_get_u32(decoder);
  get_key(decoder, &out->table);
  out->regions_count = kvf_get_u16(decoder);
  out->checksums_count = kvf_get_u16(decoder);
  out->memories = memories;
  if (out->table_slots == 0 || out->regions_count == 0 || out->regions_count > KVF_REGIONS_MAX ||
      out->checksums_count > KVF_GROUPS_MAX) {
    kvf_decoder_fail(decoder);
    return;
  }
  for (uint32_t i = 0; !decoder->failed && i < out->regions_count + out->checksums_count; i++) {
    get_key(decoder, &memories[i]);
  }
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
  kvf_decoder decoder = kvf_decoder_of(data, fields_bytes);
  get_fields(&decoder, memories, out);
  return kvf_decoder_end(&decoder);
}
