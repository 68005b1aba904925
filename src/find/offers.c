/* Offers by their leases, by their keys, and by those who were given them. */
#include "find/offers.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "core/check_list.h"

_Static_assert(sizeof(kvf_asker) == sizeof(kvf_incarnation) + sizeof(uint64_t) + KVF_HASH_BYTES, "no padding");

void kvf_offers_init(kvf_offers *offers, kvf_context *context, const kvf_lease_table *leases)
{
  *offers = (kvf_offers){.context = context, .leases = leases};
}

/* ---- buckets ---- */

/* The bucket of this sealed key, which may be empty; NULL if there is no memory. */
static kvf_bucket *bucket_of(kvf_offers *offers, const uint8_t key[KVF_HASH_BYTES])
{
  kvf_bucket *bucket;
  HASH_FIND(by_key, offers->buckets, key, KVF_HASH_BYTES, bucket);
  if (bucket != NULL) {
    return bucket;
  }
  bucket = calloc(1, sizeof(*bucket));
  if (bucket == NULL) {
    return NULL;
  }
  memcpy(bucket->key, key, sizeof(bucket->key));
  kvf_list_init(&bucket->entries);
  HASH_ADD(by_key, offers->buckets, key, sizeof(bucket->key), bucket);
  if (bucket->by_key.tbl == NULL) {
    free(bucket);
    return NULL;
  }
  return bucket;
}

/* Takes the offer out of all buckets; an empty one goes. */
static void take_out(kvf_offers *offers, kvf_offer *offer)
{
  for (uint32_t i = 0; i < KVF_OFFER_ENTRIES_MAX; i++) {
    kvf_offer_entry *entry = &offer->entries[i];
    kvf_bucket *bucket = entry->bucket;
    if (bucket == NULL) {
      continue;
    }
    kvf_list_remove(&entry->link);
    entry->bucket = NULL;
    if (kvf_list_is_empty(&bucket->entries)) {
      /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash finds the table that the bucket is in */
      HASH_DELETE(by_key, offers->buckets, bucket);
      free(bucket);
    }
  }
}

/* Puts the offer into the bucket of each seal of its key. */
static kvf_status put_in(kvf_offers *offers, kvf_offer *offer, const kvf_find_key *key)
{
  const kvf_context *context = offers->context;
  for (uint32_t i = 0; i < context->self.macs_count; i++) {
    kvf_offer_entry *entry = &offer->entries[i];
    uint8_t seal[KVF_HASH_BYTES];
    kvf_status status = kvf_find_key_seal(key, &context->self.macs[i], seal);
    if (status != KVF_OK) {
      return status;
    }
    entry->bucket = bucket_of(offers, seal);
    if (entry->bucket == NULL) {
      return KVF_NO_MEMORY;
    }
    kvf_list_push_back(&entry->bucket->entries, &entry->link);
  }
  return KVF_OK;
}

/* ---- offers ---- */

static void drop(kvf_offers *offers, kvf_offer *offer)
{
  take_out(offers, offer);
  if (offer->is_given) {
    HASH_DELETE(by_asker, offers->by_asker, offer);
  }
  HASH_DELETE(by_slot, offers->by_slot, offer);
  offers->bytes -= offer->text_bytes;
  free(offer);
}

void kvf_offers_free(kvf_offers *offers)
{
  kvf_offer *offer;
  kvf_offer *next;
  HASH_ITER(by_slot, offers->by_slot, offer, next)
  {
    drop(offers, offer);
  }
}

static kvf_offer *find(const kvf_offers *offers, uint32_t slot)
{
  kvf_offer *offer;
  HASH_FIND(by_slot, offers->by_slot, &slot, sizeof(slot), offer);
  return offer;
}

