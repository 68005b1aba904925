/* Random bytes of the system. */
#include "runtime/random.h"

#include <errno.h>
#include <sys/random.h>

bool kvf_random(void *out, size_t bytes)
{
  ssize_t got;
  do {
    got = getrandom(out, bytes, 0);
  } while (got < 0 && errno == EINTR);
  return got == (ssize_t)bytes; /* up to 256 bytes come whole */
}
