/* The functions that the injector stands before. */
#ifndef KVFERRY_CHAOS_REAL_H
#define KVFERRY_CHAOS_REAL_H

#include <stdatomic.h>

/* Seen from outside, unlike everything else here: what the program calls has to be found. */
#define CHAOS_INTERPOSED __attribute__((visibility("default")))

/* Cast to the function's own type. */
typedef void chaos_function(void);
/* A function's address once it has been looked up. */
typedef _Atomic(chaos_function *) chaos_real;

/* The next definition of `name` after ours; in a library whose file name begins with `library` where that library was
 * loaded for its user alone (dlopen without RTLD_GLOBAL), so that the ordinary look-up does not see it. NULL: there is
 * none.
 */
chaos_function *chaos_find(chaos_real *known, const char *name, const char *library);

/* Declares `real`, the next definition of the function `name`. */
#define CHAOS_REAL(name, library) \
  static chaos_real known;        \
  __typeof__(name) *real = (__typeof__(name) *)chaos_find(&known, #name, library)

#endif
