#include "runtime/key_file.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"

/* The keys, and white space around them. */
#define FILE_BYTES_MAX (KVF_KEYS_MAX * KVF_KEY_BYTES_MAX + 64)

/* What is wrong with the file's text; NULL: nothing. */
static const char *find_keys(const uint8_t *data, size_t bytes, kvf_key keys[KVF_KEYS_MAX], size_t *count)
{
  *count = 0;
  for (size_t next, at = 0; at < bytes; at = next) {
    const uint8_t *end = memchr(data + at, '\n', bytes - at);
    size_t line_bytes = end != NULL ? (size_t)(end - (data + at)) : bytes - at;
    next = at + line_bytes + 1;
    while (line_bytes > 0 && isspace(data[at + line_bytes - 1])) {
      line_bytes--;
    }
    if (line_bytes == 0) {
      continue;
    }
    if (line_bytes < KVF_KEY_BYTES_MIN || line_bytes > KVF_KEY_BYTES_MAX) {
      return "a key must have 16 to 256 bytes";
    }
    if (*count == KVF_KEYS_MAX) {
      return "more than two keys, one a line";
    }
    memcpy(keys[*count].data, data + at, line_bytes);
    keys[(*count)++].bytes = line_bytes;
  }
  return *count == 0 ? "it has no key, which must have 16 to 256 bytes" : NULL;
}

kvf_status kvf_key_file_read(const char *path, kvf_key keys[KVF_KEYS_MAX], size_t *count, char *message)
{
  _Static_assert(KVF_KEY_BYTES_MIN == 16 && KVF_KEY_BYTES_MAX == 256 && KVF_KEYS_MAX == 2, "the messages' numbers");
  uint8_t data[FILE_BYTES_MAX + 1]; /* room to see that it is too long */
  kvf_key found[KVF_KEYS_MAX] = {0};
  size_t found_count = 0;
  FILE *file = fopen(path, "rbe");
  if (file == NULL) {
    return kvf_fail(KVF_INVALID, message, "key_file %.120s: %s", path, strerror(errno));
  }
  size_t bytes = fread(data, 1, sizeof(data), file);
  const char *wrong = ferror(file) != 0 ? "cannot be read" : NULL;
  (void)fclose(file);
  if (wrong == NULL && bytes > FILE_BYTES_MAX) {
    wrong = "it is too long: a key must have 16 to 256 bytes";
  }
  if (wrong == NULL) {
    wrong = find_keys(data, bytes, found, &found_count);
  }
  if (wrong == NULL) {
    memcpy(keys, found, sizeof(found));
    *count = found_count;
  } else {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "key_file %.120s: %s", path, wrong);
  }
  kvf_forget(data, sizeof(data));
  kvf_forget(found, sizeof(found));
  return wrong == NULL ? KVF_OK : KVF_INVALID;
}
