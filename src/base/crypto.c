/* SHA-256 and HMAC by OpenSSL's EVP interface, comparing secrets in constant time, and wiping them. */
#include "base/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>
#include <string.h>

#define LABEL_KEY_ID "kvferry key id"

kvf_status kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  EVP_MD_CTX *context = EVP_MD_CTX_new();
  if (context == NULL) {
    return KVF_NO_MEMORY;
  }
  int good = EVP_DigestInit_ex(context, EVP_sha256(), NULL);
  for (size_t i = 0; good && i < count; i++) {
    good = EVP_DigestUpdate(context, spans[i].data, spans[i].bytes);
  }
  good = good && EVP_DigestFinal_ex(context, out, NULL);
  EVP_MD_CTX_free(context);
  return good ? KVF_OK : KVF_NO_MEMORY;
}

/* NULL: no memory. */
static EVP_MAC_CTX *begin_mac(const kvf_key *key)
{
  EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
  EVP_MAC_CTX *context = mac == NULL ? NULL : EVP_MAC_CTX_new(mac);
  EVP_MAC_free(mac);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
  if (context != NULL && !EVP_MAC_init(context, key->data, key->bytes, params)) {
    EVP_MAC_CTX_free(context);
    return NULL;
  }
  return context;
}

/* Frees the context, which may be NULL. */
static kvf_status end_mac(EVP_MAC_CTX *context, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  int good = context != NULL;
  for (size_t i = 0; good && i < count; i++) {
    good = EVP_MAC_update(context, spans[i].data, spans[i].bytes);
  }
  size_t written = 0;
  good = good && EVP_MAC_final(context, out, &written, KVF_HASH_BYTES) && written == KVF_HASH_BYTES;
  EVP_MAC_CTX_free(context);
  return good ? KVF_OK : KVF_NO_MEMORY;
}

kvf_status kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return end_mac(begin_mac(key), spans, count, out);
}

kvf_status kvf_mac_init(kvf_mac *mac, const kvf_key *key)
{
  const kvf_span label = {LABEL_KEY_ID, strlen(LABEL_KEY_ID)};
  uint8_t named[KVF_HASH_BYTES];
  *mac = (kvf_mac){.keyed = begin_mac(key), .has_key = key->bytes > 0};
  if (mac->keyed == NULL || kvf_mac_make(mac, &label, 1, named) != KVF_OK) {
    kvf_mac_free(mac);
    return KVF_NO_MEMORY;
  }
  memcpy(mac->key_id, named, sizeof(mac->key_id));
  return KVF_OK;
}

/* A copy each time: only newer versions of OpenSSL 3.0 can begin a MAC again without its key. */
kvf_status kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return end_mac(EVP_MAC_CTX_dup(mac->keyed), spans, count, out);
}

void kvf_mac_free(kvf_mac *mac)
{
  EVP_MAC_CTX_free(mac->keyed);
  mac->keyed = NULL;
}

bool kvf_equal_secret(const void *a, const void *b, size_t bytes)
{
  return CRYPTO_memcmp(a, b, bytes) == 0;
}

void kvf_forget(void *secret, size_t bytes)
{
  OPENSSL_cleanse(secret, bytes);
}
