/* Gets by messages: the consumer asks, the producer's data thread answers, the consumer's puts the bytes in place.
 * Nothing but put() writes to a destination, so a get is over as soon as we say so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"
#include "transport/ucx.h"

typedef struct message {
  kvf_list in_messages;
  kvf_ucx *ucx;
  kvf_ucx_messages *messages;
  kvf_ucx_stage *stage; /* NULL: it has none */
  uint8_t header[KVF_UCX_HEADER_BYTES_MAX];
} message;

/* ---- sending ---- */

void kvf_ucx_messages_init(kvf_ucx_messages *messages)
{
  kvf_list_init(&messages->free);
  kvf_list_init(&messages->busy);
  messages->busy_count = 0;
}

static void free_all(kvf_list *list)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(list)) != NULL) {
    message *freed = KVF_CONTAINER_OF(node, message, in_messages);
    free(freed->stage);
    free(freed);
  }
}

void kvf_ucx_messages_free(kvf_ucx_messages *messages)
{
  free_all(&messages->free);
  free_all(&messages->busy);
  messages->busy_count = 0;
}

/* NULL: too many, or no memory. */
static message *take(kvf_ucx *ucx, kvf_ucx_messages *messages)
{
  if (messages->busy_count == KVF_UCX_MESSAGES_MAX) {
    return NULL;
  }
  kvf_list *node = kvf_list_pop_front(&messages->free);
  message *taken = node != NULL ? KVF_CONTAINER_OF(node, message, in_messages) : malloc(sizeof(*taken));
  if (taken != NULL) {
    kvf_list_init(&taken->in_messages);
    taken->ucx = ucx;
    taken->messages = messages;
    taken->stage = NULL;
    kvf_list_push_back(&messages->busy, &taken->in_messages);
    messages->busy_count++;
  }
  return taken;
}

static void give(message *given)
{
  if (given->stage != NULL) {
    kvf_ucx_stage_give(given->ucx, given->stage);
    given->stage = NULL;
  }
  kvf_list_remove(&given->in_messages);
  kvf_list_push_back(&given->messages->free, &given->in_messages);
  given->messages->busy_count--;
}

static void sent(void *request, kvf_ucs_status status, void *user_data)
{
  message *of = user_data;
  const kvf_ucx_api *api = of->ucx->api;
  (void)status; /* the endpoint fails, too, and says so */
  give(of);
  api->request_free(request);
}

static kvf_ucs_status send_message(message *of, kvf_ucp_ep ep, unsigned id, size_t header_bytes, const void *data,
                                   size_t bytes, uint32_t flags)
{
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA | KVF_UCP_OP_ATTR_FIELD_FLAGS,
      .flags = flags | KVF_UCP_AM_SEND_FLAG_EAGER,
      .send = sent,
      .user_data = of,
  };
  of->ucx->has_called = true;
  void *request = of->ucx->api->am_send_nbx(ep, id, of->header, header_bytes, data, bytes, &param);
  if (request != NULL && !kvf_ucs_is_error(request)) {
    return KVF_UCS_OK;
  }
  give(of);
  return request == NULL ? KVF_UCS_OK : kvf_ucs_error(request);
}

/* ---- the consumer ---- */

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
  message *asking = take(ucx, &ucx->asks);
  if (asking == NULL) {
    kvf_ucx_get_end(get, KVF_UCS_ERR_NO_MEMORY);
    return;
  }
  kvf_ucx_ask_write(&ask, asking->header);
  kvf_ucs_status status =
      send_message(asking, link->ep, KVF_UCX_ASK_ID, KVF_UCX_ASK_BYTES, NULL, 0, KVF_UCP_AM_SEND_FLAG_REPLY);
  if (status != KVF_UCS_OK) {
    kvf_ucx_get_end(get, status);
  }
}

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
static bool fits(const kvf_ucx_get *get, const kvf_ucx_answer *answer, size_t bytes)
{
  bool is_live = answer->sample.entry.word == get->batch->claim.word;
  switch (answer->kind) {
    case KVF_UCX_ANSWER_LOOK:
      return bytes == 0 && (get->bytes == 0 || !is_live);
    case KVF_UCX_ANSWER_UNJUDGED:
    case KVF_UCX_ANSWER_JUDGED:
      return bytes > 0 && bytes == get->bytes;
    default:
      return false;
  }
}

/* The word only grows: the lease was live for all bytes if all samples say so, and any that says that it was not
 * settles it. */
static void note_sample(kvf_ucx_batch *batch, const kvf_ucx_answer *answer, bool is_of_bytes)
{
  kvf_ucx_claim *claim = &batch->claim;
  if (claim->is_lost || (KVF_MUTANT(FENCE_READ_FIRST) && batch->ended_bytes > 0)) {
    return;
  }
  batch->ucx->rooms[batch->room].sample = answer->sample;
  if (is_of_bytes) {
    claim->is_lost = answer->sample.entry.word != claim->word;
    claim->is_judged = claim->is_judged && answer->kind == KVF_UCX_ANSWER_JUDGED;
  }
}

