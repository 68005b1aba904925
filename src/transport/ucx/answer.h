/* The producer of gets by messages. */
#ifndef KVF_TRANSPORT_UCX_ANSWER_H
#define KVF_TRANSPORT_UCX_ANSWER_H

#include "transport/ucx/message.h"

/* Has the serving worker answer. False: UCX does not (text, KVF_MESSAGE_BYTES_MAX). */
KVF_MUST_USE bool kvf_ucx_messages_serve_server(kvf_ucx *ucx, char *text);

/* Copies the next of its bytes, from `offset`, to where UCX wants them. Returns how many: fewer than bytes_max only at
 * its end. */
size_t kvf_ucx_answers_pack(kvf_ucx_message *message, size_t offset, uint8_t *to, size_t bytes_max);

#endif
