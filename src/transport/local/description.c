/* Writes and checks the description: where this process is, what it has exported, and where its fence table lies. */
#include "transport/local/description.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/own_fds.h"

_Static_assert(sizeof(kvf_local_description) == 8 + 48 + 16 + KVF_LOCAL_COOKIE_BYTES + 32 + 24, "no padding travels");

kvf_local_place kvf_local_place_here(void)
{
  kvf_local_place place = {0};
  int fd = KVF_OWN_FD(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  if (fd >= 0) {
    if (read(fd, place.boot, sizeof(place.boot)) < 0) {
      memset(place.boot, 0, sizeof(place.boot));
    }
    kvf_own_fd_close(fd);
  }
  struct stat namespace;
  if (stat("/proc/self/ns/pid", &namespace) == 0) {
    place.pid_namespace = namespace.st_ino;
  }
  return place;
}

kvf_status kvf_local_export(const kvf_transport_memory *memory, uint8_t **out, size_t *bytes, char *message)
{
  uint8_t *room = malloc(KVF_LOCAL_EXPORTS_BYTES_MAX);
  if (room == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "no memory");
  }
  *bytes = 0;
  kvf_status status =
      kvf_memory_export(memory->regions, memory->regions_count, room, KVF_LOCAL_EXPORTS_BYTES_MAX, bytes, message);
  const size_t of_regions = *bytes;
  if (status == KVF_OK) {
    status = kvf_memory_export(memory->checksums, memory->checksums_count, room, KVF_LOCAL_EXPORTS_BYTES_MAX, bytes,
                               message);
    if (status != KVF_OK) {
      kvf_memory_unexport(memory->regions, memory->regions_count, (kvf_memory_exports){room, of_regions});
    }
  }
  if (status != KVF_OK) {
    free(room);
    return status;
  }
  *out = room;
  return KVF_OK;
}

void kvf_local_unexport(const kvf_region *regions, uint32_t count, uint8_t *exports, size_t bytes)
{
  if (exports != NULL) {
    kvf_memory_unexport(regions, count, (kvf_memory_exports){exports, bytes});
    free(exports);
  }
}

static kvf_status check_addresses(const kvf_local_description *head, char *message)
{
  if (head->pid == 0 || head->pid > INT32_MAX) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "%" PRIu32 " is no process id", head->pid);
  }
  if (!kvf_address_is_possible(head->cookie_address, KVF_LOCAL_COOKIE_BYTES) ||
      !kvf_address_is_possible(head->table_address, kvf_fence_table_bytes(head->table_slots)) ||
      !kvf_address_is_possible(head->exports_address, head->exports_bytes)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description has an impossible address");
  }
  return KVF_OK;
}

static kvf_status check_place(const kvf_local_description *head, const kvf_local_place *here,
                              const kvf_incarnation *incarnation, char *message)
{
  if (memcmp(head->place.boot, here->boot, sizeof(here->boot)) != 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "it runs on another host");
  }
  if (head->place.pid_namespace != here->pid_namespace) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "it runs in another process-id namespace (container)");
  }
  if (memcmp(&head->incarnation, incarnation, sizeof(*incarnation)) != 0) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is of another incarnation");
  }
  return KVF_OK;
}

kvf_status kvf_local_description_read(const void *bytes, size_t bytes_count, const kvf_local_place *here,
                                      const kvf_incarnation *incarnation, uint32_t regions, uint32_t checksums,
                                      kvf_local_description *head, char *message)
{
  if (bytes_count != sizeof(*head)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description has %zu bytes, not %zu", bytes_count, sizeof(*head));
  }
  memcpy(head, bytes, sizeof(*head));
  if (head->magic != KVF_LOCAL_MAGIC || head->regions_count != regions ||
      (head->checksums_count != 0 && head->checksums_count != checksums) ||
      head->exports_bytes > KVF_LOCAL_EXPORTS_BYTES_MAX) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is not one of this transport");
  }
  kvf_status status = check_place(head, here, incarnation, message);
  return status == KVF_OK ? check_addresses(head, message) : status;
}

kvf_status kvf_local_import(const kvf_local_description *head, kvf_memory_exports exports,
                            const kvf_region_layout *remote, const kvf_memory_devices *devices, kvf_memory_import *out,
                            char *message)
{
  const uint32_t count = head->regions_count + head->checksums_count;
  if (!kvf_memory_exports_are_whole(exports, count)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "what process %" PRIu32 " exports is not of %" PRIu32 " regions",
                    head->pid, count);
  }
  for (uint32_t i = 0; i < count; i++) {
    char why[KVF_MESSAGE_BYTES_MAX];
    const kvf_memory_source source = {.pid = (pid_t)head->pid,
                                      .device = devices->of_kind[remote[i].memory],
                                      .region_bytes = kvf_region_layout_bytes(&remote[i])};
    kvf_status status = kvf_memory_import_next(&exports, remote[i].memory, source, &out[i], why);
    if (status != KVF_OK) {
      const bool is_region = i < head->regions_count;
      kvf_memory_release(out, i);
      return kvf_fail(status, message, "its %s %" PRIu32 " cannot be read: %.200s", is_region ? "region" : "checksums",
                      is_region ? i : i - head->regions_count, why);
    }
  }
  return KVF_OK;
}
