/* The lookups of the load machine: request to load, read to chunk, number to peer. */
#include "core/load_internal.h"

/* NOLINTBEGIN(readability-function-size, clang-analyzer-*): uthash's macros */

kvf_load_entry *kvf_load_find(kvf_loads *loads, uint64_t request_id)
{
  kvf_load_entry *load = NULL;
  HASH_FIND(by_request, loads->by_request, &request_id, sizeof(request_id), load);
  return load;
}

bool kvf_load_remember(kvf_loads *loads, kvf_load_entry *load)
{
  HASH_ADD(by_request, loads->by_request, request_id, sizeof(load->request_id), load);
  return load->by_request.tbl != NULL;
}

void kvf_load_forget(kvf_loads *loads, kvf_load_entry *load)
{
  HASH_DELETE(by_request, loads->by_request, load);
}

kvf_load_chunk *kvf_chunk_find(kvf_loads *loads, uint64_t read_id)
{
  kvf_load_chunk *chunk = NULL;
  HASH_FIND(by_read, loads->by_read, &read_id, sizeof(read_id), chunk);
  return chunk;
}

bool kvf_chunk_remember(kvf_loads *loads, kvf_load_chunk *chunk)
{
  HASH_ADD(by_read, loads->by_read, read_id, sizeof(chunk->read_id), chunk);
  return chunk->by_read.tbl != NULL;
}

void kvf_chunk_forget(kvf_loads *loads, kvf_load_chunk *chunk)
{
  HASH_DELETE(by_read, loads->by_read, chunk);
}

kvf_load_peer *kvf_load_peer_find(kvf_loads *loads, uint32_t index)
{
  kvf_load_peer *peer = NULL;
  HASH_FIND(by_index, loads->by_index, &index, sizeof(index), peer);
  return peer;
}

bool kvf_load_peer_remember(kvf_loads *loads, kvf_load_peer *peer)
{
  HASH_ADD(by_index, loads->by_index, index, sizeof(peer->index), peer);
  return peer->by_index.tbl != NULL;
}

void kvf_load_peer_forget(kvf_loads *loads, kvf_load_peer *peer)
{
  HASH_DELETE(by_index, loads->by_index, peer);
}

kvf_load_peer *kvf_load_forget_all(kvf_loads *loads)
{
  kvf_load_peer *first = loads->by_index;
  HASH_CLEAR(by_request, loads->by_request);
  HASH_CLEAR(by_read, loads->by_read);
  HASH_CLEAR(by_index, loads->by_index);
  return first;
}

/* NOLINTEND(readability-function-size, clang-analyzer-*) */
