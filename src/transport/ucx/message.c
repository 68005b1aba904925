/* Messages: made, sent, and given back when UCX has sent them; and the producer of gets by messages, whose data thread
 * answers. */
#include "transport/ucx/message.h"

#include <stdlib.h>
#include <string.h>

/* ---- those that there are ---- */

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
    free(KVF_CONTAINER_OF(node, kvf_ucx_message, in_messages));
  }
}

void kvf_ucx_messages_free(kvf_ucx_messages *messages)
{
  free_all(&messages->free);
  free_all(&messages->busy);
  messages->busy_count = 0;
}

kvf_ucx_message *kvf_ucx_message_take(kvf_ucx *ucx, kvf_ucx_messages *messages)
{
  if (messages->busy_count == KVF_UCX_MESSAGES_MAX) {
    return NULL;
  }
  kvf_list *node = kvf_list_pop_front(&messages->free);
  kvf_ucx_message *taken = node != NULL ? KVF_CONTAINER_OF(node, kvf_ucx_message, in_messages) : malloc(sizeof(*taken));
  if (taken != NULL) {
    kvf_list_init(&taken->in_messages);
    taken->ucx = ucx;
    taken->messages = messages;
    taken->bytes = 0;
    taken->answer_bytes = 0;
    taken->count = 0;
    kvf_list_push_back(&messages->busy, &taken->in_messages);
    messages->busy_count++;
  }
  return taken;
}

static void give(kvf_ucx_message *given)
{
  kvf_list_remove(&given->in_messages);
  kvf_list_push_back(&given->messages->free, &given->in_messages);
  given->messages->busy_count--;
}

/* ---- sending ---- */

static void sent(void *request, kvf_ucs_status status, void *user_data)
{
  kvf_ucx_message *of = user_data;
  const kvf_ucx_api *api = of->ucx->api;
  (void)status; /* the endpoint fails, too, and says so */
  give(of);
  api->request_free(request);
}

kvf_ucs_status kvf_ucx_message_send(kvf_ucx_message *message, kvf_ucp_ep ep, unsigned id, uint32_t flags)
{
  kvf_ucx *ucx = message->ucx;
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA | KVF_UCP_OP_ATTR_FIELD_FLAGS |
                      KVF_UCP_OP_ATTR_FIELD_DATATYPE,
      .flags = flags | KVF_UCP_AM_SEND_FLAG_EAGER,
      .send = sent,
      .user_data = message,
      .datatype = ucx->message_type,
  };
  ucx->has_called = true;
  kvf_ucs_pointer request = ucx->api->am_send_nbx(ep, id, NULL, 0, message, 1, &param);
  if (request != NULL && !kvf_ucs_is_error(request)) {
    return KVF_UCS_OK;
  }
  give(message);
  return request == NULL ? KVF_UCS_OK : kvf_ucs_error(request);
}

/* ---- answers ---- */

/* An answer's bytes are copied when UCX can send them, into a buffer of its own, and the fence is looked at right after
 * that. UCX must not send them out of the blocks (zero-copy): then the fence could be checked only after the send. And
 * if the peer goes away during such a send, UCX reports its end twice and aborts the process (uct_tcp_ep_sendv, 1.13 to
 * 1.22). */

/* The address of the bytes. NULL: they are not in our memory, or cannot be read by address; the asker was told so. */
static const uint8_t *find(const kvf_paging *memory, const kvf_ucx_ask *ask)
{
  if (ask->memory >= kvf_paging_regions(memory) || memory->served[ask->memory].memory != KVF_MEMORY_HOST) {
    return NULL;
  }
  uint64_t extent_bytes = kvf_region_layout_bytes(&memory->regions[ask->memory]);
  bool inside = ask->offset <= extent_bytes && ask->bytes <= extent_bytes - ask->offset;
  return inside ? (const uint8_t *)memory->served[ask->memory].base + ask->offset : NULL;
}

/* Loads the entry after all earlier reads and before all later ones: the barriers of kvf_fence_load(). */
static kvf_fence_entry look(const kvf_paging *memory, uint32_t slot)
{
  return slot == KVF_UCX_SLOT_NONE ? (kvf_fence_entry){0} : kvf_fence_load(memory->table, slot);
}

