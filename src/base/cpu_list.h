/* Lists of CPUs (or of NUMA nodes) as Linux writes them: "0-3,8". */
#ifndef KVF_BASE_CPU_LIST_H
#define KVF_BASE_CPU_LIST_H

#include "base/bitmap.h"
#include "kvferry/types.h"

#define KVF_CPU_LIST_MAX 1024 /* numbers are below it, as cpu_set_t's are */

typedef struct kvf_cpu_list {
  uint64_t words[KVF_CPU_LIST_MAX / 64];
} kvf_cpu_list;

/* False: no such list, or an empty one; *out is undefined then. */
KVF_MUST_USE bool kvf_cpu_list_parse(const char *text, kvf_cpu_list *out);

static inline unsigned kvf_cpu_list_count(const kvf_cpu_list *list)
{
  unsigned count = 0;
  for (unsigned i = 0; i < KVF_CPU_LIST_MAX / 64; i++) {
    count += (unsigned)__builtin_popcountll(list->words[i]);
  }
  return count;
}

#endif
