/* Hashes and MACs: OpenSSL behind the few calls that kvferry needs. Pure: no randomness, no I/O. */
#ifndef KVF_BASE_CRYPTO_H
#define KVF_BASE_CRYPTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

#define KVF_HASH_BYTES 32
#define KVF_KEY_BYTES_MAX 256
#define KVF_KEY_ID_BYTES 8

/* A shared key. bytes == 0: none; MACs are then checksums that show accidents only. */
typedef struct kvf_key {
  uint8_t data[KVF_KEY_BYTES_MAX];
  size_t bytes;
} kvf_key;

/* The key, and the one before or after it while a fleet changes from one to the other. */
#define KVF_KEYS_MAX 2

typedef struct kvf_span {
  const void *data;
  size_t bytes;
} kvf_span;

/* SHA-256 over the spans, one after the other. KVF_NO_MEMORY if OpenSSL cannot allocate its state. */
KVF_MUST_USE kvf_status kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);

/* HMAC-SHA-256 over the spans, one after the other. KVF_NO_MEMORY if OpenSSL cannot allocate its
 * state. */
KVF_MUST_USE kvf_status kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);

/* A MAC for a key that is used many times: the work that depends on the key alone is done once. This is half of the
 * time of a short MAC. Copies share what kvf_mac_free() frees. Any number of threads may make MACs at the same time. */
typedef struct kvf_mac {
  void *keyed;  /* OpenSSL's */
  bool has_key; /* else the key has no bytes */
  /* Names the key without revealing it: the first bytes of HMAC(key, "kvferry key id"). */
  uint8_t key_id[KVF_KEY_ID_BYTES];
} kvf_mac;

/* On KVF_NO_MEMORY *mac is as after kvf_mac_free(). */
KVF_MUST_USE kvf_status kvf_mac_init(kvf_mac *mac, const kvf_key *key);
KVF_MUST_USE kvf_status kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count,
                                     uint8_t out[KVF_HASH_BYTES]);
/* Overwrites and frees what it keeps of the key. Does nothing the second time, nor where all bytes are 0. */
void kvf_mac_free(kvf_mac *mac);

/* Compares in constant time. */
bool kvf_equal_secret(const void *a, const void *b, size_t bytes);

/* Overwrites a secret, also where the compiler sees that nobody reads it again. */
void kvf_forget(void *secret, size_t bytes);

#endif
