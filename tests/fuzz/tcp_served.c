#include "tcp_served.h"

#include <string.h>

#include "transport/fence_memory.h"

consumer consumers[TCP_ENDS_MAX];
lease_model leases[LEASES];
static kvf_transfer_item items[KVF_READ_ITEMS_MAX]; /* of the read whose payload comes, of one consumer at a time */
static const consumer *items_of;

consumer *consumer_of(const tcp_end *end)
{
  return &consumers[end - tcp.ends];
}

/* ---- leases ---- */

kvf_status served_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *wanted, uint32_t count)
{
  (void)context;
  const lease_model *model = NULL;
  for (size_t i = 0; i < LEASES; i++) {
    bool same = memcmp(&leases[i].lease, lease, sizeof(*lease)) == 0;
    model = same ? &leases[i] : model;
  }
  if (model == NULL || model->state != LIVE) {
    return model == NULL ? KVF_LEASE_UNKNOWN : model->state == NOT_PUBLISHED ? KVF_NOT_PUBLISHED : KVF_LEASE_EXPIRED;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (wanted[i].group > 1 || wanted[i].position >= POSITIONS) {
      return KVF_INVALID;
    }
    wanted[i].remote_block = model->blocks[wanted[i].position];
  }
  return KVF_OK;
}

void served_next_state(lease_model *model)
{
  kvf_fence_entry entry = {.word = kvf_fence_word_live(model->lease.id), .digest = model->lease.id ^ 5};
  if (model->state == NOT_PUBLISHED) {
    kvf_fence_store_live(tcp.table, model->lease.slot, entry);
    model->state = LIVE;
  } else if (model->state == LIVE) {
    entry.word = kvf_fence_word_ended(model->lease.id);
    kvf_fence_store_ended(tcp.table, model->lease.slot, entry);
    model->state = OVER;
  }
}

void served_init(void)
{
  items_of = NULL;
  for (uint32_t i = 0; i < LEASES; i++) {
    leases[i] = (lease_model){.lease = {.id = 100 + i, .slot = i, .token = {(uint8_t)(i + 1)}},
                              .blocks = {i, 7 - i, (3 + i) % TCP_BLOCKS}};
  }
}

/* ---- what the server sends ---- */

static bool is_wanted(const consumer *c, uint32_t region)
{
  return region >= c->read.want.first_layer && region < c->read.want.first_layer + c->read.want.layers;
}

static bool is_piece(const consumer *c)
{
  return is_wanted(c, c->region) && tcp.layouts[c->region].group == items[c->item].group;
}

/* Moves on to the next item of the region's group, or to the next region's first. */
static void next_piece(consumer *c)
{
  c->offset = 0;
  do {
    c->item++;
    if (c->item == c->read.items_count) {
      c->item = 0;
      c->region++;
    }
  } while (c->region < TCP_REGIONS && !is_piece(c));
}

static const lease_model *lease_of(const kvf_lease *lease)
{
  for (size_t i = 0; i < LEASES; i++) {
    if (memcmp(&leases[i].lease, lease, sizeof(*lease)) == 0) {
      return &leases[i];
    }
  }
  fuzz_fail(__FILE__, __LINE__, "a lease that there is");
}

static void load_items(consumer *c)
{
  const sent_read *answered = &c->reads[c->answered];
  fuzz_check(kvf_data_read_decode(c->sent + answered->at, answered->bytes, &c->read) == KVF_OK);
  if (items_of != c || (c->region == 0 && c->item == 0)) {
    kvf_data_read_items(&c->read, items);
    items_of = c;
  }
}

static uint64_t payload_bytes(const consumer *c)
{
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < c->read.items_count; i++) {
    for (uint32_t region = 0; region < TCP_REGIONS; region++) {
      bool moves = is_wanted(c, region) && tcp.layouts[region].group == items[i].group;
      bytes += moves ? c->read.heads * (TCP_BLOCK_BYTES / TCP_HEADS) : 0;
    }
  }
  return bytes;
}

