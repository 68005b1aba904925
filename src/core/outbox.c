#include "core/outbox.h"

#include <assert.h>
#include <stdlib.h>

#define KEEP_BYTES 4096u

void kvf_outbox_free(kvf_outbox *outbox)
{
  free(outbox->data);
  *outbox = (kvf_outbox){0};
}

kvf_status kvf_outbox_reserve(kvf_outbox *outbox, size_t bytes, uint8_t **out)
{
  if (bytes > KVF_OUTBOX_BYTES_MAX || outbox->bytes > KVF_OUTBOX_BYTES_MAX - bytes) {
    return KVF_LIMIT;
  }
  if (outbox->bytes + bytes > outbox->capacity) {
    /* Doubled, so that many small frames are not copied again for each. */
    size_t capacity = outbox->capacity == 0 ? KEEP_BYTES : 2 * outbox->capacity;
    while (capacity < outbox->bytes + bytes) {
      capacity *= 2;
    }
    uint8_t *data = realloc(outbox->data, capacity);
    if (data == NULL) {
      return KVF_NO_MEMORY;
    }
    outbox->data = data;
    outbox->capacity = capacity;
  }
  *out = outbox->data + outbox->bytes;
  return KVF_OK;
}

void kvf_outbox_commit(kvf_outbox *outbox, size_t bytes)
{
  assert(bytes <= outbox->capacity - outbox->bytes);
  outbox->bytes += bytes;
}

void kvf_outbox_clear(kvf_outbox *outbox)
{
  outbox->bytes = 0;
  if (outbox->capacity > KEEP_BYTES) {
    kvf_outbox_free(outbox);
  }
}
