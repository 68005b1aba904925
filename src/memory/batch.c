#include "memory/memory.h"

void kvf_memory_batch_advance(kvf_memory_batch *batch, size_t bytes)
{
  while (bytes > 0 && batch->first < batch->count) {
    struct iovec *to = &batch->to[batch->first];
    struct iovec *from = &batch->from[batch->first];
    if (bytes < to->iov_len) {
      to->iov_base = (uint8_t *)to->iov_base + bytes;
      from->iov_base = (uint8_t *)from->iov_base + bytes;
      to->iov_len -= bytes;
      from->iov_len -= bytes;
      return;
    }
    bytes -= to->iov_len;
    batch->first++;
  }
}
