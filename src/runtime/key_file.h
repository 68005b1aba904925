/* The shared key, as it lies on disk, and what it is good for. */
#ifndef KVF_RUNTIME_KEY_FILE_H
#define KVF_RUNTIME_KEY_FILE_H

#include "base/crypto.h"
#include "kvferry/config.h"
#include "kvferry/types.h"
#include "transport/tls.h"

#define KVF_KEY_BYTES_MIN 16

/* Reads the keys: one on each line that is not empty, without white space at its end, up to KVF_KEYS_MAX of them. The
 * first is ours, the second is taken from others too. `message` (KVF_MESSAGE_BYTES_MAX) says what is wrong; keys[] and
 * *count are then as they were. With KVF_OK it is empty, or a warning. KVF_INVALID: the file cannot be read, is not a
 * regular file, or can be written or read by others (docs/security.md). Or it has no key, too many, or one that is not
 * KVF_KEY_BYTES_MIN to KVF_KEY_BYTES_MAX bytes long. Never waits for a writer. */
KVF_MUST_USE kvf_status kvf_key_file_read(const char *path, kvf_key keys[KVF_KEYS_MAX], size_t *count, char *message);

/* What the option `tls` asks for with these keys; `out` is empty before. KVF_INVALID: TLS without a key. KVF_NO_MEMORY.
 */
KVF_MUST_USE kvf_status kvf_tls_use_open(const kvf_config *config, const kvf_key *keys, size_t count, kvf_tls_use *out,
                                         char *message);

#endif
