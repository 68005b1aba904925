#include "alloc.h"

#include <stddef.h>
#include <stdlib.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);

static bool inside;
static uint32_t skip_left;
static uint32_t fail_left;
static int64_t live;

void sim_alloc_enter(void)
{
  inside = true;
}

void sim_alloc_leave(void)
{
  inside = false;
}

void sim_alloc_fail(uint32_t skip, uint32_t count)
{
  skip_left = skip;
  fail_left = count;
}

void sim_alloc_heal(void)
{
  fail_left = 0;
}

int64_t sim_alloc_live(void)
{
  return live;
}

static bool is_to_fail(void)
{
  if (!inside || fail_left == 0) {
    return false;
  }
  if (skip_left > 0) {
    skip_left--;
    return false;
  }
  fail_left--;
  return true;
}

static void *counted(void *memory)
{
  live += memory != NULL;
  return memory;
}

void *__wrap_malloc(size_t bytes)
{
  return is_to_fail() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
  return is_to_fail() ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes)
{
  if (is_to_fail()) {
    return NULL;
  }
  return memory == NULL ? counted(__real_malloc(bytes)) : __real_realloc(memory, bytes);
}

void __wrap_free(void *memory)
{
  live -= memory != NULL;
  __real_free(memory);
}
