/* Registers the rank's regions, checksums and table in the data thread, and packs their keys into the description. */
#include "transport/ucx/ucx_memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/ucx/message.h"
#include "transport/ucx/ucx_link.h"

/* ---- registration, in the data thread ---- */

typedef struct map_order {
  const kvf_ucx *ucx;
  const void *address;
  uint64_t bytes;
  kvf_ucx_registered *out;
  kvf_ucs_status error;
} map_order;

static void map(void *argument)
{
  map_order *order = argument;
  order->error = kvf_ucx_map(order->ucx, order->address, order->bytes, order->out);
}

static void map_region(map_order *order, const kvf_region *region)
{
  const kvf_memory_ops *ops = kvf_memory_ops_of(region->memory);
  const kvf_region_layout layout = kvf_region_layout_of(region);
  order->address = region->base;
  order->bytes = kvf_region_layout_bytes(&layout);
  order->out->type = region->memory == KVF_MEMORY_CUDA ? KVF_UCS_MEMORY_TYPE_CUDA : KVF_UCS_MEMORY_TYPE_HOST;
  if (ops->within == NULL) {
    map(order);
  } else if (!ops->within(region->device, map, order)) {
    order->error = KVF_UCS_ERR_NO_DEVICE;
  }
}

static kvf_ucs_status map_one(kvf_ucx_memory *memory, uint32_t i)
{
  const kvf_paging *pages = memory->pages;
  const uint32_t read = kvf_paging_regions(pages);
  map_order order = {.ucx = memory->ucx,
                     .address = pages->table,
                     .bytes = kvf_fence_table_bytes(pages->table_slots),
                     .out = &memory->mems[i]};
  if (i + 1 < memory->mems_count) {
    map_region(&order, i < read ? &pages->local[i] : &pages->served[i - pages->checksums_count]);
  } else {
    map(&order);
  }
  return order.error;
}

/* That of devices can do without this transport. */
static kvf_status map_all(kvf_ucx_memory *memory, char *message)
{
  for (uint32_t i = 0; i < memory->mems_count; i++) {
    kvf_ucs_status error = map_one(memory, i);
    if (error != KVF_UCS_OK) {
      const bool is_host = memory->mems[i].type == KVF_UCS_MEMORY_TYPE_HOST;
      return kvf_fail(is_host ? KVF_SYSTEM : KVF_TRANSFER_SETUP, message, "memory %u of %u cannot be registered: %s",
                      (unsigned)i + 1, (unsigned)memory->mems_count, kvf_ucx_text(memory->ucx, error));
    }
  }
  return KVF_OK;
}

/* KVF_TRANSFER_SETUP: it is on devices that UCX does not take, or whose driver could not make sure of what a network
 * writes there. */
static kvf_status check_devices(const kvf_ucx_memory *memory, char *message)
{
  const kvf_paging *pages = memory->pages;
  if (kvf_memory_all_are_addressable(pages->local, pages->regions_count)) {
    return KVF_OK;
  }
  if (!memory->ucx->has_cuda) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "memory of GPUs goes another way: " KVF_UCX_NO_CUDA);
  }
  return kvf_memory_flush(&memory->devices)
             ? KVF_OK
             : kvf_fail(KVF_TRANSFER_SETUP, message,
                        "memory of GPUs goes another way: the driver does not wait for what a network has written");
}

/* ---- description, in the data thread ---- */

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

static kvf_status write_description(const kvf_ucx_memory *memory, uint8_t *out, size_t *out_bytes)
{
  kvf_ucx *ucx = memory->ucx;
  const kvf_paging *pages = memory->pages;
  const uint32_t served = kvf_paging_regions(pages);
  void *worker = NULL;
  size_t worker_bytes = 0;
  kvf_ucx_memory_key *keys = calloc((size_t)served + 1, sizeof(*keys)); /* the last is the table's */
  if (keys == NULL) {
    return KVF_NO_MEMORY;
  }
  if (ucx->api->worker_get_address(ucx->server, &worker, &worker_bytes) != KVF_UCS_OK) {
    free(keys);
    return KVF_SYSTEM;
  }
  kvf_status status = worker_bytes > KVF_UCX_ADDRESS_BYTES_MAX ? KVF_LIMIT : KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i <= served; i++) {
    uint32_t at = i < pages->regions_count ? i : i + pages->checksums_count;
    const void *address = i < served ? pages->served[i].base : pages->table;
    status = pack_key(ucx, address, memory->mems[at].mem, &keys[i]);
  }
  if (status == KVF_OK) {
    const kvf_ucx_description description = {
        .incarnation = ucx->data_thread.config.incarnation,
        .ucx_major = (uint16_t)ucx->api->major,
        .ucx_minor = (uint16_t)ucx->api->minor,
        .worker = worker,
        .worker_bytes = (uint16_t)worker_bytes,
        .table_slots = pages->table_slots,
        .table = keys[served],
        .regions_count = pages->regions_count,
        .checksums_count = pages->checksums_count,
        .memories = keys,
    };
    status = kvf_ucx_description_write(&description, out, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX, out_bytes);
  }
  for (uint32_t i = 0; i <= served; i++) {
    if (keys[i].key != NULL) {
      ucx->api->rkey_buffer_release((void *)(uintptr_t)keys[i].key);
    }
  }
  ucx->api->worker_release_address(ucx->server, worker);
  free(keys);
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
  kvf_status status = kvf_ucx_worker_open(ucx, &ucx->server, message);
  status = status == KVF_OK ? kvf_ucx_messages_serve_server(ucx, message) : status;
  if (status != KVF_OK) {
    goto failed;
  }
  status = write_description(memory, description, &bytes);
  if (status != KVF_OK) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX,
                   "memory cannot be described: %s (its keys or UCX's address are too long for %d bytes: fewer "
                   "regions, or fewer devices in UCX_NET_DEVICES, are shorter)",
                   kvf_status_name(status), KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
    goto failed;
  }
  kvf_commands_lock(&ucx->data_thread.commands);
  ucx->description = description;
  ucx->description_bytes = bytes;
  kvf_commands_unlock(&ucx->data_thread.commands);
  return KVF_OK;

