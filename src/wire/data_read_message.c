#include "wire/data_message.h"
#include "wire/fields.h"

/* Neighbouring positions of one group. The length travels less 1. */
typedef struct read_run {
  uint32_t group;
  uint32_t position;
  uint32_t count;
} read_run;

static bool splits_are_valid(const kvf_want *want)
{
  bool valid = true;
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    valid = valid && want->splits[i] > 0;
  }
  return valid;
}

static bool head_is_valid(const kvf_data_read *read)
{
  return read->read_id != 0 && kvf_lease_is_valid(&read->lease) && read->heads > 0 &&
         read->heads <= UINT32_MAX - read->remote_head && splits_are_valid(&read->want) && read->items_count > 0 &&
         read->items_count <= KVF_READ_ITEMS_MAX;
}

static void put_want(kvf_encoder *encoder, const kvf_want *want)
{
  kvf_put_u32(encoder, want->first_layer);
  kvf_put_u32(encoder, want->layers);
  kvf_put_u32(encoder, want->deal.ranks);
  kvf_put_u32(encoder, want->deal.rank);
  kvf_put_u32(encoder, want->deal.tokens);
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    kvf_put_u32(encoder, want->splits[i]);
  }
}

static void get_want(kvf_decoder *decoder, kvf_want *want)
{
  want->first_layer = kvf_get_u32(decoder);
  want->layers = kvf_get_u32(decoder);
  want->deal.ranks = kvf_get_u32(decoder);
  want->deal.rank = kvf_get_u32(decoder);
  want->deal.tokens = kvf_get_u32(decoder);
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    want->splits[i] = kvf_get_u32(decoder);
  }
}

static void put_run(kvf_encoder *encoder, read_run run)
{
  kvf_put_u8(encoder, (uint8_t)run.group);
  kvf_put_u16(encoder, (uint16_t)run.position);
  kvf_put_u16(encoder, (uint16_t)(run.count - 1));
}

static read_run get_run(kvf_decoder *decoder)
{
  read_run run;
  run.group = kvf_get_u8(decoder);
  run.position = kvf_get_u16(decoder);
  run.count = (uint32_t)kvf_get_u16(decoder) + 1;
  return run;
}

static bool items_are_valid(const kvf_transfer_item *items, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    if (items[i].group >= KVF_GROUPS_MAX || items[i].position >= KVF_BLOCKS_PER_LEASE_MAX) {
      return false;
    }
  }
  return true;
}

kvf_status kvf_data_read_encode(const kvf_data_read *read, const kvf_transfer_item *items, void *body, size_t capacity,
                                size_t *body_bytes)
{
  if (!head_is_valid(read) || !items_are_valid(items, read->items_count)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, read->read_id);
  kvf_put_lease(&encoder, &read->lease);
  kvf_put_u32(&encoder, read->remote_head);
  kvf_put_u32(&encoder, read->local_head);
  kvf_put_u32(&encoder, read->heads);
  put_want(&encoder, &read->want);
  kvf_put_u32(&encoder, read->items_count);
  for (uint32_t i = 0; i < read->items_count && !encoder.failed;) {
    read_run run = {items[i].group, items[i].position, 1};
    while (i + run.count < read->items_count && items[i + run.count].group == run.group &&
           items[i + run.count].position == run.position + run.count) {
      run.count++;
    }
    put_run(&encoder, run);
    i += run.count;
  }
  return kvf_encoder_end(&encoder, body_bytes);
}

static void check_runs(kvf_decoder *decoder, uint32_t items_count)
{
  uint32_t items = 0;
  while (items < items_count && !decoder->failed) {
    read_run run = get_run(decoder);
    if (run.group >= KVF_GROUPS_MAX || run.count > KVF_BLOCKS_PER_LEASE_MAX - run.position ||
        run.count > items_count - items) {
      kvf_decoder_fail(decoder);
    }
    items += run.count;
  }
}

kvf_status kvf_data_read_decode(const void *body, size_t body_bytes, kvf_data_read *out)
{
  kvf_data_read read;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  read.read_id = kvf_get_u64(&decoder);
  kvf_get_lease(&decoder, &read.lease);
  read.remote_head = kvf_get_u32(&decoder);
  read.local_head = kvf_get_u32(&decoder);
  read.heads = kvf_get_u32(&decoder);
  get_want(&decoder, &read.want);
  read.items_count = kvf_get_u32(&decoder);
  if (decoder.failed || !head_is_valid(&read)) {
    return KVF_PROTOCOL;
  }
  read.runs = decoder.data + decoder.at;
  read.runs_bytes = kvf_decoder_left(&decoder);
  check_runs(&decoder, read.items_count);
  return kvf_decoder_give(&decoder, true, out, &read, sizeof(read));
}

void kvf_data_read_items(const kvf_data_read *read, kvf_transfer_item *items)
{
  kvf_decoder decoder = kvf_decoder_of(read->runs, read->runs_bytes);
  uint32_t at = 0;
  while (kvf_decoder_left(&decoder) > 0) {
    read_run run = get_run(&decoder);
    for (uint32_t i = 0; i < run.count; i++) {
      items[at++] = (kvf_transfer_item){.group = run.group,
                                        .position = run.position + i,
                                        .remote_block = KVF_BLOCK_NONE,
                                        .local_block = KVF_BLOCK_NONE};
    }
  }
}
