#include "wire/rank_record.h"

#include <string.h>

#include "base/crypto.h"
#include "wire/fields.h"

#define RECORD_VERSION 2
#define RECORD_CHECKSUM_BYTES 8
#define RECORD_FIELDS_BYTES (KVF_RANK_RECORD_BYTES - RECORD_CHECKSUM_BYTES)

_Static_assert(KVF_RANK_RECORD_BYTES <= KVF_ADDRESS_BYTES_MAX, "a record fits what the public header promises");
_Static_assert(KVF_RANK_FIELD_BYTES == KVF_ADDRESS_FIELD_BYTES + KVF_INCARNATION_FIELD_BYTES + 9, "a ticket's");
_Static_assert(RECORD_FIELDS_BYTES == 1 + KVF_RANK_FIELD_BYTES + 4, "its fields");

void kvf_code_rank(kvf_codec *codec, kvf_rank_record *record)
{
  kvf_code_address(codec, &record->address);
  kvf_code_incarnation(codec, &record->incarnation);
  kvf_code_u32(codec, &record->layers.first);
  kvf_code_u32(codec, &record->layers.count);
  kvf_code_u32_in(codec, &record->dealt, 1);
}

bool kvf_rank_record_is_valid(const kvf_rank_record *record)
{
  return record->address.port != 0 && record->rank < KVF_RANKS_MAX && kvf_layers_are_valid(&record->layers) &&
         record->dealt > 0 && record->dealt <= KVF_RANKS_MAX;
}

/* Their checksum follows. */
static void code_fields(kvf_codec *codec, uint8_t *version, kvf_rank_record *record)
{
  kvf_code_u8(codec, version);
  kvf_code_rank(codec, record);
  kvf_code_u32(codec, &record->rank);
}

kvf_status kvf_rank_record_encode(const kvf_rank_record *record, void *out, size_t capacity, size_t *out_bytes)
{
  uint8_t checksum[KVF_HASH_BYTES];
  kvf_codec codec = kvf_writer_of(out, capacity);
  code_fields(&codec, &(uint8_t){RECORD_VERSION}, (kvf_rank_record *)record);
  kvf_span fields = {out, codec.at};
  kvf_status status = kvf_sha256(&fields, 1, checksum);
  kvf_put_bytes(&codec, checksum, RECORD_CHECKSUM_BYTES);
  return status == KVF_OK ? kvf_writer_end(&codec, kvf_rank_record_is_valid(record), out_bytes) : status;
}

kvf_status kvf_rank_record_decode(const void *data, size_t bytes, kvf_rank_record *out)
{
  uint8_t version;
  uint8_t checksum[RECORD_CHECKSUM_BYTES];
  uint8_t expected[KVF_HASH_BYTES];
  kvf_span fields = {data, RECORD_FIELDS_BYTES};
  if (bytes != KVF_RANK_RECORD_BYTES) {
    return KVF_INVALID;
  }
  kvf_status status = kvf_sha256(&fields, 1, expected);
  if (status != KVF_OK) {
    return status;
  }
  kvf_codec codec = kvf_reader_of(data, bytes);
  code_fields(&codec, &version, out);
  kvf_code_bytes(&codec, checksum, sizeof(checksum));
  bool valid =
      version == RECORD_VERSION && memcmp(checksum, expected, sizeof(checksum)) == 0 && kvf_rank_record_is_valid(out);
  return kvf_reader_end(&codec, valid) == KVF_OK ? KVF_OK : KVF_INVALID;
}