failed:
  server_close(ucx);
  free(description);
  return status;
}

static kvf_status adopt(void *owner, void *given)
{
  kvf_ucx *ucx = owner;
  kvf_ucx_memory *memory = given;
  char message[KVF_MESSAGE_BYTES_MAX];
  if (ucx->memory != NULL) {
    return KVF_EXISTS;
  }
  kvf_status status = check_devices(memory, message);
  status = status == KVF_OK ? map_all(memory, message) : status;
  status = status == KVF_OK ? serve(memory, message) : status;
  if (status == KVF_OK) {
    ucx->memory = memory;
    kvf_data_thread_use_memory(&ucx->data_thread, memory->pages);
    return KVF_OK;
  }
  kvf_ucx_unmap_all(memory);
  char line[KVF_MESSAGE_BYTES_MAX + 8];
  (void)snprintf(line, sizeof(line), "ucx: %s", message);
  ucx->data_thread.host.log(ucx->data_thread.host.context, status == KVF_TRANSFER_SETUP ? KVF_LOG_WARN : KVF_LOG_ERROR,
                            line);
  return status;
}

kvf_status kvf_ucx_set_memory(kvf_transport *transport, const kvf_transport_memory *given)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  const uint32_t mems = given->regions_count + 2 * given->checksums_count + 1;
  if (given->table == NULL || given->regions_count == 0) {
    return KVF_INVALID;
  }
  kvf_ucx_memory *memory = calloc(1, sizeof(*memory) + mems * sizeof(memory->mems[0]));
  if (memory == NULL) {
    return KVF_NO_MEMORY;
  }
  *memory = (kvf_ucx_memory){.ucx = ucx,
                             .refs = 1,
                             .pages = kvf_paging_of_memory(given),
                             .devices = kvf_memory_devices_of(given->regions, given->regions_count),
                             .mems_count = mems};
  kvf_status status =
      memory->pages == NULL ? KVF_NO_MEMORY : kvf_commands_ask(&ucx->data_thread.commands, adopt, memory);
  if (status != KVF_OK) {
    free(memory->pages);
    free(memory);
  } else {
    kvf_thread_move(ucx->data_thread.thread, given->near_cpus);
  }
  return status;
}

/* ---- clear ---- */

void kvf_ucx_memory_close(kvf_ucx *ucx)
{
  kvf_commands_lock(&ucx->data_thread.commands);
  uint8_t *description = ucx->description;
  ucx->description = NULL;
  kvf_commands_unlock(&ucx->data_thread.commands);
  free(description);
  server_close(ucx); /* before the memory: see ucx_common.h */
  if (ucx->memory != NULL) {
    kvf_ucx_memory_drop(ucx->memory);
    ucx->memory = NULL;
  }
  kvf_data_thread_use_memory(&ucx->data_thread, NULL);
}

static kvf_status clear(void *owner, void *argument)
{
  kvf_ucx *ucx = owner;
  kvf_list *next;
  (void)argument;
  for (kvf_list *node = ucx->data_thread.links.next; node != &ucx->data_thread.links; node = next) {
    next = node->next;
    kvf_ucx_reads_stop(ucx, KVF_CONTAINER_OF(node, kvf_ucx_link, common.in_links), KVF_CANCELLED);
  }
  kvf_ucx_memory_close(ucx);
  return KVF_OK;
}

void kvf_ucx_clear_memory(kvf_transport *transport)
{
  (void)kvf_commands_ask(&kvf_ucx_of(transport)->data_thread.commands, clear, NULL);
}

kvf_status kvf_ucx_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  kvf_ucx *ucx = kvf_ucx_of(transport);
  kvf_status status = KVF_OK;
  kvf_commands_lock(&ucx->data_thread.commands);
  if (ucx->description == NULL) {
    status = KVF_INVALID;
  } else if (ucx->description_bytes > capacity) {
    status = KVF_LIMIT;
  } else {
    memcpy(out, ucx->description, ucx->description_bytes);
    *out_bytes = ucx->description_bytes;
  }
  kvf_commands_unlock(&ucx->data_thread.commands);
  return status;
}
