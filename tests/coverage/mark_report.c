/* Linked into unit tests and the simulator by the build option `marks`: when a process ends it adds the names of the
 * marks that it has reached to the file that $KVFERRY_MARKS names, one a line. A process that leaves by _exit() or dies
 * reports nothing. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/mark.h"

/* The linker makes them of the section's name; there is no section where nothing that has a mark is linked. */
extern kvf_mark *__start_kvf_marks[] __attribute__((weak));
extern kvf_mark *__stop_kvf_marks[] __attribute__((weak));

__attribute__((destructor)) static void report_marks(void)
{
  const char *path = getenv("KVFERRY_MARKS");
  int file = path == NULL ? -1 : open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) {
    return;
  }
  /* Each line is one write at the end of the file: many processes share it. */
  for (kvf_mark **mark = __start_kvf_marks; mark != __stop_kvf_marks; mark++) {
    if ((*mark)->count > 0) {
      (void)dprintf(file, "%s\n", (*mark)->name);
    }
  }
  (void)close(file);
}
