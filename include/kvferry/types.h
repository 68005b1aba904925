/* kvferry/types.h: the words that all other headers use. */
#ifndef KVFERRY_TYPES_H
#define KVFERRY_TYPES_H

#include <stddef.h>
#include <stdint.h>

#include "kvferry/status.h"

KVF_C_BEGIN

/* What is new breaks no caller: a kvf_config says how long it is; other structs have reserved room, which a caller
 * leaves zero (else KVF_INVALID) and which the library fills with zeros; statuses and events of a kind that a caller
 * does not know may be passed on or over. */

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
#define KVF_REQUEST_NAME_BYTES_MAX 128 /* an engine's name of a request, with its terminating zero; a longer is cut */

/* "No block": a position whose block has slid out of the window (producer) or is not wanted (consumer). */
#define KVF_BLOCK_NONE UINT32_MAX

/* The blocks of one request: block ids by KV group, groups one after the other. A group has a position for each
 * block_tokens tokens that have begun: 100 tokens in blocks of 16 are 7 positions, the last block partly filled.
 * ids has the sum of counts[0..groups) entries. The caller owns both arrays, neither NULL; the library copies what it
 * keeps. */
typedef struct kvf_blocks {
  const uint32_t *ids;
  const uint32_t *counts;
  uint32_t groups;
} kvf_blocks;

/* What makes a prompt's KV what it is. Two requests with equal hash, model and tokens have the same KV. */
typedef struct kvf_prompt {
  uint8_t hash[32];  /* kvf_prompt_hash() */
  uint8_t model[32]; /* kvf_prompt_set_model(); zeros until then */
  uint32_t tokens;   /* number of tokens whose KV the blocks hold */
} kvf_prompt;

/* The identity of the first `tokens` tokens and of whatever else a request brings that changes their KV: `salt` is any
 * bytes that name the multimodal input and the cache salt, the same on both engines (may be NULL when salt_bytes is 0).
 * Any thread. KVF_INVALID: a NULL argument. KVF_NO_MEMORY: try again later. */
KVF_API KVF_MUST_USE kvf_status kvf_prompt_hash(const uint32_t *token_ids, uint32_t tokens, const void *salt,
                                                size_t salt_bytes, kvf_prompt *out);

/* What computes the prompt's KV, as far as it can change while the node is open: `model` is any bytes that name the
 * weights and the LoRA adapter by their content, the same on both engines. A consumer whose model is another one is
 * told KVF_INCOMPATIBLE. What cannot change belongs into the node's identity (config.h), whose fields are compared by
 * name. Any thread. KVF_INVALID: a NULL argument. KVF_NO_MEMORY: try again later; *prompt is unchanged. */
KVF_API KVF_MUST_USE kvf_status kvf_prompt_set_model(kvf_prompt *prompt, const void *model, size_t model_bytes);

/* A lease: the producer's promise to keep a request's blocks. Plain data: copy it freely, send it to the engine's
 * ranks as it is. `id` is unique in the life of the producer's control node; the token is a secret of the ticket. */
typedef struct kvf_lease {
  uint64_t id;
  uint32_t slot;
  uint32_t reserved; /* zero */
  uint8_t token[16];
} kvf_lease;

/* What a region of memory is. Values travel between nodes: they are stable, and below KVF_MEMORY_KINDS_MAX. */
typedef enum kvf_memory_kind {
  KVF_MEMORY_HOST = 0, /* the process' own memory: any thread may read and write it by its address */
  KVF_MEMORY_CUDA = 1  /* of an NVIDIA GPU, whose device number is CUDA's ordinal in this process */
} kvf_memory_kind;

#define KVF_MEMORY_KINDS_MAX 32

/* "host", "cuda"; "unknown" for a value that is none of this library's. Static memory; any thread. */
KVF_API const char *kvf_memory_kind_name(int kind);

/* A moment in the work that was given to a device: what it had been given before is complete then, as those see it who
 * read or write the memory afterwards. Where a call takes one, NULL means that there is nothing to wait for, as always
 * with KVF_MEMORY_HOST: a thread's own writes are complete when it calls. Read during the call only. */
typedef struct kvf_ordering_point {
  kvf_memory_kind memory; /* whose device; KVF_MEMORY_HOST has none */
  uint32_t device;
  /* What the kind calls it: a queue of the device, and all that is in it now. With KVF_MEMORY_CUDA a CUstream; NULL and
   * 1 are the legacy default stream, 2 is the calling thread's own. Of one that is being captured for a graph there are
   * no points: KVF_INVALID. Nor of the legacy one while another is, that it would wait for. */
  void *handle;
} kvf_ordering_point;

typedef struct kvf_node kvf_node;

KVF_C_END
#endif
