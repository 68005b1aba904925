#include "transport/local/description.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/checksums.h"
#include "transport/own_fds.h"

#define EXPORTS_BYTES_MAX (KVF_TRANSPORT_DESCRIPTION_BYTES_MAX - sizeof(kvf_local_description))

_Static_assert(sizeof(kvf_local_description) == 8 + 48 + 16 + KVF_LOCAL_COOKIE_BYTES + 16 + 24, "no padding travels");

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

/* Appends the exports of these. */
static kvf_status export_all(const kvf_region *regions, uint32_t count, uint8_t *room, size_t *used, char *message)
{
  for (uint32_t i = 0; i < count; i++) {
    uint8_t exported[KVF_MEMORY_EXPORT_BYTES_MAX];
    size_t bytes = 0;
    kvf_status status = kvf_memory_ops_of(regions[i].memory)->export(&regions[i], exported, &bytes, message);
    if (status != KVF_OK) {
      return status;
    }
    const uint32_t length = (uint32_t)bytes;
    if (sizeof(length) + bytes > EXPORTS_BYTES_MAX - *used) {
      return kvf_fail(KVF_LIMIT, message, "what peers must know of its regions takes more than %zu bytes",
                      EXPORTS_BYTES_MAX);
    }
    memcpy(room + *used, &length, sizeof(length));
    memcpy(room + *used + sizeof(length), exported, bytes);
    *used += sizeof(length) + bytes;
  }
  return KVF_OK;
}

kvf_status kvf_local_export(const kvf_transport_memory *memory, uint8_t **out, size_t *bytes, char *message)
{
  uint8_t *room = malloc(EXPORTS_BYTES_MAX);
  if (room == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "no memory");
  }
  *bytes = 0;
  kvf_status status = export_all(memory->regions, memory->regions_count, room, bytes, message);
  if (status == KVF_OK) {
    status = export_all(memory->checksums, memory->checksums_count, room, bytes, message);
  }
  if (status != KVF_OK) {
    free(room);
    return status;
  }
  *out = room;
  return KVF_OK;
}

/* Takes one of the exports that a peer sent, NULL: they end before. */
static const uint8_t *next_export(const uint8_t **next, size_t *left, uint32_t *bytes)
{
  if (*left < sizeof(*bytes)) {
    return NULL;
  }
  memcpy(bytes, *next, sizeof(*bytes));
  if (*bytes > KVF_MEMORY_EXPORT_BYTES_MAX || *bytes > *left - sizeof(*bytes)) {
    return NULL;
  }
  const uint8_t *found = *next + sizeof(*bytes);
  *next = found + *bytes;
  *left -= sizeof(*bytes) + *bytes;
  return found;
}

static bool exports_are_whole(const uint8_t *exports, size_t bytes, uint32_t count)
{
  uint32_t each;
  while (count > 0 && next_export(&exports, &bytes, &each) != NULL) {
    count--;
  }
  return count == 0 && bytes == 0;
}

static kvf_status check_addresses(const kvf_local_description *head, char *message)
{
  if (head->pid == 0 || head->pid > INT32_MAX) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "%" PRIu32 " is no process id", head->pid);
  }
  if (!kvf_address_is_possible(head->cookie_address, KVF_LOCAL_COOKIE_BYTES) ||
      !kvf_address_is_possible(head->table_address, kvf_fence_table_bytes(head->table_slots))) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "an address in its description is impossible");
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
                                      const kvf_incarnation *incarnation, const kvf_region_layout *remote,
                                      uint32_t remote_count, kvf_local_description *head,
                                      kvf_region_layout checksums[KVF_GROUPS_MAX], char *message)
{
  uint32_t groups = kvf_checksums_layouts(remote, remote_count, checksums);
  if (bytes_count < sizeof(*head)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description has %zu bytes, not %zu or more", bytes_count,
                    sizeof(*head));
  }
  memcpy(head, bytes, sizeof(*head));
  if (head->magic != KVF_LOCAL_MAGIC || head->regions_count != remote_count ||
      (head->checksums_count != 0 && head->checksums_count != groups) ||
      !exports_are_whole((const uint8_t *)bytes + sizeof(*head), bytes_count - sizeof(*head),
                         remote_count + head->checksums_count)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is not one of this transport");
  }
  kvf_status status = check_place(head, here, incarnation, message);
  return status == KVF_OK ? check_addresses(head, message) : status;
}

kvf_status kvf_local_import(const kvf_local_description *head, const uint8_t *exports, size_t exports_bytes,
                            const kvf_region_layout *remote, kvf_memory_import *out, char *message)
{
  for (uint32_t i = 0; i < head->regions_count + head->checksums_count; i++) {
    const kvf_memory_ops *ops = kvf_memory_ops_of(remote[i].memory);
    uint32_t bytes = 0;
    const uint8_t *exported = next_export(&exports, &exports_bytes, &bytes);
    char why[KVF_MESSAGE_BYTES_MAX] = "its kind of memory is not known here";
    kvf_status status =
        ops == NULL || exported == NULL
            ? KVF_TRANSFER_SETUP
            : ops->import((pid_t)head->pid, exported, bytes, kvf_region_layout_bytes(&remote[i]), &out[i], why);
    if (status != KVF_OK) {
      const bool is_region = i < head->regions_count;
      (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "its %s %" PRIu32 " cannot be read: %.200s",
                     is_region ? "region" : "checksums", is_region ? i : i - head->regions_count, why);
      kvf_local_release(out, i);
      return status;
    }
  }
  return KVF_OK;
}

void kvf_local_release(kvf_memory_import *imports, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    if (imports[i].ops->release != NULL) {
      imports[i].ops->release(&imports[i]);
    }
  }
}
