/* What the files of gpu_bench share. Three processes: the first starts each case anew and uses no CUDA, D loads, and P,
 * D's child, holds the blocks. So a case that breaks its context, crashes or hangs is over with its processes. */
#ifndef KVF_BENCH_GPU_H
#define KVF_BENCH_GPU_H

#include <stdbool.h>

#include "../node.h"
#include "cuda_driver.h"
#include "memory/cuda/kernels.h"

#define BENCH_PARTS_MAX 2
#define BENCH_SAMPLES_MAX 2001
#define BENCH_TEXT_BYTES KVF_MESSAGE_BYTES_MAX
#define BENCH_NONE UINT32_MAX
#define BENCH_BATCH_PIECES 2048   /* of a call, as the library makes them */
#define BENCH_SINGLE_PIECES 10240 /* of one call: with 50000 a driver has been seen to crash */
#define BENCH_LOOP_PIECES 65536
#define BENCH_PIECES_MAX 262144
#define BENCH_STEP_BYTES ((uint64_t)32 << 20) /* of a launch, as the library makes them */
#define BENCH_OPTIONS_MAX 8

/* `layers` times `parts` regions, of each the same blocks. */
typedef struct bench_shape {
  const char *name;
  uint32_t layers;
  uint32_t blocks;
  uint32_t block_bytes[BENCH_PARTS_MAX]; /* 0: there is no second part */
} bench_shape;

typedef struct bench_pair bench_pair;

typedef struct bench_case {
  const char *path; /* with the shape's name: the case's */
  const char *transport;
  bool source_is_host;
  bool destination_is_host;
  bool has_checksums;
  bool is_quick; /* a smoke run has it */
  bench_shape shape;
  void (*run)(bench_pair *pair);
} bench_case;

typedef struct bench_settings {
  bool is_quick;
  double case_s;      /* that is measured of a case, about */
  double warm_s;      /* that the device computes before */
  uint64_t bytes_max; /* of a load */
  uint32_t multiply_n;
  bool tells_machine;
  double run_s;                           /* no case is under way later */
  const char *only;                       /* cases whose name has this text */
  const char *without;                    /* but for those with this one; NULL: none */
  const char *options[BENCH_OPTIONS_MAX]; /* NAME=VALUE of the library's, on both sides */
  size_t options_count;
} bench_settings;

/* A shape as the memory allows it: where its blocks are. */
typedef struct bench_geometry {
  uint32_t layers;
  uint32_t parts;
  uint32_t block_bytes[BENCH_PARTS_MAX];
  uint32_t blocks;
  uint32_t pool_blocks;
  uint64_t part_bytes[BENCH_PARTS_MAX]; /* of the pool of one part of one layer */
  uint64_t pool_bytes;
  char cut[BENCH_TEXT_BYTES]; /* empty: nothing of the shape is */
} bench_geometry;

/* What P says of its blocks. */
typedef struct bench_offer {
  bool has_handle;
  kvf_cu_ipc_mem_handle handle;
  uint64_t offset; /* of the pool in the memory that the handle stands for */
  bench_ticket ticket;
} bench_source;

/* Of copies without kvferry. */
typedef struct bench_call {
  uint64_t pieces;
  unsigned blocks; /* of launches */
  unsigned threads;
} bench_call;

/* Entries for the gather kernel, in pinned memory. */
typedef struct bench_list {
  kvf_cuda_piece *entries;
  size_t count;
} bench_list;

/* MHz; 0: nobody says. */
typedef struct bench_clocks {
  unsigned sm;
  unsigned memory;
} bench_clocks;

/* D's side of a case. */
struct bench_pair {
  const bench_case *of;
  const bench_settings *settings;
  int fd; /* to P */
  bool spins;
  bench_geometry geometry;
  bench_source offer;
  const cuda_driver *driver;
  kvf_cu_stream stream;
  kvf_cu_event event;
  uint8_t *pool;
  kvf_cu_memory source_base; /* 0: not opened */
  kvf_cu_memory source;
  uint32_t *remote_ids;
  uint32_t *local_ids;
  kvf_node *node;
  uint64_t last_request;
  uint64_t start_ns; /* that the last kvf_load_start() took */
  kvf_cu_memory *to; /* the first pieces, for bare copies */
  kvf_cu_memory *from;
  size_t *bytes;
  size_t listed;
  kvf_cu_function gather; /* the library's; NULL: the driver does not take it */
  bench_list entries;     /* for it */
  bench_clocks idle;
  bench_clocks warm;
  uint64_t posting_ns; /* that the calls of the last bare copies took */
  uint8_t *pinned;     /* NULL: not needed */
  uint8_t *tile;       /* pool.c */
};

/* ---- main.c ---- */

extern const bench_case bench_cases[];
extern const size_t bench_cases_count;

#define bench_cuda(driver, result, what) bench_check((driver)->cuda, result, what)
void bench_check(const kvf_cuda *cuda, kvf_cu_result result, const char *what);
/* Of the calling process, all threads. */
double bench_cpu_s(void);

/* ---- print.c: a JSON object a line ---- */

