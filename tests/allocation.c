/* Allocations that fail and are counted: see allocation.h. */
#include "allocation.h"

#include <stdatomic.h>

/* The linker's names. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);
/* NOLINTEND(bugprone-reserved-identifier) */

static atomic_long left = LONG_MAX; /* until the first that fails */
static atomic_long fails;
static atomic_bool has_failed;
static atomic_bool are_spared;
static atomic_long asked;
static atomic_size_t largest_bytes;
static atomic_long live;

void allocation_fail(long spared, long count)
{
  atomic_store(&has_failed, false);
  atomic_store(&asked, 0);
  atomic_store(&largest_bytes, 0);
  atomic_store(&fails, count);
  atomic_store(&left, spared);
}

bool allocation_stop(void)
{
  atomic_store(&left, LONG_MAX);
  return atomic_load(&has_failed);
}

bool allocation_has_failed(void)
{
  return atomic_load(&has_failed);
}

void allocation_spare(bool spare)
{
  atomic_store(&are_spared, spare);
}

long allocation_count(void)
{
  return atomic_load(&asked);
}

size_t allocation_largest_bytes(void)
{
  return atomic_load(&largest_bytes);
}

long allocation_live(void)
{
  return atomic_load(&live);
}

static bool fails_now(size_t bytes)
{
  if (atomic_load(&are_spared)) {
    return false;
  }
  long before = atomic_fetch_sub(&left, 1);
  bool now = before <= 0 && before > -atomic_load(&fails);
  if (now) {
    atomic_store(&has_failed, true);
  }
  atomic_fetch_add(&asked, 1);
  if (bytes > atomic_load(&largest_bytes)) {
    atomic_store(&largest_bytes, bytes);
  }
  return now;
}

static void *counted(void *memory)
{
  atomic_fetch_add(&live, memory != NULL);
  return memory;
}

void *__wrap_malloc(size_t bytes)
{
  return fails_now(bytes) ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
  return fails_now(count * bytes) ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
  if (fails_now(bytes)) {
    return NULL;
  }
  return memory == NULL ? counted(__real_malloc(bytes)) : __real_realloc(memory, bytes);
}

void __wrap_free(void *memory)
{
  atomic_fetch_sub(&live, memory != NULL);
  __real_free(memory);
}
