/* The n-th allocation fails, for tests that try every n. Link with --wrap=malloc, --wrap=calloc and --wrap=realloc. */
#ifndef KVF_TESTS_ALLOCATION_H
#define KVF_TESTS_ALLOCATION_H

#include <stdbool.h>
#include <stdint.h>

/* After `count` that succeed one fails, and no more. */
void allocation_fail_after(uint32_t count);
/* From here on none fails. Returns whether one has. */
bool allocation_stop(void);

#endif
