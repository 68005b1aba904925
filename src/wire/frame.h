/* Frames of the control and data connections: a header, then the body, one message. All numbers are little-endian.
 *
 *   u32 body_bytes | u8 type | u8 zero | u16 zero
 *
 * A CHUNK frame with a payload is followed by its raw payload bytes, then by a TRAILER frame.
 */
#ifndef KVF_WIRE_FRAME_H
#define KVF_WIRE_FRAME_H

#include <stdbool.h>
#include <stdint.h>

#include "kvferry/status.h"

/* Two nodes speak the latest version that both know. */
#define KVF_PROTOCOL_VERSION 8
#define KVF_PROTOCOL_VERSION_MIN 7
#define KVF_PROTOCOL_CROWDED 8 /* the first with KVF_LEASE_STATE_CROWDED */

static inline bool kvf_protocol_is_known(uint32_t version)
{
  return version >= KVF_PROTOCOL_VERSION_MIN && version <= KVF_PROTOCOL_VERSION;
}

#define KVF_FRAME_HEADER_BYTES 8
#define KVF_FRAME_BODY_BYTES_MAX 262144
/* Before the peer has proved the key: the largest proof, with its identity fields, fits. */
#define KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX 12288

/* Numbers are stable. Each message is described where its struct is. */
typedef enum kvf_frame_type {
  /* Control connection: handshake_message.h */
  KVF_FRAME_HELLO = 1,
  KVF_FRAME_CHALLENGE = 2,
  KVF_FRAME_PROOF = 3,
  KVF_FRAME_WELCOME = 4,
  KVF_FRAME_REFUSED = 5,
  /* Control connection: lease_message.h, ping_message.h */
  KVF_FRAME_LEASES = 6,
  KVF_FRAME_LEASE_STATES = 7,
  KVF_FRAME_PING = 8,
  KVF_FRAME_PONG = 9,
  /* Control connection: find_message.h */
  KVF_FRAME_FIND = 10,
  KVF_FRAME_FOUND = 11,
  /* Data connection: data_message.h */
  KVF_FRAME_DATA_CHALLENGE = 16,
  KVF_FRAME_DATA_HELLO = 17,
  KVF_FRAME_DATA_READY = 18,
  KVF_FRAME_READ = 19,
  KVF_FRAME_CHUNK = 20,
  KVF_FRAME_TRAILER = 21,
  KVF_FRAME_CANCEL = 22
} kvf_frame_type;

typedef struct kvf_frame_header {
  kvf_frame_type type;
  uint32_t body_bytes;
} kvf_frame_header;

/* `type` is one of the enum, body_bytes at most KVF_FRAME_BODY_BYTES_MAX. */
void kvf_frame_header_encode(kvf_frame_type type, uint32_t body_bytes, uint8_t out[KVF_FRAME_HEADER_BYTES]);

/* `body_bytes_max` is one of the limits above. KVF_PROTOCOL: a longer body, an unknown type, or a reserved field that
 * is not zero; *out is unchanged. */
KVF_MUST_USE kvf_status kvf_frame_header_decode(const uint8_t data[KVF_FRAME_HEADER_BYTES], uint32_t body_bytes_max,
                                                kvf_frame_header *out);

/* "hello", for log lines. Static memory. */
const char *kvf_frame_type_name(kvf_frame_type type);

#endif
