/* What engines compare before they exchange blocks, lines for the log, and random numbers. */
#include "core/context.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare_fields(const void *a, const void *b)
{
  return strcmp(((const kvf_identity_field *)a)->name, ((const kvf_identity_field *)b)->name);
}

kvf_status kvf_context_compat(const kvf_config *config, uint8_t out[KVF_HASH_BYTES])
{
  kvf_identity_field fields[KVF_IDENTITY_FIELDS_MAX];
  kvf_span spans[2 * KVF_IDENTITY_FIELDS_MAX];
  size_t count = 0;
  memcpy(fields, config->identity, config->identity_fields * sizeof(fields[0]));
  qsort(fields, config->identity_fields, sizeof(fields[0]), compare_fields);
  for (uint32_t i = 0; i < config->identity_fields; i++) {
    /* With their terminating zeros, so that a name cannot lend letters to its value. */
    spans[count++] = (kvf_span){fields[i].name, strlen(fields[i].name) + 1};
    spans[count++] = (kvf_span){fields[i].value, strlen(fields[i].value) + 1};
  }
  return kvf_sha256(spans, count, out);
}

static kvf_status short_hash(const char *text, uint16_t *out)
{
  uint8_t hash[KVF_HASH_BYTES];
  kvf_status status = kvf_sha256(&(kvf_span){text, strlen(text) + 1}, 1, hash);
  if (status == KVF_OK) {
    *out = (uint16_t)(hash[0] | hash[1] << 8);
  }
  return status;
}

kvf_status kvf_context_fields(const kvf_config *config, kvf_ticket_field out[KVF_IDENTITY_FIELDS_MAX])
{
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < config->identity_fields; i++) {
    status = short_hash(config->identity[i].name, &out[i].name);
    if (status == KVF_OK) {
      status = short_hash(config->identity[i].value, &out[i].value);
    }
  }
  return status;
}

static const char *value_of(const kvf_identity_field *fields, uint32_t count, const char *name)
{
  for (uint32_t i = 0; i < count; i++) {
    if (strcmp(fields[i].name, name) == 0) {
      return fields[i].value;
    }
  }
  return NULL;
}

bool kvf_context_matches(const kvf_context *context, const kvf_identity_field *fields, uint32_t count, char *difference)
{
  const kvf_config *config = &context->config;
  for (uint32_t i = 0; i < config->identity_fields + count; i++) {
    const bool is_ours = i < config->identity_fields;
    const kvf_identity_field *field = is_ours ? &config->identity[i] : &fields[i - config->identity_fields];
    const char *ours = is_ours ? field->value : value_of(config->identity, config->identity_fields, field->name);
    const char *theirs = is_ours ? value_of(fields, count, field->name) : field->value;
    if (ours == NULL || theirs == NULL || strcmp(ours, theirs) != 0) {
      (void)snprintf(difference, KVF_MESSAGE_BYTES_MAX, "%.60s differs: producer has \"%.70s\", consumer has \"%.70s\"",
                     field->name, ours == NULL ? "(nothing)" : ours, theirs == NULL ? "(nothing)" : theirs);
      return false;
    }
  }
  return true;
}

/* Names may share a hash: any of them with the value will do. */
static bool has_field(const kvf_ticket *ticket, const kvf_ticket_field *field, bool *has_name)
{
  *has_name = false;
  for (uint32_t i = 0; i < ticket->fields; i++) {
    const bool is_name = ticket->field[i].name == field->name;
    *has_name = *has_name || is_name;
    if (is_name && ticket->field[i].value == field->value) {
      return true;
    }
  }
  return false;
}

void kvf_context_name_difference(const kvf_context *context, const kvf_ticket *ticket,
                                 char difference[KVF_MESSAGE_BYTES_MAX])
{
  const kvf_config *config = &context->config;
  for (uint32_t i = 0; i < config->identity_fields; i++) {
    bool has_name = false;
    if (!has_field(ticket, &context->self.fields[i], &has_name)) {
      (void)snprintf(difference, KVF_MESSAGE_BYTES_MAX, "%.60s differs: producer has %s, consumer has \"%.70s\"",
                     config->identity[i].name, has_name ? "another value" : "\"(nothing)\"", config->identity[i].value);
      return;
    }
  }
  (void)snprintf(difference, KVF_MESSAGE_BYTES_MAX, "%s",
                 ticket->fields > config->identity_fields ? "producer has a field that consumer has not"
                                                          : "made for another model or layout");
}

void kvf_context_log(kvf_context *context, uint64_t now_ns, kvf_status reason, uint64_t peer, kvf_log_level level,
                     const char *format, ...)
{
  uint32_t left_out = 0;
  uint32_t key = (uint32_t)-reason * 31 + (uint32_t)peer;
  if (level > context->logger.level || !kvf_log_limit_allows(&context->log_limit, key, now_ns, &left_out)) {
    return;
  }
  char line[KVF_LOG_LINE_BYTES_MAX];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (left_out > 0) {
    kvf_log(&context->logger, level, "%s (and %u more like it)", line, left_out);
  } else {
    kvf_log(&context->logger, level, "%s", line);
  }
}

void kvf_entropy_stir(kvf_entropy *entropy, const uint8_t fresh[KVF_HASH_BYTES])
{
  for (size_t i = 0; i < KVF_HASH_BYTES; i++) {
    entropy->secret[i] ^= fresh[i];
  }
}

kvf_status kvf_entropy_draw(kvf_entropy *entropy, void *out, size_t bytes)
{
  assert(bytes <= KVF_HASH_BYTES);
  uint8_t hash[KVF_HASH_BYTES];
  entropy->counter++;
  const kvf_span spans[] = {{entropy->secret, sizeof(entropy->secret)}, {&entropy->counter, sizeof(entropy->counter)}};
  kvf_status status = kvf_sha256(spans, 2, hash);
  if (status == KVF_OK) {
    memcpy(out, hash, bytes);
  }
  return status;
}
