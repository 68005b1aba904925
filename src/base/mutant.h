/* Bugs planted on purpose, so that tests are seen to fail: each takes out what a promise rests on. They are compiled in
 * by the build option `mutants` alone, and then one at a time is active; elsewhere KVF_MUTANT() is the constant false.
 *
 * `if (KVF_MUTANT(FENCE_UNCHECKED)) { what the bug does }` */
#ifndef KVF_BASE_MUTANT_H
#define KVF_BASE_MUTANT_H

#include <stdbool.h>

/* Name, the promise that it breaks, what it does. */
#define KVF_MUTANTS(X)                                                                            \
  X(FENCE_UNCHECKED, "P1", "blocks count as loaded whatever the fence said after they were read") \
  X(PROMPT_UNCHECKED, "P8", "a ticket is good for any prompt")

typedef enum kvf_mutant {
  KVF_MUTANT_NONE,
#define KVF_MUTANT_ENUMERATOR(name, promise, what) KVF_MUTANT_##name,
  KVF_MUTANTS(KVF_MUTANT_ENUMERATOR)
#undef KVF_MUTANT_ENUMERATOR
      KVF_MUTANT_COUNT
} kvf_mutant;

#ifdef KVF_MUTANTS_BUILT
#define KVF_MUTANT(name) (kvf_mutant_active == KVF_MUTANT_##name)

extern kvf_mutant kvf_mutant_active;

/* As above; "NONE" for KVF_MUTANT_NONE. */
const char *kvf_mutant_name(kvf_mutant mutant);
const char *kvf_mutant_promise(kvf_mutant mutant);
const char *kvf_mutant_what(kvf_mutant mutant);

/* Makes the mutant of this name the active one; false if there is none of it. Before any node is opened. At the start
 * it is the one that $KVFERRY_MUTANT names, if that is set. */
bool kvf_mutant_choose(const char *name);
#else
#define KVF_MUTANT(name) false
#endif

#endif
