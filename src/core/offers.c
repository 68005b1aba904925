#include "core/offers.h"

#include <stdlib.h>
#include <string.h>

#include "wire/find_message.h"

_Static_assert(sizeof(kvf_asker) == sizeof(kvf_incarnation) + sizeof(uint64_t) + KVF_HASH_BYTES, "no padding");

void kvf_offers_init(kvf_offers *offers, kvf_context *context, const kvf_lease_table *leases)
{
  *offers = (kvf_offers){.context = context, .leases = leases};
}

/* ---- shelves ---- */

/* The shelf of this tag, which may be empty; NULL if there is no memory. */
static kvf_shelf *shelf_of(kvf_offers *offers, const uint8_t tag[KVF_HASH_BYTES])
{
  kvf_shelf *shelf;
  HASH_FIND(by_tag, offers->shelves, tag, KVF_HASH_BYTES, shelf);
  if (shelf != NULL) {
    return shelf;
  }
  shelf = calloc(1, sizeof(*shelf));
  if (shelf == NULL) {
    return NULL;
  }
  memcpy(shelf->tag, tag, sizeof(shelf->tag));
  kvf_list_init(&shelf->places);
  HASH_ADD(by_tag, offers->shelves, tag, sizeof(shelf->tag), shelf);
  if (shelf->by_tag.tbl == NULL) {
    free(shelf);
    return NULL;
  }
  return shelf;
}

/* Takes the offer off all shelves; an empty one goes. */
static void take_off(kvf_offers *offers, kvf_offer *offer)
{
  for (uint32_t i = 0; i < KVF_OFFER_TAGS_MAX; i++) {
    kvf_offer_place *place = &offer->places[i];
    kvf_shelf *shelf = place->shelf;
    if (shelf == NULL) {
      continue;
    }
    kvf_list_remove(&place->link);
    place->shelf = NULL;
    if (kvf_list_is_empty(&shelf->places)) {
      /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): uthash finds the table that the shelf is in */
      HASH_DELETE(by_tag, offers->shelves, shelf);
      free(shelf);
    }
  }
}

/* Puts the offer on the shelf of each of its names. */
static kvf_status put_on(kvf_offers *offers, kvf_offer *offer, const kvf_prompt *prompt)
{
  const kvf_context *context = offers->context;
  for (uint32_t i = 0; i < context->self.macs_count; i++) {
    kvf_offer_place *place = &offer->places[i];
    uint8_t tag[KVF_HASH_BYTES];
    kvf_status status = kvf_find_prompt_tag(&context->self.macs[i], prompt, tag);
    if (status != KVF_OK) {
      return status;
    }
    place->shelf = shelf_of(offers, tag);
    if (place->shelf == NULL) {
      return KVF_NO_MEMORY;
    }
    kvf_list_push_back(&place->shelf->places, &place->link);
  }
  return KVF_OK;
}

/* ---- offers ---- */

static void drop(kvf_offers *offers, kvf_offer *offer)
{
  take_off(offers, offer);
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

kvf_status kvf_offers_add(kvf_offers *offers, uint64_t now_ns, const kvf_lease *lease, const kvf_prompt *prompt,
                          const char *text, size_t text_bytes)
{
  if (!kvf_lease_table_holds(offers->leases, now_ns, lease)) {
    return KVF_NOT_FOUND;
  }
  if (find(offers, lease->slot) != NULL) { /* of this lease: that of one before it went when that ended */
    return KVF_EXISTS;
  }
  if (text_bytes > KVF_OFFERS_BYTES_MAX - offers->bytes) {
    return KVF_NO_RESOURCE;
  }
  kvf_offer *offer = calloc(1, sizeof(*offer) + text_bytes);
  if (offer == NULL) {
    return KVF_NO_MEMORY;
  }
  offer->slot = lease->slot;
  offer->lease = *lease;
  offer->text_bytes = text_bytes;
  memcpy(offer->text, text, text_bytes);
  for (uint32_t i = 0; i < KVF_OFFER_TAGS_MAX; i++) {
    kvf_list_init(&offer->places[i].link);
    offer->places[i].offer = offer;
  }
  kvf_status status = put_on(offers, offer, prompt);
  if (status == KVF_OK) {
    HASH_ADD(by_slot, offers->by_slot, slot, sizeof(offer->slot), offer);
    status = offer->by_slot.tbl == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status != KVF_OK) {
    take_off(offers, offer);
    free(offer);
    return status;
  }
  offers->bytes += text_bytes;
  offers->counters.made++;
  return KVF_OK;
}

/* The oldest offer of this tag that has not been given away; NULL: there is none. Those on the way whose leases have
 * run out are dropped, each once. */
static kvf_offer *next_of(kvf_offers *offers, uint64_t now_ns, const uint8_t tag[KVF_HASH_BYTES])
{
  const kvf_shelf *shelf;
  while (true) {
    HASH_FIND(by_tag, offers->shelves, tag, KVF_HASH_BYTES, shelf);
    if (shelf == NULL) {
      return NULL;
    }
    kvf_offer *offer = KVF_CONTAINER_OF(shelf->places.next, kvf_offer_place, link)->offer;
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
  take_off(offers, offer);
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
  offer = next_of(offers, now_ns, asker->tag);
  return offer != NULL && give(offers, offer, asker) ? offer : NULL;
}

void kvf_offers_lease_ended(kvf_offers *offers, uint32_t slot)
{
  kvf_offer *offer = find(offers, slot);
  if (offer != NULL) {
    drop(offers, offer);
  }
}
