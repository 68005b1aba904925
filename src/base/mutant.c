#include "base/mutant.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

kvf_mutant kvf_mutant_active;

typedef struct description {
  const char *name;
  const char *promise;
  const char *what;
} description;

static const description descriptions[KVF_MUTANT_COUNT] = {{"NONE", "", ""},
#define DESCRIPTION(name, promise, what) {#name, promise, what},
                                                           KVF_MUTANTS(DESCRIPTION)
#undef DESCRIPTION
};

const char *kvf_mutant_name(kvf_mutant mutant)
{
  return descriptions[mutant].name;
}

const char *kvf_mutant_promise(kvf_mutant mutant)
{
  return descriptions[mutant].promise;
}

const char *kvf_mutant_what(kvf_mutant mutant)
{
  return descriptions[mutant].what;
}

bool kvf_mutant_choose(const char *name)
{
  for (size_t i = 0; i < KVF_MUTANT_COUNT; i++) {
    if (strcmp(descriptions[i].name, name) == 0) {
      kvf_mutant_active = (kvf_mutant)i;
      return true;
    }
  }
  return false;
}

/* Whatever program it is linked into: a whole engine, too, can be run with a bug. */
__attribute__((constructor)) static void choose_from_environment(void)
{
  const char *name = getenv("KVFERRY_MUTANT");
  if (name != NULL && !kvf_mutant_choose(name)) {
    (void)fprintf(stderr, "KVFERRY_MUTANT: there is no planted bug '%s'\n", name);
    __builtin_trap();
  }
}
