/* READ: its items become runs of neighbouring positions, and runs become items again. */
#include "wire/data_message.h"
#include "wire/fields.h"

/* Neighbouring positions of one group. The length travels less 1. */
typedef struct read_run {
  uint32_t group;
  uint32_t position;
  uint32_t count;
} read_run;

static bool splits_are_valid(const kvf_read_selection *selection)
{
  bool valid = true;
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    valid = valid && selection->splits[i] > 0;
  }
  return valid;
}

static bool head_is_valid(const kvf_data_read *read)
{
  return read->read_id != 0 && kvf_lease_is_valid(&read->lease) && read->heads > 0 &&
         read->heads <= UINT32_MAX - read->remote_head && splits_are_valid(&read->selection) &&
         read->selection.checksums <= 1 && read->items_count > 0 && read->items_count <= KVF_READ_ITEMS_MAX;
}

static void code_head(kvf_codec *codec, kvf_data_read *read)
{
  kvf_read_selection *selection = &read->selection;
  kvf_code_u64(codec, &read->read_id);
  kvf_code_lease(codec, &read->lease);
  kvf_code_u32(codec, &read->remote_head);
  kvf_code_u32(codec, &read->local_head);
  kvf_code_u32(codec, &read->heads);
  kvf_code_u32(codec, &selection->first_layer);
  kvf_code_u32(codec, &selection->layers);
  kvf_code_u32(codec, &selection->deal.ranks);
  kvf_code_u32(codec, &selection->deal.rank);
  kvf_code_u32(codec, &selection->deal.tokens);
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    kvf_code_u32(codec, &selection->splits[i]);
  }
  kvf_code_u32_in(codec, &selection->checksums, 1);
  kvf_code_u32(codec, &read->items_count);
}

static void code_run(kvf_codec *codec, read_run *run)
{
  uint32_t more = run->count - 1;
  kvf_code_u32_in(codec, &run->group, 1);
  kvf_code_u32_in(codec, &run->position, 2);
  kvf_code_u32_in(codec, &more, 2);
  run->count = more + 1;
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
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_head(&codec, (kvf_data_read *)read);
  for (uint32_t i = 0; i < read->items_count && !codec.failed;) {
    read_run run = {items[i].group, items[i].position, 1};
    while (i + run.count < read->items_count && items[i + run.count].group == run.group &&
           items[i + run.count].position == run.position + run.count) {
      run.count++;
    }
    code_run(&codec, &run);
    i += run.count;
  }
  return kvf_writer_end(&codec, true, body_bytes);
}

static void check_runs(kvf_codec *codec, uint32_t items_count)
{
  uint32_t items = 0;
  while (items < items_count && !codec->failed) {
    read_run run = {.count = 0};
    code_run(codec, &run);
    if (run.group >= KVF_GROUPS_MAX || run.count > KVF_BLOCKS_PER_LEASE_MAX - run.position ||
        run.count > items_count - items) {
      kvf_codec_fail(codec);
    }
    items += run.count;
  }
}

kvf_status kvf_data_read_decode(const void *body, size_t body_bytes, kvf_data_read *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_head(&codec, out);
  if (codec.failed || !head_is_valid(out)) {
    return KVF_PROTOCOL;
  }
  out->runs = codec.data + codec.at;
  out->runs_bytes = kvf_codec_left(&codec);
  check_runs(&codec, out->items_count);
  return kvf_reader_end(&codec, true);
}

void kvf_data_read_items(const kvf_data_read *read, kvf_transfer_item *items)
{
  kvf_codec codec = kvf_reader_of(read->runs, read->runs_bytes);
  uint32_t at = 0;
  while (kvf_codec_left(&codec) > 0) {
    read_run run = {.count = 0};
    code_run(&codec, &run);
    for (uint32_t i = 0; i < run.count; i++) {
      items[at++] = (kvf_transfer_item){.group = run.group,
                                        .position = run.position + i,
                                        .remote_block = KVF_BLOCK_NONE,
                                        .local_block = KVF_BLOCK_NONE};
    }
  }
}
