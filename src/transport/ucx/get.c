/* Batches of gets: as UCX's own or as messages, where their answers go, and rooms for samples. */
#include "transport/ucx/get.h"

#include <assert.h>
#include <string.h>

#include "transport/ucx/message.h"

void kvf_ucx_batch_init(kvf_ucx_batch *batch, kvf_ucx *ucx, void (*ready)(kvf_ucx *ucx, kvf_ucx_batch *batch))
{
  kvf_list_init(&batch->in_ready);
  batch->ucx = ucx;
  batch->ready = ready;
  batch->room = UINT32_MAX;
  batch->claim.slot = KVF_UCX_SLOT_NONE;
}

static void get_end(kvf_ucx_get *get, kvf_ucs_status status)
{
  kvf_ucx_batch *batch = get->batch;
  batch->busy &= ~(UINT64_C(1) << (get - batch->gets));
  if (status == KVF_UCS_OK) {
    batch->ended_bytes += get->bytes;
  } else if (batch->error == KVF_UCS_OK) {
    batch->error = status;
  }
  kvf_list_ensure_back(&batch->ucx->ready, &batch->in_ready);
}

/* ---- asking ---- */

uint32_t kvf_ucx_ask_bytes_max(const kvf_ucx *ucx)
{
  uint32_t asked_bytes = ucx->asking == NULL ? 0 : ucx->asking->answer_bytes;
  return KVF_UCX_ANSWER_DATA_BYTES_MAX - asked_bytes % KVF_UCX_ANSWER_DATA_BYTES_MAX;
}

/* Asks go out together: each message costs a call of the system, on both sides. */
static void ask_for(kvf_ucx_get *get, const kvf_ucx_link *link, uint32_t memory, uint64_t offset)
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
    get_end(get, KVF_UCS_ERR_NO_MEMORY);
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
    get_end(ucx->asking_for[i], status);
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

/* The word only grows. The lease was live for all bytes if all samples say so; one sample that says otherwise decides.
 */
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
    get_end(get, KVF_UCS_ERR_UNREACHABLE);
    return;
  }
  if (answer->bytes > 0) {
    memcpy(get->to, data, answer->bytes);
  }
  note_sample(get->batch, answer, get->bytes > 0);
  get->bytes = answer->bytes; /* that have arrived */
  get_end(get, KVF_UCS_OK);
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

kvf_status kvf_ucx_messages_serve_reader(kvf_ucx *ucx, char *text)
{
  return kvf_ucx_messages_serve(ucx, ucx->reader, KVF_UCX_ANSWER_ID, on_answers, text);
}

/* ---- gets ---- */

static void ended(void *request, kvf_ucs_status status, void *user_data)
{
  kvf_ucx_get *get = user_data;
  const kvf_ucx_api *api = get->batch->ucx->api;
  get_end(get, status);
  api->request_free(request);
}

/* UCX's own get, into the destination. */
static void get(kvf_ucx_get *get, const kvf_ucx_link *link, uint64_t address, kvf_ucp_rkey key,
                const kvf_ucx_registered *mem)
{
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA |
                      KVF_UCP_OP_ATTR_FIELD_MEMORY_TYPE | KVF_UCP_OP_ATTR_FIELD_MEMH,
      .send = ended,
      .user_data = get,
      .memory_type = mem->type,
      .memh = mem->mem,
  };
  void *request = get->batch->ucx->api->get_nbx(link->ep, get->to, get->bytes, address, key, &param);
  if (request == NULL) {
    get_end(get, KVF_UCS_OK);
  } else if (kvf_ucs_is_error(request)) {
    get_end(get, kvf_ucs_error(request));
  }
}

/* Which get an answer is for: its room, its place in the batch, and how many were asked for before. */
static uint64_t token_of(kvf_ucx *ucx, const kvf_ucx_batch *batch, const kvf_ucx_get *get)
{
  return ucx->asked++ << 32 | (uint64_t)batch->room << 16 | (uint64_t)(get - batch->gets);
}

void kvf_ucx_get_start(kvf_ucx_batch *batch, const kvf_ucx_link *link, uint32_t memory, uint64_t offset, void *to,
                       const kvf_ucx_registered *mem, uint32_t bytes)
{
  assert(!kvf_ucx_batch_is_full(batch));
  kvf_ucx_get *next = &batch->gets[__builtin_ctzll(~batch->busy)];
  *next = (kvf_ucx_get){.batch = batch, .bytes = bytes, .to = to, .token = token_of(batch->ucx, batch, next)};
  batch->busy |= UINT64_C(1) << (next - batch->gets);
  batch->ucx->has_called = true;
  if (link->has_messages) {
    ask_for(next, link, memory, offset);
  } else {
    const uint32_t at = memory == KVF_UCX_MEMORY_TABLE ? kvf_paging_regions(link->common.pages) : memory;
    get(next, link, link->bases[at] + offset, link->keys[at], mem);
  }
}

void kvf_ucx_batch_forget(kvf_ucx_batch *batch)
{
  if (batch->busy == 0) {
    return;
  }
  batch->busy = 0;
  if (batch->error == KVF_UCS_OK) {
    batch->error = KVF_UCS_ERR_CANCELED;
  }
  kvf_list_ensure_back(&batch->ucx->ready, &batch->in_ready);
}

void kvf_ucx_sample_start(kvf_ucx_batch *batch, const kvf_ucx_link *link, uint32_t slot)
{
  kvf_ucx *ucx = batch->ucx;
  kvf_fence_sample *sample = &ucx->rooms[batch->room].sample;
  if (link->has_messages) {
    kvf_ucx_get_start(batch, link, KVF_UCX_MEMORY_TABLE, 0, NULL, &ucx->rooms_mem, 0);
    kvf_ucx_asks_send(ucx, link);
    return;
  }
  kvf_ucx_get_start(batch, link, KVF_UCX_MEMORY_TABLE, 0, &sample->head, &ucx->rooms_mem, sizeof(sample->head));
  if (slot != KVF_UCX_SLOT_NONE) {
    kvf_ucx_get_start(batch, link, KVF_UCX_MEMORY_TABLE, kvf_fence_entry_offset(slot), &sample->entry, &ucx->rooms_mem,
                      sizeof(sample->entry));
  }
}

bool kvf_ucx_room_take(kvf_ucx *ucx, kvf_ucx_batch *batch, uint32_t spare)
{
  if (ucx->rooms_free_count <= spare) {
    return false;
  }
  batch->room = ucx->rooms_free[--ucx->rooms_free_count];
  ucx->in_rooms[batch->room] = batch;
  return true;
}

void kvf_ucx_room_give(kvf_ucx *ucx, kvf_ucx_batch *batch)
{
  ucx->in_rooms[batch->room] = NULL;
  ucx->rooms_free[ucx->rooms_free_count++] = (uint16_t)batch->room;
  batch->room = UINT32_MAX;
}
