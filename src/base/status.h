/* What the library itself needs of statuses. */
#ifndef KVF_BASE_STATUS_H
#define KVF_BASE_STATUS_H

#include <stddef.h>

#include "kvferry/types.h"

/* Writes why into `message` (KVF_MESSAGE_BYTES_MAX), clean of control characters, and returns `status`. */
__attribute__((format(printf, 3, 4))) kvf_status kvf_fail(kvf_status status, char *message, const char *format, ...);

/* ---- the text of a call that fails: kvf_error_text() ----
 *
 * The check that fails says why, wherever it is: `return kvf_because(KVF_INVALID, ...)`. Every public function returns
 * by kvf_answer() (a rule of tests/tidy), which gives the caller that reason, or else the status' meaning. */

/* Notes why, in the calling thread, and returns `status`. Name argument, value and bound. */
__attribute__((format(printf, 2, 3))) kvf_status kvf_because(kvf_status status, const char *format, ...);

/* A reason that was noted on the way is forgotten: the call has got over it, or the text has it now. */
kvf_status kvf_answer(kvf_status status);
/* Of a call that gives its caller a message: the text is the same, if there is one. */
kvf_status kvf_answer_as(kvf_status status, const char *message);

/* Names the i-th of `names`, which ", " parts. */
kvf_status kvf_is_null(const char *names, size_t i);
static inline kvf_status kvf_check_pointers(const char *names, const void *const *pointers, size_t count)
{
  for (size_t i = 0; i < count; i++) {
    if (pointers[i] == NULL) {
      return kvf_is_null(names, i);
    }
  }
  return KVF_OK;
}
/* KVF_INVALID: one of these pointers is NULL. */
#define KVF_NOT_NULL(...)                                              \
  kvf_check_pointers(#__VA_ARGS__, (const void *const[]){__VA_ARGS__}, \
                     sizeof((const void *const[]){__VA_ARGS__}) / sizeof(void *))

/* The index of `status` in the table, for arrays of counters by reason: kvf_status_at(index) describes it. An unknown
 * value gets the index of KVF_INVALID. */
unsigned kvf_status_index(int status);

#endif
