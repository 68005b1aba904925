/* Litmus tests of the fence (promise P1): what memory really does, which the simulator, being sequentially consistent,
 * cannot show. A producer publishes a lease, ends it and overwrites its blocks for the next one, as fast as it can; a
 * reader copies the blocks and samples the fence, with the functions that the transports use. A sample that says live
 * means that every byte is that lease's.
 *
 * Which barrier does what, and who shows that it is needed:
 *
 * | barrier                                          | without it                      | found by                     |
 * |--------------------------------------------------|---------------------------------|------------------------------|
 * | kvf_fence_store_live: full, before the live word | streamed bytes come after live  | LIVE_UNORDERED, mode streams |
 * | kvf_fence_store_live: release of the live word   | plain bytes come after live     | TSan, mode handover          |
 * | kvf_fence_store_live: digest before word         | a live lease looks like another | DIGEST_STORED_LATE           |
 * | kvf_fence_load: acquire of the word              | bytes read before the word      | TSan, mode handover          |
 * | kvf_fence_load: acquire fence, kvf_fence_barrier | the sample is taken before the  | FENCE_READ_FIRST does it by  |
 * |   before the first load; full where the kernel   | copy's last loads               | hand; see below              |
 * |   has copied and the table is mapped             |                                 |                              |
 * | kvf_fence_store_ended: full, after the over word  | next owner's bytes before over  | OVER_AFTER_FREE does it by |
 * |                                                  |                                 | hand; see below              |
 *
 * The last two do not show on x86 when they are taken out: it keeps loads in order, and stores in order (TSO), and
 * there only the compiler is held by them. ARM and POWER reorder both. There what stands between a stale byte and a
 * request is reasoning: the copy's loads come before the acquire fence, that before the load of the word; the store of
 * over comes before the full barrier, that before any store to the blocks. So if a byte was the next owner's, over had
 * been stored before it, and the load of the word, which is later than the byte's, sees it (C17 7.17.4: two fences
 * synchronize through a value that is read between them). TSan knows no fences, and the bytes are a race on purpose. */
#ifndef KVF_TESTS_LITMUS_H
#define KVF_TESTS_LITMUS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>

#include "base/prng.h"
#include "transport/fence_memory.h"
#include "transport/transport.h"

#define LITMUS_SLOTS 4
#define LITMUS_REGIONS 2
#define LITMUS_BLOCKS 4
#define LITMUS_BLOCK_BYTES 512
#define LITMUS_REGION_WORDS ((size_t)LITMUS_BLOCKS * LITMUS_BLOCK_BYTES / sizeof(uint64_t))
#define LITMUS_WORDS (LITMUS_REGIONS * LITMUS_REGION_WORDS)

/* What producer and reader share: threads of a process, or processes (then mapped by both). */
typedef struct litmus_world {
  _Atomic uint64_t ticket; /* the lease that a reader may try */
  _Atomic uint64_t taken;  /* handover: the lease that the reader is done with */
  atomic_bool stop;
  atomic_bool ready;        /* table and pool are there */
  void *table;              /* the producer's */
  int table_fd;             /* of the producer's table */
  _Atomic uint64_t *blocks; /* the producer's: LITMUS_WORDS, each of them holds its lease's id */
  uint64_t seed;
  bool streams;  /* bytes are stored past the cache */
  bool handover; /* a lease ends when the reader says so, and its bytes are plain memory */
} litmus_world;

/* What reading a lease came to. */
typedef struct litmus_count {
  uint64_t rounds;
  uint64_t live;    /* confirmed, and every byte right */
  uint64_t over;    /* ended meanwhile */
  uint64_t early;   /* not published yet */
  uint64_t foreign; /* confirmed, with a byte of another lease */
  uint64_t torn;    /* live, with the digest of another lease */
} litmus_count;

typedef struct litmus_reader litmus_reader;

/* Copies the lease's blocks to reader->copy and samples the fence, as some transport does. */
typedef kvf_status (*litmus_copy_fn)(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out);

struct litmus_reader {
  litmus_world *world;
  litmus_copy_fn copy_and_sample;
  pid_t producer; /* processes */
  void *fence;    /* mapped: the producer's table */
  int pipe[2];    /* socket */
  kvf_prng prng;
  litmus_count count;
  uint64_t copy[LITMUS_WORDS];
};

static inline kvf_fence_entry litmus_entry(uint64_t lease_id)
{
  return (kvf_fence_entry){kvf_fence_word_live(lease_id), lease_id * UINT64_C(0x9e3779b97f4a7c15)};
}

static inline uint32_t litmus_slot(uint64_t lease_id)
{
  return (uint32_t)(lease_id % LITMUS_SLOTS);
}

extern const kvf_incarnation litmus_incarnation;

/* True if this processor has stores that go past the cache. */
bool litmus_has_streams(void);

/* The producer's side, in its own thread or process: opens table and blocks, runs until world->stop. False: no memory.
 */
bool litmus_produce(litmus_world *world);

/* One lease, read and judged. */
void litmus_read(litmus_reader *reader);

kvf_status litmus_copy_by_loads(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out);
kvf_status litmus_copy_by_socket(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out);
kvf_status litmus_copy_by_process(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out);
kvf_status litmus_copy_by_handover(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out);

#endif
