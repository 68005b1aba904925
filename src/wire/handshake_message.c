#include "wire/handshake_message.h"

#include <string.h>

#include "wire/fields.h"
#include "wire/frame.h"

_Static_assert(KVF_PROOF_BYTES_MAX <= KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX, "a proof comes before its sender is trusted");

static bool hello_is_valid(const kvf_hello *hello)
{
  return hello->version_min >= 1 && hello->version_min <= hello->version_max && hello->role >= KVF_ROLE_CONTROL &&
         hello->role <= KVF_ROLE_CHECK && hello->rank < KVF_RANKS_MAX;
}

kvf_status kvf_hello_encode(const kvf_hello *hello, void *body, size_t capacity, size_t *body_bytes)
{
  if (!hello_is_valid(hello)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u16(&encoder, hello->version_min);
  kvf_put_u16(&encoder, hello->version_max);
  kvf_put_u8(&encoder, hello->role);
  kvf_put_incarnation(&encoder, &hello->client);
  kvf_put_incarnation(&encoder, &hello->expected);
  kvf_put_bytes(&encoder, hello->nonce, sizeof(hello->nonce));
  kvf_put_bytes(&encoder, hello->key_id, sizeof(hello->key_id));
  kvf_put_u32(&encoder, hello->rank);
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_hello_decode(const void *body, size_t body_bytes, kvf_hello *out)
{
  kvf_hello hello = {0};
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  hello.version_min = kvf_get_u16(&decoder);
  hello.version_max = kvf_get_u16(&decoder);
  hello.role = kvf_get_u8(&decoder);
  kvf_get_incarnation(&decoder, &hello.client);
  kvf_get_incarnation(&decoder, &hello.expected);
  kvf_get_bytes(&decoder, hello.nonce, sizeof(hello.nonce));
  kvf_get_bytes(&decoder, hello.key_id, sizeof(hello.key_id));
  hello.rank = kvf_get_u32(&decoder);
  return kvf_decoder_give(&decoder, hello_is_valid(&hello), out, &hello, sizeof(hello));
}

kvf_status kvf_challenge_encode(const kvf_challenge *challenge, void *body, size_t capacity, size_t *body_bytes)
{
  if (challenge->version == 0) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u16(&encoder, challenge->version);
  kvf_put_incarnation(&encoder, &challenge->server);
  kvf_put_bytes(&encoder, challenge->nonce, sizeof(challenge->nonce));
  kvf_put_bytes(&encoder, challenge->proof, sizeof(challenge->proof));
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_challenge_decode(const void *body, size_t body_bytes, kvf_challenge *out)
{
  kvf_challenge challenge;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  challenge.version = kvf_get_u16(&decoder);
  kvf_get_incarnation(&decoder, &challenge.server);
  kvf_get_bytes(&decoder, challenge.nonce, sizeof(challenge.nonce));
  kvf_get_bytes(&decoder, challenge.proof, sizeof(challenge.proof));
  return kvf_decoder_give(&decoder, challenge.version != 0, out, &challenge, sizeof(challenge));
}

static bool identity_field_is_valid(const kvf_identity_field *field)
{
  return field->name[0] != '\0' && kvf_text_is_valid(field->name, sizeof(field->name)) &&
         kvf_text_is_valid(field->value, sizeof(field->value));
}

static bool proof_is_valid(const kvf_proof *proof)
{
  if (proof->identity_count > KVF_IDENTITY_FIELDS_MAX) {
    return false;
  }
  for (uint32_t i = 0; i < proof->identity_count; i++) {
    if (!identity_field_is_valid(&proof->identity[i])) {
      return false;
    }
  }
  return true;
}

kvf_status kvf_proof_encode(const kvf_proof *proof, void *body, size_t capacity, size_t *body_bytes)
{
  if (!proof_is_valid(proof)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_bytes(&encoder, proof->proof, sizeof(proof->proof));
  kvf_put_u8(&encoder, (uint8_t)proof->identity_count);
  for (uint32_t i = 0; i < proof->identity_count; i++) {
    kvf_put_text(&encoder, proof->identity[i].name, sizeof(proof->identity[i].name));
    kvf_put_text(&encoder, proof->identity[i].value, sizeof(proof->identity[i].value));
  }
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_proof_decode(const void *body, size_t body_bytes, kvf_proof *out)
{
  kvf_proof proof = {0};
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  kvf_get_bytes(&decoder, proof.proof, sizeof(proof.proof));
  proof.identity_count = kvf_get_u8(&decoder);
  if (proof.identity_count > KVF_IDENTITY_FIELDS_MAX) {
    return KVF_PROTOCOL;
  }
  for (uint32_t i = 0; i < proof.identity_count; i++) {
    kvf_get_text(&decoder, proof.identity[i].name, sizeof(proof.identity[i].name));
    kvf_get_text(&decoder, proof.identity[i].value, sizeof(proof.identity[i].value));
  }
  return kvf_decoder_give(&decoder, proof_is_valid(&proof), out, &proof, sizeof(proof));
}

static bool is_printable(char c)
{
  return c >= 0x20 && c <= 0x7e;
}

kvf_status kvf_refused_encode(const kvf_refused *refused, void *body, size_t capacity, size_t *body_bytes)
{
  if (refused->status >= 0) {
    return KVF_INVALID;
  }
  char message[KVF_MESSAGE_BYTES_MAX];
  memcpy(message, refused->message, sizeof(message));
  for (size_t i = 0; i < sizeof(message) && message[i] != '\0'; i++) {
    if (!is_printable(message[i])) {
      message[i] = '?';
    }
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_i32(&encoder, refused->status);
  kvf_put_text(&encoder, message, sizeof(message));
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_refused_decode(const void *body, size_t body_bytes, kvf_refused *out)
{
  kvf_refused refused;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  refused.status = kvf_get_i32(&decoder);
  kvf_get_text(&decoder, refused.message, sizeof(refused.message));
  for (size_t i = 0; refused.message[i] != '\0'; i++) {
    if (!is_printable(refused.message[i])) {
      kvf_decoder_fail(&decoder);
    }
  }
  return kvf_decoder_give(&decoder, refused.status < 0, out, &refused, sizeof(refused));
}
