/* On which processors a rank's threads are to run. */
#include "runtime/numa.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "memory/own_fds.h"

#define PAGES 64 /* that are looked at */
#define PAGE_BYTES_MIN 4096
#define FILE_BYTES_MAX 4096

static bool read_list(const char *folder, const char *name, kvf_cpu_list *out)
{
  char path[256];
  char text[FILE_BYTES_MAX];
  (void)snprintf(path, sizeof(path), "%s/%s", folder, name);
  int fd = KVF_OWN_FD(open(path, O_RDONLY | O_CLOEXEC));
  ssize_t bytes = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
  kvf_own_fd_close(fd);
  if (bytes < 0) {
    return false;
  }
  text[bytes] = '\0';
  text[strcspn(text, "\n")] = '\0';
  return kvf_cpu_list_parse(text, out);
}

static uint64_t region_bytes(const kvf_region *region)
{
  return region->blocks == 0 ? 0 : (region->blocks - 1) * region->stride_bytes + region->block_bytes;
}

/* Pages all over the regions. */
static void choose_pages(const kvf_region *regions, uint32_t count, void *pages[PAGES])
{
  for (uint64_t i = 0; i < PAGES; i++) {
    const kvf_region *region = &regions[i * count / PAGES];
    uintptr_t at = (uintptr_t)region->base + region_bytes(region) / PAGES * i;
    pages[i] = (void *)(at / PAGE_BYTES_MIN * PAGE_BYTES_MIN); /* never used as a pointer here */
  }
}

/* The one node that all of them lie in which are in memory; -1: there is none. */
static int find_node(const kvf_region *regions, uint32_t count)
{
  void *pages[PAGES];
  int places[PAGES];
  int node = -1;
  choose_pages(regions, count, pages);
  if (syscall(SYS_move_pages, 0, (long)PAGES, pages, NULL, places, 0) != 0) { /* moves none: it only tells */
    return -1;
  }
  for (int i = 0; i < PAGES; i++) {
    if (places[i] >= 0 && node >= 0 && places[i] != node) {
      return -1;
    }
    node = places[i] >= 0 ? places[i] : node;
  }
  return node;
}

bool kvf_numa_cpus(const char *folder, const kvf_region *regions, uint32_t count, kvf_cpu_list *out)
{
  char name[32];
  if (!read_list(folder, "online", out) || kvf_cpu_list_count(out) < 2) {
    return false;
  }
  int node = find_node(regions, count);
  (void)snprintf(name, sizeof(name), "node%d/cpulist", node);
  return node >= 0 && read_list(folder, name, out);
}
