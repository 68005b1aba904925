/* Reads the shared key. */
#include "runtime/key_file.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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

/* A user that can write the file chooses the key; a user that can read it has the key. A container gets root's files
 * from outside and cannot change them. So for those there is only a warning, and only if all users may read them.
 * Kubernetes (fsGroup) gives such files to a user other than root by a group. */
static kvf_status check_file(const char *path, const struct stat *file, char *message)
{
  const unsigned mode = file->st_mode & 07777;
  const bool is_roots = file->st_uid == 0;
  if (!S_ISREG(file->st_mode)) {
    return kvf_fail(KVF_INVALID, message, "key_file %.120s: not a regular file", path);
  }
  if (!is_roots && file->st_uid != geteuid()) {
    return kvf_fail(KVF_INVALID, message,
                    "key_file %.120s: it is another user's (%u): chown it to the one that runs the engine, or to root",
                    path, (unsigned)file->st_uid);
  }
  if ((mode & (is_roots ? 022 : 077)) != 0) {
    return kvf_fail(KVF_INVALID, message, "key_file %.120s: others may %s it (mode %04o): chmod 600 it", path,
                    (mode & 022) != 0 ? "write" : "read", mode);
  }
  if ((mode & 007) != 0) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX,
                   "key_file %.120s: all users may read it (mode %04o): chmod 600 it, in Kubernetes defaultMode: 0400",
                   path, mode);
  }
  return KVF_OK;
}

/* Up to `capacity` bytes; -1 with errno. */
static ssize_t read_all(int fd, uint8_t *data, size_t capacity)
{
  size_t bytes = 0;
  ssize_t got = 1;
  while (bytes < capacity && got != 0) {
    got = read(fd, data + bytes, capacity - bytes);
    if (got < 0 && errno != EINTR) {
      return -1;
    }
    bytes += got > 0 ? (size_t)got : 0;
  }
  return (ssize_t)bytes;
}

/* By plain read(): stdio would leave a copy in its buffer. The descriptor is not one of own_fds.h: opening a file may
 * take as long as its network takes. And a child that is forked meanwhile has the key in its memory anyway. */
static kvf_status read_file(const char *path, uint8_t *data, size_t capacity, size_t *bytes, char *message)
{
  struct stat file;
  ssize_t got = -1;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK); /* a FIFO has no writer to wait for */
  if (fd < 0 || fstat(fd, &file) != 0) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "key_file %.120s: %s", path, strerror(errno));
    goto close_file;
  }
  if (check_file(path, &file, message) != KVF_OK) {
    goto close_file;
  }
  got = read_all(fd, data, capacity);
  if (got < 0) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "key_file %.120s: cannot be read: %s", path, strerror(errno));
  }

close_file:
  if (fd >= 0) {
    (void)close(fd);
  }
  *bytes = got < 0 ? 0 : (size_t)got;
  return got < 0 ? KVF_INVALID : KVF_OK;
}

kvf_status kvf_key_file_read(const char *path, kvf_key keys[KVF_KEYS_MAX], size_t *count, char *message)
{
  _Static_assert(KVF_KEY_BYTES_MIN == 16 && KVF_KEY_BYTES_MAX == 256 && KVF_KEYS_MAX == 2, "the messages' numbers");
  uint8_t data[FILE_BYTES_MAX + 1]; /* room to see that it is too long */
  kvf_key found[KVF_KEYS_MAX] = {0};
  size_t found_count = 0;
  size_t bytes = 0;
  message[0] = '\0';
  if (read_file(path, data, sizeof(data), &bytes, message) != KVF_OK) {
    kvf_forget(data, sizeof(data));
    return KVF_INVALID;
  }
  const char *wrong = bytes > FILE_BYTES_MAX ? "it is too long: a key must have 16 to 256 bytes"
                                             : find_keys(data, bytes, found, &found_count);
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

kvf_status kvf_tls_use_open(const kvf_config *config, const kvf_key *keys, size_t count, kvf_tls_use *out,
                            char *message)
{
  const bool has_key = keys[0].bytes > 0;
  if (config->tls == KVF_TLS_ALWAYS && !has_key) {
    return kvf_fail(KVF_INVALID, message, "tls = always needs a shared key (option key_file)");
  }
  if (config->tls == KVF_TLS_NEVER || !has_key) {
    return KVF_OK;
  }
  out->on_loopback = config->tls == KVF_TLS_ALWAYS;
  kvf_status status = kvf_tls_context_new(keys, count, &out->context);
  return status == KVF_OK ? KVF_OK : kvf_fail(status, message, "cannot set up TLS: %s", kvf_status_name(status));
}