kvf_status kvf_offers_add(kvf_offers *offers, uint64_t now_ns, const kvf_lease *lease, const kvf_find_key *key,
                          const char *text, size_t text_bytes)
{
  if (!kvf_lease_table_holds(offers->leases, now_ns, lease)) {
    return kvf_because(KVF_NOT_FOUND, "the ticket's lease %llu is not published on this node, or has ended",
                       (unsigned long long)lease->id);
  }
  if (find(offers, lease->slot) != NULL) { /* of this lease: that of one before it went when that ended */
    return kvf_because(KVF_EXISTS, "the ticket of lease %llu has been offered already", (unsigned long long)lease->id);
  }
  if (text_bytes > KVF_OFFERS_BYTES_MAX - offers->bytes) {
    return kvf_because(KVF_NO_RESOURCE, "%zu bytes are offered already, with this ticket more than %zu", offers->bytes,
                       (size_t)KVF_OFFERS_BYTES_MAX);
  }
  kvf_offer *offer = calloc(1, sizeof(*offer) + text_bytes);
  if (offer == NULL) {
    return KVF_NO_MEMORY;
  }
  offer->slot = lease->slot;
  offer->lease = *lease;
  offer->text_bytes = text_bytes;
  memcpy(offer->text, text, text_bytes);
  for (uint32_t i = 0; i < KVF_OFFER_ENTRIES_MAX; i++) {
    kvf_list_init(&offer->entries[i].link);
    offer->entries[i].offer = offer;
  }
  kvf_status status = put_in(offers, offer, key);
  if (status == KVF_OK) {
    HASH_ADD(by_slot, offers->by_slot, slot, sizeof(offer->slot), offer);
    status = offer->by_slot.tbl == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status != KVF_OK) {
    take_out(offers, offer);
    free(offer);
    return status;
  }
  offers->bytes += text_bytes;
  offers->counters.made++;
  return KVF_OK;
}

/* The oldest offer of this key that has not been given away; NULL: there is none. Those on the way whose leases have
 * run out are dropped, each once. */
static kvf_offer *next_of(kvf_offers *offers, uint64_t now_ns, const uint8_t key[KVF_HASH_BYTES])
{
  const kvf_bucket *bucket;
  while (true) {
    HASH_FIND(by_key, offers->buckets, key, KVF_HASH_BYTES, bucket);
    if (bucket == NULL) {
      return NULL;
    }
    kvf_offer *offer = KVF_CONTAINER_OF(bucket->entries.next, kvf_offer_entry, link)->offer;
    if (kvf_lease_table_holds(offers->leases, now_ns, &offer->lease)) {
      return offer;
    }
    drop(offers, offer);
  }
}

/* False if there is no memory to remember to whom: then it is not given. */
static bool give(kvf_offers *offers, kvf_offer *offer, const kvf_asker *asker)
{
  offer->asker = *asker;
  HASH_ADD(by_asker, offers->by_asker, asker, sizeof(offer->asker), offer);
  if (offer->by_asker.tbl == NULL) {
    return false;
  }
  offer->is_given = true;
  take_out(offers, offer);
  offers->counters.given++;
  return true;
}

const kvf_offer *kvf_offers_take(kvf_offers *offers, uint64_t now_ns, const kvf_asker *asker)
{
  kvf_offer *offer;
  HASH_FIND(by_asker, offers->by_asker, asker, sizeof(*asker), offer);
  if (offer != NULL) {
    return kvf_lease_table_holds(offers->leases, now_ns, &offer->lease) ? offer : NULL;
  }
  offer = next_of(offers, now_ns, asker->key);
  return offer != NULL && give(offers, offer, asker) ? offer : NULL;
}

void kvf_offers_lease_ended(kvf_offers *offers, uint32_t slot)
{
  kvf_offer *offer = find(offers, slot);
  if (offer != NULL) {
    drop(offers, offer);
  }
}

#ifndef NDEBUG

void kvf_offers_check(const kvf_offers *offers)
{
  size_t bytes = 0;
  uint32_t given = 0;
  uint32_t entries = 0;
  uint32_t listed = 0;
  for (const kvf_offer *offer = offers->by_slot; offer != NULL; offer = offer->by_slot.next) {
    for (uint32_t i = 0; i < KVF_OFFER_ENTRIES_MAX; i++) {
      const bool is_in = i < offers->context->self.macs_count && !offer->is_given;
      assert((offer->entries[i].bucket != NULL) == is_in && kvf_list_is_linked(&offer->entries[i].link) == is_in);
      entries += is_in;
    }
    assert(offer->slot == offer->lease.slot);
    given += offer->is_given;
    bytes += offer->text_bytes;
  }
  for (const kvf_bucket *bucket = offers->buckets; bucket != NULL; bucket = bucket->by_key.next) {
    assert(!kvf_list_is_empty(&bucket->entries));
    listed += kvf_check_list(&bucket->entries);
  }
  assert(entries == listed);
  assert(given == HASH_CNT(by_asker, offers->by_asker) && given <= offers->counters.given);
  assert(bytes == offers->bytes && bytes <= KVF_OFFERS_BYTES_MAX);
}

#endif
