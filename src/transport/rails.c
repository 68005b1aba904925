/* Does with a node's transports of one kind what is done with one: opens, describes and connects them as a whole. */
#include "transport/rails.h"

#include <assert.h>
#include <stdlib.h>

/* ---- open and close ---- */

void kvf_rails_close(kvf_rails *rails)
{
  while (rails->count > 0) {
    rails->ops->close(rails->each[--rails->count]);
  }
}

kvf_status kvf_rails_open(const kvf_transport_ops *ops, const kvf_transport_config *config,
                          const kvf_transport_host *host, kvf_rails *out, char *message)
{
  const uint32_t count = ops->has_rails ? config->tcp_streams : 1;
  kvf_transport_config each = *config;
  kvf_status status = KVF_OK;
  assert(count > 0 && count <= KVF_RAILS_MAX);
  each.connections_max = (config->connections_max + count - 1) / count;
  *out = (kvf_rails){.ops = ops};
  while (status == KVF_OK && out->count < count) {
    status = ops->open(&each, host, &out->each[out->count], message);
    out->count += status == KVF_OK;
  }
  if (status != KVF_OK) {
    kvf_rails_close(out);
  }
  return status;
}

bool kvf_rails_assist(const kvf_rails *rails)
{
  bool more = false;
  for (uint32_t i = 0; rails->ops->assist != NULL && i < rails->count; i++) {
    more = rails->ops->assist(rails->each[i]) || more;
  }
  return more;
}

/* ---- memory ---- */

static void clear_first(const kvf_rails *rails, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    rails->ops->clear_memory(rails->each[i]);
  }
}

void kvf_rails_clear_memory(const kvf_rails *rails)
{
  clear_first(rails, rails->count);
}

kvf_status kvf_rails_set_memory(const kvf_rails *rails, const kvf_transport_memory *memory)
{
  for (uint32_t i = 0; i < rails->count; i++) {
    kvf_status status = rails->ops->set_memory(rails->each[i], memory);
    if (status != KVF_OK) {
      clear_first(rails, i);
      return status;
    }
  }
  return KVF_OK;
}

static kvf_status describe_all(const kvf_rails *rails, uint8_t *room, void *out, size_t capacity, size_t *out_bytes)
{
  kvf_rails_description description = {.count = rails->count};
  size_t used = 0;
  for (uint32_t i = 0; i < rails->count; i++) {
    size_t bytes = 0;
    kvf_status status =
        rails->ops->describe(rails->each[i], room + used, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX - used, &bytes);
    if (status != KVF_OK) {
      return status;
    }
    description.each[i].data = room + used;
    description.each[i].bytes = (uint16_t)bytes;
    used += bytes;
  }
  return kvf_rails_description_write(&description, out, capacity, out_bytes);
}

kvf_status kvf_rails_describe(const kvf_rails *rails, void *out, size_t capacity, size_t *out_bytes)
{
  if (!rails->ops->has_rails) {
    return rails->ops->describe(rails->each[0], out, capacity, out_bytes);
  }
  uint8_t *room = malloc(KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
  kvf_status status = room == NULL ? KVF_NO_MEMORY : describe_all(rails, room, out, capacity, out_bytes);
  free(room);
  return status;
}

/* ---- links ---- */

static void disconnect_first(const kvf_rails *rails, kvf_link *const parts[KVF_RAILS_MAX], uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    rails->ops->disconnect(parts[i]);
  }
}

void kvf_rails_disconnect(const kvf_rails *rails, kvf_link *const parts[KVF_RAILS_MAX])
{
  disconnect_first(rails, parts, rails->count);
}

kvf_status kvf_rails_connect(const kvf_rails *rails, const kvf_link_spec *spec, kvf_link *parts[KVF_RAILS_MAX])
{
  kvf_rails_description theirs = {.count = 1,
                                  .each = {{.data = spec->description, .bytes = (uint16_t)spec->description_bytes}}};
  if (rails->ops->has_rails &&
      kvf_rails_description_read(spec->description, spec->description_bytes, &theirs) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  /* Where some of the peer's are not connected to, or more often than others, sessions take turns. */
  const uint64_t turn = theirs.count == rails->count ? 0 : spec->session_id / rails->count % theirs.count;
  kvf_link_spec part = *spec;
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; i < rails->count && status == KVF_OK; i++) {
    const uint32_t at = (uint32_t)((i + turn) % theirs.count);
    part.description = theirs.each[at].data;
    part.description_bytes = theirs.each[at].bytes;
    status = rails->ops->connect(rails->each[i], &part, &parts[i]);
    if (status != KVF_OK) {
      disconnect_first(rails, parts, i);
    }
  }
  kvf_forget(&part.session_key, sizeof(part.session_key));
  return status;
}
