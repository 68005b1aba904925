/* Regions that this process exports, for its own nodes that read them. They are read by their addresses, because CUDA
 * does not open a handle in the process that made it. If the memory were freed during a copy, the whole context would
 * be lost. So taking an export back waits for copies. */
#ifndef KVF_MEMORY_CUDA_OWN_H
#define KVF_MEMORY_CUDA_OWN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kvf_cuda_own kvf_cuda_own;

/* Of so many bytes from an address. An export's number, never used again; 0: no memory. */
uint64_t kvf_cuda_own_add(uint64_t address, uint64_t bytes);
/* When this returns nobody reads it, or will. */
void kvf_cuda_own_remove(uint64_t number);

/* For kvf_cuda_own_drop(). NULL: there is no such export (any more), or it has fewer bytes there. A peer that claims an
 * export of this process may be another process. */
kvf_cuda_own *kvf_cuda_own_hold(uint64_t number, uint64_t address, uint64_t bytes);
void kvf_cuda_own_drop(kvf_cuda_own *own);
/* False: it has been taken back. Else until this thread's kvf_cuda_own_leave() it is not, nor is any other. A thread
 * may be in several. */
bool kvf_cuda_own_enter(const kvf_cuda_own *own);
void kvf_cuda_own_leave(void);

#endif
