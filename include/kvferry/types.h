/* kvferry/types.h: types and limits that all other headers use. */
#ifndef KVFERRY_TYPES_H
#define KVFERRY_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

KVF_C_BEGIN

/* Later versions stay compatible with compiled programs:
 *
 * - A kvf_config contains its own length.
 * - Other structs have reserved fields. A caller sets them to zero, else the call fails with KVF_INVALID. The library
 *   fills them with zeros.
 * - There may be new statuses and kinds of events. A caller may pass on or ignore those that it does not know. */

/* Limits. A peer can influence none of them; a value beyond one is refused with KVF_LIMIT. */
#define KVF_RANKS_MAX 64               /* ranks of one engine */
#define KVF_GROUPS_MAX 16              /* KV groups of one engine */
#define KVF_REGIONS_MAX 1024           /* registered memory ranges of one rank */
#define KVF_BLOCKS_PER_LEASE_MAX 65536 /* block ids of one lease, all groups together */
#define KVF_TICKET_BYTES_MAX 131072    /* a ticket's text, without a terminating zero */
#define KVF_SOURCES_MAX 4              /* tickets joined, by ',', in one text: consumer.h */
#define KVF_ADDRESS_BYTES_MAX 128      /* a rank's address record (kvf_node_address) */
#define KVF_IDENTITY_FIELDS_MAX 32     /* fields of the compatibility identity */
#define KVF_IDENTITY_BYTES_MAX 128     /* one field's name or value, with its terminating zero */
#define KVF_MESSAGE_BYTES_MAX 256      /* an error message, with its terminating zero */
#define KVF_REQUEST_NAME_BYTES_MAX 128 /* an engine's name of a request, with its terminating zero; the rest is cut */

/* "No block": the position's block has left the attention window (producer), or is not wanted (consumer). */
#define KVF_BLOCK_NONE UINT32_MAX

/* The blocks of one request: block ids by KV group, one group after the other. A group has one position for each
 * block_tokens tokens, rounded up: 100 tokens in blocks of 16 are 7 positions. The last block is then partly filled.
 * `ids` has counts[0] + ... + counts[groups - 1] entries. The caller owns both arrays. Neither may be NULL. The library
 * copies the entries that it keeps. */
typedef struct kvf_blocks {
  const uint32_t *ids;
  const uint32_t *counts;
  uint32_t groups;
} kvf_blocks;

/* The identity of a prompt's KV. Two requests with equal hash, model and tokens have the same KV. */
typedef struct kvf_prompt {
  uint8_t hash[32];  /* kvf_prompt_hash() */
  uint8_t model[32]; /* kvf_prompt_set_model(); zeros until then */
  uint32_t tokens;   /* number of tokens whose KV the blocks hold */
} kvf_prompt;

/* Computes *out from the first `tokens` tokens and a salt. `salt` stands for all other inputs of the request that
 * change its KV: multimodal input and the cache salt. Any bytes that name them will do, if both engines use the same.
 * `salt` may be NULL if salt_bytes is 0. Any thread. KVF_INVALID: a NULL argument. KVF_NO_MEMORY: try again later. */
KVF_API KVF_MUST_USE kvf_status kvf_prompt_hash(const uint32_t *token_ids, uint32_t tokens, const void *salt,
                                                size_t salt_bytes, kvf_prompt *out);

/* Adds the model that computes the prompt's KV: the weights and the LoRA adapter, which can change while the node is
 * open. `model` is any bytes that name them by their content, the same on both engines. A consumer with another model
 * gets KVF_INCOMPATIBLE. Properties that cannot change belong into the node's identity (kvf_config_identity()), whose
 * fields are compared by name. Any thread. KVF_INVALID: a NULL argument. KVF_NO_MEMORY: try again later; *prompt is
 * unchanged. */
KVF_API KVF_MUST_USE kvf_status kvf_prompt_set_model(kvf_prompt *prompt, const void *model, size_t model_bytes);

/* A lease: the producer's promise to keep a request's blocks. Plain data: copy it freely, send it to the engine's ranks
 * unchanged. `id` is unique in the life of the producer's control node. `token` is secret: outside the engine only the
 * lease's ticket contains it. */
typedef struct kvf_lease {
  uint64_t id;
  uint32_t slot;
  uint32_t reserved; /* zero */
  uint8_t token[16];
} kvf_lease;

/* The kind of a region's memory. Values travel between nodes: they are stable, and below KVF_MEMORY_KINDS_MAX. */
typedef enum kvf_memory_kind {
  KVF_MEMORY_HOST = 0, /* the process' own memory: any thread can read and write it by its address */
  KVF_MEMORY_CUDA = 1  /* an NVIDIA GPU's; its device number is CUDA's ordinal in this process */
} kvf_memory_kind;

#define KVF_MEMORY_KINDS_MAX 32

/* "host", "cuda"; "unknown" for a value that this library does not know. Static memory; any thread. */
KVF_API const char *kvf_memory_kind_name(int kind);

/* A point in a device's queue (CUDA: a stream). When it is reached, all work submitted before it is complete, and
 * visible to all that read or write the memory afterwards. For a call that takes one, NULL means: do not wait. For
 * KVF_MEMORY_HOST, NULL is always right, because a thread's own writes are complete when it calls. The struct is read
 * during the call only. */
typedef struct kvf_ordering_point {
  kvf_memory_kind memory; /* the kind of the device's memory; KVF_MEMORY_HOST has no device */
  uint32_t device;
  /* A queue of the device, and all work that is in it now. For KVF_MEMORY_CUDA a CUstream; NULL and 1 are the legacy
   * default stream, 2 is the calling thread's own default stream. A stream that is being captured for a graph is
   * KVF_INVALID. The legacy default stream is KVF_INVALID while another stream, that it would wait for, is captured. */
  void *handle;
} kvf_ordering_point;

typedef struct kvf_node kvf_node;

KVF_C_END
#endif
