/* The handshake of a control connection. The client is who dialed: a consumer's node, or its control node.
 *
 *   client  HELLO ──►            who I am, whom I expect, a nonce, which key
 *           ◄── CHALLENGE        who I am, a nonce, the proof that I have the key
 *           PROOF ──►            my proof, and what the bytes of my KV memory mean
 *           ◄── WELCOME          where what is; or, at any step, REFUSED and why
 *
 * Proofs and the session's key are MACs over the raw bodies, so that role, nonces, versions and both incarnations are
 * bound. HELLO's form never changes: it is what versions are negotiated with.
 *
 * Every encode writes a body (without the frame's header) of at most the message's ..._BYTES_MAX. KVF_LIMIT: `capacity`
 * is too small. KVF_INVALID: the struct breaks a rule that is named at its fields. Every decode takes exactly one body.
 * KVF_PROTOCOL: the body breaks a rule, is too short or too long. Then *out has no valid content, and nothing to free.
 */
#ifndef KVF_WIRE_HANDSHAKE_MESSAGE_H
#define KVF_WIRE_HANDSHAKE_MESSAGE_H

#include "base/crypto.h"
#include "base/fence.h"
#include "kvferry/config.h"
#include "wire/layout.h"

#define KVF_NONCE_BYTES 32

#define KVF_HELLO_BYTES_MAX 81
#define KVF_CHALLENGE_BYTES_MAX 82
#define KVF_PROOF_BYTES_MAX (33 + 2 * KVF_IDENTITY_FIELDS_MAX * KVF_IDENTITY_BYTES_MAX)
#define KVF_REFUSED_BYTES_MAX (4 + KVF_MESSAGE_BYTES_MAX)

/* What the client is. */
enum {
  KVF_ROLE_CONTROL = 1, /* renews and finishes leases */
  KVF_ROLE_RANK = 2,    /* reads blocks */
  KVF_ROLE_CHECK = 3    /* no consumer: asks what the server is, and pings (`kvferry check`) */
};

typedef struct kvf_hello {
  uint16_t version_min; /* of the protocol, as the client speaks it: at least 1 */
  uint16_t version_max; /* not below version_min */
  uint8_t role;         /* KVF_ROLE_… */
  kvf_incarnation client;
  kvf_incarnation expected; /* the server's, as the ticket names it; KVF_ROLE_CHECK has none */
  uint8_t nonce[KVF_NONCE_BYTES];
  uint8_t key_id[KVF_KEY_ID_BYTES]; /* of the client's key */
  uint32_t rank;                    /* the client's, below KVF_RANKS_MAX */
} kvf_hello;

