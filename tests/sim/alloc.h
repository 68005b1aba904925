/* The allocations of the code under test, counted, and failing where the tape says so. Needs the linker's
 * --wrap=malloc, calloc, realloc and free. */
#ifndef KVF_SIM_ALLOC_H
#define KVF_SIM_ALLOC_H

#include <stdbool.h>
#include <stdint.h>

/* Between these two the code under test runs. */
void sim_alloc_enter(void);
void sim_alloc_leave(void);

/* After `skip` more allocations the next `count` fail. */
void sim_alloc_fail(uint32_t skip, uint32_t count);
/* None fails. */
void sim_alloc_heal(void);

/* Allocations that have not been freed. */
int64_t sim_alloc_live(void);

#endif
