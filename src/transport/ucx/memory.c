#include "transport/ucx/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/answer.h"
#include "transport/ucx/link.h"

/* ---- registration, in the data thread ---- */

static bool map_all(kvf_ucx_memory *memory, char *message)
{
  const kvf_ucx *ucx = memory->ucx;
  kvf_ucs_status error = KVF_UCS_OK;
  uint32_t i = 0;
  for (; error == KVF_UCS_OK && i + 1 < memory->mems_count; i++) {
    const kvf_region *region = &memory->regions[i];
    error = kvf_ucx_map(ucx, region->base, kvf_ucx_region_bytes(region), &memory->mems[i]);
  }
  if (error == KVF_UCS_OK) {
    error = kvf_ucx_map(ucx, memory->table, kvf_fence_table_bytes(memory->table_slots), &memory->mems[i]);
  }
  if (error != KVF_UCS_OK) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "memory %u of %u cannot be registered: %s", (unsigned)i,
                   (unsigned)memory->mems_count, kvf_ucx_text(ucx, error));
    kvf_ucx_unmap_all(memory);
    return false;
  }
  return true;
}

/* ---- description, in the data thread ---- */

/* What describe() needs of UCX while it writes. */
typedef struct described {
  void *worker;
  kvf_ucx_memory_key table;
  kvf_ucx_memory_key memories[KVF_UCX_MEMORIES_MAX];
} described;

static kvf_status pack_key(const kvf_ucx *ucx, const void *address, kvf_ucp_mem mem, kvf_ucx_memory_key *out)
{
  void *key = NULL;
  size_t bytes = 0;
  if (ucx->api->rkey_pack(ucx->context, mem, &key, &bytes) != KVF_UCS_OK) {
    return KVF_SYSTEM;
  }
  *out = (kvf_ucx_memory_key){.address = (uintptr_t)address, .key = key};
  if (bytes > KVF_UCX_KEY_BYTES_MAX) {
    return KVF_LIMIT;
  }
  out->key_bytes = (uint16_t)bytes;
  return KVF_OK;
}

static kvf_status pack_keys(const kvf_ucx_memory *memory, described *out)
{
  const kvf_ucx *ucx = memory->ucx;
  uint32_t served = memory->regions_count + memory->checksums_count;
  kvf_status status = pack_key(ucx, memory->table, memory->mems[memory->mems_count - 1], &out->table);
  for (uint32_t i = 0; status == KVF_OK && i < served; i++) {
    uint32_t from = kvf_ucx_memory_served(memory, i);
    status = pack_key(ucx, memory->regions[from].base, memory->mems[from], &out->memories[i]);
  }
  return status;
}

static void key_free(const kvf_ucx *ucx, const kvf_ucx_memory_key *key)
{
  if (key->key != NULL) {
    ucx->api->rkey_buffer_release((void *)(uintptr_t)key->key);
  }
}

static void described_free(const kvf_ucx *ucx, described *made)
{
  if (made->worker != NULL) {
    ucx->api->worker_release_address(ucx->server, made->worker);
  }
  key_free(ucx, &made->table);
  for (uint32_t i = 0; i < KVF_UCX_MEMORIES_MAX; i++) {
    key_free(ucx, &made->memories[i]);
  }
  free(made);
}

static kvf_status write_description(const kvf_ucx_memory *memory, uint8_t *out, size_t *out_bytes)
{
  kvf_ucx *ucx = memory->ucx;
  size_t worker_bytes = 0;
  described *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_status status = KVF_SYSTEM;
  if (ucx->api->worker_get_address(ucx->server, &made->worker, &worker_bytes) != KVF_UCS_OK) {
    made->worker = NULL;
    goto free_made;
  }
  status = worker_bytes > KVF_UCX_ADDRESS_BYTES_MAX ? KVF_LIMIT : pack_keys(memory, made);
  if (status != KVF_OK) {
    goto free_made;
  }
  const kvf_ucx_description description = {
      .incarnation = ucx->config.incarnation,
      .ucx_major = (uint16_t)ucx->api->major,
      .ucx_minor = (uint16_t)ucx->api->minor,
      .worker = made->worker,
      .worker_bytes = (uint16_t)worker_bytes,
      .table_slots = memory->table_slots,
      .table = made->table,
      .regions_count = memory->regions_count,
      .checksums_count = memory->checksums_count,
      .memories = made->memories,
  };
  status = kvf_ucx_description_write(&description, out, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX, out_bytes);
free_made:
  described_free(ucx, made);
  return status;
}

/* ---- set ---- */

static void server_close(kvf_ucx *ucx)
{
  kvf_ucx_worker_close(ucx, &ucx->server);
  kvf_ucx_messages_free(&ucx->answers);
}

