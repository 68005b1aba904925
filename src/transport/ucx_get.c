/* Gets, and the rooms that samples land in. */
#include "transport/ucx.h"

#include <assert.h>

void kvf_ucx_batch_init(kvf_ucx_batch *batch, kvf_ucx *ucx, void (*ready)(kvf_ucx *ucx, kvf_ucx_batch *batch))
{
  kvf_list_init(&batch->in_ready);
  batch->ucx = ucx;
  batch->ready = ready;
  batch->room = UINT32_MAX;
  batch->busy = 0;
  batch->ended_bytes = 0;
  batch->error = KVF_UCS_OK;
  batch->claim = (kvf_ucx_claim){.slot = KVF_UCX_SLOT_NONE};
}

void kvf_ucx_get_end(kvf_ucx_get *get, kvf_ucs_status status)
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

static void ended(void *request, kvf_ucs_status status, void *user_data)
{
  kvf_ucx_get *get = user_data;
  const kvf_ucx_api *api = get->batch->ucx->api;
  kvf_ucx_get_end(get, status);
  api->request_free(request);
}

/* UCX's own get, into the destination. */
static void get(kvf_ucx_get *get, const kvf_ucx_link *link, uint64_t address, kvf_ucp_rkey key, kvf_ucp_mem mem,
                int memory_type)
{
  const kvf_ucp_request_param param = {
      .op_attr_mask = KVF_UCP_OP_ATTR_FIELD_CALLBACK | KVF_UCP_OP_ATTR_FIELD_USER_DATA |
                      KVF_UCP_OP_ATTR_FIELD_MEMORY_TYPE | KVF_UCP_OP_ATTR_FIELD_MEMH,
      .send = ended,
      .user_data = get,
      .memory_type = memory_type,
      .memh = mem,
  };
  void *request = get->batch->ucx->api->get_nbx(link->ep, get->to, get->bytes, address, key, &param);
  if (request == NULL) {
    kvf_ucx_get_end(get, KVF_UCS_OK);
  } else if (kvf_ucs_is_error(request)) {
    kvf_ucx_get_end(get, kvf_ucs_error(request));
  }
}

/* Which get an answer is for: its room, its place in the batch, and how many were asked for before. */
static uint64_t token_of(kvf_ucx *ucx, const kvf_ucx_batch *batch, const kvf_ucx_get *get)
{
  return ucx->asked++ << 32 | (uint64_t)batch->room << 16 | (uint64_t)(get - batch->gets);
}

void kvf_ucx_get_start(kvf_ucx_batch *batch, const kvf_ucx_link *link, uint32_t memory, uint64_t offset, void *to,
                       kvf_ucp_mem mem, int memory_type, uint32_t bytes)
{
  assert(!kvf_ucx_batch_is_full(batch));
  kvf_ucx_get *next = &batch->gets[__builtin_ctzll(~batch->busy)];
  bool is_table = memory == KVF_UCX_MEMORY_TABLE;
  *next = (kvf_ucx_get){.batch = batch, .bytes = bytes, .to = to, .token = token_of(batch->ucx, batch, next)};
  batch->busy |= UINT64_C(1) << (next - batch->gets);
  batch->ucx->has_called = true;
  if (link->has_messages) {
    kvf_ucx_ask_for(next, link, memory, offset);
  } else {
    get(next, link, (is_table ? link->table : link->bases[memory]) + offset,
        is_table ? link->table_key : link->keys[memory], mem, memory_type);
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
    kvf_ucx_get_start(batch, link, KVF_UCX_MEMORY_TABLE, 0, NULL, ucx->rooms_mem, KVF_UCS_MEMORY_TYPE_HOST, 0);
    kvf_ucx_asks_send(ucx, link);
    return;
  }
  kvf_ucx_get_start(batch, link, KVF_UCX_MEMORY_TABLE, 0, &sample->head, ucx->rooms_mem, KVF_UCS_MEMORY_TYPE_HOST,
                    sizeof(sample->head));
  if (slot != KVF_UCX_SLOT_NONE) {
    kvf_ucx_get_start(batch, link, KVF_UCX_MEMORY_TABLE, kvf_fence_entry_offset(slot), &sample->entry, ucx->rooms_mem,
                      KVF_UCS_MEMORY_TYPE_HOST, sizeof(sample->entry));
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
