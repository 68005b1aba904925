/* Gets, and the rooms that samples land in. Where the network does not read memory a get is a message: the consumer
 * asks, and puts the bytes that it is answered in place. Nothing but take_answer() writes to a destination then, so a
 * get is over as soon as we say so. */
#ifndef KVF_TRANSPORT_UCX_GET_H
#define KVF_TRANSPORT_UCX_GET_H

#include "transport/ucx/ucx_common.h"

/* It is zeroed. */
void kvf_ucx_batch_init(kvf_ucx_batch *batch, kvf_ucx *ucx, void (*ready)(kvf_ucx *ucx, kvf_ucx_batch *batch));
static inline bool kvf_ucx_batch_is_full(const kvf_ucx_batch *batch)
{
  return batch->busy == UINT64_MAX;
}
/* Starts a get from `offset` of one of the link's memories into registered memory; by messages it is what batch->claim
 * says. The batch has a room. An error is the batch's. batch->ready() is called in any case, later. */
void kvf_ucx_get_start(kvf_ucx_batch *batch, const kvf_ucx_link *link, uint32_t memory, uint64_t offset, void *to,
                       const kvf_ucx_registered *mem, uint32_t bytes);
/* All gets of a batch whose link has messages are over; answers that still come go nowhere. */
void kvf_ucx_batch_forget(kvf_ucx_batch *batch);
/* Starts the gets of a table's head and of the slot's entry (unless KVF_UCX_SLOT_NONE) into the batch's room. */
void kvf_ucx_sample_start(kvf_ucx_batch *batch, const kvf_ucx_link *link, uint32_t slot);
/* False: none is left, beyond `spare` of them. Given back when the gets into it have ended. */
bool kvf_ucx_room_take(kvf_ucx *ucx, kvf_ucx_batch *batch, uint32_t spare);
void kvf_ucx_room_give(kvf_ucx *ucx, kvf_ucx_batch *batch);
/* What may be asked for next, at most: then messages of answers are filled. */
uint32_t kvf_ucx_ask_bytes_max(const kvf_ucx *ucx);
/* Sends what has been asked for. */
void kvf_ucx_asks_send(kvf_ucx *ucx, const kvf_ucx_link *link);
/* Has the reading worker take the answers to gets by messages. KVF_SYSTEM: UCX does not (message,
 * KVF_MESSAGE_BYTES_MAX). */
KVF_MUST_USE kvf_status kvf_ucx_messages_serve_reader(kvf_ucx *ucx, char *message);

#endif
