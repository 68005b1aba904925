/* The lock, who may call, and what tests set and ask. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "state.h"

#define DELAY_NS UINT64_C(50000)
#define BATCH_MAX 2048
#define DEVICES 2

typedef struct counted {
  const char *name;
  uint64_t made;
  kvf_cu_result error; /* of calls to fail */
  uint64_t fails_from;
  uint64_t fails_to;
} counted;

#define ENTRY(symbol, field) [CALL_##symbol] = {.name = #symbol},
static counted calls[CALLS] = {KVF_CUDA_CALLS(ENTRY) FAKE_CUDA_OTHER_CALLS(ENTRY)};
#undef ENTRY

fake_state fake = {.lock = PTHREAD_MUTEX_INITIALIZER};

_Noreturn void give_up(const char *why)
{
  (void)fprintf(stderr, "fake CUDA: %s\n", why);
  abort();
}

/* ---- settings ---- */

static uint64_t number_of(const char *name, uint64_t otherwise)
{
  const char *text = getenv(name);
  return text == NULL ? otherwise : strtoull(text, NULL, 0);
}

fake_cuda_settings fake_cuda_defaults(void)
{
  fake_cuda_settings settings = {
      .seed = number_of("KVFERRY_FAKE_CUDA_SEED", 1),
      .version = (int)number_of("KVFERRY_FAKE_CUDA_VERSION", KVF_CUDA_VERSION_BATCH),
      .delay_ns = number_of("KVFERRY_FAKE_CUDA_DELAY_NS", DELAY_NS),
      .batch_max = number_of("KVFERRY_FAKE_CUDA_BATCH_MAX", BATCH_MAX),
      .has_compiler = number_of("KVFERRY_FAKE_CUDA_COMPILER", 1) != 0,
      .network_order = (int)number_of("KVFERRY_FAKE_CUDA_NETWORK_ORDER", 0),
      .numa_node = (int)number_of("KVFERRY_FAKE_CUDA_NUMA_NODE", 0),
      .has_host_pointers = number_of("KVFERRY_FAKE_CUDA_HOST_POINTERS", 1) != 0,
      .told_of_imports = (unsigned)number_of("KVFERRY_FAKE_CUDA_IMPORTS", FAKE_CUDA_TELLS_ALL),
      .maps_for_reading = number_of("KVFERRY_FAKE_CUDA_READ_ONLY", 1) != 0};
  const char *devices = getenv("KVFERRY_FAKE_CUDA_DEVICES");
  if (devices == NULL) {
    for (unsigned i = 0; i < DEVICES; i++) {
      settings.devices[settings.devices_count++] = i;
    }
    return settings;
  }
  while (*devices != '\0' && settings.devices_count < FAKE_CUDA_DEVICES_MAX) {
    char *end;
    settings.devices[settings.devices_count++] = (unsigned)strtoul(devices, &end, 10);
    devices = *end == ',' ? end + 1 : end;
    if (*end != ',' && *end != '\0') {
      give_up("KVFERRY_FAKE_CUDA_DEVICES is a list of numbers");
    }
  }
  return settings;
}

static void forget(void)
{
  for (size_t i = 0; i < CALLS; i++) {
    calls[i] = (counted){.name = calls[i].name};
  }
  fake.prng = (kvf_prng){fake.settings.seed};
  fake.is_initialised = false;
  fake.forbids_waits = false;
  fake.violations = 0;
}

void fake_cuda_reset(const fake_cuda_settings *settings)
{
  (void)pthread_mutex_lock(&fake.lock);
  streams_reset();
  network_reset();
  memory_reset();
  vmm_reset();
  contexts_reset();
  fake.settings = *settings;
  forget();
  (void)pthread_mutex_unlock(&fake.lock);
}

static void on_fork(void)
{
  fake.is_forked = true;
}

__attribute__((constructor)) static void on_load(void)
{
  pthread_condattr_t monotonic;
  struct timespec now;
  (void)pthread_condattr_init(&monotonic);
  (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&fake.changed, &monotonic);
  (void)pthread_condattr_destroy(&monotonic);
  (void)pthread_atfork(NULL, NULL, on_fork);
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  kvf_prng once = {(uint64_t)now.tv_nsec + (uint64_t)now.tv_sec * 1000000000 + ((uint64_t)getpid() << 40)};
  fake.nonce = kvf_prng_next(&once) | 1;
  fake.settings = fake_cuda_defaults();
  forget();
}

