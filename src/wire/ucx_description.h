/* A rank's description for the transport `ucx`, as bytes for the handshake: with it a peer can read the rank's memory
 * through UCX.
 *
 * UCX checks a worker's address and remote keys only a little. So they are given to it only after the control handshake
 * has proved the key, and only unchanged: a checksum over the whole shows accidents.
 */
#ifndef KVF_WIRE_UCX_DESCRIPTION_H
#define KVF_WIRE_UCX_DESCRIPTION_H

#include "base/fence.h"
#include "wire/layout.h"

#define KVF_UCX_DESCRIPTION_MAGIC UINT32_C(0x3475766b) /* "kvu4" */
#define KVF_UCX_ADDRESS_BYTES_MAX 8192                 /* of a worker: grows with the host's network devices */
#define KVF_UCX_KEY_BYTES_MAX 1024                     /* a packed remote key: grows with the kinds of them */
#define KVF_UCX_MEMORIES_MAX (KVF_REGIONS_MAX + KVF_GROUPS_MAX)

/* Memory that can be read with a key. The views of a description that was read are good as long as its bytes. */
typedef struct kvf_ucx_memory_key {
  uint64_t address;
  const void *key; /* as UCX has packed it */
  uint16_t key_bytes;
} kvf_ucx_memory_key;

typedef struct kvf_ucx_description {
  kvf_incarnation incarnation;
  uint16_t ucx_major; /* of the library there */
  uint16_t ucx_minor;
  const void *worker; /* its address, as UCX has packed it */
  uint16_t worker_bytes;
  uint32_t table_slots; /* at least 1 */
  kvf_ucx_memory_key table;
  uint32_t regions_count;
  uint32_t checksums_count;           /* 0: it has no checksums, else the number of groups */
  const kvf_ucx_memory_key *memories; /* of its regions, then of their checksums */
} kvf_ucx_description;

/* KVF_LIMIT: `capacity` is too small, or something is longer than the limits above. */
KVF_MUST_USE kvf_status kvf_ucx_description_write(const kvf_ucx_description *description, void *out, size_t capacity,
                                                  size_t *out_bytes);

/* Reads what a peer sent; `memories` (KVF_UCX_MEMORIES_MAX) becomes out->memories. That addresses are possible for
 * these many bytes is the caller's to check. KVF_PROTOCOL: malformed, or altered. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_ucx_description_read(const void *data, size_t bytes, kvf_ucx_memory_key *memories,
                                                 kvf_ucx_description *out);

#endif