static kvf_status serve(kvf_ucx_memory *memory, char *message)
{
  kvf_ucx *ucx = memory->ucx;
  uint8_t *description = malloc(KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
  size_t bytes = 0;
  if (description == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "%s", strerror(ENOMEM));
  }
  if (!kvf_ucx_worker_open(ucx, &ucx->server, message) || !kvf_ucx_messages_serve_server(ucx, message)) {
    server_close(ucx);
    free(description);
    return KVF_SYSTEM;
  }
  kvf_status status = write_description(memory, description, &bytes);
  if (status != KVF_OK) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX,
                   "memory cannot be described: %s (its keys or UCX's address are too long for %d bytes: fewer "
                   "regions, or fewer devices in UCX_NET_DEVICES, are shorter)",
                   kvf_status_name(status), KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
    server_close(ucx);
    free(description);
    return status;
  }
  kvf_commands_lock(&ucx->commands);
  ucx->description = description;
  ucx->description_bytes = bytes;
  kvf_commands_unlock(&ucx->commands);
  return KVF_OK;
}

static kvf_status adopt(kvf_ucx *ucx, kvf_ucx_memory *memory)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  if (ucx->memory != NULL) {
    return KVF_EXISTS;
  }
  kvf_status status = KVF_SYSTEM;
  if (map_all(memory, message)) {
    status = serve(memory, message);
    if (status == KVF_OK) {
      memory->generation = ++ucx->generation;
      ucx->memory = memory;
      return KVF_OK;
    }
    kvf_ucx_unmap_all(memory);
  }
  char line[KVF_MESSAGE_BYTES_MAX + 8];
  (void)snprintf(line, sizeof(line), "ucx: %s", message);
  ucx->host.log(ucx->host.context, KVF_LOG_ERROR, line);
  return status;
}

static void run_set(void *owner, kvf_command *command)
{
  kvf_ucx *ucx = owner;
  kvf_ucx_memory *memory = KVF_CONTAINER_OF(command, kvf_ucx_memory, set.command);
  kvf_commands_end(&ucx->commands, &memory->set, adopt(ucx, memory));
}

kvf_status kvf_ucx_set_memory(kvf_transport *transport, const kvf_transport_memory *given)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  size_t count = (size_t)given->regions_count + 2 * (size_t)given->checksums_count;
  if (given->table == NULL || given->regions_count == 0) {
    return KVF_INVALID;
  }
  kvf_ucx_memory *memory =
      calloc(1, sizeof(*memory) + count * sizeof(kvf_region) + (count + 1) * sizeof(memory->mems[0]));
  kvf_paging *pages = memory == NULL ? NULL : kvf_paging_of_memory(given);
  if (pages == NULL) {
    free(memory);
    return KVF_NO_MEMORY;
  }
  memory->pages = pages;
  memory->ucx = ucx;
  memory->refs = 1;
  memory->regions_count = given->regions_count;
  memory->checksums_count = given->checksums_count;
  memory->table_slots = given->table_slots;
  memory->table = given->table;
  memory->mems_count = (uint32_t)count + 1;
  memory->mems = (void *)(memory->regions + count);
  kvf_region *to = memory->regions;
  memcpy(to, given->regions, given->regions_count * sizeof(*to));
  if (given->checksums_count > 0) {
    to += given->regions_count;
    memcpy(to, given->checksums_read, given->checksums_count * sizeof(*to));
    to += given->checksums_count;
    memcpy(to, given->checksums, given->checksums_count * sizeof(*to));
  }
  kvf_command_init(&memory->set.command, run_set);
  kvf_status status = kvf_commands_wait(&ucx->commands, &memory->set);
  if (status != KVF_OK) {
    free(memory->pages);
    free(memory);
  } else {
    kvf_thread_move(ucx->thread, given->near_cpus);
  }
  return status;
}

/* ---- clear ---- */

void kvf_ucx_memory_close(kvf_ucx *ucx)
{
  kvf_commands_lock(&ucx->commands);
  uint8_t *description = ucx->description;
  ucx->description = NULL;
  kvf_commands_unlock(&ucx->commands);
  free(description);
  server_close(ucx); /* before the memory: see ucx.h */
  if (ucx->memory != NULL) {
    kvf_ucx_memory_drop(ucx->memory);
    ucx->memory = NULL;
  }
}

static void run_clear(void *owner, kvf_command *command)
{
  kvf_ucx *ucx = owner;
  kvf_list *next;
  for (kvf_list *node = ucx->links.next; node != &ucx->links; node = next) {
    next = node->next;
    kvf_ucx_reads_stop(ucx, KVF_CONTAINER_OF(node, kvf_ucx_link, in_links), KVF_CANCELLED);
  }
  kvf_ucx_memory_close(ucx);
  kvf_commands_end(&ucx->commands, KVF_CONTAINER_OF(command, kvf_waited, command), KVF_OK);
}

void kvf_ucx_clear_memory(kvf_transport *transport)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  kvf_waited clear;
  kvf_command_init(&clear.command, run_clear);
  (void)kvf_commands_wait(&ucx->commands, &clear);
}

kvf_status kvf_ucx_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  kvf_status status = KVF_OK;
  kvf_commands_lock(&ucx->commands);
  if (ucx->description == NULL) {
    status = KVF_INVALID;
  } else if (ucx->description_bytes > capacity) {
    status = KVF_LIMIT;
  } else {
    memcpy(out, ucx->description, ucx->description_bytes);
    *out_bytes = ucx->description_bytes;
  }
  kvf_commands_unlock(&ucx->commands);
  return status;
}