void bench_print_machine(const bench_pair *pair, size_t free_bytes);
void bench_print_shape(const bench_pair *pair);
void bench_print_clocks(const bench_pair *pair, const bench_clocks *end);
void bench_print_failure(const bench_case *of, const char *why);
void bench_print_note(const bench_case *of, const char *impl, const char *note);
/* The library has no such options. */
void bench_print_refused(const bench_settings *settings, const char *why);
/* Sorts them. */
void bench_print_samples(const bench_case *of, const char *suffix, const char *impl, const char *unit, double *samples,
                         size_t count, bool more_is_better);
void bench_print_value(const bench_case *of, const char *suffix, const char *impl, const char *unit, double value,
                       size_t runs);

/* ---- pool.c ---- */

void bench_fit(const bench_shape *shape, const bench_settings *settings, uint64_t budget_bytes, bench_geometry *out);
uint64_t bench_pieces(const bench_geometry *geometry);
uint64_t bench_bytes(const bench_geometry *geometry);
uint64_t bench_region_at(const bench_geometry *geometry, uint32_t region);
uint32_t bench_region_bytes(const bench_geometry *geometry, uint32_t region);
/* All blocks of the pool, in random order: the first are the load's. */
uint32_t *bench_choose(uint32_t pool_blocks, uint64_t seed);
uint8_t *bench_allocate(bool is_host, uint64_t bytes);
/* What P's pool is made of, again and again. */
uint8_t *bench_tile(uint64_t pool_bytes);
void bench_fill(bool is_host, uint8_t *pool, uint64_t bytes, const uint8_t *tile);
void bench_clear(const bench_pair *pair);
/* Gives up unless what the load's first `pieces` pieces hold is P's, and the rest is as bench_clear() left it. */
void bench_verify(bench_pair *pair, uint64_t pieces, const char *impl);

/* ---- producer.c ---- */

enum { BENCH_ASK_CPU = 'c', BENCH_ASK_NODE = 'n', BENCH_ASK_PUBLISH = 'p', BENCH_ASK_WORK = 'w', BENCH_ASK_IDLE = 'i' };

kvf_node *bench_pool_node(const bench_case *of, const bench_settings *settings, const bench_geometry *geometry,
                          bool is_host, uint8_t *pool);
/* False: the library refuses one, and the message says why. */
bool bench_set_options(kvf_config *config, const bench_settings *settings, char *message);
/* P: does as it is asked for, until the socket closes. */
void bench_producer(const bench_case *of, const bench_settings *settings, int fd);
void bench_send(int fd, const void *what, size_t bytes);
void bench_receive(int fd, void *what, size_t bytes);

/* ---- consumer.c ---- */

/* D, and its child P. */
void bench_consumer(const bench_case *of, const bench_settings *settings);
void bench_open_source(bench_pair *pair);
void bench_pin(bench_pair *pair);
/* From its start to its release event; `after` may be NULL. */
void bench_load(bench_pair *pair, bool spins, const kvf_ordering_point *after);
double bench_producer_cpu_s(bench_pair *pair);
void bench_ask_node(bench_pair *pair);
/* P computes from here on, or no longer. */
void bench_ask_work(bench_pair *pair, bool works);
uint64_t bench_stat(kvf_node *node, const char *name);

/* ---- bare.c: the same pieces, without kvferry ---- */

void bench_list_pieces(bench_pair *pair);
/* Between the device and consecutive pinned memory. */
void bench_list_pinned(bench_pair *pair, bool to_host);
void bench_wait(bench_pair *pair);
void bench_batch(bench_pair *pair, const bench_call *call);
void bench_batches(bench_pair *pair, const bench_call *call);
void bench_loop(bench_pair *pair, const bench_call *call);
void bench_one(bench_pair *pair, const bench_call *call);
void bench_to_device(bench_pair *pair, const bench_call *call);
void bench_to_host(bench_pair *pair, const bench_call *call);

/* ---- gather.c: the library's kernel, launched by ourselves ---- */

/* After bench_list_pieces(). */
void bench_load_gather(bench_pair *pair);
void bench_gather(bench_pair *pair, const bench_call *call);

/* ---- worker.c: an engine's work, in a thread ---- */

typedef struct bench_worker bench_worker;

/* What it does again and again: multiplications, two of them in the stream, so that the device always has the next one;
 * or empty launches, of which the calls are timed. */
typedef enum bench_work { BENCH_MULTIPLY, BENCH_LAUNCH } bench_work;

/* NULL: the driver takes no kernels. */
bench_worker *bench_worker_make(const cuda_driver *driver, uint32_t multiply_n, bench_work work);
void bench_worker_begin(bench_worker *worker);
void bench_worker_end(bench_worker *worker);
/* us of each turn, until the next begins. */
double *bench_worker_turns(bench_worker *worker, size_t *count);
void bench_worker_free(bench_worker *worker);
/* Computes for so long: an idle card has slow clocks. */
void bench_warm(bench_pair *pair, double seconds);

/* ---- clocks.c ---- */

bench_clocks bench_clocks_now(const bench_pair *pair);

/* ---- kinds of cases: rounds.c, extras.c, beside.c ---- */

void bench_run_rounds(bench_pair *pair);
void bench_run_rounds_beside_producer(bench_pair *pair);
void bench_run_matrix(bench_pair *pair);
void bench_run_first(bench_pair *pair);
void bench_run_calls(bench_pair *pair);
void bench_run_beside_multiply(bench_pair *pair);
void bench_run_beside_launch(bench_pair *pair);

#endif
