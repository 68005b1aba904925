/* WELCOME: a rank's regions as runs of equal ones, its parts, and what each of its transports says. */
#include <stdlib.h>
#include <string.h>

#include "wire/fields.h"
#include "wire/frame.h"
#include "wire/handshake_message.h"

#define HEAD_BYTES (8 + 8 + 4 + 4 + 4 + 2 + 1)
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

/* The layers of a model are mostly alike: a run of equal regions travels once. */
static void code_region_run(kvf_codec *codec, uint32_t *equal, kvf_region_layout *region)
{
  kvf_code_u32_in(codec, equal, 2);
  kvf_code_u64(codec, &region->stride_bytes);
  kvf_code_u32(codec, &region->block_bytes);
  kvf_code_u32(codec, &region->blocks);
  kvf_code_u32(codec, &region->heads);
  kvf_code_u32(codec, &region->heads_total);
  kvf_code_u32(codec, &region->group);
  kvf_code_u32_in(codec, &region->memory, 1);
}

static void put_regions(kvf_codec *codec, const kvf_welcome *welcome)
{
  for (uint32_t i = 0, equal; i < welcome->regions_count; i += equal) {
    kvf_region_layout *region = &welcome->regions[i];
    equal = 1;
    while (i + equal < welcome->regions_count && layouts_are_equal(region, region + equal)) {
      equal++;
    }
    code_region_run(codec, &equal, region);
  }
}

static kvf_status get_regions(kvf_codec *codec, kvf_welcome *welcome)
{
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
    uint32_t equal;
    kvf_region_layout region;
    code_region_run(codec, &equal, &region);
    if (equal == 0 || equal > welcome->regions_count - i) {
      return KVF_PROTOCOL;
    }
    for (uint32_t end = i + equal; i < end; i++) {
      welcome->regions[i] = region;
    }
  }
  return KVF_OK;
}

static void code_part(kvf_codec *codec, kvf_part *part)
{
  kvf_code_u32_in(codec, &part->layer, 2);
  kvf_code_u32_in(codec, (uint32_t *)&part->kind, 1);
  kvf_code_u32_in(codec, &part->index, 1);
  kvf_code_u32_in(codec, &part->group, 1);
  kvf_code_u32_in(codec, (uint32_t *)&part->dtype, 1);
  kvf_code_u32_in(codec, &part->region, 2);
  kvf_code_u32(codec, &part->offset_bytes);
  kvf_code_u32(codec, &part->unit_bytes);
  kvf_code_u32(codec, &part->row_bytes);
  kvf_code_u32(codec, &part->head_bytes);
  kvf_code_u32(codec, &part->rows);
  kvf_code_u32(codec, &part->block_tokens);
  kvf_code_u32(codec, &part->heads);
  kvf_code_u32(codec, &part->first_head);
  kvf_code_u32(codec, &part->heads_total);
}

/* Without its parts; with parts, at least one. */
static void code_layout_head(kvf_codec *codec, kvf_layout *layout)
{
  kvf_code_u32(codec, &layout->share.first_head);
  kvf_code_u32(codec, &layout->share.heads);
  kvf_code_u32(codec, &layout->share.heads_total);
  kvf_code_u32(codec, &layout->deal.ranks);
  kvf_code_u32(codec, &layout->deal.rank);
  kvf_code_u32(codec, &layout->deal.tokens);
}

static void put_layout(kvf_codec *codec, const kvf_layout *layout)
{
  kvf_code_u32_in(codec, &(uint32_t){(uint32_t)layout->parts_count}, 2);
  if (layout->parts_count > 0) {
    code_layout_head(codec, (kvf_layout *)layout);
  }
  for (size_t i = 0; i < layout->parts_count; i++) {
    code_part(codec, (kvf_part *)&layout->parts[i]);
  }
}

static kvf_status get_layout(kvf_codec *codec, kvf_layout *layout)
{
  uint32_t count;
  kvf_code_u32_in(codec, &count, 2);
  if (count == 0) {
    return KVF_OK;
  }
  code_layout_head(codec, layout);
  if (count > KVF_PARTS_MAX || kvf_codec_left(codec) < (size_t)count * PART_BYTES) {
    return KVF_PROTOCOL;
  }
  kvf_part *parts = calloc(count, sizeof(*parts));
  if (parts == NULL) {
    return KVF_NO_MEMORY;
  }
  layout->parts = parts;
  layout->parts_count = count;
  for (uint32_t i = 0; i < count; i++) {
    code_part(codec, &parts[i]);
  }
  return KVF_OK;
}

static void code_offer_head(kvf_codec *codec, kvf_transport_offer *offer, uint32_t *bytes)
{
  kvf_code_text(codec, offer->name, sizeof(offer->name));
  kvf_code_u32(codec, bytes);
}

static kvf_status get_offers(kvf_codec *codec, kvf_welcome *welcome)
{
  uint32_t count;
  kvf_code_u32_in(codec, &count, 1);
  if (count > KVF_TRANSPORTS_MAX) {
    return KVF_PROTOCOL;
  }
  for (uint32_t i = 0; i < count; i++) {
    kvf_transport_offer *offer = &welcome->transports[i];
    uint32_t bytes;
    code_offer_head(codec, offer, &bytes);
    const uint8_t *description = kvf_get_span(codec, bytes);
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

/* Before the regions, and behind the offers. */
static void code_head(kvf_codec *codec, kvf_welcome *welcome)
{
  kvf_code_u64(codec, &welcome->session_id);
  kvf_code_u64(codec, &welcome->generation);
  kvf_code_u32(codec, &welcome->rank);
  kvf_code_u32(codec, &welcome->ranks);
  kvf_code_u32(codec, &welcome->block_tokens);
  kvf_code_u32_in(codec, &welcome->regions_count, 2);
}

static void code_tail(kvf_codec *codec, kvf_welcome *welcome)
{
  kvf_code_u16(codec, &welcome->version_min);
  kvf_code_u16(codec, &welcome->version_max);
  kvf_code_text(codec, welcome->library, sizeof(welcome->library));
}

kvf_status kvf_welcome_encode(const kvf_welcome *welcome, void *body, size_t capacity, size_t *body_bytes)
{
  if (!welcome_is_valid(welcome)) {
    return KVF_INVALID;
  }
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_head(&codec, (kvf_welcome *)welcome);
  put_regions(&codec, welcome);
  put_layout(&codec, &welcome->layout);
  kvf_code_u32_in(&codec, &(uint32_t){welcome->transports_count}, 1);
  for (uint32_t i = 0; i < welcome->transports_count; i++) {
    const kvf_transport_offer *offer = &welcome->transports[i];
    code_offer_head(&codec, (kvf_transport_offer *)offer, &(uint32_t){(uint32_t)offer->description_bytes});
    kvf_put_bytes(&codec, offer->description, offer->description_bytes);
  }
  code_tail(&codec, (kvf_welcome *)welcome);
  return kvf_writer_end(&codec, true, body_bytes);
}

kvf_status kvf_welcome_decode(const void *body, size_t body_bytes, kvf_welcome *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  *out = (kvf_welcome){0};
  code_head(&codec, out);
  kvf_status status = get_regions(&codec, out);
  if (status == KVF_OK) {
    status = get_layout(&codec, &out->layout);
  }
  if (status == KVF_OK) {
    status = get_offers(&codec, out);
  }
  if (status == KVF_OK) {
    code_tail(&codec, out);
    status = kvf_reader_end(&codec, welcome_is_valid(out));
  }
  if (status != KVF_OK) {
    kvf_welcome_free(out);
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
