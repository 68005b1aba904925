/* HELLO, CHALLENGE, PROOF and REFUSED; WELCOME, which allocates, is in welcome_message.c. */
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

static void code_hello(kvf_codec *codec, kvf_hello *hello)
{
  kvf_code_u16(codec, &hello->version_min);
  kvf_code_u16(codec, &hello->version_max);
  kvf_code_u8(codec, &hello->role);
  kvf_code_incarnation(codec, &hello->client);
  kvf_code_incarnation(codec, &hello->expected);
  kvf_code_bytes(codec, hello->nonce, sizeof(hello->nonce));
  kvf_code_bytes(codec, hello->key_id, sizeof(hello->key_id));
  kvf_code_u32(codec, &hello->rank);
}

kvf_status kvf_hello_encode(const kvf_hello *hello, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_hello(&codec, (kvf_hello *)hello);
  return kvf_writer_end(&codec, hello_is_valid(hello), body_bytes);
}

kvf_status kvf_hello_decode(const void *body, size_t body_bytes, kvf_hello *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_hello(&codec, out);
  return kvf_reader_end(&codec, hello_is_valid(out));
}

static void code_challenge(kvf_codec *codec, kvf_challenge *challenge)
{
  kvf_code_u16(codec, &challenge->version);
  kvf_code_incarnation(codec, &challenge->server);
  kvf_code_bytes(codec, challenge->nonce, sizeof(challenge->nonce));
  kvf_code_bytes(codec, challenge->proof, sizeof(challenge->proof));
}

kvf_status kvf_challenge_encode(const kvf_challenge *challenge, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_challenge(&codec, (kvf_challenge *)challenge);
  return kvf_writer_end(&codec, challenge->version != 0, body_bytes);
}

kvf_status kvf_challenge_decode(const void *body, size_t body_bytes, kvf_challenge *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_challenge(&codec, out);
  return kvf_reader_end(&codec, out->version != 0);
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

static void code_proof(kvf_codec *codec, kvf_proof *proof)
{
  kvf_code_bytes(codec, proof->proof, sizeof(proof->proof));
  kvf_code_u32_in(codec, &proof->identity_count, 1);
  for (uint32_t i = 0; i < proof->identity_count && i < KVF_IDENTITY_FIELDS_MAX; i++) {
    kvf_code_text(codec, proof->identity[i].name, sizeof(proof->identity[i].name));
    kvf_code_text(codec, proof->identity[i].value, sizeof(proof->identity[i].value));
  }
}

kvf_status kvf_proof_encode(const kvf_proof *proof, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_proof(&codec, (kvf_proof *)proof);
  return kvf_writer_end(&codec, proof_is_valid(proof), body_bytes);
}

kvf_status kvf_proof_decode(const void *body, size_t body_bytes, kvf_proof *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_proof(&codec, out);
  return kvf_reader_end(&codec, proof_is_valid(out));
}

static bool is_printable(char c)
{
  return c >= 0x20 && c <= 0x7e;
}

static void code_refused(kvf_codec *codec, kvf_refused *refused)
{
  kvf_code_i32(codec, &refused->status);
  kvf_code_text(codec, refused->message, sizeof(refused->message));
}

kvf_status kvf_refused_encode(const kvf_refused *refused, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_refused printable = *refused;
  for (size_t i = 0; i < sizeof(printable.message) && printable.message[i] != '\0'; i++) {
    if (!is_printable(printable.message[i])) {
      printable.message[i] = '?';
    }
  }
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_refused(&codec, &printable);
  return kvf_writer_end(&codec, refused->status < 0, body_bytes);
}

kvf_status kvf_refused_decode(const void *body, size_t body_bytes, kvf_refused *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_refused(&codec, out);
  bool valid = out->status < 0;
  for (size_t i = 0; out->message[i] != '\0'; i++) {
    valid = valid && is_printable(out->message[i]);
  }
  return kvf_reader_end(&codec, valid);
}
