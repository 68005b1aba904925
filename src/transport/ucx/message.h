/* Messages, where gets are messages: made, sent, and given back when UCX has sent them. get.c asks, message.c answers.
 */
#ifndef KVF_TRANSPORT_UCX_MESSAGE_H
#define KVF_TRANSPORT_UCX_MESSAGE_H

#include "transport/ucx/ucx_common.h"

/* One answer of a message, and the bytes before it. */
typedef struct kvf_ucx_part {
  uint64_t token;
  uint64_t word;         /* of the ask, like the slot */
  const uint8_t *from;   /* the bytes, of a block */
  kvf_fence_entry entry; /* as it was seen last: behind the bytes, in the end */
  uint32_t bytes;
  uint32_t slot;
  kvf_ucx_answer_kind kind;
} kvf_ucx_part;

typedef struct kvf_ucx_message {
  kvf_list in_messages;
  kvf_ucx *ucx;
  kvf_ucx_messages *messages; /* asks or answers */
  size_t bytes;               /* all of it */
  uint32_t answer_bytes;      /* those that its answers are about, or that its asks are for */
  uint32_t count;
  union {
    uint8_t asks[KVF_UCX_ASKS_MAX * KVF_UCX_ASK_BYTES];
    kvf_ucx_part parts[KVF_UCX_ASKS_MAX];
  };
} kvf_ucx_message;

/* One with nothing in it; NULL: too many, or no memory. */
kvf_ucx_message *kvf_ucx_message_take(kvf_ucx *ucx, kvf_ucx_messages *messages);

/* The message is given back when it is sent; an error, which its endpoint's handler is told too: now. */
kvf_ucs_status kvf_ucx_message_send(kvf_ucx_message *message, kvf_ucp_ep ep, unsigned id, uint32_t flags);

/* Has the worker hand messages to the handler, whole. KVF_SYSTEM: UCX does not (text, KVF_MESSAGE_BYTES_MAX). */
KVF_MUST_USE kvf_status kvf_ucx_messages_serve(kvf_ucx *ucx, kvf_ucp_worker worker, unsigned id,
                                               kvf_ucp_am_handler handler, char *text);

/* Has the serving worker answer. KVF_SYSTEM: UCX does not (text, KVF_MESSAGE_BYTES_MAX). */
KVF_MUST_USE kvf_status kvf_ucx_messages_serve_server(kvf_ucx *ucx, char *text);

/* Copies the next bytes of a message of answers, from `offset`, to where UCX wants them. Returns how many: fewer than
 * bytes_max only at their end. */
size_t kvf_ucx_answers_pack(kvf_ucx_message *message, size_t offset, uint8_t *to, size_t bytes_max);

/* Makes what messages need; before the others. KVF_SYSTEM: UCX does not (message, KVF_MESSAGE_BYTES_MAX). */
KVF_MUST_USE kvf_status kvf_ucx_messages_open(kvf_ucx *ucx, char *message);
/* After all workers. */
void kvf_ucx_messages_close(kvf_ucx *ucx);
void kvf_ucx_messages_init(kvf_ucx_messages *messages);
/* After their worker. */
void kvf_ucx_messages_free(kvf_ucx_messages *messages);

#endif
