/* PING and PONG: a sign of life. Both have this body; a PONG carries the PING's number. */
#ifndef KVF_WIRE_PING_MESSAGE_H
#define KVF_WIRE_PING_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

#define KVF_PING_BYTES_MAX 8

typedef struct kvf_ping {
  uint64_t seq;
} kvf_ping;

/* KVF_LIMIT: `capacity` is too small. */
KVF_MUST_USE kvf_status kvf_ping_encode(const kvf_ping *ping, void *body, size_t capacity, size_t *body_bytes);
/* KVF_PROTOCOL: not one such body; *out is unchanged. */
KVF_MUST_USE kvf_status kvf_ping_decode(const void *body, size_t body_bytes, kvf_ping *out);

#endif
