/* The operations of a kind of memory. Only they read or write the bytes of a region. Elsewhere a region's address is
 * only a name, unless its kind says that it can be used as a pointer.
 *
 * Any thread may call them, several at once. None may be called under a lock that others wait for, unless it says so.
 * What they wait for is the device, and for import() and read() the peer's process: see transport/local.
 */
#ifndef KVF_MEMORY_MEMORY_H
#define KVF_MEMORY_MEMORY_H

#include <stdbool.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/transfer.h"
#include "kvferry/node.h"

#define KVF_MEMORY_EXPORT_BYTES_MAX 128

#define KVF_MEMORY_BATCH_RUNS_MAX 2048 /* of one step of read(), for all kinds */
#define KVF_MEMORY_NO_DEVICE UINT32_MAX

typedef struct kvf_memory_ops kvf_memory_ops;

/* A peer's region, as it can be read here. */
typedef struct kvf_memory_import {
  const kvf_memory_ops *ops; /* of its kind */
  uint64_t base;             /* what read() calls its first byte */
  void *state;               /* the kind's own */
} kvf_memory_import;

/* What a process needs to import a region of another. */
typedef struct kvf_memory_source {
  pid_t pid;       /* that `exported` comes from; it may be lying */
  uint32_t device; /* of this kind, that reads it; KVF_MEMORY_NO_DEVICE: the host does */
  const void *exported;
  size_t exported_bytes;
  uint64_t region_bytes; /* that are to be there */
} kvf_memory_source;

/* How a device brings many runs together; 0 of each: as its kind does it. */
typedef struct kvf_memory_gather {
  uint32_t bytes;   /* runs shorter than that, on average, by a kernel of its own */
  uint32_t blocks;  /* of that kernel, at most */
  uint32_t threads; /* of each block */
} kvf_memory_gather;

/* Runs of equal length, from a peer's regions to ours, of which those before `first` have been read. */
typedef struct kvf_memory_batch {
  const kvf_memory_import *import; /* of the first run; the others' come from the same process, for the same device */
  const kvf_memory_ops *into;      /* the kind of `to`: addressable, or that of the import */
  size_t first;
  size_t count;
  kvf_memory_gather gather;
  kvf_read_work *work;                              /* read() adds what a device took */
  struct iovec to[KVF_MEMORY_BATCH_RUNS_MAX + 1];   /* one for who wants to know more of the peer in the same step */
  struct iovec from[KVF_MEMORY_BATCH_RUNS_MAX + 1]; /* a kvf_memory_import's base and an offset */
} kvf_memory_batch;

/* A step of read() that is under way. */
typedef struct kvf_memory_step {
  const kvf_memory_import *import;
  void *state; /* the kind's own */
  uint64_t bytes;
  uint64_t since_ns;
} kvf_memory_step;

/* Copies that are begun, between runs of regions and pinned memory, and waited for later: for memory/stage.h. */
typedef struct kvf_stage_ops {
  /* Two halves of KVF_STAGE_HALF_BYTES. False: there is none. */
  bool (*open)(uint32_t device, uint8_t *halves[2], void **state);
  void (*close)(void *state);
  bool (*copy)(void *state, const struct iovec *to, const struct iovec *from, size_t count);
  /* The half is done when all is that has been begun. */
  bool (*mark)(void *state, unsigned half);
  bool (*wait)(void *state, unsigned half);
} kvf_stage_ops;

struct kvf_memory_ops {
  kvf_memory_kind kind;
  /* Any code may read and write it by its address, and does so if that is faster than copy_in() and copy_out(). */
  bool is_addressable;
  /* Maximum runs and bytes of one step of read(). A cancel waits for one step. The limits are large enough that the
   * cost of a step is small beside that of its bytes. */
  uint32_t batch_runs_max;
  uint64_t batch_bytes_max;

