/* CUDA's driver, loaded at the first call in the process, for the rest of the process' life. Also its devices, and
 * their primary contexts, which the engine uses too. */
#ifndef KVF_MEMORY_CUDA_DRIVER_H
#define KVF_MEMORY_CUDA_DRIVER_H

#include <stdbool.h>

#include "kvferry/types.h"
#include "memory/cuda/cuda_api.h"

/* The driver's installer puts it where the system's loader looks; containers are given the host's. */
#define KVF_CUDA_LIBRARY "libcuda.so.1"

#define KVF_CUDA_DEVICES_MAX 64 /* more are not looked at */
#define KVF_CUDA_NAME_BYTES 48
#define KVF_CUDA_UUID_BYTES 41 /* "GPU-" and 36 characters, with the terminating zero */

typedef struct kvf_cuda_device {
  kvf_cu_device ordinal; /* of this process */
  kvf_cu_uuid uuid;      /* of the device, in every process */
  char name[KVF_CUDA_NAME_BYTES];
} kvf_cuda_device;

/* What was found. Constant once it has been. */
typedef struct kvf_cuda {
  kvf_cuda_api api;
  int version;
  uint32_t devices_count; /* one at least */
  kvf_cuda_device devices[KVF_CUDA_DEVICES_MAX];
} kvf_cuda;

/* `library`: a path, or a name for the system's loader; "": KVF_CUDA_LIBRARY. The first one that is loaded serves the
 * whole process, for all callers. A failure is not kept: the next call tries again. Any thread; the first call may take
 * a second. `message` (KVF_MESSAGE_BYTES_MAX) is one line. On KVF_OK it names the driver and devices. On
 * KVF_TRANSFER_SETUP it names the library that was tried, the problem, and the remedy. */
KVF_MUST_USE kvf_status kvf_cuda_load(const char *library, const kvf_cuda **out, char *message);

/* NULL: it is not among those that this process sees. */
const kvf_cuda_device *kvf_cuda_device_of(const kvf_cuda *cuda, const kvf_cu_uuid *uuid);
/* "GPU-" and so on, as nvidia-smi and CUDA_VISIBLE_DEVICES have it. */
void kvf_cuda_write_uuid(const kvf_cu_uuid *uuid, char out[KVF_CUDA_UUID_BYTES]);

/* What a driver's error means to the call that met it: KVF_NO_MEMORY, or KVF_TRANSFER_FAILED. */
kvf_status kvf_cuda_status(kvf_cu_result result);
/* Its name, or "an unknown error". */
const char *kvf_cuda_error_name(const kvf_cuda *cuda, kvf_cu_result result);
/* Whether the context in which it was met is lost with it, and with the context the engine: all further calls fail. */
bool kvf_cuda_is_sticky(kvf_cu_result result);

/* The primary context of the device, made if there is none yet; it stays until as many have released it as have
 * retained it. Otherwise as kvf_cuda_status(), and the message says why. */
KVF_MUST_USE kvf_status kvf_cuda_context_retain(const kvf_cuda *cuda, const kvf_cuda_device *device,
                                                kvf_cu_context *out, char *message);
void kvf_cuda_context_release(const kvf_cuda *cuda, const kvf_cuda_device *device);

/* What a thread comes back to. */
typedef struct kvf_cuda_stay {
  const kvf_cuda *cuda;
  unsigned capture_mode;
} kvf_cuda_stay;

/* Makes it the calling thread's current context. kvf_cuda_leave() on the same thread restores the context that was
 * current before, if there was one. Meanwhile none of the thread's calls ends the capture of a CUDA graph by a thread
 * of the engine. On failure nothing was changed, and kvf_cuda_leave() must not be called. */
KVF_MUST_USE kvf_status kvf_cuda_enter(const kvf_cuda *cuda, kvf_cu_context context, kvf_cuda_stay *stay);
void kvf_cuda_leave(const kvf_cuda_stay *stay);

#endif