static kvf_ucs_status on_answer(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                                const kvf_ucp_am_recv_param *param)
{
  kvf_ucx *ucx = argument;
  kvf_ucx_answer answer;
  if (kvf_ucx_answer_read(header, header_bytes, &answer) != KVF_OK) {
    return KVF_UCS_OK; /* whoever waits for it waits in vain, and for so long only */
  }
  kvf_ucx_get *get = asked(ucx, answer.token);
  if (get == NULL) {
    return KVF_UCS_OK;
  }
  if (!fits(get, &answer, bytes) || (param->recv_attr & KVF_UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
    kvf_ucx_get_end(get, KVF_UCS_ERR_UNREACHABLE);
    return KVF_UCS_OK;
  }
  if (bytes > 0) {
    memcpy(get->to, data, bytes);
  }
  note_sample(get->batch, &answer, get->bytes > 0);
  if (!KVF_MUTANT(FENCE_READ_FIRST)) {
    get->bytes = (uint32_t)bytes; /* that have landed */
  }
  kvf_ucx_get_end(get, KVF_UCS_OK);
  return KVF_UCS_OK;
}

/* ---- the producer ---- */

/* Where the bytes are; NULL: they are not ours to give. */
static const void *find(const kvf_ucx_memory *memory, const kvf_ucx_ask *ask)
{
  if (ask->memory >= memory->regions_count + memory->sums_count) {
    return NULL;
  }
  const kvf_region *region = &memory->regions[kvf_ucx_memory_served(memory, ask->memory)];
  uint64_t extent_bytes = kvf_ucx_region_bytes(region);
  bool inside = ask->offset <= extent_bytes && ask->bytes <= extent_bytes - ask->offset;
  return inside ? (const uint8_t *)region->base + ask->offset : NULL;
}

/* Loads the entry after whatever was read before, and before whatever is read then: kvf_fence_load()'s barriers. */
static void look(const kvf_ucx_memory *memory, uint32_t slot, kvf_fence_sample *out)
{
  memset(out, 0, sizeof(*out));
  memcpy(&out->head, memory->table, sizeof(out->head));
  if (slot != KVF_UCX_SLOT_NONE) {
    out->entry = kvf_fence_load(memory->table, slot);
  }
}

/* Sets the answer; returns its bytes, NULL: none. */
static const void *answer_to(kvf_ucx *ucx, const kvf_ucx_ask *ask, message *answering, kvf_ucx_answer *out)
{
  const kvf_ucx_memory *memory = ucx->memory;
  *out = (kvf_ucx_answer){.token = ask->token, .kind = KVF_UCX_ANSWER_REFUSED};
  bool is_look = ask->memory == KVF_UCX_MEMORY_TABLE;
  const void *from = is_look ? NULL : find(memory, ask);
  if ((from == NULL && !is_look) || (ask->slot != KVF_UCX_SLOT_NONE && ask->slot >= memory->table_slots)) {
    return NULL;
  }
  out->kind = KVF_UCX_ANSWER_LOOK;
  look(memory, ask->slot, &out->sample);
  if (is_look || (out->sample.entry.word != ask->word && !KVF_MUTANT(COPIED_UNPUBLISHED))) {
    return NULL;
  }
  out->kind = KVF_UCX_ANSWER_UNJUDGED;
  answering->stage = kvf_ucx_stage_take(ucx);
  if (answering->stage == NULL) {
    return from;
  }
  /* UCX may take what it sends much later; of a copy the fence can tell already. */
  memcpy(answering->stage->bytes, from, ask->bytes);
  out->kind = KVF_UCX_ANSWER_JUDGED;
  if (!KVF_MUTANT(FENCE_READ_FIRST)) {
    look(memory, ask->slot, &out->sample);
  }
  return answering->stage->bytes;
}

static kvf_ucs_status on_ask(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const kvf_ucp_am_recv_param *param)
{
  kvf_ucx *ucx = argument;
  kvf_ucx_ask ask;
  kvf_ucx_answer answer;
  (void)data;
  (void)bytes;
  if ((param->recv_attr & KVF_UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 || ucx->memory == NULL ||
      kvf_ucx_ask_read(header, header_bytes, &ask) != KVF_OK) {
    return KVF_UCS_OK;
  }
  message *answering = take(ucx, &ucx->answers);
  if (answering == NULL) {
    return KVF_UCS_OK; /* more than anybody may ask for at a time: the asker's stall clock ends it */
  }
  const void *from = answer_to(ucx, &ask, answering, &answer);
  kvf_ucx_answer_write(&answer, answering->header);
  /* An error: the asker has gone. */
  (void)send_message(answering, param->reply_ep, KVF_UCX_ANSWER_ID, KVF_UCX_ANSWER_BYTES, from,
                     from == NULL ? 0 : ask.bytes, 0);
  return KVF_UCS_OK;
}

/* ---- set-up ---- */

static bool serve(kvf_ucx *ucx, kvf_ucp_worker worker, unsigned id, kvf_ucp_am_handler handler, char *text)
{
  const kvf_ucp_am_handler_param param = {
      .field_mask = KVF_UCP_AM_HANDLER_PARAM_FIELD_ID | KVF_UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                    KVF_UCP_AM_HANDLER_PARAM_FIELD_CB | KVF_UCP_AM_HANDLER_PARAM_FIELD_ARG,
      .id = id,
      .flags = KVF_UCP_AM_FLAG_WHOLE_MSG,
      .cb = handler,
      .arg = ucx,
  };
  kvf_ucs_status error = ucx->api->worker_set_am_recv_handler(worker, &param);
  if (error != KVF_UCS_OK) {
    (void)snprintf(text, KVF_MESSAGE_BYTES_MAX, "UCX takes no messages: %s", kvf_ucx_text(ucx, error));
    return false;
  }
  return true;
}

bool kvf_ucx_messages_serve_reader(kvf_ucx *ucx, char *text)
{
  return serve(ucx, ucx->reader, KVF_UCX_ANSWER_ID, on_answer, text);
}

bool kvf_ucx_messages_serve_server(kvf_ucx *ucx, char *text)
{
  return serve(ucx, ucx->server, KVF_UCX_ASK_ID, on_ask, text);
}
