/* Block ids as runs: blocks of a request are mostly neighbours, and those that slid out of a window are all "none".
 *
 * Each run is a varint with its kind in the low two bits. A single block and a run of consecutive blocks have the
 * distance from the end of the last run, in zigzag form. A run then has a varint of its length less 2. A run of
 * KVF_BLOCK_NONE has its length less 1. A list has one form: runs are as long as they can be.
 */
#ifndef KVF_WIRE_BLOCK_RUNS_H
#define KVF_WIRE_BLOCK_RUNS_H

#include "wire/codec.h"

/* Reads runs until `count` ids are there. Fails if a run goes beyond, or is not as it is written; then the contents of
 * `ids` mean nothing. */
void kvf_code_block_runs(kvf_codec *codec, uint32_t *ids, uint32_t count);

#endif
