#include "base/crypto.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/params.h>

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

kvf_status kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  EVP_MAC *mac = EVP_MAC_fetch(NULL, "HMAC", NULL);
  EVP_MAC_CTX *context = mac == NULL ? NULL : EVP_MAC_CTX_new(mac);
  char digest[] = "SHA256";
  const OSSL_PARAM params[] = {OSSL_PARAM_construct_utf8_string("digest", digest, 0), OSSL_PARAM_construct_end()};
  int good = context != NULL && EVP_MAC_init(context, key->data, key->bytes, params);
  for (size_t i = 0; good && i < count; i++) {
    good = EVP_MAC_update(context, spans[i].data, spans[i].bytes);
  }
  size_t written = 0;
  good = good && EVP_MAC_final(context, out, &written, KVF_HASH_BYTES) && written == KVF_HASH_BYTES;
  EVP_MAC_CTX_free(context);
  EVP_MAC_free(mac);
  return good ? KVF_OK : KVF_NO_MEMORY;
}

bool kvf_equal_secret(const void *a, const void *b, size_t bytes)
{
  return CRYPTO_memcmp(a, b, bytes) == 0;
}

void kvf_forget(void *secret, size_t bytes)
{
  OPENSSL_cleanse(secret, bytes);
}
