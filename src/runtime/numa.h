/* Where a rank's memory lies. */
#ifndef KVF_RUNTIME_NUMA_H
#define KVF_RUNTIME_NUMA_H

#include "base/cpu_list.h"
#include "kvferry/node.h"

#define KVF_NUMA_FOLDER "/sys/devices/system/node"

/* The CPUs of the NUMA node that has the regions' pages. False: there is only one node, or the sampled pages are in
 * several nodes or in none yet, or the system does not say. `folder`: KVF_NUMA_FOLDER, except in tests. */
bool kvf_numa_cpus(const char *folder, const kvf_region *regions, uint32_t count, kvf_cpu_list *out);

#endif
