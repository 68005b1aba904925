#include <stdlib.h>
#include <string.h>

#include "wire/cursor.h"
#include "wire/fields.h"
#include "wire/frame.h"
#include "wire/handshake_message.h"

#define HEAD_BYTES (8 + 4 + 4 + 4 + 2 + 1)
#define TAIL_BYTES (2 + 2 + KVF_LIBRARY_BYTES_MAX)
#define REGION_RUN_BYTES (2 + 8 + 5 * 4 + 1)
#define LAYOUT_BYTES (2 + 6 * 4)
#define PART_BYTES (2 + 1 + 1 + 1 + 1 + 2 + 9 * 4)
#define OFFER_BYTES (KVF_TRANSPORT_NAME_BYTES + 4)

_Static_assert(HEAD_BYTES + TAIL_BYTES + KVF_REGIONS_MAX * REGION_RUN_BYTES + LAYOUT_BYTES +
                       KVF_PARTS_MAX * PART_BYTES +
                       KVF_TRANSPORTS_MAX * (OFFER_BYTES + KVF_TRANSPORT_DESCRIPTION_BYTES_MAX) <=
                   KVF_FRAME_BODY_BYTES_MAX,
               "every valid welcome fits a frame");

static bool name_is_valid(const char name[KVF_TRANSPORT_NAME_BYTES])
{
  size_t bytes = strnlen(name, KVF_TRANSPORT_NAME_BYTES);
  return bytes > 0 && bytes < KVF_TRANSPORT_NAME_BYTES &&
         strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_-") == bytes;
}

static bool offers_are_valid(const kvf_welcome *welcome)
{
  if (welcome->transports_count > KVF_TRANSPORTS_MAX) {
    return false;
  }
  for (uint32_t i = 0; i < welcome->transports_count; i++) {
    const kvf_transport_offer *offer = &welcome->transports[i];
    if (!name_is_valid(offer->name) || offer->description_bytes > KVF_TRANSPORT_DESCRIPTION_BYTES_MAX) {
      return false;
    }
    for (uint32_t j = 0; j < i; j++) {
      if (strcmp(offer->name, welcome->transports[j].name) == 0) {
        return false;
      }
    }
  }
  return true;
}

static bool welcome_is_valid(const kvf_welcome *welcome)
{
  return welcome->ranks <= KVF_RANKS_MAX && welcome->rank < welcome->ranks && welcome->block_tokens > 0 &&
         kvf_text_is_valid(welcome->library, sizeof(welcome->library)) &&
         kvf_pages_are_valid(&(kvf_pages){welcome->regions, welcome->regions_count, welcome->layout}) &&
         offers_are_valid(welcome);
}

size_t kvf_welcome_bytes_max(const kvf_welcome *welcome)
{
  size_t bytes = HEAD_BYTES + TAIL_BYTES + (size_t)welcome->regions_count * REGION_RUN_BYTES + LAYOUT_BYTES +
                 welcome->layout.parts_count * PART_BYTES;
  for (uint32_t i = 0; i < welcome->transports_count; i++) {
    bytes += OFFER_BYTES + welcome->transports[i].description_bytes;
  }
  return bytes;
}

static bool layouts_are_equal(const kvf_region_layout *a, const kvf_region_layout *b)
{
  return a->stride_bytes == b->stride_bytes && a->block_bytes == b->block_bytes && a->blocks == b->blocks &&
         a->heads == b->heads && a->heads_total == b->heads_total && a->group == b->group && a->memory == b->memory;
}

/* The layers of a model are mostly alike: a run of equal regions is written once. */
static void put_regions(kvf_encoder *encoder, const kvf_region_layout *regions, uint32_t count)
{
  for (uint32_t i = 0; i < count;) {
    const kvf_region_layout *region = &regions[i];
    uint32_t equal = 1;
    while (i + equal < count && layouts_are_equal(region, &regions[i + equal])) {
      equal++;
    }
    kvf_put_u16(encoder, (uint16_t)equal);
    kvf_put_u64(encoder, region->stride_bytes);
    kvf_put_u32(encoder, region->block_bytes);
    kvf_put_u32(encoder, region->blocks);
    kvf_put_u32(encoder, region->heads);
    kvf_put_u32(encoder, region->heads_total);
    kvf_put_u32(encoder, region->group);
    kvf_put_u8(encoder, (uint8_t)region->memory);
    i += equal;
  }
}

