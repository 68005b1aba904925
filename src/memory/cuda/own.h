/* Regions that this process exports, for its own nodes that read them: by their addresses, since CUDA opens no handle
 * in the process that it is of. Who frees the memory then would lose the whole context to a copy that is under way, so
 * taking an export back waits for those. */
#ifndef KVF_MEMORY_CUDA_OWN_H
#define KVF_MEMORY_CUDA_OWN_H

#include <stdbool.h>
#include <stdint.h>

typedef struct kvf_cuda_own kvf_cuda_own;

/* Of so many bytes from an address. An export's number, never used again; 0: no memory. */
uint64_t kvf_cuda_own_add(uint64_t address, uint64_t bytes);
/* When this returns nobody reads it, or will. */
void kvf_cuda_own_remove(uint64_t number);

/* For kvf_cuda_own_drop(). NULL: there is no such export, or not any more, or it has not so many bytes there: whoever
 * says that an export is this process' may be another. */
kvf_cuda_own *kvf_cuda_own_hold(uint64_t number, uint64_t address, uint64_t bytes);
void kvf_cuda_own_drop(kvf_cuda_own *own);
/* False: it has been taken back. Else until this thread's kvf_cuda_own_leave() it is not, nor is any other. A thread
 * may be in several. */
bool kvf_cuda_own_enter(const kvf_cuda_own *own);
void kvf_cuda_own_leave(void);

#endif
