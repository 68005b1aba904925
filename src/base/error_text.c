/* Why the calling thread's last call failed: the only state outside of nodes, which nothing in the library reads. */
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

static _Thread_local struct {
  kvf_status noted; /* what `reason` is a reason for; KVF_OK: there is none */
  char reason[KVF_MESSAGE_BYTES_MAX];
  char text[KVF_MESSAGE_BYTES_MAX]; /* of the last call that failed */
} error_text;

kvf_status kvf_because(kvf_status status, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(error_text.reason, sizeof(error_text.reason), format, arguments);
  va_end(arguments);
  error_text.noted = status;
  return status;
}

kvf_status kvf_answer(kvf_status status)
{
  if (status != KVF_OK && status != KVF_AGAIN) {
    const char *reason = error_text.noted == status ? error_text.reason : kvf_status_describe(status)->meaning;
    (void)snprintf(error_text.text, sizeof(error_text.text), "%s", reason);
    kvf_log_clean(error_text.text);
  }
  error_text.noted = KVF_OK;
  return status;
}

kvf_status kvf_answer_as(kvf_status status, const char *message)
{
  return kvf_answer(status == KVF_OK || message[0] == '\0' ? status : kvf_because(status, "%s", message));
}

kvf_status kvf_is_null(const char *names, size_t i)
{
  for (; i > 0; i--) {
    names = strchr(names, ',') + 2;
  }
  return kvf_because(KVF_INVALID, "%.*s is NULL", (int)strcspn(names, ","), names);
}

const char *kvf_error_text(void)
{
  return error_text.text;
}