static void put_part(kvf_encoder *encoder, const kvf_part *part)
{
  kvf_put_u16(encoder, (uint16_t)part->layer);
  kvf_put_u8(encoder, (uint8_t)part->kind);
  kvf_put_u8(encoder, (uint8_t)part->index);
  kvf_put_u8(encoder, (uint8_t)part->group);
  kvf_put_u8(encoder, (uint8_t)part->dtype);
  kvf_put_u16(encoder, (uint16_t)part->region);
  kvf_put_u32(encoder, part->offset_bytes);
  kvf_put_u32(encoder, part->unit_bytes);
  kvf_put_u32(encoder, part->row_bytes);
  kvf_put_u32(encoder, part->head_bytes);
  kvf_put_u32(encoder, part->rows);
  kvf_put_u32(encoder, part->block_tokens);
  kvf_put_u32(encoder, part->heads);
  kvf_put_u32(encoder, part->first_head);
  kvf_put_u32(encoder, part->heads_total);
}

static void put_layout(kvf_encoder *encoder, const kvf_layout *layout)
{
  kvf_put_u16(encoder, (uint16_t)layout->parts_count);
  if (layout->parts_count == 0) {
    return;
  }
  kvf_put_u32(encoder, layout->share.first_head);
  kvf_put_u32(encoder, layout->share.heads);
  kvf_put_u32(encoder, layout->share.heads_total);
  kvf_put_u32(encoder, layout->deal.ranks);
  kvf_put_u32(encoder, layout->deal.rank);
  kvf_put_u32(encoder, layout->deal.tokens);
  for (size_t i = 0; i < layout->parts_count; i++) {
    put_part(encoder, &layout->parts[i]);
  }
}

