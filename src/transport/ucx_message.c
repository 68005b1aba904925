/* Gets by messages: the consumer asks, the producer's data thread answers, the consumer's puts the bytes in place.
 * Nothing but on_answer() writes to a destination, so a get is over as soon as we say so.
 *
 * An answer's bytes are copied when UCX can send them, into a buffer of its own, and the fence is looked at right after
 * that. UCX is not to send them out of the blocks (zero-copy): the fence could tell of these only when they have been
 * sent, and where such a send is cut off by a peer that goes away, UCX says twice that it is over, and aborts the
 * process (uct_tcp_ep_sendv, 1.13 to 1.22). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mutant.h"
#include "transport/ucx.h"

typedef struct kvf_ucx_message {
  kvf_list in_messages;
  kvf_ucx *ucx;
  kvf_ucx_messages *messages;
  kvf_ucx_ask ask; /* of an answer, like the next */
  kvf_ucx_answer answer;
  const uint8_t *from; /* its data: bytes of a block, none in asks, */
  uint32_t bytes;
  uint32_t end_bytes; /* and the answer, or the asks */
  uint8_t end[KVF_UCX_ASKS_MAX * KVF_UCX_ASK_BYTES];
} message;

_Static_assert(KVF_UCX_ANSWER_BYTES <= KVF_UCX_ASKS_MAX * KVF_UCX_ASK_BYTES, "either fits");

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
    free(KVF_CONTAINER_OF(node, message, in_messages));
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
    taken->bytes = 0;
    taken->end_bytes = 0;
    kvf_list_push_back(&messages->busy, &taken->in_messages);
    messages->busy_count++;
  }
  return taken;
}

static void give(message *given)
{
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

/* The message is given back when it is sent; an error: now. */
static kvf_ucs_status send_message(message *of, kvf_ucp_ep ep, unsigned id, uint32_t flags)
{
  kvf_ucx *ucx = of->ucx;
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA | KVF_UCP_OP_ATTR_FIELD_FLAGS |
                      KVF_UCP_OP_ATTR_FIELD_DATATYPE,
      .flags = flags | KVF_UCP_AM_SEND_FLAG_EAGER,
      .send = sent,
      .user_data = of,
      .datatype = ucx->message_type,
  };
  ucx->has_called = true;
  kvf_ucs_pointer request = ucx->api->am_send_nbx(ep, id, NULL, 0, of, 1, &param);
  if (request != NULL && !kvf_ucs_is_error(request)) {
    return KVF_UCS_OK;
  }
  give(of);
  return request == NULL ? KVF_UCS_OK : kvf_ucs_error(request);
}

/* ---- the consumer ---- */

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
  if (ucx->asking_count == 0) {
    ucx->asking = take(ucx, &ucx->asks);
  }
  message *asking = ucx->asking;
  if (asking == NULL) {
    kvf_ucx_get_end(get, KVF_UCS_ERR_NO_MEMORY);
    return;
  }
  kvf_ucx_ask_write(&ask, asking->end + asking->end_bytes);
  asking->end_bytes += KVF_UCX_ASK_BYTES;
  ucx->asking_for[ucx->asking_count++] = get;
  if (ucx->asking_count == KVF_UCX_ASKS_MAX) {
    kvf_ucx_asks_send(ucx, link);
  }
}

void kvf_ucx_asks_send(kvf_ucx *ucx, const kvf_ucx_link *link)
{
  uint32_t count = ucx->asking_count;
  ucx->asking_count = 0;
  if (count == 0) {
    return;
  }
  kvf_ucs_status status = send_message(ucx->asking, link->ep, KVF_UCX_ASK_ID, KVF_UCP_AM_SEND_FLAG_REPLY);
  for (uint32_t i = 0; status != KVF_UCS_OK && i < count; i++) {
    kvf_ucx_get_end(ucx->asking_for[i], status);
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
    case KVF_UCX_ANSWER_DATA:
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
  }
}

