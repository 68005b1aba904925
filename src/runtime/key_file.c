#include "runtime/key_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

kvf_status kvf_key_file_read(const char *path, kvf_key *out, char *message)
{
  uint8_t data[KVF_KEY_BYTES_MAX + 2]; /* room to see that it is too long, a newline apart */
  FILE *file = fopen(path, "rbe");
  if (file == NULL) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "key_file %.120s: %s", path, strerror(errno));
    return KVF_INVALID;
  }
  size_t bytes = fread(data, 1, sizeof(data), file);
  bool has_more = bytes == sizeof(data) && fgetc(file) != EOF;
  bool failed = ferror(file) != 0;
  (void)fclose(file);
  if (failed) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "key_file %.120s: cannot be read", path);
    return KVF_INVALID;
  }
  while (bytes > 0 && isspace(data[bytes - 1])) {
    bytes--;
  }
  if (has_more || bytes < KVF_KEY_BYTES_MIN || bytes > KVF_KEY_BYTES_MAX) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "key_file %.120s: the key must have %d to %d bytes", path,
                   KVF_KEY_BYTES_MIN, KVF_KEY_BYTES_MAX);
    kvf_forget(data, sizeof(data));
    return KVF_INVALID;
  }
  memcpy(out->data, data, bytes);
  out->bytes = bytes;
  kvf_forget(data, sizeof(data));
  return KVF_OK;
}
