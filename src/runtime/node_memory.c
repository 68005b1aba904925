/* A node's memory and its place in its engine. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "memory/memory.h"
#include "runtime/checksummer.h"
#include "runtime/numa.h"
#include "runtime/ordering.h"
#include "runtime/pump.h"
#include "transport/fence_memory.h"

static kvf_status describe_transports(kvf_node *node, kvf_welcome *welcome)
{
  uint8_t *room = malloc(KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
  kvf_status status = room == NULL ? KVF_NO_MEMORY : KVF_OK;
  const bool is_served = node->address.port != 0;
  for (uint32_t i = 0; status == KVF_OK && is_served && i < node->transports_count; i++) {
    if ((node->transports_used >> i & 1) == 0) {
      continue;
    }
    kvf_transport_offer *offer = &welcome->transports[welcome->transports_count];
    size_t bytes = 0;
    status = kvf_rails_describe(&node->transports[i], room, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX, &bytes);
    if (status == KVF_OK) {
      offer->description = malloc(bytes == 0 ? 1 : bytes);
      status = offer->description == NULL ? KVF_NO_MEMORY : KVF_OK;
    }
    if (status == KVF_OK) {
      memcpy(offer->description, room, bytes);
      offer->description_bytes = bytes;
      (void)snprintf(offer->name, sizeof(offer->name), "%s", kvf_core_transport(node->core, i));
      welcome->transports_count++;
    }
  }
  free(room);
  return status;
}

/* Of regions without parts that are not valid: the first of the rules of kvf_region that is broken. */
static kvf_status explain_regions(const kvf_region_layout *regions, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    const kvf_region_layout *region = &regions[i];
    const unsigned heads = region->heads;
    const unsigned total = region->heads_total;
    const unsigned bytes = region->block_bytes;
    if (region->blocks == 0 || bytes == 0 || heads == 0) {
      return kvf_because(KVF_INVALID, "region %u: blocks = %u, block_bytes = %u, heads = %u: none may be 0",
                         (unsigned)i, (unsigned)region->blocks, bytes, heads);
    }
    if (bytes % heads != 0 || heads > total || total != regions[0].heads_total) {
      return kvf_because(
          KVF_INVALID,
          "region %u: block_bytes = %u must be a multiple of heads = %u, these at most heads_total = %u, "
          "and that as in region 0, %u",
          (unsigned)i, bytes, heads, total, (unsigned)regions[0].heads_total);
    }
    if (!kvf_region_layout_is_valid(region)) {
      return kvf_because(KVF_INVALID,
                         "region %u: stride_bytes = %llu must be block_bytes = %u at least, group = %u below %d, and "
                         "all %u blocks within 2^48 bytes",
                         (unsigned)i, (unsigned long long)region->stride_bytes, bytes, (unsigned)region->group,
                         KVF_GROUPS_MAX, (unsigned)region->blocks);
    }
  }
  return kvf_because(KVF_INVALID, "a group below the highest one has no region");
}

static kvf_status check_pages(const kvf_pages *pages)
{
  char bad[KVF_PART_NAME_BYTES];
  if (kvf_pages_are_valid(pages)) {
    return KVF_OK;
  }
  if (pages->layout.parts == NULL) {
    return explain_regions(pages->regions, pages->regions_count);
  }
  (void)kvf_pages_check(pages, bad);
  return kvf_because(KVF_INVALID, "%s: a number breaks a rule of kvferry/part.h or kvf_region", bad);
}

/* What peers are told of the memory; to be freed with kvf_welcome_free() unless the core takes it. */
static kvf_status make_welcome(kvf_node *node, const kvf_layout *layout, kvf_welcome *welcome)
{
  const uint32_t count = node->memory.regions_count;
  *welcome = (kvf_welcome){.generation = ++node->memory.generation,
                           .rank = node->config.rank,
                           .ranks = node->config.ranks,
                           .block_tokens = node->config.block_tokens};
  welcome->regions = calloc(count, sizeof(*welcome->regions));
  kvf_part *parts = layout->parts_count == 0 ? NULL : calloc(layout->parts_count, sizeof(*parts));
  if (welcome->regions == NULL || (layout->parts_count > 0 && parts == NULL)) {
    free(parts);
    return KVF_NO_MEMORY;
  }
  for (uint32_t i = 0; i < count; i++) {
    welcome->regions[i] = kvf_region_layout_of(&node->memory.regions[i]);
  }
  welcome->regions_count = count;
  if (parts != NULL) {
    memcpy(parts, layout->parts, layout->parts_count * sizeof(*parts));
    welcome->layout = *layout;
    welcome->layout.parts = parts;
  }
  return check_pages(&(kvf_pages){welcome->regions, count, welcome->layout});
}

