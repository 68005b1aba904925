/* Libraries that a machine may lack, found when they are first needed: a GPU's driver, a network's. */
#ifndef KVF_MEMORY_LIBRARY_H
#define KVF_MEMORY_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>

/* A function of the library, and where its pointer goes in a struct of them. */
typedef struct kvf_library_function {
  const char *name;
  size_t offset;
} kvf_library_function;

/* Opens a library, a path or a name for the system's loader, for the rest of the process' life, and fills `out`. Its
 * symbols stay its own. False: reason (`reason_bytes`) says what is wrong with it, without its name. */
bool kvf_library_open(const char *library, const kvf_library_function *functions, size_t count, void *out, char *reason,
                      size_t reason_bytes);

#endif