KVF_MUST_USE kvf_status kvf_hello_encode(const kvf_hello *hello, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_hello_decode(const void *body, size_t body_bytes, kvf_hello *out);

typedef struct kvf_challenge {
  uint16_t version; /* that the connection uses from here: at least 1 */
  kvf_incarnation server;
  uint8_t nonce[KVF_NONCE_BYTES];
  uint8_t proof[KVF_HASH_BYTES]; /* kvf_handshake_server_proof() */
} kvf_challenge;

KVF_MUST_USE kvf_status kvf_challenge_encode(const kvf_challenge *challenge, void *body, size_t capacity,
                                             size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_challenge_decode(const void *body, size_t body_bytes, kvf_challenge *out);

typedef struct kvf_proof {
  uint8_t proof[KVF_HASH_BYTES]; /* kvf_handshake_client_proof() */
  uint32_t identity_count;       /* at most KVF_IDENTITY_FIELDS_MAX */
  /* Names are not empty. Neither names nor values have control characters. */
  kvf_identity_field identity[KVF_IDENTITY_FIELDS_MAX];
} kvf_proof;

KVF_MUST_USE kvf_status kvf_proof_encode(const kvf_proof *proof, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_proof_decode(const void *body, size_t body_bytes, kvf_proof *out);

typedef struct kvf_refused {
  int32_t status;                      /* negative; newer peers may send one that is not in our kvf_status */
  char message[KVF_MESSAGE_BYTES_MAX]; /* printable ASCII; encoding replaces other characters with '?' */
} kvf_refused;

KVF_MUST_USE kvf_status kvf_refused_encode(const kvf_refused *refused, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_refused_decode(const void *body, size_t body_bytes, kvf_refused *out);

/* A transport that the server has. */
typedef struct kvf_transport_offer {
  char name[KVF_TRANSPORT_NAME_BYTES]; /* one or more of a-z, 0-9, '_' and '-' */
  uint8_t *description;                /* for kvf_transport_ops.connect() */
  size_t description_bytes;            /* at most KVF_TRANSPORT_DESCRIPTION_BYTES_MAX */
} kvf_transport_offer;

#define KVF_LIBRARY_BYTES_MAX 24 /* a library's version, with its terminating zero */

typedef struct kvf_welcome {
  uint64_t session_id;
  uint64_t generation;        /* of the memory that follows: kvf_fence_head */
  uint32_t rank;              /* the server's, below `ranks` */
  uint32_t ranks;             /* of the server's engine, at most KVF_RANKS_MAX */
  uint32_t block_tokens;      /* above 0 */
  uint32_t regions_count;     /* at most KVF_REGIONS_MAX; 0: it has registered none, or tells this client nothing */
  kvf_region_layout *regions; /* with the layout: kvf_pages_are_valid() */
  kvf_layout layout;          /* its parts, if there are any, are the welcome's own */
  uint32_t transports_count;  /* at most KVF_TRANSPORTS_MAX, no name twice */
  kvf_transport_offer transports[KVF_TRANSPORTS_MAX];
  uint16_t version_min; /* of the protocol, as the server speaks it; like `library`, for people only */
  uint16_t version_max;
  char library[KVF_LIBRARY_BYTES_MAX]; /* kvf_version() of the server; no control characters */
} kvf_welcome;

/* The room that kvf_welcome_encode() needs at most for this one; never over KVF_FRAME_BODY_BYTES_MAX if it is valid. */
size_t kvf_welcome_bytes_max(const kvf_welcome *welcome);
KVF_MUST_USE kvf_status kvf_welcome_encode(const kvf_welcome *welcome, void *body, size_t capacity, size_t *body_bytes);

/* Allocates `regions` and the descriptions, exactly as long as they are: give them back with kvf_welcome_free().
 * KVF_NO_MEMORY: an allocation failed. */
KVF_MUST_USE kvf_status kvf_welcome_decode(const void *body, size_t body_bytes, kvf_welcome *out);

/* Frees what kvf_welcome_decode() allocated, not the struct, which is left empty. */
void kvf_welcome_free(kvf_welcome *welcome);

/* The key's id, as kvf_mac holds it. All of these: KVF_NO_MEMORY if OpenSSL cannot allocate; KVF_INVALID if a body does
 * not have the length of its message. */
KVF_MUST_USE kvf_status kvf_handshake_key_id(const kvf_key *key, uint8_t out[KVF_KEY_ID_BYTES]);

/* challenge->proof is not read: it is what is being made or checked. Compare with kvf_equal_secret(). */
KVF_MUST_USE kvf_status kvf_handshake_server_proof(const kvf_key *key, const void *hello_body, size_t hello_bytes,
                                                   const kvf_challenge *challenge, uint8_t out[KVF_HASH_BYTES]);
KVF_MUST_USE kvf_status kvf_handshake_client_proof(const kvf_key *key, const void *hello_body, size_t hello_bytes,
                                                   const void *challenge_body, size_t challenge_bytes,
                                                   uint8_t out[KVF_HASH_BYTES]);

/* The key of the session's data connections. */
KVF_MUST_USE kvf_status kvf_handshake_session_key(const kvf_key *key, const void *hello_body, size_t hello_bytes,
                                                  const void *challenge_body, size_t challenge_bytes, kvf_key *out);

#endif
