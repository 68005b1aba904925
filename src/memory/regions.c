/* Operations on several regions, of any kinds. */
#include <string.h>

#include "base/status.h"
#include "memory/memory.h"

uint32_t kvf_memory_kinds(const kvf_region *regions, uint32_t count)
{
  uint32_t kinds = 0;
  for (uint32_t i = 0; i < count; i++) {
    kinds |= UINT32_C(1) << regions[i].memory;
  }
  return kinds;
}

bool kvf_memory_all_are_addressable(const kvf_region *regions, uint32_t count)
{
  bool all = true;
  for (uint32_t i = 0; i < count; i++) {
    all = all && kvf_memory_ops_of(regions[i].memory)->is_addressable;
  }
  return all;
}

bool kvf_memory_any_has_points(const kvf_region *regions, uint32_t count)
{
  bool any = false;
  for (uint32_t i = 0; i < count; i++) {
    any = any || kvf_memory_ops_of(regions[i].memory)->mark != NULL;
  }
  return any;
}

kvf_memory_devices kvf_memory_devices_of(const kvf_region *regions, uint32_t count)
{
  kvf_memory_devices devices;
  memset(&devices, 0xff, sizeof(devices)); /* KVF_MEMORY_NO_DEVICE */
  for (uint32_t i = count; i > 0; i--) {
    devices.of_kind[regions[i - 1].memory] = regions[i - 1].device;
  }
  return devices;
}

bool kvf_memory_works(const kvf_memory_devices *devices)
{
  bool all = true;
  for (uint32_t kind = 0; kind < KVF_MEMORY_KINDS_MAX; kind++) {
    const kvf_memory_ops *ops = kvf_memory_ops_of(kind);
    const uint32_t device = devices->of_kind[kind];
    all = all && (device == KVF_MEMORY_NO_DEVICE || ops->works == NULL || ops->works(device));
  }
  return all;
}

bool kvf_memory_flush(const kvf_memory_devices *devices)
{
  bool all = true;
  for (uint32_t kind = 0; kind < KVF_MEMORY_KINDS_MAX; kind++) {
    const kvf_memory_ops *ops = kvf_memory_ops_of(kind);
    const uint32_t device = devices->of_kind[kind];
    all = (device == KVF_MEMORY_NO_DEVICE || ops->flush == NULL || ops->flush(device)) && all;
  }
  return all;
}

static kvf_status check(const kvf_region *region, const kvf_memory_devices *devices, char *message)
{
  const kvf_memory_ops *ops = kvf_memory_ops_of(region->memory);
  if (ops == NULL) {
    return kvf_fail(KVF_INVALID, message, "this library does not know its kind of memory");
  }
  if (region->device != devices->of_kind[region->memory]) {
    return kvf_fail(KVF_INVALID, message, "it is on device %u, and others on %u: use a node for each device",
                    (unsigned)region->device, (unsigned)devices->of_kind[region->memory]);
  }
  return ops->check(region, message);
}

kvf_status kvf_memory_check(const kvf_region *regions, uint32_t count, char *message)
{
  const kvf_memory_devices devices = kvf_memory_devices_of(regions, count);
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; status == KVF_OK && i < count; i++) {
    char why[KVF_MESSAGE_BYTES_MAX] = "";
    status = check(&regions[i], &devices, why);
    if (status != KVF_OK) {
      (void)kvf_fail(status, message, "region %u: %.200s", (unsigned)i, why);
    }
  }
  return status;
}

/* ---- lists of exports: for each the number of bytes (uint32_t), and these ---- */

/* One more, at the end of the list. */
static kvf_status export(const kvf_region *region, uint8_t *list, size_t room, size_t *used, char *message)
{
  const kvf_memory_ops *ops = kvf_memory_ops_of(region->memory);
  uint8_t exported[KVF_MEMORY_EXPORT_BYTES_MAX];
  size_t bytes = 0;
  kvf_status status = ops->export(region, exported, &bytes, message);
  if (status != KVF_OK) {
    return status;
  }
  const uint32_t length = (uint32_t)bytes;
  if (sizeof(length) + bytes > room - *used) {
    if (ops->unexport != NULL) {
      ops->unexport(exported);
    }
    return kvf_fail(KVF_LIMIT, message, "the description of its regions takes more than %zu bytes", room);
  }
  memcpy(list + *used, &length, sizeof(length));
  memcpy(list + *used + sizeof(length), exported, bytes);
  *used += sizeof(length) + bytes;
  return KVF_OK;
}

kvf_status kvf_memory_export(const kvf_region *regions, uint32_t count, uint8_t *list, size_t room, size_t *used,
                             char *message)
{
  const size_t before = *used;
  for (uint32_t i = 0; i < count; i++) {
    char why[KVF_MESSAGE_BYTES_MAX] = "";
    kvf_status status = export(&regions[i], list, room, used, why);
    if (status != KVF_OK) {
      (void)kvf_fail(status, message, "no other process can read region %u: %.200s", (unsigned)i, why);
      kvf_memory_unexport(regions, i, (kvf_memory_exports){list + before, *used - before});
      return status;
    }
  }
  return KVF_OK;
}

/* Takes the next, NULL: the list ends before its end. */
static const uint8_t *next_export(kvf_memory_exports *list, uint32_t *bytes)
{
  if (list->bytes < sizeof(*bytes)) {
    return NULL;
  }
  memcpy(bytes, list->next, sizeof(*bytes));
  if (*bytes > KVF_MEMORY_EXPORT_BYTES_MAX || *bytes > list->bytes - sizeof(*bytes)) {
    return NULL;
  }
  const uint8_t *found = list->next + sizeof(*bytes);
  list->next = found + *bytes;
  list->bytes -= sizeof(*bytes) + *bytes;
  return found;
}

bool kvf_memory_exports_are_whole(kvf_memory_exports list, uint32_t count)
{
  uint32_t bytes;
  while (count > 0 && next_export(&list, &bytes) != NULL) {
    count--;
  }
  return count == 0 && list.bytes == 0;
}

void kvf_memory_unexport(const kvf_region *regions, uint32_t count, kvf_memory_exports list)
{
  for (uint32_t i = 0; i < count; i++) {
    const kvf_memory_ops *ops = kvf_memory_ops_of(regions[i].memory);
    uint32_t bytes;
    const uint8_t *exported = next_export(&list, &bytes);
    if (ops->unexport != NULL && exported != NULL) {
      ops->unexport(exported);
    }
  }
}

kvf_status kvf_memory_import_next(kvf_memory_exports *list, uint32_t kind, kvf_memory_source source,
                                  kvf_memory_import *out, char *message)
{
  uint32_t bytes = 0;
  const kvf_memory_ops *ops = kvf_memory_ops_of(kind);
  source.exported = next_export(list, &bytes);
  source.exported_bytes = bytes;
  return ops == NULL || source.exported == NULL
             ? kvf_fail(KVF_TRANSFER_SETUP, message, "this library does not know its kind of memory")
             : ops->import(&source, out, message);
}

void kvf_memory_release(kvf_memory_import *imports, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    if (imports[i].ops->release != NULL) {
      imports[i].ops->release(&imports[i]);
    }
  }
}
