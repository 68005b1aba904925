/* PING and PONG: a sign of life; a PONG carries the PING's number. For `kvferry check` a PING may want bytes, which the
 * other side makes up: so a path's speed is measured without a block. */
#ifndef KVF_WIRE_PING_MESSAGE_H
#define KVF_WIRE_PING_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

#define KVF_PING_BYTES_MAX 12
#define KVF_PONG_FILL_BYTES_MAX (128u << 10)

typedef struct kvf_ping {
  uint64_t seq;
  uint32_t wanted_bytes; /* at most KVF_PONG_FILL_BYTES_MAX; the PONG may have none of them */
} kvf_ping;

typedef struct kvf_pong {
  uint64_t seq;
  uint32_t fill_bytes; /* at most KVF_PONG_FILL_BYTES_MAX: they follow, and mean nothing */
} kvf_pong;

/* The room that kvf_pong_encode() needs. */
size_t kvf_pong_bytes(const kvf_pong *pong);

/* KVF_LIMIT: `capacity` is too small. KVF_INVALID: too many bytes. */
KVF_MUST_USE kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_pong_encode(const kvf_pong *pong, void *body, size_t capacity, size_t *body_bytes);
/* KVF_PROTOCOL: not one such body; *out is unchanged. */
KVF_MUST_USE kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out);
KVF_MUST_USE kvf_status kvf_pong_decode(const void *body, size_t body_bytes, kvf_pong *out);

#endif
