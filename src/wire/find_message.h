/* FIND and FOUND: a consumer asks a producer for a ticket by the name of what it is for, and is told the ticket, or
 * that there is none for it.
 *
 * Encode and decode as in handshake_message.h: KVF_LIMIT, KVF_INVALID; KVF_PROTOCOL.
 */
#ifndef KVF_WIRE_FIND_MESSAGE_H
#define KVF_WIRE_FIND_MESSAGE_H

#include "base/crypto.h"
#include "kvferry/types.h"

#define KVF_FIND_BYTES_MAX (8 + KVF_HASH_BYTES)
#define KVF_FOUND_BYTES_MAX (8 + 1 + KVF_TICKET_BYTES_MAX)

typedef struct kvf_find {
  uint64_t id; /* the consumer's own: comes back in the answer, and names the question if it is asked again */
  uint8_t tag[KVF_HASH_BYTES];
} kvf_find;

KVF_MUST_USE kvf_status kvf_find_encode(const kvf_find *find, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_find_decode(const void *body, size_t body_bytes, kvf_find *out);

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

/* ---- tags: what a FIND asks for ---- */

/* HMAC under the shared key over `label`, which says what kind of name follows, and the name: who sees a tag go by and
 * lacks the key cannot try out what it stands for. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_find_tag(const kvf_mac *mac, const char *label, const kvf_span *name, size_t spans,
                                     uint8_t out[KVF_HASH_BYTES]);
/* Of a prompt: its hash, model and tokens. */
KVF_MUST_USE kvf_status kvf_find_prompt_tag(const kvf_mac *mac, const kvf_prompt *prompt, uint8_t out[KVF_HASH_BYTES]);

#endif
