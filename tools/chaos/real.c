/* Looks a function up behind the injector, by the loader's order or in the library that has it; found once. */
#include "real.h"

#include <dlfcn.h>
#include <link.h>
#include <stddef.h>
#include <string.h>

typedef struct search {
  const char *library;
  const char *path;
} search;

static int is_wanted(struct dl_phdr_info *info, size_t bytes, void *context)
{
  (void)bytes;
  search *wanted = context;
  const char *slash = strrchr(info->dlpi_name, '/');
  const char *file = slash == NULL ? info->dlpi_name : slash + 1;
  if (strncmp(file, wanted->library, strlen(wanted->library)) != 0) {
    return 0;
  }
  wanted->path = info->dlpi_name;
  return 1;
}

static void *find_in(const char *library, const char *name)
{
  search wanted = {.library = library};
  if (dl_iterate_phdr(is_wanted, &wanted) == 0) {
    return NULL;
  }
  void *handle = dlopen(wanted.path, RTLD_NOLOAD | RTLD_LAZY);
  return handle == NULL ? NULL : dlsym(handle, name); /* the handle keeps it loaded */
}

chaos_function *chaos_find(chaos_real *known, const char *name, const char *library)
{
  chaos_function *function = atomic_load_explicit(known, memory_order_relaxed);
  if (function == NULL) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL && library != NULL) {
      found = find_in(library, name);
    }
    memcpy(&function, &found, sizeof(function)); /* ISO C has no cast for this */
    atomic_store_explicit(known, function, memory_order_relaxed);
  }
  return function;
}
