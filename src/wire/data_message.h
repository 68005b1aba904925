/* Messages of the tcp transport's data connections. The client is the consumer's rank, who dialed.
 *
 *   client  ◄── DATA_CHALLENGE     a nonce
 *           DATA_HELLO ──►         the session, the memory, a nonce, and the proof of the session's key
 *           ◄── DATA_READY         the producer's proof: READs, with a lease's token, go to nobody else
 *           READ ──►               blocks of a lease
 *           ◄── CHUNK payload TRAILER, or a CHUNK with a status other than KVF_OK and nothing after it
 *           CANCEL ──►             a read is not wanted any more
 *
 * Encode and decode as in handshake_message.h: KVF_LIMIT, KVF_INVALID; KVF_PROTOCOL.
 */
#ifndef KVF_WIRE_DATA_MESSAGE_H
#define KVF_WIRE_DATA_MESSAGE_H

#include "base/crypto.h"
#include "kvferry/types.h"
#include "wire/layout.h"

#define KVF_DATA_NONCE_BYTES 32

#define KVF_DATA_CHALLENGE_BYTES_MAX 32
#define KVF_DATA_HELLO_BYTES_MAX 80
#define KVF_DATA_READY_BYTES_MAX KVF_HASH_BYTES
#define KVF_DATA_READ_HEAD_BYTES (8 + 28 + 3 * 4 + 5 * 4 + KVF_GROUPS_MAX * 4 + 1 + 4)
#define KVF_DATA_READ_RUN_BYTES 5
#define KVF_DATA_CHUNK_BYTES_MAX 20
#define KVF_DATA_TRAILER_BYTES_MAX 24
#define KVF_DATA_CANCEL_BYTES_MAX 8

typedef struct kvf_data_challenge {
  uint8_t nonce[KVF_DATA_NONCE_BYTES];
} kvf_data_challenge;

KVF_MUST_USE kvf_status kvf_data_challenge_encode(const kvf_data_challenge *challenge, void *body, size_t capacity,
                                                  size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_data_challenge_decode(const void *body, size_t body_bytes, kvf_data_challenge *out);

typedef struct kvf_data_hello {
  uint64_t session_id;
  uint64_t generation; /* of the producer's memory, as its WELCOME says */
  uint8_t nonce[KVF_DATA_NONCE_BYTES];
  uint8_t proof[KVF_HASH_BYTES];
} kvf_data_hello;

KVF_MUST_USE kvf_status kvf_data_hello_encode(const kvf_data_hello *hello, void *body, size_t capacity,
                                              size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_data_hello_decode(const void *body, size_t body_bytes, kvf_data_hello *out);

/* What hello->proof must be: a MAC over the challenge and the other fields of `hello`. Compare with
 * kvf_equal_secret(). KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_data_hello_proof(const kvf_key *session_key, const kvf_data_challenge *challenge,
                                             const kvf_data_hello *hello, uint8_t out[KVF_HASH_BYTES]);

typedef struct kvf_data_ready {
  uint8_t proof[KVF_HASH_BYTES];
} kvf_data_ready;

KVF_MUST_USE kvf_status kvf_data_ready_encode(const kvf_data_ready *ready, void *body, size_t capacity,
                                              size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_data_ready_decode(const void *body, size_t body_bytes, kvf_data_ready *out);

/* What ready->proof must be: a MAC over the challenge and all of `hello`. As kvf_data_hello_proof(). */
KVF_MUST_USE kvf_status kvf_data_ready_proof(const kvf_key *session_key, const kvf_data_challenge *challenge,
                                             const kvf_data_hello *hello, uint8_t out[KVF_HASH_BYTES]);

/* READ, without its items. */
typedef struct kvf_data_read {
  uint64_t read_id; /* not 0 */
  kvf_lease lease;
  uint32_t remote_head;
  uint32_t local_head;          /* of the reader's own heads, the one that remote_head is */
  uint32_t heads;               /* above 0; remote_head + heads fits 32 bits */
  kvf_read_selection selection; /* no split is 0; checksums 0 or 1 */
  uint32_t items_count;
  const uint8_t *runs; /* decoded: in the body, for kvf_data_read_items(); not read by encode */
  size_t runs_bytes;
} kvf_data_read;

/* `items` are read->items_count, 1 to KVF_READ_ITEMS_MAX; group and position of each are sent, as runs of neighbouring
 * positions. Items in the order of their positions always fit a frame. Positions are below KVF_BLOCKS_PER_LEASE_MAX.
 * KVF_LIMIT: `capacity` (KVF_DATA_READ_HEAD_BYTES + items_count * KVF_DATA_READ_RUN_BYTES is always enough; a frame
 * carries KVF_FRAME_BODY_BYTES_MAX) is too small. */
KVF_MUST_USE kvf_status kvf_data_read_encode(const kvf_data_read *read, const kvf_transfer_item *items, void *body,
                                             size_t capacity, size_t *body_bytes);

/* Checks the whole body; out->runs points into it. */
KVF_MUST_USE kvf_status kvf_data_read_decode(const void *body, size_t body_bytes, kvf_data_read *out);

/* Writes read->items_count items, in the order in which they were sent; their blocks are KVF_BLOCK_NONE. `read` comes
 * from kvf_data_read_decode(), and its body is still there. */
void kvf_data_read_items(const kvf_data_read *read, kvf_transfer_item *items);

typedef struct kvf_data_chunk {
  uint64_t read_id;       /* not 0 */
  int32_t status;         /* KVF_OK, or negative: why there is nothing; may be one that is not in our kvf_status */
  uint64_t payload_bytes; /* that follow the frame; 0 unless status is KVF_OK */
} kvf_data_chunk;

KVF_MUST_USE kvf_status kvf_data_chunk_encode(const kvf_data_chunk *chunk, void *body, size_t capacity,
                                              size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_data_chunk_decode(const void *body, size_t body_bytes, kvf_data_chunk *out);

/* The lease's fence entry, as the producer read it after the payload had left its blocks. */
typedef struct kvf_data_trailer {
  uint64_t read_id; /* not 0 */
  uint64_t word;
  uint64_t digest;
} kvf_data_trailer;

KVF_MUST_USE kvf_status kvf_data_trailer_encode(const kvf_data_trailer *trailer, void *body, size_t capacity,
                                                size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_data_trailer_decode(const void *body, size_t body_bytes, kvf_data_trailer *out);

typedef struct kvf_data_cancel {
  uint64_t read_id; /* not 0 */
} kvf_data_cancel;

KVF_MUST_USE kvf_status kvf_data_cancel_encode(const kvf_data_cancel *cancel, void *body, size_t capacity,
                                               size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_data_cancel_decode(const void *body, size_t body_bytes, kvf_data_cancel *out);

#endif
