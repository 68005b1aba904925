#include "allocation.h"

#include <stddef.h>

/* The linker's names. NOLINTBEGIN(bugprone-reserved-identifier) */
void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
/* NOLINTEND(bugprone-reserved-identifier) */

static bool counting;
static bool has_failed;
static uint32_t left;

void allocation_fail_after(uint32_t count)
{
  counting = true;
  has_failed = false;
  left = count;
}

bool allocation_stop(void)
{
  counting = false;
  return has_failed;
}

static bool fails_now(void)
{
  if (!counting || has_failed) {
    return false;
  }
  has_failed = left == 0;
  left -= !has_failed;
  return has_failed;
}

void *__wrap_malloc(size_t bytes)
{
  return fails_now() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
  return fails_now() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *memory, size_t bytes)
{
  return fails_now() ? NULL : __real_realloc(memory, bytes);
}
