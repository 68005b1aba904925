/* Formats a line, takes what terminals would act on out of it, and counts lines per second and reason. */
#include "base/log.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/time.h"

void kvf_log_clean(char *text)
{
  for (unsigned char *c = (unsigned char *)text; *c != 0; c++) {
    /* The second kind are C1 controls in UTF-8: terminals act on them too. */
    if (*c < 0x20 || *c == 0x7f || (*c == 0xc2 && c[1] >= 0x80 && c[1] < 0xa0)) {
      *c = '?';
    }
  }
}

void kvf_log(const kvf_logger *logger, kvf_log_level level, const char *format, ...)
{
  if (logger->fn == NULL || level > logger->level) {
    return;
  }
  char line[KVF_LOG_LINE_BYTES_MAX];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (length < 0) {
    return;
  }
  if ((size_t)length >= sizeof(line)) {
    memcpy(line + sizeof(line) - 4, "...", 4);
  }
  kvf_log_clean(line);
  logger->fn(logger->context, level, line);
}

void kvf_log_copy_name(char out[KVF_REQUEST_NAME_BYTES_MAX], const char *name)
{
  size_t bytes = name == NULL ? 0 : strnlen(name, KVF_REQUEST_NAME_BYTES_MAX);
  const bool is_cut = bytes == KVF_REQUEST_NAME_BYTES_MAX;
  bytes -= is_cut;
  if (bytes > 0) {
    memcpy(out, name, bytes);
  }
  out[bytes] = '\0';
  if (is_cut) {
    memcpy(out + bytes - 3, "...", 3);
  }
  kvf_log_clean(out);
}

kvf_log_prefix kvf_log_request_prefix(kvf_log_request request)
{
  kvf_log_prefix prefix = {""};
  char name[KVF_REQUEST_NAME_BYTES_MAX];
  kvf_log_copy_name(name, request.name);
  if (request.id == 0 && name[0] == '\0') {
    return prefix;
  }
  if (name[0] == '\0') {
    (void)snprintf(prefix.text, sizeof(prefix.text), "request %" PRIu64 ": ", request.id);
  } else if (request.id == 0) {
    (void)snprintf(prefix.text, sizeof(prefix.text), "request %s: ", name);
  } else {
    (void)snprintf(prefix.text, sizeof(prefix.text), "request %s (%" PRIu64 "): ", name, request.id);
  }
  return prefix;
}

static void begin_second(kvf_log_limit_slot *slot, uint64_t now_ns)
{
  if (kvf_time_until(slot->second_began_ns, now_ns) >= KVF_NS_PER_S) {
    slot->second_began_ns = now_ns;
    slot->written = 0;
  }
}

bool kvf_log_limit_allows(kvf_log_limit *limit, uint32_t key, uint64_t now_ns, uint32_t *left_out)
{
  kvf_log_limit_slot *slot = &limit->slots[key % KVF_LOG_LIMIT_SLOTS];
  begin_second(&limit->all, now_ns);
  begin_second(slot, now_ns);
  if (slot->key != key) {
    slot->key = key;
    slot->written = 0;
  }
  if (slot->written >= limit->lines_per_s || limit->all.written >= limit->lines_per_s * KVF_LOG_LIMIT_SLOTS) {
    slot->left_out += slot->left_out < UINT32_MAX;
    return false;
  }
  slot->written++;
  limit->all.written++;
  *left_out = slot->left_out;
  slot->left_out = 0;
  return true;
}