/* ---- calls ---- */

static kvf_cu_result may_call(counted *call, call_needs needs)
{
  call->made++;
  if (call->made > call->fails_from && call->made <= call->fails_to) {
    return call->error;
  }
  if (needs >= NEEDS_INIT && (!fake.is_initialised || fake.is_forked)) {
    return KVF_CUDA_ERROR_NOT_INITIALIZED;
  }
  if (needs == NEEDS_CONTEXT) {
    const context *current = context_current();
    return current == NULL         ? KVF_CUDA_ERROR_INVALID_CONTEXT
           : current->retains == 0 ? KVF_CUDA_ERROR_CONTEXT_IS_DESTROYED
                                   : current->error;
  }
  return KVF_CUDA_SUCCESS;
}

kvf_cu_result call_begin(call_number call, call_needs needs)
{
  (void)pthread_mutex_lock(&fake.lock);
  kvf_cu_result result = may_call(&calls[call], needs);
  if (result != KVF_CUDA_SUCCESS) {
    (void)pthread_mutex_unlock(&fake.lock);
  }
  return result;
}

kvf_cu_result call_end(kvf_cu_result result)
{
  (void)pthread_mutex_unlock(&fake.lock);
  return result;
}

static counted *call_named(const char *name)
{
  for (size_t i = 0; i < CALLS; i++) {
    if (strcmp(calls[i].name, name) == 0) {
      return &calls[i];
    }
  }
  give_up("there is no such call");
}

uint64_t fake_cuda_calls(const char *call)
{
  (void)pthread_mutex_lock(&fake.lock);
  uint64_t made = call_named(call)->made;
  (void)pthread_mutex_unlock(&fake.lock);
  return made;
}

void fake_cuda_fail(const char *call, kvf_cu_result error, unsigned after, unsigned times)
{
  (void)pthread_mutex_lock(&fake.lock);
  counted *failing = call_named(call);
  failing->error = error;
  failing->fails_from = failing->made + after;
  failing->fails_to = failing->fails_from + times;
  (void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_break(int device, kvf_cu_result error)
{
  (void)pthread_mutex_lock(&fake.lock);
  context_break(context_of(device), error);
  (void)pthread_mutex_unlock(&fake.lock);
}

/* ---- what was seen ---- */

void unsafe_is_seen(void)
{
  fake.violations += fake.captures && capture_mode() != KVF_CU_STREAM_CAPTURE_MODE_RELAXED ? 1 : 0;
}

void wait_is_seen(void)
{
  fake.violations += fake.forbids_waits ? 1 : 0;
  unsafe_is_seen();
}

void fake_cuda_capture(bool captures)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake.captures = captures;
  (void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_map_for_reading(bool maps)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake.settings.maps_for_reading = maps;
  (void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_tell_of_imports(unsigned told)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake.settings.told_of_imports = told;
  (void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_seed(uint64_t seed)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake.prng = (kvf_prng){seed};
  (void)pthread_mutex_unlock(&fake.lock);
}

void fake_cuda_forbid_waits(bool forbid)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake.forbids_waits = forbid;
  (void)pthread_mutex_unlock(&fake.lock);
}

uint64_t fake_cuda_violations(void)
{
  (void)pthread_mutex_lock(&fake.lock);
  uint64_t seen = fake.violations;
  (void)pthread_mutex_unlock(&fake.lock);
  return seen;
}

fake_cuda_open fake_cuda_count(void)
{
  (void)pthread_mutex_lock(&fake.lock);
  fake_cuda_open open = {.memory = mappings_of(MAPPING_MEMORY) + mappings_of(MAPPING_PINNED),
                         .imports = mappings_of(MAPPING_IMPORT),
                         .reservations = vmm_reservations(),
                         .maps = mappings_of(MAPPING_MAP),
                         .allocations = vmm_allocations()};
  contexts_count(&open);
  streams_count(&open);
  (void)pthread_mutex_unlock(&fake.lock);
  return open;
}
