/* Incarnations, addresses, leases and texts, with what makes each valid. */
#include "wire/fields.h"

#include <assert.h>
#include <string.h>

#define TEXT_ROOM_MAX 256

void kvf_code_incarnation(kvf_codec *codec, kvf_incarnation *incarnation)
{
  kvf_code_bytes(codec, incarnation->bytes, sizeof(incarnation->bytes));
}

void kvf_code_address(kvf_codec *codec, kvf_address *address)
{
  kvf_code_bytes(codec, address->ip, sizeof(address->ip));
  kvf_code_u16(codec, &address->port);
}

bool kvf_lease_is_valid(const kvf_lease *lease)
{
  return lease->id <= KVF_LEASE_ID_MAX;
}

void kvf_code_lease(kvf_codec *codec, kvf_lease *lease)
{
  kvf_code_u64(codec, &lease->id);
  kvf_code_u32(codec, &lease->slot);
  kvf_code_bytes(codec, lease->token, sizeof(lease->token));
  if (codec->reads) {
    lease->reserved = 0;
  }
  if (!kvf_lease_is_valid(lease)) {
    kvf_codec_fail(codec);
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

void kvf_code_text(kvf_codec *codec, char *text, size_t room)
{
  assert(room > 0 && room <= TEXT_ROOM_MAX);
  uint32_t bytes = codec->reads ? 0 : (uint32_t)strnlen(text, room - 1);
  kvf_code_u32_in(codec, &bytes, 1);
  if (bytes >= room) {
    kvf_codec_fail(codec);
    bytes = 0;
  }
  kvf_code_bytes(codec, text, bytes);
  if (codec->reads) {
    memset(text + bytes, 0, room - bytes);
    /* A failed read gives zeros, which have the same answer. */
    if (has_control_characters(text, bytes)) {
      kvf_codec_fail(codec);
    }
  }
}
