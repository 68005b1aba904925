/* The frames that a connection has still to send. Grows up to a limit, since a peer that asks without reading answers
 * must not use memory: past it kvf_outbox_reserve() refuses and the connection is closed. */
#ifndef KVF_CORE_OUTBOX_H
#define KVF_CORE_OUTBOX_H

#include "kvferry/types.h"

#define KVF_OUTBOX_BYTES_MAX ((size_t)1024 * 1024)

typedef struct kvf_outbox {
  uint8_t *data;
  size_t bytes;
  size_t capacity;
} kvf_outbox;

void kvf_outbox_free(kvf_outbox *outbox);

/* Room for `bytes` more at the end, *out pointing to it; they count once kvf_outbox_commit() has been called.
 * KVF_LIMIT: the peer does not read. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_outbox_reserve(kvf_outbox *outbox, size_t bytes, uint8_t **out);
void kvf_outbox_commit(kvf_outbox *outbox, size_t bytes);

/* Everything has been handed to the socket's owner. */
void kvf_outbox_clear(kvf_outbox *outbox);

#endif