/* Looks for what the kinds of the registered memory need, and for a library that was named, whose kind may be a peer's.
 * KVF_TRANSFER_SETUP: a kind that is registered cannot be used. */
static kvf_status open_kinds(kvf_node *node, uint32_t kinds)
{
  for (uint32_t kind = 0; kind < KVF_MEMORY_KINDS_MAX; kind++) {
    const kvf_memory_ops *ops = kvf_memory_ops_of(kind);
    const bool is_ours = (kinds >> kind & 1) != 0;
    if (ops == NULL || ops->open == NULL || (!is_ours && node->config.cuda_library[0] == '\0')) {
      continue;
    }
    char message[KVF_MESSAGE_BYTES_MAX];
    kvf_status status = ops->open(node->config.cuda_library, message);
    kvf_log(&node->logger, status == KVF_OK ? KVF_LOG_INFO : KVF_LOG_ERROR, "%s", message);
    if (status != KVF_OK && is_ours) {
      return kvf_because(status, "%s", message);
    }
  }
  return KVF_OK;
}

/* Of the devices that the memory is on. */
static void log_remarks(kvf_node *node, const kvf_region *regions, uint32_t count)
{
  const kvf_memory_devices devices = kvf_memory_devices_of(regions, count);
  for (uint32_t kind = 0; kind < KVF_MEMORY_KINDS_MAX; kind++) {
    const kvf_memory_ops *ops = kvf_memory_ops_of(kind);
    char message[KVF_MESSAGE_BYTES_MAX] = "";
    if (ops != NULL && ops->remark != NULL && devices.of_kind[kind] != KVF_MEMORY_NO_DEVICE) {
      ops->remark(devices.of_kind[kind], message);
    }
    if (message[0] != '\0') {
      kvf_log(&node->logger, KVF_LOG_WARN, "%s", message);
    }
  }
}

/* With the devices that the memory is on, if there is any. */
static void set_ordering(kvf_node *node, kvf_ordering *ordering, uint32_t regions_count)
{
  (void)pthread_mutex_lock(&node->lock);
  node->memory.ordering = ordering;
  node->memory.devices = kvf_memory_devices_of(node->memory.regions, regions_count);
  (void)pthread_mutex_unlock(&node->lock);
}

static void clear_memory(kvf_node *node)
{
  kvf_ordering_close(node->memory.ordering); /* set under memory.lock only, which is held */
  set_ordering(node, NULL, 0);
  kvf_checksummer_stop(node->memory.checksummer);
  for (uint32_t i = 0; i < node->transports_count; i++) {
    kvf_rails_clear_memory(&node->transports[i]);
  }
  kvf_fence_store_generation(node->memory.fence_table, 0);
  node->memory.is_set = false;
  node->transports_used = 0;
  kvf_checksummer_close(node->memory.checksummer);
  node->memory.checksummer = NULL;
  free(node->memory.regions);
  node->memory.regions = NULL;
}

/* The kinds that the transport brings into all of `ours`; *used: whether it serves any of these in any pair. */
static uint32_t served_kinds(const kvf_transport_ops *ops, uint32_t ours, bool *used)
{
  uint32_t kinds = 0;
  *used = false;
  for (uint32_t theirs = 0; theirs < KVF_MEMORY_KINDS_MAX; theirs++) {
    bool all = true;
    for (uint32_t own = 0; own < KVF_MEMORY_KINDS_MAX; own++) {
      if ((ours >> own & 1) != 0) {
        all = all && ops->serves(theirs, own);
        *used = *used || ops->serves(theirs, own) || ops->serves(own, theirs);
      }
    }
    kinds |= (uint32_t)all << theirs;
  }
  return kinds;
}

/* Gives the memory to a transport, or leaves it out, where the others will do. */
static kvf_status set_transport(kvf_node *node, uint32_t i, uint32_t ours, const kvf_transport_memory *memory)
{
  const kvf_transport_ops *ops = node->transports[i].ops;
  bool used;
  const uint32_t kinds = served_kinds(ops, ours, &used);
  kvf_status status = used ? kvf_rails_set_memory(&node->transports[i], memory) : KVF_TRANSFER_SETUP;
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_set_served(node->core, i, status == KVF_OK ? kinds : 0);
  kvf_node_leave(node, now_ns);
  if (status == KVF_OK) {
    node->transports_used |= UINT32_C(1) << i;
  } else if (status == KVF_TRANSFER_SETUP) {
    if (!used) { /* else it has said why itself */
      kvf_log(&node->logger, KVF_LOG_WARN, "transport %s is left out: it does not serve %s memory", ops->name,
              kvf_memory_kind_name(__builtin_ctz(ours)));
    }
    (void)kvf_because(KVF_TRANSFER_SETUP, "transport %s %s %s memory", ops->name,
                      used ? "cannot be set up, as the log says, for" : "does not serve",
                      kvf_memory_kind_name(__builtin_ctz(ours)));
    status = node->config.require[0] == '\0' ? KVF_OK : KVF_TRANSFER_SETUP;
  }
  return status;
}

