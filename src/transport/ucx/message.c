/* Messages: made, sent, and given back when UCX has sent them. */
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
