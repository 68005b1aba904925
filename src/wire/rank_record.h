/* The address record, by which a rank tells its engine's control node where it is (kvf_node_address() of
 * kvferry/node.h). Any thread. */
#ifndef KVF_WIRE_RANK_RECORD_H
#define KVF_WIRE_RANK_RECORD_H

#include "wire/address.h"

/* Where one rank of an engine is. */
typedef struct kvf_rank_record {
  kvf_address address;
  kvf_incarnation incarnation;
  uint32_t rank;
} kvf_rank_record;

#define KVF_RANK_RECORD_BYTES 47

/* Writes the record: a version, the fields, a checksum. KVF_LIMIT: `capacity` is below KVF_RANK_RECORD_BYTES.
 * KVF_INVALID: port 0, or a rank of KVF_RANKS_MAX or more. KVF_NO_MEMORY: no memory for the checksum. */
KVF_MUST_USE kvf_status kvf_rank_record_encode(const kvf_rank_record *record, void *out, size_t capacity,
                                               size_t *out_bytes);

/* KVF_INVALID: not an address record. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_rank_record_decode(const void *data, size_t bytes, kvf_rank_record *out);

#endif
