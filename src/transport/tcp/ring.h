/* The way of payload between a socket and blocks on a device: through two halves of pinned memory. One half is sent or
 * received while the other is copied. A data thread has a few rings, each for one payload at a time. */
#ifndef KVF_TRANSPORT_TCP_RING_H
#define KVF_TRANSPORT_TCP_RING_H

#include "memory/stage.h"
#include "plan/pages.h"

#define KVF_TCP_RUNS_MAX 256 /* that are listed at a time */
#define KVF_TCP_RINGS_MAX 4  /* of a data thread; other payloads go through its staging, one copy after another */

typedef struct kvf_tcp_ring {
  struct kvf_tcp_ring *next; /* of those that are free */
  kvf_stage stage;
  unsigned half;      /* that is sent from, or received into */
  uint64_t filled[2]; /* bytes in each that are to be sent, or that have been received */
  uint64_t sent;      /* of the half */
} kvf_tcp_ring;

typedef struct kvf_tcp_rings {
  kvf_tcp_ring *free;
  kvf_tcp_ring all[KVF_TCP_RINGS_MAX];
  uint32_t count;
} kvf_tcp_rings;

/* Lists where the cursor's next bytes lie, of *bytes that are to be copied from or to *staged on, and moves on by them.
 * Returns how many runs they are. */
size_t kvf_tcp_runs_next(kvf_segment_cursor *cursor, uint8_t **staged, uint64_t *bytes,
                         kvf_stage_run runs[KVF_TCP_RUNS_MAX]);

/* As many as there is memory for. */
void kvf_tcp_rings_open(kvf_tcp_rings *rings, const kvf_region *regions, uint32_t count);
/* All have been given back. */
void kvf_tcp_rings_close(kvf_tcp_rings *rings);
/* NULL: none is free. */
kvf_tcp_ring *kvf_tcp_ring_take(kvf_tcp_rings *rings);
/* Waits for its copies. NULL is allowed. */
void kvf_tcp_ring_give(kvf_tcp_rings *rings, kvf_tcp_ring *ring);

/* What is to be sent next, of `left` bytes that have not been sent. `cursor` is behind all that is in the ring. False:
 * the device has failed. */
KVF_MUST_USE bool kvf_tcp_ring_offer(kvf_tcp_ring *ring, kvf_segment_cursor *cursor, uint64_t left, struct iovec *out);
void kvf_tcp_ring_sent(kvf_tcp_ring *ring, uint64_t bytes);

/* Where the next of `left` bytes are to be received. False: the device has failed. */
KVF_MUST_USE bool kvf_tcp_ring_room(kvf_tcp_ring *ring, uint64_t left, struct iovec *out);
/* `bytes` have been received; `left` are still to come. With the last one all is in its blocks. False: the device has
 * failed. */
KVF_MUST_USE bool kvf_tcp_ring_received(kvf_tcp_ring *ring, kvf_segment_cursor *cursor, uint64_t bytes, uint64_t left);

#endif
