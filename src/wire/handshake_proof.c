/* The proofs of a handshake and the session's key, each a MAC under a label of its own, and a key's id. */
#include <string.h>

#include "wire/handshake_message.h"

/* What is signed and why: a MAC made for one purpose is worth nothing for another. */
#define LABEL_SERVER_PROOF "kvferry server proof"
#define LABEL_CLIENT_PROOF "kvferry client proof"
#define LABEL_SESSION_KEY "kvferry session key"

/* Both bodies have fixed lengths, so that their concatenation can be read in one way only. */
static kvf_status sign(const kvf_key *key, const char *label, kvf_span hello, kvf_span challenge,
                       size_t challenge_bytes_expected, uint8_t out[KVF_HASH_BYTES])
{
  if (hello.bytes != KVF_HELLO_BYTES_MAX || challenge.bytes != challenge_bytes_expected) {
    return KVF_INVALID;
  }
  const kvf_span spans[] = {{label, strlen(label)}, hello, challenge};
  return kvf_hmac(key, spans, sizeof(spans) / sizeof(spans[0]), out);
}

kvf_status kvf_handshake_key_id(const kvf_key *key, uint8_t out[KVF_KEY_ID_BYTES])
{
  kvf_mac mac;
  kvf_status status = kvf_mac_init(&mac, key);
  if (status == KVF_OK) {
    memcpy(out, mac.key_id, sizeof(mac.key_id));
    kvf_mac_free(&mac);
  }
  return status;
}

kvf_status kvf_handshake_server_proof(const kvf_key *key, const void *hello_body, size_t hello_bytes,
                                      const kvf_challenge *challenge, uint8_t out[KVF_HASH_BYTES])
{
  uint8_t body[KVF_CHALLENGE_BYTES_MAX];
  size_t body_bytes = 0;
  kvf_status status = kvf_challenge_encode(challenge, body, sizeof(body), &body_bytes);
  if (status != KVF_OK) {
    return status;
  }
  size_t signed_bytes = body_bytes - sizeof(challenge->proof);
  return sign(key, LABEL_SERVER_PROOF, (kvf_span){hello_body, hello_bytes}, (kvf_span){body, signed_bytes},
              KVF_CHALLENGE_BYTES_MAX - KVF_HASH_BYTES, out);
}

kvf_status kvf_handshake_client_proof(const kvf_key *key, const void *hello_body, size_t hello_bytes,
                                      const void *challenge_body, size_t challenge_bytes, uint8_t out[KVF_HASH_BYTES])
{
  return sign(key, LABEL_CLIENT_PROOF, (kvf_span){hello_body, hello_bytes}, (kvf_span){challenge_body, challenge_bytes},
              KVF_CHALLENGE_BYTES_MAX, out);
}

kvf_status kvf_handshake_session_key(const kvf_key *key, const void *hello_body, size_t hello_bytes,
                                     const void *challenge_body, size_t challenge_bytes, kvf_key *out)
{
  kvf_key session = {.bytes = KVF_HASH_BYTES};
  kvf_status status = sign(key, LABEL_SESSION_KEY, (kvf_span){hello_body, hello_bytes},
                           (kvf_span){challenge_body, challenge_bytes}, KVF_CHALLENGE_BYTES_MAX, session.data);
  if (status == KVF_OK) {
    *out = session;
  }
  return status;
}
