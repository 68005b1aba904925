#include "wire/fields.h"

#include <assert.h>
#include <string.h>

#define TEXT_ROOM_MAX 256

void kvf_put_incarnation(kvf_encoder *encoder, const kvf_incarnation *incarnation)
{
  kvf_put_bytes(encoder, incarnation->bytes, sizeof(incarnation->bytes));
}

void kvf_get_incarnation(kvf_decoder *decoder, kvf_incarnation *out)
{
  kvf_get_bytes(decoder, out->bytes, sizeof(out->bytes));
}

void kvf_put_address(kvf_encoder *encoder, const kvf_address *address)
{
  kvf_put_bytes(encoder, address->ip, sizeof(address->ip));
  kvf_put_u16(encoder, address->port);
}

void kvf_get_address(kvf_decoder *decoder, kvf_address *out)
{
  kvf_get_bytes(decoder, out->ip, sizeof(out->ip));
  out->port = kvf_get_u16(decoder);
}

bool kvf_lease_is_valid(const kvf_lease *lease)
{
  return lease->id <= KVF_LEASE_ID_MAX;
}

void kvf_put_lease(kvf_encoder *encoder, const kvf_lease *lease)
{
  kvf_put_u64(encoder, lease->id);
  kvf_put_u32(encoder, lease->slot);
  kvf_put_bytes(encoder, lease->token, sizeof(lease->token));
}

void kvf_get_lease(kvf_decoder *decoder, kvf_lease *out)
{
  out->id = kvf_get_u64(decoder);
  out->slot = kvf_get_u32(decoder);
  out->reserved = 0;
  kvf_get_bytes(decoder, out->token, sizeof(out->token));
  if (!kvf_lease_is_valid(out)) {
    kvf_decoder_fail(decoder);
  }
}

static bool has_control_characters(const char *text, size_t bytes)
{
  for (size_t i = 0; i < bytes; i++) {
    uint8_t c = (uint8_t)text[i];
    if (c < 0x20 || c == 0x7f) {
      return true;
    }
  }
  return false;
}

bool kvf_text_is_valid(const char *text, size_t room)
{
  size_t bytes = strnlen(text, room);
  return bytes < room && !has_control_characters(text, bytes);
}

void kvf_put_text(kvf_encoder *encoder, const char *text, size_t room)
{
  assert(room > 0 && room <= TEXT_ROOM_MAX);
  size_t bytes = strnlen(text, room - 1);
  kvf_put_u8(encoder, (uint8_t)bytes);
  kvf_put_bytes(encoder, text, bytes);
}

void kvf_get_text(kvf_decoder *decoder, char *out, size_t room)
{
  assert(room > 0 && room <= TEXT_ROOM_MAX);
  size_t bytes = kvf_get_u8(decoder);
  if (bytes >= room) {
    kvf_decoder_fail(decoder);
    bytes = 0;
  }
  kvf_get_bytes(decoder, out, bytes);
  memset(out + bytes, 0, room - bytes);
  /* A failed read gives zeros, which have the same answer. */
  if (has_control_characters(out, bytes)) {
    kvf_decoder_fail(decoder);
  }
}
