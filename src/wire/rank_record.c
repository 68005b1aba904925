/* Codes a rank, as the record and the ticket have it, and the record with its checksum. */
#include "wire/rank_record.h"

#include <string.h>

#include "base/crypto.h"
#include "base/status.h"
#include "wire/fields.h"

#define RECORD_VERSION 3
#define RECORD_CHECKSUM_BYTES 8
#define ADDRESSES_MAX 2

_Static_assert(KVF_RANK_RECORD_BYTES_MAX <= KVF_ADDRESS_BYTES_MAX, "a record fits what the public header promises");
_Static_assert(KVF_RANK_RECORD_BYTES_MAX == KVF_RANK_RECORD_BYTES + KVF_ADDRESS_FIELD_BYTES, "one address more");
_Static_assert(KVF_RANK_FIELD_BYTES == 1 + KVF_ADDRESS_FIELD_BYTES + KVF_INCARNATION_FIELD_BYTES + 9, "a ticket's");
_Static_assert(KVF_RANK_RECORD_BYTES == 1 + KVF_RANK_FIELD_BYTES + 4 + RECORD_CHECKSUM_BYTES, "its fields");

static void code_rest(kvf_codec *codec, kvf_rank_record *record)
{
  kvf_code_incarnation(codec, &record->incarnation);
  kvf_code_u32(codec, &record->layers.first);
  kvf_code_u32(codec, &record->layers.count);
  kvf_code_u32_in(codec, &record->dealt, 1);
}

/* How many, then each. */
static void code_addresses(kvf_codec *codec, kvf_rank_record *record)
{
  uint8_t count = record->other.port == 0 ? 1 : ADDRESSES_MAX;
  kvf_code_u8(codec, &count);
  if (count == 0 || count > ADDRESSES_MAX) {
    kvf_codec_fail(codec);
  }
  kvf_code_address(codec, &record->address);
  if (count == ADDRESSES_MAX) {
    kvf_code_address(codec, &record->other);
  }
  if (codec->reads && count == ADDRESSES_MAX && record->other.port == 0) {
    kvf_codec_fail(codec); /* that is one address, which has another form */
  }
}

void kvf_code_rank(kvf_codec *codec, kvf_rank_record *record)
{
  code_addresses(codec, record);
  code_rest(codec, record);
}

void kvf_code_rank_before(kvf_codec *codec, kvf_rank_record *record)
{
  kvf_code_address(codec, &record->address);
  code_rest(codec, record);
}

bool kvf_rank_record_is_valid(const kvf_rank_record *record)
{
  const bool is_one_a_family =
      record->other.port == 0 || kvf_address_is_v4(&record->other) != kvf_address_is_v4(&record->address);
  return record->address.port != 0 && is_one_a_family && record->rank < KVF_RANKS_MAX &&
         kvf_layers_are_valid(&record->layers) && record->dealt > 0 && record->dealt <= KVF_RANKS_MAX;
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
  status = status == KVF_OK ? kvf_writer_end(&codec, kvf_rank_record_is_valid(record), out_bytes) : status;
  return status != KVF_LIMIT ? status
                             : kvf_because(KVF_LIMIT, "capacity = %zu: KVF_ADDRESS_BYTES_MAX = %d is always enough",
                                           capacity, KVF_ADDRESS_BYTES_MAX);
}

kvf_status kvf_rank_record_decode(const void *data, size_t bytes, kvf_rank_record *out)
{
  uint8_t version;
  uint8_t checksum[RECORD_CHECKSUM_BYTES];
  uint8_t expected[KVF_HASH_BYTES];
  if (bytes < KVF_RANK_RECORD_BYTES || bytes > KVF_RANK_RECORD_BYTES_MAX) {
    return KVF_INVALID;
  }
  kvf_span fields = {data, bytes - RECORD_CHECKSUM_BYTES};
  kvf_status status = kvf_sha256(&fields, 1, expected);
  if (status != KVF_OK) {
    return status;
  }
  *out = (kvf_rank_record){.dealt = 0};
  kvf_codec codec = kvf_reader_of(data, bytes);
  code_fields(&codec, &version, out);
  kvf_code_bytes(&codec, checksum, sizeof(checksum));
  bool valid =
      version == RECORD_VERSION && memcmp(checksum, expected, sizeof(checksum)) == 0 && kvf_rank_record_is_valid(out);
  return kvf_reader_end(&codec, valid) == KVF_OK ? KVF_OK : KVF_INVALID;
}