  /* Finds what the machine needs for it: `library`, or if that is "" the usual one. Need not be called: then the usual
   * one is looked for when it is needed. `message` (KVF_MESSAGE_BYTES_MAX, here and below) says on KVF_OK what was
   * found, and on KVF_TRANSFER_SETUP what to do. NULL: it needs nothing. */
  kvf_status (*open)(const char *library, char *message);
  /* What the index-th device that open() finds can do, in one line, for people. What is tried on it is taken back.
   * KVF_TRANSFER_SETUP: most of its memory cannot be read by other processes, or as open(). KVF_TRANSFER_FAILED,
   * KVF_NO_MEMORY: as remark(). KVF_NOT_FOUND: there are no more. NULL: the kind has no devices. */
  kvf_status (*describe)(uint32_t index, char *message);
  /* One line: features of the device that this process can only use in a slower way, and the remedy. "": none, or the
   * device has not been used. NULL: the kind has no slower way. */
  void (*remark)(uint32_t device, char *message);
  /* False: the device is lost, and all of its memory with it. NULL: that cannot be. */
  bool (*works)(uint32_t device);

  /* Whether the region is memory of this kind and on its device, and can be read. KVF_INVALID: the message
   * says what it is. KVF_TRANSFER_SETUP: as open(). */
  kvf_status (*check)(const kvf_region *region, char *message);

  /* Between host memory and runs of regions on a device, of equal length on both sides; batch_runs_max at most. When
   * they return the bytes are where they should be. False: they are not, since the device has failed. */
  bool (*copy_in)(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count);
  bool (*copy_out)(uint32_t device, const struct iovec *to, const struct iovec *from, size_t count);
  const kvf_stage_ops *stage; /* NULL: copy_in and copy_out are all */

  /* The same copy between regions and memory of pin(), begun in the point's queue behind what that has been given.
   * False: the device has failed, and what of it has been begun nobody knows. NULL: the kind has no queues. */
  bool (*copy_on)(const kvf_ordering_point *point, const struct iovec *to, const struct iovec *from, size_t count);
  /* Host memory that the device can copy from while the host goes on; *pinned is for unpin(), when no copy from it is
   * under way. False: there is none. NULL: any memory is as good. */
  bool (*pin)(uint32_t device, size_t bytes, uint8_t **memory, void **pinned);
  void (*unpin)(void *pinned);
  /* kvf_checksum() of runs of regions on a device, batch_runs_max at most. False: the device has failed. */
  bool (*checksums)(uint32_t device, const struct iovec *runs, size_t count, uint64_t *out);

  /* For those who read and write a device's memory by themselves, as a network's adapter does. The first calls run()
   * where the calling thread has what belongs to the device: libraries that register memory look for it there. False:
   * the device is lost, and nothing was called. NULL: there is nothing to be had. */
  bool (*within)(uint32_t device, void (*run)(void *argument), void *argument);
  /* Bytes that the host knows to be written to its memory become visible for all of the device's work, also for earlier
   * submitted work. False: the device is lost, or cannot do it. NULL: they are visible at once. */
  bool (*flush)(uint32_t device);

  /* Whether work that is given to the point's queue now is done in its turn. KVF_INVALID: it is recorded, and done
   * later or never; or the point is none of the kind's. Else the device refuses. NULL: as mark. */
  kvf_status (*check_point)(const kvf_ordering_point *point);
  /* Notes an ordering point, which is the caller's again when this returns: *mark is for unmark(). Also under the
   * node's lock. NULL: the kind knows none. KVF_INVALID: as check_point(). Else the device refused, or there is no
   * memory. */
  kvf_status (*mark)(const kvf_ordering_point *point, void **mark);
  /* Whether it is complete, without waiting. Once it is, it stays so, and what is read or written by anyone afterwards
   * comes after all that was before the point. */
  bool (*is_complete)(void *mark);
  void (*unmark)(void *mark);

