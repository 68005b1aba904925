/* Where a rank's memory lies. */
#ifndef KVF_RUNTIME_NUMA_H
#define KVF_RUNTIME_NUMA_H

#include "base/cpu_list.h"
#include "kvferry/node.h"

#define KVF_NUMA_FOLDER "/sys/devices/system/node"

/* The CPUs of the NUMA node that the regions' pages lie in. False: there is but one node, or the pages that were looked
 * at lie in several or in none yet, or the system does not say. `folder`: KVF_NUMA_FOLDER, but for tests. */
bool kvf_numa_cpus(const char *folder, const kvf_region *regions, uint32_t count, kvf_cpu_list *out);

#endif
