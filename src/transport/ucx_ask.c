/* The consumer of gets by messages: it asks, and puts the bytes that it is answered in place. Nothing but
 * take_answer() writes to a destination, so a get is over as soon as we say so. */
#include <string.h>

#include "transport/ucx_message.h"

/* ---- asking ---- */

uint32_t kvf_ucx_ask_bytes_max(const kvf_ucx *ucx)
{
  uint32_t asked_bytes = ucx->asking == NULL ? 0 : ucx->asking->answer_bytes;
  return KVF_UCX_ANSWER_DATA_BYTES_MAX - asked_bytes % KVF_UCX_ANSWER_DATA_BYTES_MAX;
}

/* Asks go out together: each message costs a call of the system, on both sides. */
void kvf_ucx_ask_for(kvf_ucx_get *get, const kvf_ucx_link *link, uint32_t memory, uint64_t offset)
{
  kvf_ucx *ucx = get->batch->ucx;
  const kvf_ucx_claim *claim = &get->batch->claim;
  const kvf_ucx_ask ask = {.token = get->token,
                           .memory = memory,
                           .slot = claim->slot,
                           .offset = offset,
                           .word = claim->word,
                           .bytes = get->bytes};
  if (ucx->asking == NULL) {
    ucx->asking = kvf_ucx_message_take(ucx, &ucx->asks);
  }
  kvf_ucx_message *asking = ucx->asking;
  if (asking == NULL) {
    kvf_ucx_get_end(get, KVF_UCS_ERR_NO_MEMORY);
    return;
  }
  kvf_ucx_ask_write(&ask, asking->asks + asking->bytes);
  asking->bytes += KVF_UCX_ASK_BYTES;
  asking->answer_bytes += get->bytes;
  ucx->asking_for[asking->count++] = get;
  if (asking->count == KVF_UCX_ASKS_MAX) {
    kvf_ucx_asks_send(ucx, link);
  }
}

void kvf_ucx_asks_send(kvf_ucx *ucx, const kvf_ucx_link *link)
{
  kvf_ucx_message *asking = ucx->asking;
  if (asking == NULL) {
    return;
  }
  uint32_t count = asking->count;
  ucx->asking = NULL;
  kvf_ucs_status status = kvf_ucx_message_send(asking, link->ep, KVF_UCX_ASK_ID, KVF_UCP_AM_SEND_FLAG_REPLY);
  for (uint32_t i = 0; status != KVF_UCS_OK && i < count; i++) {
    kvf_ucx_get_end(ucx->asking_for[i], status);
  }
}

/* ---- answered ---- */

/* The get that waits for this answer; NULL: none does any more. */
static kvf_ucx_get *asked(const kvf_ucx *ucx, uint64_t token)
{
  uint32_t room = (uint32_t)(token >> 16) & UINT16_MAX;
  uint32_t place = (uint32_t)token & UINT16_MAX;
  if (room >= KVF_UCX_ROOMS_MAX || place >= KVF_UCX_GETS_MAX || ucx->in_rooms[room] == NULL) {
    return NULL;
  }
  kvf_ucx_batch *batch = ucx->in_rooms[room];
  bool waits = (batch->busy >> place & 1) != 0 && batch->gets[place].token == token;
  return waits ? &batch->gets[place] : NULL;
}

/* Whether the answer is one to what was asked for. */
static bool fits(const kvf_ucx_get *get, const kvf_ucx_answer *answer)
{
  bool is_live = answer->sample.entry.word == get->batch->claim.word;
  switch (answer->kind) {
    case KVF_UCX_ANSWER_LOOK:
      return get->bytes == 0 || !is_live;
    case KVF_UCX_ANSWER_DATA:
      return answer->bytes == get->bytes;
    default:
      return false;
  }
}

/* The word only grows: the lease was live for all bytes if all samples say so, and any that says that it was not
 * settles it. */
static void note_sample(kvf_ucx_batch *batch, const kvf_ucx_answer *answer, bool is_of_bytes)
{
  kvf_ucx_claim *claim = &batch->claim;
  if (claim->is_lost) {
    return;
  }
  batch->ucx->rooms[batch->room].sample = answer->sample;
  if (is_of_bytes) {
    claim->is_lost = answer->sample.entry.word != claim->word;
  }
}

static void take_answer(const kvf_ucx *ucx, const kvf_ucx_answer *answer, const uint8_t *data)
{
  kvf_ucx_get *get = asked(ucx, answer->token);
  if (get == NULL) {
    return;
  }
  if (!fits(get, answer)) {
    kvf_ucx_get_end(get, KVF_UCS_ERR_UNREACHABLE);
    return;
  }
  if (answer->bytes > 0) {
    memcpy(get->to, data, answer->bytes);
  }
  note_sample(get->batch, answer, get->bytes > 0);
  get->bytes = answer->bytes; /* that have landed */
  kvf_ucx_get_end(get, KVF_UCS_OK);
}

/* A malformed answer is dropped. The read that waits for it ends by its stall clock. */
static kvf_ucs_status on_answers(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                                 const kvf_ucp_am_recv_param *param)
{
  const kvf_ucx *ucx = argument;
  const uint8_t *message = data;
  kvf_ucx_answer answer;
  (void)header;
  (void)header_bytes;
  if ((param->recv_attr & KVF_UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    return KVF_UCS_OK;
  }
  while (bytes > 0 && kvf_ucx_answers_take_last(message, &bytes, &answer) == KVF_OK) {
    take_answer(ucx, &answer, message + bytes);
  }
  return KVF_UCS_OK;
}

bool kvf_ucx_messages_serve_reader(kvf_ucx *ucx, char *text)
{
  return kvf_ucx_messages_serve(ucx, ucx->reader, KVF_UCX_ANSWER_ID, on_answers, text);
}
