/* PING and PONG: a sign of life. Both have this body; a PONG carries the PING's number. For `kvferry check` a PING may
 * want bytes, which the other side makes up: so a path's speed is measured without a block. */
#ifndef KVF_WIRE_PING_MESSAGE_H
#define KVF_WIRE_PING_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

#define KVF_PING_BYTES_MAX 16 /* without the made-up bytes */
#define KVF_PING_FILL_BYTES_MAX (128u << 10)

typedef struct kvf_ping {
  uint64_t seq;
  uint32_t wanted_bytes; /* of the PONG: at most KVF_PING_FILL_BYTES_MAX. It may have none */
  uint32_t fill_bytes;   /* follow here, and mean nothing: at most KVF_PING_FILL_BYTES_MAX */
} kvf_ping;

/* KVF_LIMIT: `capacity` is below KVF_PING_BYTES_MAX + fill_bytes. KVF_INVALID: wants or has too many bytes. */
KVF_MUST_USE kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes);
/* KVF_PROTOCOL: not one such body. */
KVF_MUST_USE kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out);

#endif
