/* The operations of each kind of memory, by its number. */
#include "memory/memory.h"

const kvf_memory_ops *kvf_memory_ops_of(uint32_t kind)
{
  static const kvf_memory_ops *const kinds[] = {
      [KVF_MEMORY_HOST] = &kvf_memory_host, [KVF_MEMORY_CUDA] = &kvf_memory_cuda};
  return kind < sizeof(kinds) / sizeof(kinds[0]) ? kinds[kind] : NULL;
}
