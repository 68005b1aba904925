/* What the files of the probe share. It asks a driver, and the system around it, what all the rest depends on: each
 * question in a process of its own, which may crash, hang, or break its context. */
#ifndef KVF_BENCH_GPU_PROBE_H
#define KVF_BENCH_GPU_PROBE_H

#include <stdbool.h>

#include "memory/cuda/cuda_api.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

typedef struct question {
  const char *name;
  void (*ask)(void); /* NULL: two processes answer, as ask_pair() has it */
  double limit_s;    /* 0: the usual one */
  void (*parent)(int fd);
  void (*child)(int fd);
  size_t bytes; /* of the memory that they share */
} question;

extern const question one_process[];
extern const size_t one_process_count;
extern const question two_processes[];
extern const size_t two_processes_count;
void ask_pair(const question *asked);

/* ---- answers (main.c): fields of the question's line, kept even if its process ends here ---- */

void say_number(const char *name, double value);
void say_text(const char *name, const char *text);
/* The error's name. */
void say_result(const char *name, kvf_cu_result result);
/* Of a call of the system's: 0, or errno. */
void say_errno(const char *name, long result);
double now_ms(void);

/* ---- the driver (main.c) ---- */

typedef struct driver {
  kvf_cuda_api api;
  kvf_cu_device device; /* the first */
  bool is_fake;         /* its memory is the host's */
  kvf_cu_result (*mem_alloc)(kvf_cu_memory *address, size_t bytes);
  kvf_cu_result (*mem_free)(kvf_cu_memory address);
  kvf_cu_result (*mem_get_info)(size_t *free_bytes, size_t *total_bytes);
  kvf_cu_result (*mem_create)(kvf_cu_allocation *out, size_t bytes, const kvf_cu_mem_allocation_prop *prop,
                              unsigned long long flags);
  kvf_cu_result (*stream_synchronize)(kvf_cu_stream stream);
  kvf_cu_result (*priority_range)(int *least, int *greatest); /* NULL: there is none */
} driver;

extern driver cuda;

/* Ends the question, and says which call has failed, unless `result` is a success. */
#define must(result) expect(result, #result)
void expect(kvf_cu_result result, const char *call);
_Noreturn void give_up(const char *why);
/* Loads it, without a call. */
void load_driver(void);
/* With cuInit(). */
void init_driver(void);
/* With a context, which becomes the thread's. */
void enter_driver(void);
kvf_cu_stream make_stream(void);
kvf_cu_memory allocate(size_t bytes);
/* Whole words of 8 bytes, on the stream; waited for. */
void fill(kvf_cu_memory to, size_t bytes, uint64_t word);
/* Begins a kernel that takes so long, by those of the tests. False: the driver takes none. */
bool begin_kernel(kvf_cu_stream stream, kvf_cu_memory scratch, uint64_t ns);
/* ms until the stream has nothing left. */
double drain_ms(kvf_cu_stream stream);

#endif
