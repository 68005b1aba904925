/* Base64 with the URL alphabet (RFC 4648, section 5), without padding, strict: a text is the only one of its bytes. */
#ifndef KVF_WIRE_BASE64URL_H
#define KVF_WIRE_BASE64URL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t kvf_base64url_text_bytes(size_t data_bytes)
{
  return data_bytes / 3 * 4 + (data_bytes % 3 == 0 ? 0 : data_bytes % 3 + 1);
}

static inline size_t kvf_base64url_data_bytes(size_t text_bytes)
{
  return text_bytes / 4 * 3 + (text_bytes % 4) * 3 / 4;
}

/* Writes kvf_base64url_text_bytes(bytes) characters. `data` may be the last `bytes` bytes of the room of `text`. */
void kvf_base64url_encode(const uint8_t *data, size_t bytes, char *text);

/* Writes kvf_base64url_data_bytes(text_bytes) bytes. False: another character, a length that no data has, or trailing
 * bits that are not zero; then the contents of `data` mean nothing. */
bool kvf_base64url_decode(const char *text, size_t text_bytes, uint8_t *data);

#endif
