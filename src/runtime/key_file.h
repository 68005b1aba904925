/* The shared key, as it lies on disk. */
#ifndef KVF_RUNTIME_KEY_FILE_H
#define KVF_RUNTIME_KEY_FILE_H

#include "base/crypto.h"
#include "kvferry/types.h"

#define KVF_KEY_BYTES_MIN 16

/* Reads the key: the file's bytes, without white space at its end. `message` (KVF_MESSAGE_BYTES_MAX) says what is
 * wrong. KVF_INVALID: cannot be read, shorter than KVF_KEY_BYTES_MIN or longer than KVF_KEY_BYTES_MAX. */
KVF_MUST_USE kvf_status kvf_key_file_read(const char *path, kvf_key *out, char *message);

#endif