static kvf_ucs_status on_answer(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                                const kvf_ucp_am_recv_param *param)
{
  kvf_ucx *ucx = argument;
  kvf_ucx_answer answer;
  (void)header;
  (void)header_bytes;
  bool is_here = (param->recv_attr & KVF_UCP_AM_RECV_ATTR_FLAG_RNDV) == 0 && bytes >= KVF_UCX_ANSWER_BYTES;
  bytes -= is_here ? KVF_UCX_ANSWER_BYTES : 0;
  if (!is_here || kvf_ucx_answer_read((const uint8_t *)data + bytes, KVF_UCX_ANSWER_BYTES, &answer) != KVF_OK) {
    return KVF_UCS_OK; /* whoever waits for it waits in vain, and for so long only */
  }
  kvf_ucx_get *get = asked(ucx, answer.token);
  if (get == NULL) {
    return KVF_UCS_OK;
  }
  if (!fits(get, &answer, bytes)) {
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
static const uint8_t *find(const kvf_ucx_memory *memory, const kvf_ucx_ask *ask)
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

/* What the answer is, as far as the ask alone and a look now can tell. */
static void begin_answer(const kvf_ucx_memory *memory, message *answering)
{
  const kvf_ucx_ask *ask = &answering->ask;
  kvf_ucx_answer *answer = &answering->answer;
  bool is_look = ask->memory == KVF_UCX_MEMORY_TABLE;
  *answer = (kvf_ucx_answer){.token = ask->token, .kind = KVF_UCX_ANSWER_REFUSED};
  answering->from = is_look ? NULL : find(memory, ask);
  answering->bytes = 0;
  if ((answering->from == NULL && !is_look) || (ask->slot != KVF_UCX_SLOT_NONE && ask->slot >= memory->table_slots)) {
    return;
  }
  answer->kind = KVF_UCX_ANSWER_LOOK;
  look(memory, ask->slot, &answer->sample);
  if (!is_look && (answer->sample.entry.word == ask->word || KVF_MUTANT(COPIED_UNPUBLISHED))) {
    answer->kind = KVF_UCX_ANSWER_DATA;
    answering->bytes = ask->bytes;
  }
}

/* ---- what UCX asks of a message, when it can send it ---- */

static void *start_pack(void *context, const void *buffer, size_t count)
{
  void *state;
  (void)context;
  (void)count;
  memcpy(&state, &buffer, sizeof(state)); /* the message, which is ours to write to */
  return state;
}

static size_t packed_size(void *state)
{
  const message *sending = state;
  return sending->bytes + sending->end_bytes;
}

/* UCX may have waited long until it could send: what is not the asker's any more then is not copied. */
static void pack_bytes(const message *answering, size_t offset, uint8_t *to, size_t bytes)
{
  const kvf_ucx_memory *memory = answering->ucx->memory;
  const kvf_ucx_ask *ask = &answering->ask;
  if (kvf_fence_load(memory->table, ask->slot).word == ask->word || KVF_MUTANT(COPIED_UNPUBLISHED)) {
    memcpy(to, answering->from + offset, bytes);
  } else {
    memset(to, 0, bytes); /* and what follows says so */
  }
}

/* All bytes have been copied. */
static void end_answer(message *answering)
{
  if (answering->bytes > 0 && !KVF_MUTANT(FENCE_READ_FIRST)) {
    look(answering->ucx->memory, answering->ask.slot, &answering->answer.sample);
  }
  kvf_ucx_answer_write(&answering->answer, answering->end);
}

/* UCX goes through the data in order, and may do so in pieces. */
static size_t pack(void *state, size_t offset, void *to, size_t bytes_max)
{
  message *sending = state;
  size_t packed = 0;
  if (offset < sending->bytes) {
    packed = sending->bytes - offset < bytes_max ? sending->bytes - offset : bytes_max;
    pack_bytes(sending, offset, to, packed);
  }
  if (packed < bytes_max) {
    size_t at = offset + packed - sending->bytes;
    size_t left = sending->end_bytes - at;
    size_t bytes = left < bytes_max - packed ? left : bytes_max - packed;
    if (at == 0 && sending->messages == &sending->ucx->answers) {
      end_answer(sending);
    }
    memcpy((uint8_t *)to + packed, sending->end + at, bytes);
    packed += bytes;
  }
  return packed;
}

static void finish(void *state)
{
  (void)state; /* the message is given back when it is sent */
}

/* ---- asked ---- */

static void answer(kvf_ucx *ucx, const kvf_ucx_ask *ask, kvf_ucp_ep ep)
{
  message *answering = take(ucx, &ucx->answers);
  if (answering == NULL) {
    return; /* more than anybody may ask for at a time: the asker's stall clock ends it */
  }
  answering->ask = *ask;
  answering->end_bytes = KVF_UCX_ANSWER_BYTES;
  begin_answer(ucx->memory, answering);
  (void)send_message(answering, ep, KVF_UCX_ANSWER_ID, 0); /* an error: the asker has gone */
}

static kvf_ucs_status on_ask(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                             const kvf_ucp_am_recv_param *param)
{
  kvf_ucx *ucx = argument;
  (void)header;
  (void)header_bytes;
  if ((param->recv_attr & KVF_UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 ||
      (param->recv_attr & KVF_UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || ucx->memory == NULL ||
      bytes > sizeof(((message *)NULL)->end)) {
    return KVF_UCS_OK;
  }
  for (size_t at = 0; at < bytes; at += KVF_UCX_ASK_BYTES) {
    size_t left = bytes - at;
    kvf_ucx_ask ask;
    if (kvf_ucx_ask_read((const uint8_t *)data + at, left < KVF_UCX_ASK_BYTES ? left : KVF_UCX_ASK_BYTES, &ask) ==
        KVF_OK) {
      answer(ucx, &ask, param->reply_ep);
    }
  }
  return KVF_UCS_OK;
}

/* ---- set-up ---- */

bool kvf_ucx_messages_open(kvf_ucx *ucx, char *text)
{
  const kvf_ucp_generic_dt_ops ops = {
      .start_pack = start_pack, .packed_size = packed_size, .pack = pack, .finish = finish};
  kvf_ucs_status error = ucx->api->dt_create_generic(&ops, NULL, &ucx->message_type);
  if (error != KVF_UCS_OK) {
    ucx->message_type = 0;
    (void)snprintf(text, KVF_MESSAGE_BYTES_MAX, "UCX takes no messages: %s", kvf_ucx_text(ucx, error));
    return false;
  }
  return true;
}

void kvf_ucx_messages_close(kvf_ucx *ucx)
{
  if (ucx->message_type != 0) {
    ucx->api->dt_destroy(ucx->message_type);
  }
}

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
