#include "transport/local/description.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "transport/checksums.h"
#include "transport/own_fds.h"

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

static uint8_t *put_bases(uint8_t *to, const kvf_region *regions, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    uint64_t base = (uintptr_t)regions[i].base;
    memcpy(to, &base, sizeof(base));
    to += sizeof(base);
  }
  return to;
}

kvf_status kvf_local_description_write(const kvf_local_description *head, const kvf_transport_memory *memory, void *out,
                                       size_t capacity, size_t *out_bytes)
{
  size_t bytes = sizeof(*head) + ((size_t)memory->regions_count + memory->checksums_count) * sizeof(uint64_t);
  if (bytes > capacity) {
    return KVF_LIMIT;
  }
  uint8_t *to = out;
  memcpy(to, head, sizeof(*head));
  to += sizeof(*head);
  to = put_bases(to, memory->regions, memory->regions_count);
  (void)put_bases(to, memory->checksums, memory->checksums_count);
  *out_bytes = bytes;
  return KVF_OK;
}

static bool bases_ok(const kvf_region_layout *remote, const uint64_t *bases, uint32_t count, const char *what,
                     char *message)
{
  for (uint32_t i = 0; i < count; i++) {
    if (!kvf_address_is_possible(bases[i], kvf_region_layout_bytes(&remote[i]))) {
      (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "the address of its %s %" PRIu32 " is impossible", what, i);
      return false;
    }
  }
  return true;
}

static kvf_status check_addresses(const kvf_local_description *head, const kvf_region_layout *remote,
                                  const kvf_region_layout *checksums, const uint64_t *bases, char *message)
{
  if (head->pid == 0 || head->pid > INT32_MAX) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "%" PRIu32 " is no process id", head->pid);
  }
  if (!kvf_address_is_possible(head->cookie_address, KVF_LOCAL_COOKIE_BYTES) ||
      !kvf_address_is_possible(head->table_address, kvf_fence_table_bytes(head->table_slots))) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "an address in its description is impossible");
  }
  if (!bases_ok(remote, bases, head->regions_count, "region", message) ||
      !bases_ok(checksums, bases + head->regions_count, head->checksums_count, "checksums", message)) {
    return KVF_TRANSFER_SETUP;
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
                                      uint32_t remote_count, kvf_local_description *head, uint64_t *bases,
                                      kvf_region_layout checksums[KVF_GROUPS_MAX], char *message)
{
  uint32_t groups = kvf_checksums_layouts(remote, remote_count, checksums);
  size_t plain = sizeof(*head) + (size_t)remote_count * sizeof(*bases);
  bool has_checksums = groups > 0 && bytes_count == plain + groups * sizeof(*bases);
  if (bytes_count != plain && !has_checksums) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description has %zu bytes, not %zu", bytes_count, plain);
  }
  memcpy(head, bytes, sizeof(*head));
  if (head->magic != KVF_LOCAL_MAGIC || head->regions_count != remote_count ||
      head->checksums_count != (has_checksums ? groups : 0)) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "its description is not one of this transport");
  }
  kvf_status status = check_place(head, here, incarnation, message);
  if (status != KVF_OK) {
    return status;
  }
  memcpy(bases, (const uint8_t *)bytes + sizeof(*head), bytes_count - sizeof(*head));
  return check_addresses(head, remote, checksums, bases, message);
}
