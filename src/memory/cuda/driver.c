/* Finds the driver's functions and devices, and makes a context a thread's for a while: the engine does not notice. */
#include "memory/cuda/driver.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "memory/library.h"

#define REASON_BYTES 96
#define TRIED_BYTES 56
#define DEVICES_BYTES 200

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static kvf_cuda loaded;
static bool is_loaded;

/* ---- the library ---- */

static const kvf_library_function functions[] = {
#define FUNCTION(symbol, field) {#symbol, offsetof(kvf_cuda_api, field)},
    KVF_CUDA_CALLS(FUNCTION)
#undef FUNCTION
};

/* By the version in which it has our form: a later one has the same name. */
static void find_batch(kvf_cuda *out)
{
  void *found = NULL;
  unsigned status = 0;
  if (out->version >= KVF_CUDA_VERSION_BATCH &&
      out->api.get_proc_address("cuMemcpyBatchAsync", &found, KVF_CUDA_VERSION_BATCH, KVF_CU_GET_PROC_ADDRESS_DEFAULT,
                                &status) == KVF_CUDA_SUCCESS) {
    memcpy(&out->api.memcpy_batch_async, &found, sizeof(found));
  }
}

static bool begin(kvf_cuda *out, char reason[REASON_BYTES])
{
  if (out->api.driver_get_version(&out->version) != KVF_CUDA_SUCCESS || out->version < KVF_CUDA_VERSION_MIN) {
    (void)snprintf(reason, REASON_BYTES, "the driver is for CUDA %d.%d, and %d.%d or later is needed",
                   out->version / 1000, out->version % 1000 / 10, KVF_CUDA_VERSION_MIN / 1000,
                   KVF_CUDA_VERSION_MIN % 1000 / 10);
    return false;
  }
  kvf_cu_result result = out->api.init(0);
  if (result != KVF_CUDA_SUCCESS) {
    (void)snprintf(reason, REASON_BYTES, "cuInit: %s", kvf_cuda_error_name(out, result));
    return false;
  }
  find_batch(out);
  return true;
}

/* ---- devices ---- */

static bool look_at_device(const kvf_cuda_api *api, int ordinal, kvf_cuda_device *out)
{
  if (api->device_get(&out->ordinal, ordinal) != KVF_CUDA_SUCCESS ||
      api->device_get_uuid(&out->uuid, out->ordinal) != KVF_CUDA_SUCCESS) {
    return false;
  }
  if (api->device_get_name(out->name, sizeof(out->name), out->ordinal) != KVF_CUDA_SUCCESS) {
    (void)snprintf(out->name, sizeof(out->name), "device %d", ordinal);
  }
  out->name[sizeof(out->name) - 1] = '\0';
  return true;
}

static bool find_devices(kvf_cuda *out, char reason[REASON_BYTES])
{
  int count = 0;
  kvf_cu_result result = out->api.device_get_count(&count);
  if (result != KVF_CUDA_SUCCESS) {
    (void)snprintf(reason, REASON_BYTES, "cuDeviceGetCount: %s", kvf_cuda_error_name(out, result));
    return false;
  }
  out->devices_count = 0;
  for (int i = 0; i < count && i < KVF_CUDA_DEVICES_MAX; i++) {
    if (look_at_device(&out->api, i, &out->devices[out->devices_count])) {
      out->devices_count++;
    }
  }
  if (out->devices_count == 0) {
    (void)snprintf(reason, REASON_BYTES, "it shows this process no device");
  }
  return out->devices_count > 0;
}

static bool load(const char *library, kvf_cuda *out, char reason[REASON_BYTES])
{
  memset(out, 0, sizeof(*out));
  return kvf_library_open(library, functions, sizeof(functions) / sizeof(functions[0]), &out->api, reason,
                          REASON_BYTES) &&
         begin(out, reason) && find_devices(out, reason);
}

/* ---- what is said ---- */

/* As many devices as there is room for. */
static void describe(const kvf_cuda *cuda, char *message)
{
  char list[DEVICES_BYTES] = "";
  size_t used = 0;
  for (uint32_t i = 0; i < cuda->devices_count; i++) {
    char one[KVF_CUDA_NAME_BYTES + KVF_CUDA_UUID_BYTES + 16];
    char uuid[KVF_CUDA_UUID_BYTES];
    kvf_cuda_write_uuid(&cuda->devices[i].uuid, uuid);
    int bytes = snprintf(one, sizeof(one), "%s%d %s %s", i == 0 ? ": " : ", ", (int)cuda->devices[i].ordinal,
                         cuda->devices[i].name, uuid);
    if ((size_t)bytes + sizeof(", ...") > sizeof(list) - used) {
      (void)snprintf(list + used, sizeof(list) - used, ", ...");
      break;
    }
    memcpy(list + used, one, (size_t)bytes + 1);
    used += (size_t)bytes;
  }
  (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "CUDA %d.%d%s, %u device%s%s", cuda->version / 1000,
                 cuda->version % 1000 / 10, cuda->api.memcpy_batch_async == NULL ? " (no batch copies)" : "",
                 (unsigned)cuda->devices_count, cuda->devices_count == 1 ? "" : "s", list);
}

