/* A driver of ./dev bench --peers: one implementation's consumer or producer, which does as it is told by lines on
 * standard input, so that one orchestrator can take turns between many. The same protocol for every implementation, in
 * C here and in Python in bench/peers/side.py:
 *
 *   version                                       -> version TEXT
 *   begin LAYERS BLOCKS BLOCK_BYTES POOL_BLOCKS PARTS PART     -> offer TEXT   (producer: can be read from now on)
 *   begin LAYERS BLOCKS BLOCK_BYTES POOL_BLOCKS PARTS OFFER|…  -> done         (consumer: an offer of each part)
 *   run WARM_UP ROUNDS                            -> ns TIME TIME …      (consumer: each round reads all blocks once)
 *   watch LIMIT_MS                                -> failed AT_NS REASON (consumer: reads until that fails, or fine)
 *   start LOADS                                   -> done                (consumer: starts loads and does not wait)
 *   step ROUNDS                                   -> ns TIME TIME …      (consumer: an engine step's look at them)
 *   end                                           -> done
 *
 * What goes wrong ends the process with a line on standard error. */
#ifndef KVF_BENCH_PEER_H
#define KVF_BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "../bench.h"

#define PEER_BLOCKS_MAX 4096 /* of one layer: the plan has room for so many */
#define PEER_PARTS_MAX 64

/* Block i of layer l lies at (l * pool_blocks + i) * block_bytes, in both pools. */
typedef struct peer_shape {
  uint32_t layers;
  uint32_t blocks;
  uint32_t block_bytes;
  uint32_t pool_blocks;
} peer_shape;

/* The pools are the same pages for all implementations, and so are the lists of blocks. */
typedef struct peer_job {
  peer_shape shape;
  uint8_t *source;
  uint8_t *destination;
  size_t pool_bytes;
  const uint32_t *remote_ids;
  const uint32_t *local_ids;
  uint32_t parts; /* producers that share the blocks out among themselves: the i-th has blocks / parts from i on */
  uint32_t part;
  int options_count;
  char **options; /* NAME=VALUE */
  const char *variant;
} peer_job;

typedef struct peer_driver {
  void (*version)(const peer_job *job, FILE *out);
  /* The producer's side: writes its offer, text without a newline. */
  void (*hold)(const peer_job *job, FILE *offer);
  void (*hold_end)(const peer_job *job);
  /* The consumer's side. */
  void (*read)(const peer_job *job, const char *offer);
  /* The first connects. Returns why it has failed, NULL if it has not; nothing but `watch` goes on after that. */
  const char *(*read_once)(const peer_job *job);
  void (*read_end)(const peer_job *job);
  /* May be NULL. */
  void (*start)(const peer_job *job);
  void (*step)(const peer_job *job);
} peer_driver;

int peer_main(int argc, char **argv, const peer_driver *driver);

uint32_t peer_segments(const peer_shape *shape);
/* Where the i-th of peer_segments() lies in its pool: block by block, across all layers. */
size_t peer_segment_at(const peer_shape *shape, const uint32_t *ids, uint32_t i);
/* The value of an option, or `otherwise`. */
const char *peer_option(const peer_job *job, const char *name, const char *otherwise);

#endif
