#include "wire/lease_message.h"

#include <string.h>

#include "wire/fields.h"
#include "wire/frame.h"

_Static_assert(KVF_LEASES_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX && KVF_LEASE_STATES_BYTES_MAX <= KVF_LEASES_BYTES_MAX,
               "every batch fits a frame");

static void put_head(kvf_encoder *encoder, uint32_t seq, uint32_t count)
{
  kvf_put_u32(encoder, seq);
  kvf_put_u16(encoder, (uint16_t)count);
}

/* A count over the limit fails the decoder and reads as 0. */
static uint32_t get_head(kvf_decoder *decoder, uint32_t *seq)
{
  *seq = kvf_get_u32(decoder);
  uint32_t count = kvf_get_u16(decoder);
  if (count > KVF_LEASE_ITEMS_MAX) {
    kvf_decoder_fail(decoder);
    return 0;
  }
  return count;
}

static bool item_is_valid(const kvf_leases_item *item)
{
  return kvf_lease_is_valid(&item->lease) && item->kind <= KVF_FINISH_DETACHED;
}

static bool leases_are_valid(const kvf_leases *leases)
{
  for (uint32_t i = 0; i < leases->count; i++) {
    if (!item_is_valid(&leases->items[i])) {
      return false;
    }
  }
  return true;
}

kvf_status kvf_leases_encode(const kvf_leases *leases, void *body, size_t capacity, size_t *body_bytes)
{
  if (leases->count > KVF_LEASE_ITEMS_MAX || !leases_are_valid(leases)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  put_head(&encoder, leases->seq, leases->count);
  for (uint32_t i = 0; i < leases->count; i++) {
    const kvf_leases_item *item = &leases->items[i];
    kvf_put_lease(&encoder, &item->lease);
    kvf_put_u64(&encoder, item->request_id);
    kvf_put_u8(&encoder, item->kind);
  }
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_leases_decode(const void *body, size_t body_bytes, kvf_leases *out)
{
  kvf_leases leases;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  leases.count = get_head(&decoder, &leases.seq);
  for (uint32_t i = 0; i < leases.count; i++) {
    kvf_leases_item *item = &leases.items[i];
    kvf_get_lease(&decoder, &item->lease);
    item->request_id = kvf_get_u64(&decoder);
    item->kind = kvf_get_u8(&decoder);
  }
  if (kvf_decoder_end(&decoder) != KVF_OK || !leases_are_valid(&leases)) {
    return KVF_PROTOCOL;
  }
  out->seq = leases.seq;
  out->count = leases.count;
  memcpy(out->items, leases.items, leases.count * sizeof(out->items[0]));
  return KVF_OK;
}

static bool states_are_valid(const kvf_lease_states *states)
{
  for (uint32_t i = 0; i < states->count; i++) {
    const kvf_lease_states_item *item = &states->items[i];
    if (item->lease_id > KVF_LEASE_ID_MAX || item->state < KVF_LEASE_STATE_LIVE ||
        item->state > KVF_LEASE_STATE_UNKNOWN) {
      return false;
    }
  }
  return true;
}

kvf_status kvf_lease_states_encode(const kvf_lease_states *states, void *body, size_t capacity, size_t *body_bytes)
{
  if (states->count > KVF_LEASE_ITEMS_MAX || !states_are_valid(states)) {
    return KVF_INVALID;
  }
  kvf_encoder encoder = kvf_encoder_of(body, capacity);
  put_head(&encoder, states->seq, states->count);
  for (uint32_t i = 0; i < states->count; i++) {
    const kvf_lease_states_item *item = &states->items[i];
    kvf_put_u64(&encoder, item->lease_id);
    kvf_put_u32(&encoder, item->slot);
    kvf_put_u64(&encoder, item->request_id);
    kvf_put_u8(&encoder, item->state);
  }
  return kvf_encoder_end(&encoder, body_bytes);
}

kvf_status kvf_lease_states_decode(const void *body, size_t body_bytes, kvf_lease_states *out)
{
  kvf_lease_states states;
  kvf_decoder decoder = kvf_decoder_of(body, body_bytes);
  states.count = get_head(&decoder, &states.seq);
  for (uint32_t i = 0; i < states.count; i++) {
    kvf_lease_states_item *item = &states.items[i];
    item->lease_id = kvf_get_u64(&decoder);
    item->slot = kvf_get_u32(&decoder);
    item->request_id = kvf_get_u64(&decoder);
    item->state = kvf_get_u8(&decoder);
  }
  if (kvf_decoder_end(&decoder) != KVF_OK || !states_are_valid(&states)) {
    return KVF_PROTOCOL;
  }
  out->seq = states.seq;
  out->count = states.count;
  memcpy(out->items, states.items, states.count * sizeof(out->items[0]));
  return KVF_OK;
}