kvf_status kvf_welcome_encode(const kvf_welcome *welcome, void *body, size_t capacity, size_t *body_bytes)
{
  if (!welcome_is_valid(welcome)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  kvf_put_u64(&encoder, welcome->session_id);
  kvf_put_u32(&encoder, welcome->rank);
  kvf_put_u32(&encoder, welcome->ranks);
  kvf_put_u32(&encoder, welcome->block_tokens);
  kvf_put_u16(&encoder, (uint16_t)welcome->regions_count);
  put_regions(&encoder, welcome->regions, welcome->regions_count);
  put_layout(&encoder, &welcome->layout);
  kvf_put_u8(&encoder, (uint8_t)welcome->transports_count);
  for (uint32_t i = 0; i < welcome->transports_count; i++) {
    const kvf_transport_offer *offer = &welcome->transports[i];
    kvf_put_text(&encoder, offer->name, sizeof(offer->name));
    kvf_put_u32(&encoder, (uint32_t)offer->description_bytes);
    kvf_put_bytes(&encoder, offer->description, offer->description_bytes);
  }
  kvf_put_u16(&encoder, welcome->version_min);
  kvf_put_u16(&encoder, welcome->version_max);
  kvf_put_text(&encoder, welcome->library, sizeof(welcome->library));
  return kvf_encoder_end(&encoder, body_bytes);
}

static kvf_status get_regions(kvf_decoder *decoder, kvf_welcome *welcome)
{
  welcome->regions_count = kvf_get_u16(decoder);
  if (welcome->regions_count > KVF_REGIONS_MAX) {
    return KVF_PROTOCOL;
  }
  if (welcome->regions_count == 0) {
    return KVF_OK;
  }
  welcome->regions = calloc(welcome->regions_count, sizeof(welcome->regions[0]));
  if (welcome->regions == NULL) {
    return KVF_NO_MEMORY;
  }
  for (uint32_t i = 0; i < welcome->regions_count;) {
    uint32_t equal = kvf_get_u16(decoder);
    kvf_region_layout region;
    region.stride_bytes = kvf_get_u64(decoder);
    region.block_bytes = kvf_get_u32(decoder);
    region.blocks = kvf_get_u32(decoder);
    region.heads = kvf_get_u32(decoder);
    region.heads_total = kvf_get_u32(decoder);
    region.group = kvf_get_u32(decoder);
    region.memory = kvf_get_u8(decoder);
    if (equal == 0 || equal > welcome->regions_count - i) {
      return KVF_PROTOCOL;
    }
    for (uint32_t end = i + equal; i < end; i++) {
      welcome->regions[i] = region;
    }
  }
  return KVF_OK;
}

static kvf_part get_part(kvf_decoder *decoder)
{
  kvf_part part;
  part.layer = kvf_get_u16(decoder);
  part.kind = (kvf_part_kind)kvf_get_u8(decoder);
  part.index = kvf_get_u8(decoder);
  part.group = kvf_get_u8(decoder);
  part.dtype = (kvf_dtype)kvf_get_u8(decoder);
  part.region = kvf_get_u16(decoder);
  part.offset_bytes = kvf_get_u32(decoder);
  part.unit_bytes = kvf_get_u32(decoder);
  part.row_bytes = kvf_get_u32(decoder);
  part.head_bytes = kvf_get_u32(decoder);
  part.rows = kvf_get_u32(decoder);
  part.block_tokens = kvf_get_u32(decoder);
  part.heads = kvf_get_u32(decoder);
  part.first_head = kvf_get_u32(decoder);
  part.heads_total = kvf_get_u32(decoder);
  return part;
}

static kvf_status get_layout(kvf_decoder *decoder, kvf_layout *layout)
{
  size_t count = kvf_get_u16(decoder);
  if (count == 0) {
    return KVF_OK;
  }
  layout->share.first_head = kvf_get_u32(decoder);
  layout->share.heads = kvf_get_u32(decoder);
  layout->share.heads_total = kvf_get_u32(decoder);
  layout->deal.ranks = kvf_get_u32(decoder);
  layout->deal.rank = kvf_get_u32(decoder);
  layout->deal.tokens = kvf_get_u32(decoder);
  if (count > KVF_PARTS_MAX || kvf_decoder_left(decoder) < count * PART_BYTES) {
    return KVF_PROTOCOL;
  }
  kvf_part *parts = calloc(count, sizeof(*parts));
  if (parts == NULL) {
    return KVF_NO_MEMORY;
  }
  layout->parts = parts;
  layout->parts_count = count;
  for (size_t i = 0; i < count; i++) {
    parts[i] = get_part(decoder);
  }
  return KVF_OK;
}

static kvf_status get_offers(kvf_decoder *decoder, kvf_welcome *welcome)
{
  uint32_t count = kvf_get_u8(decoder);
  if (count > KVF_TRANSPORTS_MAX) {
    return KVF_PROTOCOL;
  }
  for (uint32_t i = 0; i < count; i++) {
    kvf_transport_offer *offer = &welcome->transports[i];
    kvf_get_text(decoder, offer->name, sizeof(offer->name));
    uint32_t bytes = kvf_get_u32(decoder);
    const uint8_t *description = kvf_get_span(decoder, bytes);
    if (description == NULL) {
      return KVF_PROTOCOL;
    }
    if (bytes > 0) {
      offer->description = malloc(bytes);
      if (offer->description == NULL) {
        return KVF_NO_MEMORY;
      }
      memcpy(offer->description, description, bytes);
      offer->description_bytes = bytes;
    }
    welcome->transports_count++;
  }
  return KVF_OK;
}

kvf_status kvf_welcome_decode(const void *body, size_t body_bytes, kvf_welcome *out)
{
  kvf_welcome welcome = {0};
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  welcome.session_id = kvf_get_u64(&decoder);
  welcome.rank = kvf_get_u32(&decoder);
  welcome.ranks = kvf_get_u32(&decoder);
  welcome.block_tokens = kvf_get_u32(&decoder);
  kvf_status status = get_regions(&decoder, &welcome);
  if (status == KVF_OK) {
    status = get_layout(&decoder, &welcome.layout);
  }
  if (status == KVF_OK) {
    status = get_offers(&decoder, &welcome);
  }
  if (status == KVF_OK) {
    welcome.version_min = kvf_get_u16(&decoder);
    welcome.version_max = kvf_get_u16(&decoder);
    kvf_get_text(&decoder, welcome.library, sizeof(welcome.library));
    status = kvf_decoder_give(&decoder, welcome_is_valid(&welcome), out, &welcome, sizeof(welcome));
  }
  if (status != KVF_OK) {
    kvf_welcome_free(&welcome);
  }
  return status;
}

void kvf_welcome_free(kvf_welcome *welcome)
{
  for (uint32_t i = 0; i < KVF_TRANSPORTS_MAX; i++) {
    free(welcome->transports[i].description);
  }
  free(welcome->regions);
  free((void *)welcome->layout.parts);
  *welcome = (kvf_welcome){0};
}
