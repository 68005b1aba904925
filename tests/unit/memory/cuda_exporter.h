/* A process that exports memory of its device 0: a child of a test's program, whose main() calls exporter_run(). */
#ifndef KVF_TESTS_CUDA_EXPORTER_H
#define KVF_TESTS_CUDA_EXPORTER_H

#include "child_process.h"
#include "cuda_kind.h"

#define EXPORTER_MODE "exports"

typedef enum exporter_kind { EXPORT_ALLOCATION, EXPORT_MAPPINGS } exporter_kind;

/* What it is to make: a region in this, that is written by kind_write(), and exported. */
typedef struct exporter_order {
  exporter_kind kind;
  unsigned mappings;     /* of equal length; 0 with EXPORT_ALLOCATION */
  unsigned handle_types; /* with EXPORT_MAPPINGS */
  size_t bytes;
  size_t offset;
  size_t region_bytes;
  uint64_t seed;
} exporter_order;

typedef struct exporter_reply {
  pid_t pid;
  kvf_status status;
  char message[KVF_MESSAGE_BYTES_MAX];
  kind_export exported;
  unsigned descriptors_before; /* before the export */
  unsigned allocations_before;
  unsigned descriptors;
  unsigned allocations;
  bool is_written; /* the region is as it was */
} exporter_reply;

typedef enum exporter_question { EXPORTER_LOOK, EXPORTER_UNEXPORT } exporter_question;

exporter_reply exporter_start(child_process *child, const exporter_order *order);
exporter_reply exporter_ask(const child_process *child, exporter_question question);
void exporter_end(const child_process *child);
void exporter_kill(const child_process *child);

/* In the child. */
int exporter_run(void);

#endif
