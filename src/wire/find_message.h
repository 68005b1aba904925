/* FIND and FOUND: a consumer asks a producer for a ticket by a key, and is told the ticket, or that there is none.
 *
 * Encode and decode as in handshake_message.h: KVF_LIMIT, KVF_INVALID; KVF_PROTOCOL.
 */
#ifndef KVF_WIRE_FIND_MESSAGE_H
#define KVF_WIRE_FIND_MESSAGE_H

#include "base/crypto.h"
#include "kvferry/types.h"

#define KVF_FIND_BYTES_MAX (8 + KVF_HASH_BYTES)
#define KVF_FOUND_BYTES_MAX (8 + 1 + KVF_TICKET_BYTES_MAX)

typedef struct kvf_find_question {
  uint64_t id; /* the consumer's own: comes back in the answer, and names the question if it is asked again */
  uint8_t key[KVF_HASH_BYTES]; /* of what is asked for, sealed: find/key.h */
} kvf_find_question;

KVF_MUST_USE kvf_status kvf_find_question_encode(const kvf_find_question *question, void *body, size_t capacity,
                                                 size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_find_question_decode(const void *body, size_t body_bytes, kvf_find_question *out);

/* Why there is no ticket is not said: all such answers are the same bytes. */
typedef enum kvf_found_status { KVF_FOUND_NOTHING = 0, KVF_FOUND_TICKET = 1 } kvf_found_status;

typedef struct kvf_found {
  uint64_t id;       /* of the question */
  uint8_t status;    /* kvf_found_status */
  const char *text;  /* the ticket; decoded: in the body */
  size_t text_bytes; /* 1 to KVF_TICKET_BYTES_MAX with KVF_FOUND_TICKET, else 0 */
} kvf_found;

KVF_MUST_USE kvf_status kvf_found_encode(const kvf_found *found, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_found_decode(const void *body, size_t body_bytes, kvf_found *out);

#endif