  /* What a process on this host needs to read the region: at most KVF_MEMORY_EXPORT_BYTES_MAX bytes. Good for as long
   * as the region is registered, and until unexport(). KVF_TRANSFER_SETUP: this memory cannot be read by others; the
   * message says why. */
  kvf_status (*export)(const kvf_region *region, void *out, size_t *bytes, char *message);
  /* NULL: there is nothing to take back. */
  void (*unexport)(const void *exported);
  /* In the other process. On KVF_OK *out is the caller's, for release(), and stays readable even if the process ends.
   * Only the fence says, after the read, whether the process is alive and the bytes are its own. KVF_TRANSFER_SETUP: it
   * cannot be read; the message says why. */
  kvf_status (*import)(const kvf_memory_source *source, kvf_memory_import *out, char *message);
  /* NULL: there is nothing to release. */
  void (*release)(kvf_memory_import *import);
  /* One step: reads some of the batch, from batch->first on; *bytes is how many, the caller moves it on. `to` is
   * addressable, or of this kind. When it returns nothing writes to it. KVF_PEER_DOWN: the process is gone.
   * KVF_TRANSFER_FAILED: it is there, the memory is not, or may not be read. KVF_NO_MEMORY: of the kernel. */
  kvf_status (*read)(pid_t pid, const kvf_memory_batch *batch, uint64_t *bytes);
  /* read() of a whole batch into the kind's own memory, in two calls of one thread. On KVF_OK begin() has begun it, and
   * finish() must follow; read()'s promises hold after finish(). Meanwhile the batch, except its import, is the
   * caller's, to be filled anew. On failure no part of it is under way. `before`: the one step of this thread that is
   * under way, from the same device. This one goes behind it, and `before` is finished first. `before` NULL: there is
   * none. Operation NULL: there is only read(). */
  kvf_status (*begin)(const kvf_memory_batch *batch, const kvf_memory_step *before, kvf_memory_step *step);
  kvf_status (*finish)(kvf_memory_step *step, kvf_read_work *work);
};

/* The operations of a kind, constant; NULL: the library does not know it. `kind` may come from a peer. */
const kvf_memory_ops *kvf_memory_ops_of(uint32_t kind);

extern const kvf_memory_ops kvf_memory_host;
extern const kvf_memory_ops kvf_memory_cuda; /* CUDA's: cuda/ */

/* What an errno of process_vm_readv means to a read. */
kvf_status kvf_memory_host_error(int error);

/* Whether `bytes` bytes from `address` lie in what a process can have. */
static inline bool kvf_address_is_possible(uint64_t address, uint64_t bytes)
{
  return address != 0 && address <= INT64_MAX && bytes <= INT64_MAX - address;
}

/* ---- of several regions, of known kinds where nothing else is said ---- */

/* A bit for each kind among them. */
uint32_t kvf_memory_kinds(const kvf_region *regions, uint32_t count);
bool kvf_memory_all_are_addressable(const kvf_region *regions, uint32_t count);
bool kvf_memory_any_has_points(const kvf_region *regions, uint32_t count);
/* The devices that they are on, by kind; KVF_MEMORY_NO_DEVICE where there are none. */
typedef struct kvf_memory_devices {
  uint32_t of_kind[KVF_MEMORY_KINDS_MAX];
} kvf_memory_devices;

kvf_memory_devices kvf_memory_devices_of(const kvf_region *regions, uint32_t count);
/* False: one of them is lost. */
bool kvf_memory_works(const kvf_memory_devices *devices);
/* flush() of each of them. False: of one. */
bool kvf_memory_flush(const kvf_memory_devices *devices);
/* Checks that each region is memory of its kind (which may be an unknown one), and that all of a kind are on one
 * device. Their layouts are valid. KVF_INVALID: the message names the region. Else as check(). */
KVF_MUST_USE kvf_status kvf_memory_check(const kvf_region *regions, uint32_t count, char *message);

/* What has been exported of several, as it comes from a peer. */
typedef struct kvf_memory_exports {
  const uint8_t *next;
  size_t bytes; /* that are left */
} kvf_memory_exports;

/* Adds the exports of these to a list of *used bytes. KVF_LIMIT: there is no room for them. Else as export(). */
KVF_MUST_USE kvf_status kvf_memory_export(const kvf_region *regions, uint32_t count, uint8_t *list, size_t room,
                                          size_t *used, char *message);
/* Whether there are so many in the list, and nothing else. */
bool kvf_memory_exports_are_whole(kvf_memory_exports list, uint32_t count);
/* Takes all of them back. */
void kvf_memory_unexport(const kvf_region *regions, uint32_t count, kvf_memory_exports list);
/* Imports the next; the source has all but what is exported. As import(). KVF_TRANSFER_SETUP also if the kind
 * is not known. */
KVF_MUST_USE kvf_status kvf_memory_import_next(kvf_memory_exports *list, uint32_t kind, kvf_memory_source source,
                                               kvf_memory_import *out, char *message);
void kvf_memory_release(kvf_memory_import *imports, uint32_t count);

#endif
