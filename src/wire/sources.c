/* Splits a text of tickets at its commas, decodes each, and says which of them can stand in for another. */
#include "wire/sources.h"

#include <stdlib.h>
#include <string.h>

#include "base/fence.h"

static kvf_status add(kvf_sources *sources, const char *text, size_t bytes, const kvf_mac *macs, size_t macs_count)
{
  if (sources->count + sources->unread == KVF_SOURCES_MAX) {
    return KVF_BAD_TICKET;
  }
  kvf_ticket *ticket = malloc(sizeof(*ticket));
  if (ticket == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_status status = kvf_ticket_decode(text, bytes, macs, macs_count, ticket);
  if (status == KVF_OK) {
    sources->tickets[sources->count++] = ticket;
    return KVF_OK;
  }
  free(ticket);
  if (status != KVF_INCOMPATIBLE && status != KVF_OTHER_KEY) {
    return status;
  }
  if (sources->unread++ == 0) {
    sources->unread_why = status;
  }
  return KVF_OK;
}

kvf_status kvf_sources_decode(const char *text, size_t text_bytes, const kvf_mac *macs, size_t macs_count,
                              kvf_sources *out)
{
  kvf_sources sources = {.count = 0};
  kvf_status status = KVF_OK;
  for (const char *rest = text; status == KVF_OK && rest != NULL;) {
    size_t rest_bytes = text_bytes - (size_t)(rest - text);
    const char *comma = memchr(rest, ',', rest_bytes);
    status = add(&sources, rest, comma != NULL ? (size_t)(comma - rest) : rest_bytes, macs, macs_count);
    rest = comma != NULL ? comma + 1 : NULL;
  }
  if (status == KVF_OK && sources.count == 0) {
    status = sources.unread_why;
  }
  if (status == KVF_OK) {
    *out = sources;
  } else {
    kvf_sources_free(&sources);
  }
  return status;
}

kvf_status kvf_sources_digest(kvf_sources *sources)
{
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < sources->count; i++) {
    const kvf_ticket *ticket = sources->tickets[i];
    const kvf_blocks blocks = {.ids = ticket->ids, .counts = ticket->counts, .groups = ticket->groups};
    status = kvf_fence_digest(&ticket->lease, &blocks, &ticket->prompt, &sources->digests[i]);
  }
  return status;
}

bool kvf_source_can_replace(const kvf_ticket *ticket, const kvf_ticket *other)
{
  if (other->groups != ticket->groups || other->block_tokens != ticket->block_tokens) {
    return false;
  }
  for (uint32_t group = 0; group < ticket->groups; group++) {
    if (other->group_tokens[group] != ticket->group_tokens[group] || other->counts[group] != ticket->counts[group]) {
      return false;
    }
  }
  const size_t total = (size_t)kvf_ticket_all_positions(ticket);
  for (size_t i = 0; i < total; i++) {
    if (ticket->ids[i] != KVF_BLOCK_NONE && other->ids[i] == KVF_BLOCK_NONE) {
      return false;
    }
  }
  return true;
}

void kvf_sources_free(kvf_sources *sources)
{
  for (uint32_t i = 0; i < sources->count; i++) {
    kvf_ticket_free(sources->tickets[i]);
    free(sources->tickets[i]);
  }
  sources->count = 0;
}
