#include "wire/rank_record.h"

#include <string.h>

#include "base/crypto.h"
#include "wire/fields.h"

#define RECORD_VERSION 1
#define RECORD_CHECKSUM_BYTES 8
#define RECORD_FIELDS_BYTES (KVF_RANK_RECORD_BYTES - RECORD_CHECKSUM_BYTES)

_Static_assert(KVF_RANK_RECORD_BYTES <= KVF_ADDRESS_BYTES_MAX, "a record fits what the public header promises");
_Static_assert(RECORD_FIELDS_BYTES == 1 + KVF_ADDRESS_FIELD_BYTES + KVF_INCARNATION_FIELD_BYTES + 4, "its fields");

static bool record_is_valid(const kvf_rank_record *record)
{
  return record->address.port != 0 && record->rank < KVF_RANKS_MAX;
}

kvf_status kvf_rank_record_encode(const kvf_rank_record *record, void *out, size_t capacity, size_t *out_bytes)
{
  if (!record_is_valid(record)) {
    return KVF_INVALID;
  }
  uint8_t checksum[KVF_HASH_BYTES];
  kvf_encoder encoder = kvf_encoder_of(out, capacity);
  kvf_put_u8(&encoder, RECORD_VERSION);
  kvf_put_address(&encoder, &record->address);
  kvf_put_incarnation(&encoder, &record->incarnation);
  kvf_put_u32(&encoder, record->rank);
  kvf_span fields = {out, encoder.bytes};
  kvf_status status = kvf_sha256(&fields, 1, checksum);
  if (status != KVF_OK) {
    return status;
  }
  kvf_put_bytes(&encoder, checksum, RECORD_CHECKSUM_BYTES);
  return kvf_encoder_end(&encoder, out_bytes);
}

kvf_status kvf_rank_record_decode(const void *data, size_t bytes, kvf_rank_record *out)
{
  kvf_rank_record record;
  uint8_t checksum[KVF_HASH_BYTES];
  uint8_t expected[KVF_HASH_BYTES];
  if (bytes != KVF_RANK_RECORD_BYTES) {
    return KVF_INVALID;
  }
  kvf_span fields = {data, RECORD_FIELDS_BYTES};
  kvf_status status = kvf_sha256(&fields, 1, expected);
  if (status != KVF_OK) {
    return status;
  }
  kvf_decoder decoder = kvf_decoder_of(data, bytes);
  uint8_t version = kvf_get_u8(&decoder);
  kvf_get_address(&decoder, &record.address);
  kvf_get_incarnation(&decoder, &record.incarnation);
  record.rank = kvf_get_u32(&decoder);
  kvf_get_bytes(&decoder, checksum, RECORD_CHECKSUM_BYTES);
  if (kvf_decoder_end(&decoder) != KVF_OK || version != RECORD_VERSION ||
      memcmp(checksum, expected, RECORD_CHECKSUM_BYTES) != 0 || !record_is_valid(&record)) {
    return KVF_INVALID;
  }
  *out = record;
  return KVF_OK;
}
