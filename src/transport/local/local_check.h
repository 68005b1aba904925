/* Checks a peer's process before its memory is read: that it exists, may be read, and is the one that described itself.
 * Then imports its memory. The kernel may block a check, so each check has its own thread, and no other thread waits
 * for it. */
#ifndef KVF_TRANSPORT_LOCAL_LOCAL_CHECK_H
#define KVF_TRANSPORT_LOCAL_LOCAL_CHECK_H

#include <stdatomic.h>
#include <sys/types.h>

#include "transport/local/description.h"
#include "transport/thread.h"

/* Looks under way in this process, those included that were abandoned and are stuck: all, and at one process. */
#define KVF_LOCAL_CHECKS_MAX 64
#define KVF_LOCAL_CHECKS_OF_ONE_MAX 8

/* The thread and its starter hold it; the last one frees it, with its results. */
typedef struct kvf_local_check {
  kvf_local_description description;
  uint64_t generation; /* that it must be of */
  int wake_fd;
  pid_t *place; /* among those that are under way */
  atomic_uint refs;
  atomic_bool done;

  /* The thread's until it is done. */
  kvf_status status; /* KVF_OK; KVF_TRANSFER_SETUP or KVF_AGAIN with a message */
  char message[KVF_MESSAGE_BYTES_MAX];
  int pidfd;
  void *fence;                /* the table, mapped; NULL: it cannot be */
  uint32_t imports_count;     /* 0 unless all are there: */
  kvf_memory_import *imports; /* of its regions, then of their checksums */
  kvf_region_layout *remote;
  uint8_t *exports;           /* description.exports_bytes, as the process has them */
  kvf_memory_devices devices; /* that will read them */
} kvf_local_check;

/* The data of a peer: its description, its layouts, its registration, and the devices that will read it. Everything is
 * copied. */
typedef struct kvf_local_check_spec {
  const kvf_local_description *description;
  uint64_t generation;
  const kvf_region_layout *remote;
  kvf_memory_devices devices;
} kvf_local_check_spec;

/* `wake_fd`, an eventfd, becomes readable when it is done; it may be closed before. KVF_LIMIT: too many are under way.
 * KVF_NO_MEMORY, KVF_SYSTEM: no descriptor or thread left, as the message says. */
KVF_MUST_USE kvf_status kvf_local_check_start(const kvf_local_check_spec *spec, int wake_fd,
                                              const kvf_thread_cpus *cpus, kvf_local_check **out, char *message);
bool kvf_local_check_is_done(kvf_local_check *check);
/* Nobody wants to know any more; if it is under way, it ends by itself. NULL is allowed. */
void kvf_local_check_drop(kvf_local_check *check);

#endif