/* UCX may have waited long until it could send: what is not the asker's any more then is not copied. */
static void pack_bytes(const kvf_paging *memory, kvf_ucx_part *part, size_t offset, uint8_t *to, size_t bytes)
{
  part->entry = look(memory, part->slot);
  if (part->entry.word == part->word) {
    memcpy(to, part->from + offset, bytes);
  } else {
    memset(to, 0, bytes); /* and the answer behind them says so */
  }
}

static void write_answer(const kvf_paging *memory, const kvf_ucx_part *part, uint8_t out[KVF_UCX_ANSWER_BYTES])
{
  kvf_ucx_answer answer = {.token = part->token, .kind = part->kind, .bytes = part->bytes};
  if (part->kind != KVF_UCX_ANSWER_REFUSED) {
    const kvf_fence_head *head = memory->table;
    answer.sample.head = (kvf_fence_head){.magic = head->magic,
                                          .incarnation = head->incarnation,
                                          .slots = head->slots,
                                          .generation = kvf_fence_generation(memory->table)};
    answer.sample.entry = part->entry;
  }
  kvf_ucx_answer_write(&answer, out);
}

static size_t pack_part(const kvf_paging *memory, kvf_ucx_part *part, size_t offset, uint8_t *to, size_t bytes_max)
{
  size_t packed = 0;
  if (offset < part->bytes) {
    packed = part->bytes - offset < bytes_max ? part->bytes - offset : bytes_max;
    pack_bytes(memory, part, offset, to, packed);
  }
  if (packed < bytes_max) {
    uint8_t end[KVF_UCX_ANSWER_BYTES];
    size_t at = offset + packed - part->bytes;
    size_t left = sizeof(end) - at;
    size_t bytes = left < bytes_max - packed ? left : bytes_max - packed;
    if (at == 0 && part->bytes > 0) {
      part->entry = look(memory, part->slot); /* all bytes have been copied */
    }
    write_answer(memory, part, end);
    memcpy(to + packed, end + at, bytes);
    packed += bytes;
  }
  return packed;
}

size_t kvf_ucx_answers_pack(kvf_ucx_message *message, size_t offset, uint8_t *to, size_t bytes_max)
{
  size_t packed = 0;
  for (uint32_t i = 0; i < message->count && packed < bytes_max; i++) {
    kvf_ucx_part *part = &message->parts[i];
    size_t part_bytes = part->bytes + KVF_UCX_ANSWER_BYTES;
    if (offset >= part_bytes) {
      offset -= part_bytes;
      continue;
    }
    packed += pack_part(message->ucx->data_thread.memory, part, offset, to + packed, bytes_max - packed);
    offset = 0;
  }
  return packed;
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
  const kvf_ucx_message *sending = state;
  return sending->bytes;
}

/* UCX goes through the data in order, and may do so in pieces. */
static size_t pack(void *state, size_t offset, void *to, size_t bytes_max)
{
  kvf_ucx_message *sending = state;
  if (sending->messages == &sending->ucx->answers) {
    return kvf_ucx_answers_pack(sending, offset, to, bytes_max);
  }
  size_t left = sending->bytes - offset;
  size_t packed = left < bytes_max ? left : bytes_max;
  memcpy(to, sending->asks + offset, packed);
  return packed;
}

static void finish(void *state)
{
  (void)state; /* the message is given back when it is sent */
}

/* ---- set-up ---- */

kvf_status kvf_ucx_messages_open(kvf_ucx *ucx, char *text)
{
  const kvf_ucp_generic_dt_ops ops = {
      .start_pack = start_pack, .packed_size = packed_size, .pack = pack, .finish = finish};
  kvf_ucs_status error = ucx->api->dt_create_generic(&ops, NULL, &ucx->message_type);
  if (error != KVF_UCS_OK) {
    ucx->message_type = 0;
    return kvf_fail(KVF_SYSTEM, text, "UCX takes no messages: %s", kvf_ucx_text(ucx, error));
  }
  return KVF_OK;
}

