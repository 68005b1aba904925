/* The messages of the transport `ucx` for networks that cannot read memory by themselves. The consumer asks for bytes,
 * or for a look at the fence, and the producer answers. Asks, up to KVF_UCX_ASKS_MAX of them, are the data of one
 * active message of UCX. Answers are the data of another, as many as fit into KVF_UCX_ANSWER_DATA_BYTES_MAX. Each
 * answer comes behind its bytes, so the data is read from its end.
 */
#ifndef KVF_WIRE_UCX_MESSAGE_H
#define KVF_WIRE_UCX_MESSAGE_H

#include "base/fence.h"
#include "wire/layout.h"

/* Ids of active messages. */
#define KVF_UCX_ASK_ID 1
#define KVF_UCX_ANSWER_ID 2

#define KVF_UCX_ASK_BYTES 36
#define KVF_UCX_ASKS_MAX 16
#define KVF_UCX_ANSWER_BYTES 72
/* Of all answers of one message. With these bytes and UCX's own, the message is one packet of TCP. Packets have up to
 * 64 KiB with headers; more bytes would need two. */
#define KVF_UCX_ANSWER_DATA_BYTES_MAX (60u << 10)
#define KVF_UCX_ANSWERS_BYTES_MAX (KVF_UCX_ANSWER_DATA_BYTES_MAX + KVF_UCX_ASKS_MAX * KVF_UCX_ANSWER_BYTES)

#define KVF_UCX_MEMORY_TABLE UINT32_MAX /* the fence table */
#define KVF_UCX_SLOT_NONE UINT32_MAX

/* Asks for `bytes` bytes (1 to KVF_UCX_ANSWER_DATA_BYTES_MAX) from `offset` of a memory. `memory` is an index into the
 * producer's description. They are given as long as the entry of `slot` has this word, a live lease's. Or, if `memory`
 * is KVF_UCX_MEMORY_TABLE, asks for a look: no bytes, and a slot or KVF_UCX_SLOT_NONE. `token` is the asker's and comes
 * back. */
typedef struct kvf_ucx_ask {
  uint64_t token;
  uint32_t memory;
  uint32_t slot;
  uint64_t offset;
  uint64_t word;
  uint32_t bytes;
} kvf_ucx_ask;

typedef enum kvf_ucx_answer_kind {
  KVF_UCX_ANSWER_REFUSED, /* there is no such memory, or slot; no bytes, no sample */
  KVF_UCX_ANSWER_LOOK,    /* no bytes: none were asked for, or the word is another one */
  KVF_UCX_ANSWER_DATA     /* the bytes; the sample was taken after they had been copied */
} kvf_ucx_answer_kind;

typedef struct kvf_ucx_answer {
  uint64_t token;
  kvf_ucx_answer_kind kind;
  uint32_t bytes;          /* before it; 0 but for KVF_UCX_ANSWER_DATA */
  kvf_fence_sample sample; /* its entry is 0 where no slot was asked for */
} kvf_ucx_answer;

void kvf_ucx_ask_write(const kvf_ucx_ask *ask, uint8_t out[KVF_UCX_ASK_BYTES]);
void kvf_ucx_answer_write(const kvf_ucx_answer *answer, uint8_t out[KVF_UCX_ANSWER_BYTES]);

/* KVF_PROTOCOL: malformed. */
KVF_MUST_USE kvf_status kvf_ucx_ask_read(const void *data, size_t bytes, kvf_ucx_ask *out);
KVF_MUST_USE kvf_status kvf_ucx_answer_read(const void *data, size_t bytes, kvf_ucx_answer *out);

/* Reads the last answer of `*bytes` bytes of data. *bytes becomes the offset where its bytes begin, which is the end of
 * the other answers. KVF_PROTOCOL: malformed, and *bytes is undefined. */
KVF_MUST_USE kvf_status kvf_ucx_answers_take_last(const uint8_t *data, size_t *bytes, kvf_ucx_answer *out);

#endif
