/* Random bytes of the system. */
#ifndef KVF_RUNTIME_RANDOM_H
#define KVF_RUNTIME_RANDOM_H

#include <stdbool.h>
#include <stddef.h>

/* At most 256 bytes. False, with errno: the system has none. */
bool kvf_random(void *out, size_t bytes);

#endif
