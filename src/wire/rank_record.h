/* The address record, by which a rank tells its engine's control node where it is (kvf_node_address() of
 * kvferry/node.h). Any thread. */
#ifndef KVF_WIRE_RANK_RECORD_H
#define KVF_WIRE_RANK_RECORD_H

#include "wire/address.h"
#include "wire/codec.h"
#include "wire/layout.h"

/* Where one rank of an engine is, and which layers of the model its memory has. */
typedef struct kvf_rank_record {
  kvf_address address;
  kvf_address other; /* of the other family; port 0: it has none */
  kvf_incarnation incarnation;
  uint32_t rank;
  kvf_layers layers; /* from the first to the last; none: made without memory, it says nothing of them */
  uint32_t dealt;    /* ranks that its engine's tokens are dealt to; 1: they are not dealt */
} kvf_rank_record;

#define KVF_RANK_RECORD_BYTES 57     /* with one address */
#define KVF_RANK_RECORD_BYTES_MAX 75 /* with two */
#define KVF_RANK_FIELD_BYTES 44      /* without `rank`, with one address */

/* Everything but `rank`, as records and tickets have it. */
void kvf_code_rank(kvf_codec *codec, kvf_rank_record *record);
/* The same in tickets of version 4, which name `address` alone. Reading leaves `other` as it is. */
void kvf_code_rank_before(kvf_codec *codec, kvf_rank_record *record);
/* Ports, addresses of two families if there are two, a rank below KVF_RANKS_MAX, layers that can be, and tokens dealt
 * to 1 to KVF_RANKS_MAX ranks. */
bool kvf_rank_record_is_valid(const kvf_rank_record *record);

/* Writes the record: a version, the fields, a checksum. KVF_LIMIT: `capacity` is too small; KVF_RANK_RECORD_BYTES_MAX
 * is enough. KVF_INVALID: it is not valid. KVF_NO_MEMORY: no memory for the checksum. */
KVF_MUST_USE kvf_status kvf_rank_record_encode(const kvf_rank_record *record, void *out, size_t capacity,
                                               size_t *out_bytes);

/* KVF_INVALID: not an address record. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_rank_record_decode(const void *data, size_t bytes, kvf_rank_record *out);

#endif