static kvf_status set_transports(kvf_node *node, const kvf_layout *layout)
{
  const uint32_t ours = kvf_memory_kinds(node->memory.regions, node->memory.regions_count);
  kvf_transport_memory memory = {.regions = node->memory.regions,
                                 .regions_count = node->memory.regions_count,
                                 .layout = *layout,
                                 .table = node->memory.fence_table,
                                 .table_slots = node->config.lease_slots,
                                 .table_fd = node->memory.fence_fd};
  kvf_cpu_list near_cpus;
  kvf_checksummer_describe(node->memory.checksummer, &memory);
  if (ours == UINT32_C(1) << KVF_MEMORY_HOST && kvf_thread_cpus_are_free(&node->cpus) &&
      kvf_numa_cpus(KVF_NUMA_FOLDER, node->memory.regions, node->memory.regions_count, &near_cpus)) {
    memory.near_cpus = &near_cpus;
  }
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < node->transports_count; i++) {
    status = set_transport(node, i, ours, &memory);
  }
  node->memory.is_set = true;
  return status == KVF_OK && node->transports_used == 0 ? KVF_TRANSFER_SETUP : status;
}

static kvf_status check_regions(const kvf_region *regions, size_t count)
{
  if (regions == NULL || count == 0 || count > KVF_REGIONS_MAX) {
    return kvf_because(regions == NULL || count == 0 ? KVF_INVALID : KVF_LIMIT,
                       "regions = %s, count = %zu must be 1 to %d", regions == NULL ? "NULL" : "(some)", count,
                       KVF_REGIONS_MAX);
  }
  for (size_t i = 0; i < count; i++) {
    if (regions[i].base == NULL) {
      return kvf_because(KVF_INVALID, "regions[%zu].base is NULL", i);
    }
  }
  return KVF_OK;
}

/* A copy, in which parts take the place of heads and groups. */
static kvf_status copy_regions(kvf_node *node, const kvf_region *regions, uint32_t count, bool has_parts)
{
  node->memory.regions = malloc(count * sizeof(*regions));
  if (node->memory.regions == NULL) {
    return KVF_NO_MEMORY;
  }
  memcpy(node->memory.regions, regions, count * sizeof(*regions));
  node->memory.regions_count = count;
  for (uint32_t i = 0; has_parts && i < count; i++) {
    node->memory.regions[i].heads = 1;
    node->memory.regions[i].heads_total = 1;
    node->memory.regions[i].group = 0;
  }
  return KVF_OK;
}

/* If the node is to have one. */
static kvf_status open_checksummer(kvf_node *node, const kvf_welcome *welcome)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  const kvf_pages pages = {welcome->regions, welcome->regions_count, welcome->layout};
  if (!node->config.checksum) {
    return KVF_OK;
  }
  kvf_status status = kvf_checksummer_open(node, &pages, &node->memory.checksummer, message);
  if (status != KVF_OK) {
    kvf_log(&node->logger, KVF_LOG_ERROR, "option checksum: %s", message);
    (void)kvf_because(status, "option checksum: %.200s", message);
  }
  return status;
}

static kvf_status register_pages(kvf_node *node, const kvf_region *regions, uint32_t count, const kvf_layout *layout)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_welcome welcome = {0};
  kvf_status status = copy_regions(node, regions, count, layout->parts != NULL);
  if (status == KVF_OK) {
    status = make_welcome(node, layout, &welcome);
  }
  if (status == KVF_OK) {
    status = open_kinds(node, kvf_memory_kinds(regions, count));
  }
  if (status == KVF_OK) {
    status = kvf_memory_check(regions, (uint32_t)count, message);
  }
  if (status == KVF_OK) {
    log_remarks(node, regions, count);
    status = kvf_node_equip(node, message);
  }
  if (status != KVF_OK) {
    if (message[0] != '\0') {
      kvf_log(&node->logger, KVF_LOG_ERROR, "%s", message);
      (void)kvf_because(status, "%s", message);
    }
    goto free_welcome;
  }
  status = open_checksummer(node, &welcome);
  if (status == KVF_OK) {
    kvf_ordering *ordering;
    status = kvf_ordering_open(node, &ordering);
    set_ordering(node, ordering, count);
  }
  if (status == KVF_OK) {
    kvf_fence_store_generation(node->memory.fence_table, welcome.generation);
    status = set_transports(node, &welcome.layout);
  }
  if (status == KVF_OK) {
    status = describe_transports(node, &welcome);
  }
  if (status == KVF_OK) {
    uint64_t now_ns = kvf_node_enter(node);
    status = kvf_core_set_memory(node->core, &welcome);
    if (status == KVF_OK) {
      kvf_core_start(node->core, now_ns);
    }
    kvf_node_leave(node, now_ns);
  }
  if (status == KVF_OK) {
    return KVF_OK;
  }
  clear_memory(node);

