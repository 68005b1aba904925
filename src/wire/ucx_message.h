/* The messages of the transport `ucx` where the network cannot read memory by itself: the consumer asks for bytes, the
 * producer answers with them. Each is the header of one of UCX's active messages; the bytes are an answer's data.
 */
#ifndef KVF_WIRE_UCX_MESSAGE_H
#define KVF_WIRE_UCX_MESSAGE_H

#include "wire/layout.h"

/* Ids of active messages. */
#define KVF_UCX_ASK_ID 1
#define KVF_UCX_ANSWER_ID 2

#define KVF_UCX_ASK_BYTES 24
#define KVF_UCX_ANSWER_BYTES 12
#define KVF_UCX_HEADER_BYTES_MAX KVF_UCX_ASK_BYTES
#define KVF_UCX_ANSWER_DATA_BYTES_MAX (1u << 20)

#define KVF_UCX_MEMORY_TABLE UINT32_MAX /* the fence table */
#define KVF_UCX_SLOT_NONE UINT32_MAX

/* For `bytes` bytes, at least 1 and at most KVF_UCX_ANSWER_DATA_BYTES_MAX, from `offset` of a memory: one of those of
 * the producer's description, in its order. Or, where that is KVF_UCX_MEMORY_TABLE, for a sample (kvf_fence_sample) of
 * the table's head and of the entry of slot `offset`, or of the head alone (KVF_UCX_SLOT_NONE). `token` is the asker's
 * and comes back. */
typedef struct kvf_ucx_ask {
  uint64_t token;
  uint32_t memory;
  uint32_t bytes;
  uint64_t offset;
} kvf_ucx_ask;

typedef struct kvf_ucx_answer {
  uint64_t token;
  bool is_refused; /* there is no such memory; no data */
} kvf_ucx_answer;

void kvf_ucx_ask_write(const kvf_ucx_ask *ask, uint8_t out[KVF_UCX_ASK_BYTES]);
void kvf_ucx_answer_write(const kvf_ucx_answer *answer, uint8_t out[KVF_UCX_ANSWER_BYTES]);

/* KVF_PROTOCOL: malformed. */
KVF_MUST_USE kvf_status kvf_ucx_ask_read(const void *data, size_t bytes, kvf_ucx_ask *out);
KVF_MUST_USE kvf_status kvf_ucx_answer_read(const void *data, size_t bytes, kvf_ucx_answer *out);

#endif
