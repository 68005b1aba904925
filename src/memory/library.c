/* Opens a library by dlopen() and fills a table of its functions, or says what is missing. */
#include "memory/library.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

bool kvf_library_open(const char *library, const kvf_library_function *functions, size_t count, void *out, char *reason,
                      size_t reason_bytes)
{
  void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (handle == NULL) {
    const char *error = dlerror();
    const char *after = error == NULL ? NULL : strstr(error, ": "); /* behind the name */
    (void)snprintf(reason, reason_bytes, "%s", after != NULL ? after + 2 : "it cannot be opened");
    return false;
  }
  for (size_t i = 0; i < count; i++) {
    void *found = dlsym(handle, functions[i].name);
    if (found == NULL) {
      (void)snprintf(reason, reason_bytes, "it has no %s", functions[i].name);
      return false;
    }
    memcpy((uint8_t *)out + functions[i].offset, &found, sizeof(found)); /* ISO C has no cast for this */
  }
  return true;
}