free_welcome:
  free(node->memory.regions);
  node->memory.regions = NULL;
  kvf_welcome_free(&welcome);
  return status;
}

static kvf_status register_memory(kvf_node *node, const kvf_region *regions, size_t count, const kvf_layout *layout)
{
  kvf_status status = check_regions(regions, count);
  if (status != KVF_OK) {
    return status;
  }
  (void)pthread_mutex_lock(&node->memory.lock);
  status = node->memory.is_set
               ? kvf_because(KVF_EXISTS, "memory is registered already: kvf_node_unregister() comes first")
               : register_pages(node, regions, (uint32_t)count, layout);
  (void)pthread_mutex_unlock(&node->memory.lock);
  return status;
}

kvf_status kvf_node_register(kvf_node *node, const kvf_region *regions, size_t count)
{
  return kvf_answer(register_memory(node, regions, count, &(kvf_layout){0}));
}

kvf_status kvf_node_register_layout(kvf_node *node, const kvf_region *regions, size_t count, const kvf_layout *layout)
{
  kvf_status status = KVF_NOT_NULL(layout);
  status = status == KVF_OK ? KVF_NOT_NULL(layout->parts) : status;
  if (status == KVF_OK && (layout->parts_count == 0 || layout->parts_count > KVF_PARTS_MAX)) {
    status =
        kvf_because(layout->parts_count == 0 ? KVF_INVALID : KVF_LIMIT,
                    "layout->parts_count = %zu must be 1 to %d, KVF_PARTS_MAX", layout->parts_count, KVF_PARTS_MAX);
  }
  return kvf_answer(status == KVF_OK ? register_memory(node, regions, count, layout) : status);
}

kvf_status kvf_node_unregister(kvf_node *node)
{
  kvf_status status = KVF_OK;
  (void)pthread_mutex_lock(&node->memory.lock);
  if (node->memory.is_set) {
    uint64_t now_ns = kvf_node_enter(node);
    bool released = kvf_core_clear_memory(node->core, now_ns);
    kvf_node_leave(node, now_ns);
    if (released) {
      clear_memory(node);
    } else {
      status = KVF_AGAIN;
    }
  }
  (void)pthread_mutex_unlock(&node->memory.lock);
  return kvf_answer(status);
}

kvf_status kvf_node_address(kvf_node *node, void *out, size_t capacity, size_t *out_bytes)
{
  if (node->address.port == 0) {
    return kvf_answer(kvf_because(KVF_INVALID, "this node does not listen (option listen), and has no address"));
  }
  uint64_t now_ns = kvf_node_enter(node);
  const kvf_rank_record record = kvf_core_record(node->core, &node->address, &node->other);
  kvf_node_leave(node, now_ns);
  return kvf_answer(kvf_rank_record_encode(&record, out, capacity, out_bytes));
}

kvf_status kvf_node_set_ranks(kvf_node *node, const void *records, const size_t *bytes, size_t ranks)
{
  kvf_rank_record decoded[KVF_RANKS_MAX];
  const uint8_t *next = records;
  kvf_status status = KVF_NOT_NULL(records, bytes);
  if (status == KVF_OK && (ranks == 0 || ranks > KVF_RANKS_MAX)) {
    status = kvf_because(KVF_INVALID, "ranks = %zu must be 1 to %d", ranks, KVF_RANKS_MAX);
  }
  for (size_t i = 0; status == KVF_OK && i < ranks; i++) {
    status = kvf_rank_record_decode(next, bytes[i], &decoded[i]);
    if (status == KVF_INVALID) {
      (void)kvf_because(status, "record %zu, of %zu bytes, is not one of kvf_node_address()", i, bytes[i]);
    }
    next += bytes[i];
  }
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_core_set_ranks(node->core, decoded, (uint32_t)ranks);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}
