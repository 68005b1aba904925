/* The driver, its devices and their primary contexts. */
#include <stdio.h>
#include <string.h>

#include "state.h"

#define STACK_MAX 16

static context contexts[FAKE_CUDA_DEVICES_MAX];
static _Thread_local context *stack[STACK_MAX]; /* of the thread's contexts, the last one current */
static _Thread_local unsigned stack_depth;
static _Thread_local unsigned mode; /* KVF_CU_STREAM_CAPTURE_MODE_GLOBAL */

static bool is_device(kvf_cu_device device)
{
  return device >= 0 && (unsigned)device < fake.settings.devices_count;
}

/* ---- the driver ---- */

kvf_cu_result cuInit(unsigned flags)
{
  BEGIN(cuInit, NEEDS_NOTHING);
  if (flags != 0 || fake.is_forked) {
    return call_end(flags != 0 ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_ERROR_NOT_INITIALIZED);
  }
  if (fake.settings.devices_count == 0) {
    return call_end(KVF_CUDA_ERROR_NO_DEVICE);
  }
  for (int i = 0; i < FAKE_CUDA_DEVICES_MAX; i++) {
    contexts[i].device = i;
  }
  fake.is_initialised = true;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuDriverGetVersion(int *version)
{
  BEGIN(cuDriverGetVersion, NEEDS_NOTHING);
  *version = fake.settings.version;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuGetErrorName(kvf_cu_result error, const char **name)
{
  static const struct {
    kvf_cu_result error;
    const char *name;
  } names[] = {
#define NAME(error) {KVF_##error, #error}
      NAME(CUDA_SUCCESS),
      NAME(CUDA_ERROR_INVALID_VALUE),
      NAME(CUDA_ERROR_OUT_OF_MEMORY),
      NAME(CUDA_ERROR_NOT_INITIALIZED),
      NAME(CUDA_ERROR_NO_DEVICE),
      NAME(CUDA_ERROR_INVALID_DEVICE),
      NAME(CUDA_ERROR_INVALID_CONTEXT),
      NAME(CUDA_ERROR_MAP_FAILED),
      NAME(CUDA_ERROR_ECC_UNCORRECTABLE),
      NAME(CUDA_ERROR_JIT_COMPILER_NOT_FOUND),
      NAME(CUDA_ERROR_INVALID_HANDLE),
      NAME(CUDA_ERROR_NOT_FOUND),
      NAME(CUDA_ERROR_NOT_READY),
      NAME(CUDA_ERROR_ILLEGAL_ADDRESS),
      NAME(CUDA_ERROR_CONTEXT_IS_DESTROYED),
      NAME(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
      NAME(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
      NAME(CUDA_ERROR_LAUNCH_FAILED),
      NAME(CUDA_ERROR_NOT_PERMITTED),
      NAME(CUDA_ERROR_NOT_SUPPORTED),
      NAME(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
#undef NAME
  };
  BEGIN(cuGetErrorName, NEEDS_NOTHING);
  *name = NULL;
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && *name == NULL; i++) {
    *name = names[i].error == error ? names[i].name : NULL;
  }
  return call_end(*name == NULL ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_SUCCESS);
}

/* What is asked for by version, and nothing else. */
kvf_cu_result cuGetProcAddress_v2(const char *symbol, void **function, int version, uint64_t flags,
                                  unsigned *symbol_status)
{
  __typeof__(&fake_batch) found = fake_batch;
  const bool is_known = strcmp(symbol, "cuMemcpyBatchAsync") == 0;
  const bool has = fake.settings.version >= KVF_CUDA_VERSION_BATCH && version == KVF_CUDA_VERSION_BATCH;
  BEGIN(cuGetProcAddress_v2, NEEDS_NOTHING);
  *function = NULL;
  *symbol_status = is_known ? (has ? 0 : 2) : 1;
  if (flags != KVF_CU_GET_PROC_ADDRESS_DEFAULT || !is_known || !has) {
    return call_end(KVF_CUDA_ERROR_NOT_FOUND);
  }
  memcpy(function, &found, sizeof(found));
  return call_end(KVF_CUDA_SUCCESS);
}

/* ---- devices ---- */

kvf_cu_uuid device_uuid(unsigned physical)
{
  kvf_cu_uuid uuid = {{0xfa, 0x4e, 0xcd, 0xa0}};
  uuid.bytes[15] = (uint8_t)physical;
  return uuid;
}

kvf_cu_result cuDeviceGetCount(int *count)
{
  BEGIN(cuDeviceGetCount, NEEDS_INIT);
  *count = (int)fake.settings.devices_count;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuDeviceGet(kvf_cu_device *device, int ordinal)
{
  BEGIN(cuDeviceGet, NEEDS_INIT);
  *device = ordinal;
  return call_end(is_device(ordinal) ? KVF_CUDA_SUCCESS : KVF_CUDA_ERROR_INVALID_DEVICE);
}

kvf_cu_result cuDeviceGetName(char *name, int bytes, kvf_cu_device device)
{
  BEGIN(cuDeviceGetName, NEEDS_INIT);
  if (!is_device(device)) {
    return call_end(KVF_CUDA_ERROR_INVALID_DEVICE);
  }
  (void)snprintf(name, (size_t)bytes, "Fake GPU %u", fake.settings.devices[device]);
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuDeviceGetUuid_v2(kvf_cu_uuid *uuid, kvf_cu_device device)
{
  BEGIN(cuDeviceGetUuid_v2, NEEDS_INIT);
  if (!is_device(device)) {
    return call_end(KVF_CUDA_ERROR_INVALID_DEVICE);
  }
  *uuid = device_uuid(fake.settings.devices[device]);
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuDeviceGetAttribute(int *value, unsigned attribute, kvf_cu_device device)
{
  BEGIN(cuDeviceGetAttribute, NEEDS_INIT);
  if (!is_device(device)) {
    return call_end(KVF_CUDA_ERROR_INVALID_DEVICE);
  }
  switch (attribute) {
    case KVF_CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case KVF_CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case KVF_CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
    case KVF_CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED:
      *value = 1;
      break;
    case KVF_CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
      *value = 9;
      break;
    case KVF_CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING:
      *value = fake.settings.network_order;
      break;
    case KVF_CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
      *value = fake.settings.numa_node < 0 ? -1 : fake.settings.numa_node + (int)fake.settings.devices[device];
      break;
    case KVF_CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
      *value = fake.settings.has_host_pointers;
      break;
    case KVF_CU_DEVICE_ATTRIBUTE_PCI_BUS_ID:
      *value = (int)fake.settings.devices[device] + 1;
      break;
    default:
      *value = 0;
      break;
  }
  return call_end(KVF_CUDA_SUCCESS);
}

/* All of the host's can read each other. */
kvf_cu_result cuDeviceCanAccessPeer(int *can, kvf_cu_device device, kvf_cu_device peer)
{
  BEGIN(cuDeviceCanAccessPeer, NEEDS_INIT);
  if (!is_device(device) || !is_device(peer)) {
    return call_end(KVF_CUDA_ERROR_INVALID_DEVICE);
  }
  *can = device != peer;
  return call_end(KVF_CUDA_SUCCESS);
}

/* ---- primary contexts ---- */

context *context_of(int device)
{
  return &contexts[device];
}

context *context_current(void)
{
  return stack_depth == 0 ? NULL : stack[stack_depth - 1];
}

void context_break(context *lost, kvf_cu_result error)
{
  if (lost->error == KVF_CUDA_SUCCESS) {
    lost->error = error;
  }
  (void)pthread_cond_broadcast(&fake.changed);
}

/* Once it was lost it stays so: the process is to be ended. */
static void context_end(context *ended)
{
  streams_end(ended);
  memory_end(ended);
  ended->legacy = NULL;
  ended->modules = 0;
  ended->launched = 0;
}

void contexts_reset(void)
{
  for (int i = 0; i < FAKE_CUDA_DEVICES_MAX; i++) {
    contexts[i] = (context){.device = i};
  }
}

void contexts_count(fake_cuda_open *out)
{
  for (int i = 0; i < FAKE_CUDA_DEVICES_MAX; i++) {
    out->contexts += contexts[i].retains;
    out->modules += contexts[i].modules;
  }
}

kvf_cu_result cuDevicePrimaryCtxRetain(kvf_cu_context *out, kvf_cu_device device)
{
  BEGIN(cuDevicePrimaryCtxRetain, NEEDS_INIT);
  if (!is_device(device)) {
    return call_end(KVF_CUDA_ERROR_INVALID_DEVICE);
  }
  context *retained = context_of(device);
  if (retained->error != KVF_CUDA_SUCCESS) {
    return call_end(retained->error);
  }
  if (retained->retains++ == 0) {
    retained->legacy = stream_create(retained);
  }
  *out = retained;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuDevicePrimaryCtxRelease_v2(kvf_cu_device device)
{
  BEGIN(cuDevicePrimaryCtxRelease_v2, NEEDS_INIT);
  if (!is_device(device) || context_of(device)->retains == 0) {
    return call_end(is_device(device) ? KVF_CUDA_ERROR_INVALID_CONTEXT : KVF_CUDA_ERROR_INVALID_DEVICE);
  }
  if (--context_of(device)->retains == 0) {
    context_end(context_of(device));
  }
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuCtxPushCurrent_v2(kvf_cu_context pushed)
{
  BEGIN(cuCtxPushCurrent_v2, NEEDS_INIT);
  if (pushed == NULL || pushed->retains == 0 || stack_depth == STACK_MAX) {
    return call_end(pushed == NULL ? KVF_CUDA_ERROR_INVALID_CONTEXT : KVF_CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  stack[stack_depth++] = pushed;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuCtxPopCurrent_v2(kvf_cu_context *popped)
{
  BEGIN(cuCtxPopCurrent_v2, NEEDS_INIT);
  if (stack_depth == 0) {
    return call_end(KVF_CUDA_ERROR_INVALID_CONTEXT);
  }
  *popped = stack[--stack_depth];
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuCtxGetCurrent(kvf_cu_context *current)
{
  BEGIN(cuCtxGetCurrent, NEEDS_INIT);
  *current = context_current();
  return call_end(KVF_CUDA_SUCCESS);
}

unsigned capture_mode(void)
{
  return mode;
}

kvf_cu_result cuThreadExchangeStreamCaptureMode(unsigned *exchanged)
{
  BEGIN(cuThreadExchangeStreamCaptureMode, NEEDS_INIT);
  const unsigned was = mode;
  if (*exchanged > KVF_CU_STREAM_CAPTURE_MODE_RELAXED) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  mode = *exchanged;
  *exchanged = was;
  return call_end(KVF_CUDA_SUCCESS);
}

void fake_cuda_stall_device(int device, bool still)
{
  (void)pthread_mutex_lock(&fake.lock);
  context_of(device)->is_stalled = still;
  (void)pthread_cond_broadcast(&fake.changed);
  (void)pthread_mutex_unlock(&fake.lock);
}