void kvf_ucx_messages_close(kvf_ucx *ucx)
{
  if (ucx->message_type != 0) {
    ucx->api->dt_destroy(ucx->message_type);
  }
}

kvf_status kvf_ucx_messages_serve(kvf_ucx *ucx, kvf_ucp_worker worker, unsigned id, kvf_ucp_am_handler handler,
                                  char *text)
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
  return error == KVF_UCS_OK ? KVF_OK
                             : kvf_fail(KVF_SYSTEM, text, "UCX takes no messages: %s", kvf_ucx_text(ucx, error));
}

/* ---- asked ---- */

/* What the answer is, as far as the ask alone and a look now can tell. */
static kvf_ucx_part part_of(const kvf_paging *memory, const kvf_ucx_ask *ask)
{
  kvf_ucx_part part = {.token = ask->token, .word = ask->word, .slot = ask->slot, .kind = KVF_UCX_ANSWER_REFUSED};
  bool is_look = ask->memory == KVF_UCX_MEMORY_TABLE;
  part.from = is_look ? NULL : find(memory, ask);
  if ((part.from == NULL && !is_look) || (ask->slot != KVF_UCX_SLOT_NONE && ask->slot >= memory->table_slots)) {
    return part;
  }
  part.kind = KVF_UCX_ANSWER_LOOK;
  part.entry = look(memory, ask->slot);
  if (!is_look && part.entry.word == ask->word) {
    part.kind = KVF_UCX_ANSWER_DATA;
    part.bytes = ask->bytes;
  }
  return part;
}

/* An error: the asker has gone. */
static void send_answers(kvf_ucx_message *answering, kvf_ucp_ep ep)
{
  if (answering != NULL) {
    (void)kvf_ucx_message_send(answering, ep, KVF_UCX_ANSWER_ID, 0);
  }
}

/* The message that this part belongs into, after those before it; NULL: too many, or no memory, and the asker's stall
 * clock ends it. */
static kvf_ucx_message *message_for(kvf_ucx *ucx, kvf_ucx_message *answering, const kvf_ucx_part *part, kvf_ucp_ep ep)
{
  if (answering != NULL && answering->answer_bytes + part->bytes <= KVF_UCX_ANSWER_DATA_BYTES_MAX) {
    return answering;
  }
  send_answers(answering, ep);
  return kvf_ucx_message_take(ucx, &ucx->answers);
}

static kvf_ucs_status on_asks(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                              const kvf_ucp_am_recv_param *param)
{
  kvf_ucx *ucx = argument;
  kvf_ucx_message *answering = NULL;
  (void)header;
  (void)header_bytes;
  if ((param->recv_attr & KVF_UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0 ||
      (param->recv_attr & KVF_UCP_AM_RECV_ATTR_FLAG_RNDV) != 0 || ucx->data_thread.memory == NULL ||
      bytes > (size_t)KVF_UCX_ASKS_MAX * KVF_UCX_ASK_BYTES) {
    return KVF_UCS_OK;
  }
  for (size_t at = 0; bytes - at >= KVF_UCX_ASK_BYTES; at += KVF_UCX_ASK_BYTES) {
    kvf_ucx_ask ask;
    if (kvf_ucx_ask_read((const uint8_t *)data + at, KVF_UCX_ASK_BYTES, &ask) != KVF_OK) {
      continue;
    }
    const kvf_ucx_part part = part_of(ucx->data_thread.memory, &ask);
    answering = message_for(ucx, answering, &part, param->reply_ep);
    if (answering != NULL) {
      answering->parts[answering->count++] = part;
      answering->bytes += part.bytes + KVF_UCX_ANSWER_BYTES;
      answering->answer_bytes += part.bytes;
    }
  }
  send_answers(answering, param->reply_ep);
  return KVF_UCS_OK;
}

kvf_status kvf_ucx_messages_serve_server(kvf_ucx *ucx, char *text)
{
  return kvf_ucx_messages_serve(ucx, ucx->server, KVF_UCX_ASK_ID, on_asks, text);
}
