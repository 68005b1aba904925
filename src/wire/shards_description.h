/* What a transport that is made of several of its kind says of itself: what each of them says. */
#ifndef KVF_WIRE_SHARDS_DESCRIPTION_H
#define KVF_WIRE_SHARDS_DESCRIPTION_H

#include "wire/cursor.h"

#define KVF_SHARDS_MAX 16

typedef struct kvf_shards_description {
  uint32_t count; /* 1 to KVF_SHARDS_MAX */
  struct {
    const uint8_t *data;
    uint16_t bytes; /* at least 1 */
  } each[KVF_SHARDS_MAX];
} kvf_shards_description;

/* u8 count, then for each u16 bytes and these. KVF_LIMIT: over a limit, or more than `capacity`. */
KVF_MUST_USE kvf_status kvf_shards_description_write(const kvf_shards_description *description, void *out,
                                                     size_t capacity, size_t *out_bytes);
/* With views of `data`. KVF_PROTOCOL: malformed. */
KVF_MUST_USE kvf_status kvf_shards_description_read(const void *data, size_t bytes, kvf_shards_description *out);

#endif
