/* Maps the control file, and draws for each call from the thread's own sequence whether it fails or is late. */
#include "draw.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

chaos_control *chaos_mapped;

static atomic_uint threads_seen;
static _Thread_local unsigned thread_place; /* from 1; 0: not known yet */
static _Thread_local uint64_t draws[CHAOS_CALLS];

static bool is_ours(const chaos_control *control)
{
  return control->magic == CHAOS_MAGIC && control->version == CHAOS_VERSION && control->calls == CHAOS_CALLS &&
         control->kinds == CHAOS_KINDS;
}

/* False: it is none of this version. */
static bool map_file(const char *path)
{
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) {
    return false;
  }
  struct stat file;
  void *address = MAP_FAILED;
  if (fstat(fd, &file) == 0 && file.st_size >= (off_t)sizeof(chaos_control)) {
    address = mmap(NULL, sizeof(chaos_control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  (void)close(fd);
  if (address == MAP_FAILED) {
    return false;
  }
  if (!is_ours(address)) {
    (void)munmap(address, sizeof(chaos_control));
    return false;
  }
  chaos_mapped = address;
  return true;
}

__attribute__((constructor)) static void map_at_start(void)
{
  const char *path = getenv(CHAOS_FILE_VARIABLE);
  if (path != NULL && !map_file(path)) {
    (void)fprintf(stderr, "kvferry-chaos: %s is no control file of this version: nothing will be injected\n", path);
  }
}

/* splitmix64 */
static uint64_t mixed(uint64_t x)
{
  x += UINT64_C(0x9e3779b97f4a7c15);
  x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
  return x ^ (x >> 31);
}

static uint64_t next_entropy(chaos_call call)
{
  if (thread_place == 0) {
    thread_place = atomic_fetch_add_explicit(&threads_seen, 1, memory_order_relaxed) + 1;
  }
  uint64_t seed = atomic_load_explicit(&chaos_mapped->seed, memory_order_relaxed);
  uint64_t stream = mixed(seed ^ mixed(((uint64_t)thread_place << 8) | (uint64_t)call));
  return mixed(stream + draws[call]++);
}

/* The next fault of this thread's sequence for the call. The sequence follows from the seed, the thread's place in the
 * order in which threads have made their first draw, the call, and how many draws the thread has made for it.
 */
static chaos_fault draw(chaos_call call)
{
  chaos_fault fault = {.kind = CHAOS_KINDS};
  uint64_t entropy = next_entropy(call);
  uint64_t point = entropy % CHAOS_PER_MILLION;
  fault.entropy = entropy / CHAOS_PER_MILLION;
  for (unsigned kind = 0; kind < CHAOS_KINDS; kind++) {
    uint64_t rule = atomic_load_explicit(&chaos_mapped->rules[call][kind], memory_order_relaxed);
    uint32_t rate = (uint32_t)rule;
    if (point < rate) {
      fault.kind = (chaos_kind)kind;
      fault.value = (uint32_t)(rule >> 32);
      return fault;
    }
    point -= rate;
  }
  return fault;
}

void chaos_count(chaos_call call, chaos_kind kind)
{
  atomic_fetch_add_explicit(&chaos_mapped->injected[call][kind], 1, memory_order_relaxed);
}

static void delay(uint32_t ms)
{
  struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  while (nanosleep(&left, &left) != 0) {
  }
}

bool chaos_goes_wrong(chaos_call call, chaos_fault *fault)
{
  *fault = draw(call);
  if (fault->kind == CHAOS_DELAY) {
    delay(fault->value);
  }
  if (fault->kind == CHAOS_DELAY || fault->kind == CHAOS_FAIL) {
    chaos_count(call, fault->kind);
  }
  return fault->kind == CHAOS_FAIL;
}
