/* What the driver's management library says of the clocks: read, never set. */
#include <dlfcn.h>
#include <string.h>

#include "gpu_bench.h"

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 }; /* of nvml.h */

typedef struct nvml {
  int (*init)(void);
  int (*by_uuid)(const char *uuid, void **device);
  int (*clock)(void *device, unsigned type, unsigned *mhz);
} nvml;

static bool find(void *library, const char *symbol, void *field)
{
  void *found = dlsym(library, symbol);
  memcpy(field, &found, sizeof(found));
  return found != NULL;
}

static bool load(nvml *out)
{
  void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  return library != NULL && find(library, "nvmlInit_v2", &out->init) &&
         find(library, "nvmlDeviceGetHandleByUUID", &out->by_uuid) &&
         find(library, "nvmlDeviceGetClockInfo", &out->clock) && out->init() == 0;
}

bench_clocks bench_clocks_now(const bench_pair *pair)
{
  static nvml calls;
  static void *device;
  bench_clocks found = {0, 0};
  char uuid[KVF_CUDA_UUID_BYTES];
  if (pair->driver->is_fake) {
    return found;
  }
  kvf_cuda_write_uuid(&pair->driver->cuda->devices[0].uuid, uuid);
  if (device != NULL || (load(&calls) && calls.by_uuid(uuid, &device) == 0)) {
    (void)calls.clock(device, CLOCK_SM, &found.sm);
    (void)calls.clock(device, CLOCK_MEMORY, &found.memory);
  }
  return found;
}
