/* Host memory between blocks on a device and somebody else, in two halves: one is copied while the other is used. */
#ifndef KVF_MEMORY_STAGE_H
#define KVF_MEMORY_STAGE_H

#include "memory/memory.h"

#define KVF_STAGE_HALF_BYTES ((size_t)1 << 20)

typedef enum kvf_stage_way { KVF_STAGE_INTO_BLOCKS, KVF_STAGE_OUT_OF_BLOCKS } kvf_stage_way;

/* A run of a region, and as many bytes of a half. */
typedef struct kvf_stage_run {
  const kvf_region *region;
  uint8_t *block;
  uint8_t *staged;
  size_t bytes;
} kvf_stage_run;

/* Copies runs, of any kinds, and waits for the copy. False: a device has failed. */
KVF_MUST_USE bool kvf_stage_copy_now(kvf_stage_way way, const kvf_stage_run *runs, size_t count);

typedef struct kvf_stage {
  const kvf_memory_ops *ops; /* of the device's kind */
  uint8_t *halves[2];
  void *state;  /* the kind's; NULL: it copies at once */
  bool open[2]; /* copies of the half have been begun, and not waited for */
} kvf_stage;

/* For blocks of these regions, of which one at least is not addressable. False: no memory, or of the device none that
 * is pinned. One thread at a time uses it. */
KVF_MUST_USE bool kvf_stage_open(kvf_stage *stage, const kvf_region *regions, uint32_t count);
/* Waits for what has been begun. */
void kvf_stage_close(kvf_stage *stage);

/* Begins to copy runs of the half, which kvf_stage_wait() has been called for; any number of them. False: the device
 * has failed. */
KVF_MUST_USE bool kvf_stage_copy(kvf_stage *stage, unsigned half, kvf_stage_way way, const kvf_stage_run *runs,
                                 size_t count);
/* When this returns all that was begun of the half is done, or the device is lost. False: not all of it is done. */
bool kvf_stage_wait(kvf_stage *stage, unsigned half);

#endif
