/* Keys: what a ticket is asked for by. A key is of a kind, and some bytes that only those know who may have the ticket.
 * Over the wire goes its seal: who sees one go by, and lacks the shared key, cannot try out what it stands for. */
#ifndef KVF_FIND_KEY_H
#define KVF_FIND_KEY_H

#include "base/crypto.h"
#include "wire/ticket.h"

typedef enum kvf_find_kind {
  KVF_FIND_BY_PROMPT /* hash, model and tokens of a kvf_prompt */
} kvf_find_kind;

#define KVF_FIND_KEY_BYTES_MAX (2 * KVF_HASH_BYTES + 4)

typedef struct kvf_find_key {
  kvf_find_kind kind;
  size_t bytes;
  uint8_t data[KVF_FIND_KEY_BYTES_MAX];
} kvf_find_key;

kvf_find_key kvf_find_key_of_prompt(const kvf_prompt *prompt);

/* HMAC over the kind's label and the bytes. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_find_key_seal(const kvf_find_key *key, const kvf_mac *mac, uint8_t out[KVF_HASH_BYTES]);

/* Whether the ticket is one that the key asks for. */
bool kvf_find_key_fits(const kvf_find_key *key, const kvf_ticket *ticket);

#endif
