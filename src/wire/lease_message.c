/* Batches of leases with what a consumer wants, and of the states that they are in. */
#include "wire/lease_message.h"

#include "wire/fields.h"
#include "wire/frame.h"

_Static_assert(KVF_LEASES_BYTES_MAX <= KVF_FRAME_BODY_BYTES_MAX && KVF_LEASE_STATES_BYTES_MAX <= KVF_LEASES_BYTES_MAX,
               "every batch fits a frame");

/* Of a batch. Returns how many items follow. */
static uint32_t code_head(kvf_codec *codec, uint32_t *seq, uint32_t *count)
{
  kvf_code_u32(codec, seq);
  kvf_code_u32_in(codec, count, 2);
  return *count <= KVF_LEASE_ITEMS_MAX ? *count : 0;
}

static bool leases_are_valid(const kvf_leases *leases)
{
  bool valid = leases->count <= KVF_LEASE_ITEMS_MAX;
  for (uint32_t i = 0; valid && i < leases->count; i++) {
    valid = kvf_lease_is_valid(&leases->items[i].lease) && leases->items[i].kind <= KVF_FINISH_DETACHED;
  }
  return valid;
}

static void code_leases(kvf_codec *codec, kvf_leases *leases)
{
  const uint32_t count = code_head(codec, &leases->seq, &leases->count);
  for (uint32_t i = 0; i < count; i++) {
    kvf_leases_item *item = &leases->items[i];
    kvf_code_lease(codec, &item->lease);
    kvf_code_u64(codec, &item->request_id);
    kvf_code_u8(codec, &item->kind);
  }
}

kvf_status kvf_leases_encode(const kvf_leases *leases, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_leases(&codec, (kvf_leases *)leases);
  return kvf_writer_end(&codec, leases_are_valid(leases), body_bytes);
}

kvf_status kvf_leases_decode(const void *body, size_t body_bytes, kvf_leases *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_leases(&codec, out);
  return kvf_reader_end(&codec, leases_are_valid(out));
}

static bool states_are_valid(const kvf_lease_states *states)
{
  bool valid = states->count <= KVF_LEASE_ITEMS_MAX;
  for (uint32_t i = 0; valid && i < states->count; i++) {
    const kvf_lease_states_item *item = &states->items[i];
    valid = item->lease_id <= KVF_LEASE_ID_MAX && item->state >= KVF_LEASE_STATE_LIVE &&
            item->state <= KVF_LEASE_STATE_CROWDED;
  }
  return valid;
}

static void code_states(kvf_codec *codec, kvf_lease_states *states)
{
  const uint32_t count = code_head(codec, &states->seq, &states->count);
  for (uint32_t i = 0; i < count; i++) {
    kvf_lease_states_item *item = &states->items[i];
    kvf_code_u64(codec, &item->lease_id);
    kvf_code_u32(codec, &item->slot);
    kvf_code_u64(codec, &item->request_id);
    kvf_code_u8(codec, &item->state);
  }
}

kvf_status kvf_lease_states_encode(const kvf_lease_states *states, void *body, size_t capacity, size_t *body_bytes)
{
  kvf_codec codec = kvf_writer_of(body, capacity);
  code_states(&codec, (kvf_lease_states *)states);
  return kvf_writer_end(&codec, states_are_valid(states), body_bytes);
}

kvf_status kvf_lease_states_decode(const void *body, size_t body_bytes, kvf_lease_states *out)
{
  kvf_codec codec = kvf_reader_of(body, body_bytes);
  code_states(&codec, out);
  return kvf_reader_end(&codec, states_are_valid(out));
}
