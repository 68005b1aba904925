/* What the transfer benchmark's files share. Two processes: the parent loads (and is the limits' receiver), the child
 * holds the blocks (and is the limits' sender). */
#ifndef KVF_BENCH_BENCH_H
#define KVF_BENCH_BENCH_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "kvferry/kvferry.h"

#define BENCH_POOL_BYTES ((size_t)256 << 20)
#define BENCH_BLOCKS_MAX 4096
#define BENCH_STREAMS 2 /* as the option tcp_streams by default */
#define BENCH_THREADS 2 /* as the option copy_threads by default */
#define BENCH_IOVECS 512

typedef struct bench_shape {
  const char *name;
  const char *transport;
  uint32_t blocks;
  uint32_t block_bytes;
  bool checksums; /* option checksum is on, on both sides */
  bool tls;       /* option tls is always, on both sides */
} bench_shape;

/* What the child tells of one shape. */
typedef struct bench_offer {
  pid_t pid;
  uint64_t pool;
  uint32_t ids[BENCH_BLOCKS_MAX];
  uint16_t sender_port;
  kvf_prompt prompt;
  size_t ticket_bytes;
  char ticket[65536];
} bench_offer;

/* Ends the program unless `good`. */
#define bench_must(good, what) ((good) ? (void)0 : bench_give_up(what))
_Noreturn void bench_give_up(const char *what);
uint64_t bench_now_ns(void);
uint8_t *bench_pool(void);
/* A key for both sides, until `remove`. Before the child begins. */
void bench_key_make(void);
void bench_key_remove(void);
/* `count` different blocks of a pool, in random order, the same for the same seed. */
void bench_choose(uint32_t *ids, uint32_t count, uint32_t pool_blocks, uint64_t seed);
kvf_node *bench_node(const bench_shape *shape, uint8_t *pool);

/* The child: serves shapes until the pipe closes. */
void bench_producer(int pipe_fd);

/* The limits. Each copies the shape's blocks once. */
typedef struct bench_reader bench_reader;
/* Bare process_vm_readv by BENCH_THREADS threads (one, for a single block). */
bench_reader *bench_reader_open(const bench_shape *shape, const bench_offer *offer, uint8_t *pool,
                                const uint32_t *local_ids);
void bench_reader_run(bench_reader *reader);
void bench_reader_close(bench_reader *reader);

typedef struct bench_receiver bench_receiver;
/* Bare sockets, BENCH_STREAMS of them, a thread each on both sides. */
bench_receiver *bench_receiver_open(const bench_shape *shape, const bench_offer *offer, uint8_t *pool,
                                    const uint32_t *local_ids);
void bench_receiver_run(bench_receiver *receiver);
void bench_receiver_close(bench_receiver *receiver);

/* The part [*first, *first + *count) of `total` that the i-th of n does. */
void bench_share(uint32_t total, uint32_t i, uint32_t n, uint32_t *first, uint32_t *count);

#endif
