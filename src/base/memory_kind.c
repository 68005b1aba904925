/* The names of the kinds of memory, for messages. */
#include "kvferry/types.h"

const char *kvf_memory_kind_name(int kind)
{
  static const char *const names[] = {[KVF_MEMORY_HOST] = "host", [KVF_MEMORY_CUDA] = "cuda"};
  const size_t count = sizeof(names) / sizeof(names[0]);
  return kind >= 0 && (size_t)kind < count ? names[kind] : "unknown";
}