static void on_chunk(consumer *c, const uint8_t *body, size_t bytes)
{
  kvf_data_chunk chunk;
  fuzz_check(kvf_data_chunk_decode(body, bytes, &chunk) == KVF_OK);
  fuzz_check(c->proved && c->answered < c->reads_count);
  c->item = 0;
  c->region = 0;
  load_items(c);
  fuzz_check(chunk.read_id == c->read.read_id);
  if (chunk.status != KVF_OK) {
    fuzz_check(chunk.payload_bytes == 0);
    c->answered++;
    return;
  }
  fuzz_check(lease_of(&c->read.lease)->state != NOT_PUBLISHED);
  fuzz_check(c->read.remote_head + c->read.heads <= TCP_HEADS && chunk.payload_bytes == payload_bytes(c));
  c->offset = 0;
  if (!is_piece(c)) {
    next_piece(c);
  }
  c->payload_left = chunk.payload_bytes;
  c->state = chunk.payload_bytes > 0 ? PAYLOAD : TRAILER;
}

static size_t on_payload(consumer *c, const uint8_t *data, size_t bytes)
{
  size_t taken = 0;
  load_items(c);
  uint32_t head_bytes = TCP_BLOCK_BYTES / TCP_HEADS;
  const lease_model *model = lease_of(&c->read.lease);
  while (taken < bytes && c->payload_left > 0) {
    fuzz_check(c->region < TCP_REGIONS);
    uint32_t block = model->blocks[items[c->item].position];
    size_t at = block * TCP_STRIDE_BYTES + c->read.remote_head * head_bytes + c->offset;
    fuzz_check(data[taken] == tcp_pattern(c->region, at));
    taken++;
    c->payload_left--;
    c->offset++;
    if (c->offset == c->read.heads * head_bytes) {
      next_piece(c);
    }
  }
  if (c->payload_left == 0) {
    c->state = TRAILER;
  }
  return taken;
}

static void on_trailer(consumer *c, const uint8_t *body, size_t bytes)
{
  kvf_data_trailer trailer;
  fuzz_check(kvf_data_trailer_decode(body, bytes, &trailer) == KVF_OK);
  fuzz_check(trailer.read_id == c->read.read_id);
  kvf_fence_entry entry = kvf_fence_load(tcp.table, c->read.lease.slot);
  fuzz_check(trailer.word <= entry.word && trailer.word >= kvf_fence_word_live(c->read.lease.id));
  c->answered++;
  c->state = CHUNK;
}

static void on_frame(consumer *c, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  if (c->state == CHALLENGE) {
    fuzz_check(type == KVF_FRAME_DATA_CHALLENGE);
    fuzz_check(kvf_data_challenge_decode(body, bytes, &c->challenge) == KVF_OK);
    c->state = READY;
  } else if (c->state == READY) {
    kvf_data_ready ready;
    fuzz_check(type == KVF_FRAME_DATA_READY && c->proved);
    fuzz_check(kvf_data_ready_decode(body, bytes, &ready) == KVF_OK);
    fuzz_check(memcmp(ready.proof, c->ready_proof, sizeof(ready.proof)) == 0);
    c->state = CHUNK;
  } else if (c->state == CHUNK) {
    fuzz_check(type == KVF_FRAME_CHUNK);
    on_chunk(c, body, bytes);
  } else {
    fuzz_check(c->state == TRAILER && type == KVF_FRAME_TRAILER);
    on_trailer(c, body, bytes);
  }
}

void served_on_bytes(tcp_end *from, const uint8_t *data, size_t bytes)
{
  consumer *c = consumer_of(from);
  c->out_bytes += bytes;
  while (bytes > 0) {
    if (c->state == PAYLOAD) {
      size_t taken = on_payload(c, data, bytes);
      data += taken;
      bytes -= taken;
      continue;
    }
    c->received[c->received_bytes++] = *data++;
    bytes--;
    kvf_frame_header header;
    if (c->received_bytes < KVF_FRAME_HEADER_BYTES) {
      continue;
    }
    fuzz_check(kvf_frame_header_decode(c->received, RECEIVED_BYTES_MAX - KVF_FRAME_HEADER_BYTES, &header) == KVF_OK);
    if (c->received_bytes == KVF_FRAME_HEADER_BYTES + header.body_bytes) {
      c->received_bytes = 0;
      on_frame(c, header.type, c->received + KVF_FRAME_HEADER_BYTES, header.body_bytes);
    }
  }
}
