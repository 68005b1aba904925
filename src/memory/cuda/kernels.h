/* The kernels of memory kind cuda, as text for cuModuleLoadData(): drivers of KVF_CUDA_VERSION_MIN and later compile it
 * for their device. What they do is in kernel_code.h, of which `./dev ptx` makes kernels.c.
 *
 * Each takes a list. One warp works on one entry at a time: any number of blocks does all entries. Blocks past the
 * list's length have no work. Blocks are KVF_CUDA_KERNEL_THREADS threads, in one dimension like the grid. Arguments are
 * of 64 bits each. Lists and results are at multiples of 8, in any memory that the device can address.
 */
#ifndef KVF_MEMORY_CUDA_KERNELS_H
#define KVF_MEMORY_CUDA_KERNELS_H

#include <stdint.h>

#define KVF_CUDA_KERNEL_THREADS 512
/* More are of no use to a list, and would keep an engine's kernels from the device. */
#define KVF_CUDA_KERNEL_BLOCKS_MAX 64
/* Longer pieces are to be more than one entry, so that more warps have work. */
#define KVF_CUDA_ENTRY_BYTES 16384

/* (const kvf_cuda_run *runs, uint64_t count, uint64_t *out): out[i] is kvf_checksum() of runs[i]. */
#define KVF_CUDA_CHECKSUMS_KERNEL "kvf_checksums"
/* (const kvf_cuda_piece *pieces, uint64_t count): copies each. None may overlap what another writes. */
#define KVF_CUDA_GATHER_KERNEL "kvf_gather"

/* At any address; one that is no multiple of 16 costs three accesses in place of one. */
typedef struct kvf_cuda_run {
  uint64_t address;
  uint64_t bytes;
} kvf_cuda_run;

/* At any addresses; if they differ by a multiple of 16, most of it is copied 16 bytes an access, or else 4, or 1. */
typedef struct kvf_cuda_piece {
  uint64_t to;
  uint64_t from;
  uint64_t bytes;
} kvf_cuda_piece;

extern const char kvf_cuda_kernels_ptx[]; /* ends with a zero, as the driver wants it */

#endif