kvf_status kvf_cuda_load(const char *library, const kvf_cuda **out, char *message)
{
  const char *tried = library[0] == '\0' ? KVF_CUDA_LIBRARY : library;
  char reason[REASON_BYTES];
  *out = NULL;
  (void)pthread_mutex_lock(&lock);
  if (!is_loaded) {
    is_loaded = load(tried, &loaded, reason);
  }
  const bool good = is_loaded;
  (void)pthread_mutex_unlock(&lock);
  if (!good) {
    return kvf_fail(KVF_TRANSFER_SETUP, message,
                    "CUDA cannot be used: %.*s: %s; install NVIDIA's driver, give the container its GPUs, or set "
                    "cuda_library",
                    TRIED_BYTES, tried, reason);
  }
  describe(&loaded, message);
  *out = &loaded;
  return KVF_OK;
}

const kvf_cuda_device *kvf_cuda_device_of(const kvf_cuda *cuda, const kvf_cu_uuid *uuid)
{
  for (uint32_t i = 0; i < cuda->devices_count; i++) {
    if (memcmp(&cuda->devices[i].uuid, uuid, sizeof(*uuid)) == 0) {
      return &cuda->devices[i];
    }
  }
  return NULL;
}

void kvf_cuda_write_uuid(const kvf_cu_uuid *uuid, char out[KVF_CUDA_UUID_BYTES])
{
  const uint8_t *b = uuid->bytes;
  (void)snprintf(out, KVF_CUDA_UUID_BYTES, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
                 b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* ---- errors ---- */

kvf_status kvf_cuda_status(kvf_cu_result result)
{
  switch (result) {
    case KVF_CUDA_SUCCESS:
      return KVF_OK;
    case KVF_CUDA_ERROR_OUT_OF_MEMORY:
      return KVF_NO_MEMORY;
    default:
      return KVF_TRANSFER_FAILED;
  }
}

const char *kvf_cuda_error_name(const kvf_cuda *cuda, kvf_cu_result result)
{
  const char *name = NULL;
  return cuda->api.get_error_name(result, &name) == KVF_CUDA_SUCCESS && name != NULL ? name : "an unknown error";
}

/* Those of which CUDA's header says that the process is in an inconsistent state, and those that end a context. */
bool kvf_cuda_is_sticky(kvf_cu_result result)
{
  switch (result) {
    case KVF_CUDA_ERROR_DEINITIALIZED:
    case KVF_CUDA_ERROR_ECC_UNCORRECTABLE:
    case KVF_CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case KVF_CUDA_ERROR_CONTAINED:
    case KVF_CUDA_ERROR_ILLEGAL_ADDRESS:
    case KVF_CUDA_ERROR_LAUNCH_TIMEOUT:
    case KVF_CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case KVF_CUDA_ERROR_ASSERT:
    case KVF_CUDA_ERROR_HARDWARE_STACK_ERROR:
    case KVF_CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case KVF_CUDA_ERROR_MISALIGNED_ADDRESS:
    case KVF_CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case KVF_CUDA_ERROR_INVALID_PC:
    case KVF_CUDA_ERROR_LAUNCH_FAILED:
    case KVF_CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case KVF_CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case KVF_CUDA_ERROR_EXTERNAL_DEVICE:
      return true;
    default:
      return false;
  }
}

/* ---- contexts ---- */

kvf_status kvf_cuda_context_retain(const kvf_cuda *cuda, const kvf_cuda_device *device, kvf_cu_context *out,
                                   char *message)
{
  *out = NULL;
  kvf_cu_result result = cuda->api.device_primary_ctx_retain(out, device->ordinal);
  if (result == KVF_CUDA_SUCCESS) {
    return KVF_OK;
  }
  return kvf_fail(kvf_cuda_status(result), message, "device %d (%s) has no context for this process: %s",
                  (int)device->ordinal, device->name, kvf_cuda_error_name(cuda, result));
}

void kvf_cuda_context_release(const kvf_cuda *cuda, const kvf_cuda_device *device)
{
  (void)cuda->api.device_primary_ctx_release(device->ordinal);
}

kvf_status kvf_cuda_enter(const kvf_cuda *cuda, kvf_cu_context context, kvf_cuda_stay *stay)
{
  kvf_cu_result result = cuda->api.ctx_push_current(context);
  *stay = (kvf_cuda_stay){.cuda = cuda, .capture_mode = KVF_CU_STREAM_CAPTURE_MODE_RELAXED};
  if (result == KVF_CUDA_SUCCESS) {
    result = cuda->api.thread_exchange_stream_capture_mode(&stay->capture_mode);
    if (result != KVF_CUDA_SUCCESS) {
      kvf_cu_context was;
      (void)cuda->api.ctx_pop_current(&was);
    }
  }
  return kvf_cuda_status(result);
}

void kvf_cuda_leave(const kvf_cuda_stay *stay)
{
  kvf_cu_context was;
  unsigned mode = stay->capture_mode;
  (void)stay->cuda->api.thread_exchange_stream_capture_mode(&mode);
  (void)stay->cuda->api.ctx_pop_current(&was);
}
