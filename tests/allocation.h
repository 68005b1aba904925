/* Allocations fail when a test says so, and are counted. Link with --wrap of malloc, calloc, realloc and free, which
 * reaches the library's and the test's own, and none of other libraries. Any thread's count. */
#ifndef KVF_TESTS_ALLOCATION_H
#define KVF_TESTS_ALLOCATION_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* After `spared` that succeed, `count` fail; LONG_MAX: all. The counts below begin anew. */
void allocation_fail(long spared, long count);
/* From here on none fails. Returns whether one has. */
bool allocation_stop(void);
bool allocation_has_failed(void);
/* Until it is called with false, none fails, nor counts as one that succeeds: the test's own. */
void allocation_spare(bool spare);
/* How many were asked for, and the largest. */
long allocation_count(void);
size_t allocation_largest_bytes(void);
/* Those that have not been freed. */
long allocation_live(void);

#endif
