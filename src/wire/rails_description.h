/* What a transport that is made of several of its kind says of itself: what each of them says. */
#ifndef KVF_WIRE_RAILS_DESCRIPTION_H
#define KVF_WIRE_RAILS_DESCRIPTION_H

#include "wire/codec.h"

#define KVF_RAILS_MAX 16

typedef struct kvf_rails_description {
  uint32_t count; /* 1 to KVF_RAILS_MAX */
  struct {
    const uint8_t *data;
    uint16_t bytes; /* at least 1 */
  } each[KVF_RAILS_MAX];
} kvf_rails_description;

/* u8 count, then for each u16 bytes and these. KVF_LIMIT: over a limit, or more than `capacity`. */
KVF_MUST_USE kvf_status kvf_rails_description_write(const kvf_rails_description *description, void *out,
                                                    size_t capacity, size_t *out_bytes);
/* With views of `data`. KVF_PROTOCOL: malformed. */
KVF_MUST_USE kvf_status kvf_rails_description_read(const void *data, size_t bytes, kvf_rails_description *out);

#endif
