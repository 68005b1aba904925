/* Offers: the tickets of this producer rank that consumers may ask for. An offer has an entry in a bucket for each seal
 * of its key (find/key.h): one under each shared key that sessions may have proved. It goes with its lease.
 *
 * An offer is given away once: its lease ends with the request that takes it, so another request with the same prompt
 * needs another lease. The find that got the offer may ask again, with the same id, because an answer may be lost with
 * its connection. Of the offers in a bucket the oldest is given first.
 *
 * There are never more offers than lease slots, and their texts have a limit together. Each operation is O(1), over the
 * life of its offer.
 */
#ifndef KVF_FIND_OFFERS_H
#define KVF_FIND_OFFERS_H

#include "base/list.h"
#include "core/context.h"
#include "core/hash.h"
#include "core/lease_table.h"
#include "find/key.h"

/* Of all texts together: 1 KiB each for 65536 leases. */
#define KVF_OFFERS_BYTES_MAX ((size_t)64 << 20)
#define KVF_OFFER_ENTRIES_MAX KVF_KEYS_MAX

/* Who asks: one find of one life of a consumer's node. Hashed as bytes, of which none is padding. */
typedef struct kvf_asker {
  kvf_incarnation incarnation;
  uint64_t find_id;
  uint8_t key[KVF_HASH_BYTES]; /* sealed */
} kvf_asker;

typedef struct kvf_offer kvf_offer;

/* All offers of one sealed key that have not been given away. */
typedef struct kvf_bucket {
  uint8_t key[KVF_HASH_BYTES];
  UT_hash_handle by_key;
  kvf_list entries;
} kvf_bucket;

typedef struct kvf_offer_entry {
  kvf_list link; /* in bucket->entries */
  kvf_bucket *bucket;
  kvf_offer *offer;
} kvf_offer_entry;

struct kvf_offer {
  uint32_t slot; /* of its lease */
  UT_hash_handle by_slot;
  kvf_lease lease;
  bool is_given;
  kvf_asker asker; /* to whom */
  UT_hash_handle by_asker;
  kvf_offer_entry entries[KVF_OFFER_ENTRIES_MAX]; /* those that have a bucket */
  size_t text_bytes;
  char text[];
};

/* Only grow. */
typedef struct kvf_offer_counters {
  uint64_t made;
  uint64_t given; /* once each */
} kvf_offer_counters;

typedef struct kvf_offers {
  kvf_context *context;
  const kvf_lease_table *leases;
  kvf_offer *by_slot; /* all of them */
  kvf_offer *by_asker;
  kvf_bucket *buckets;
  size_t bytes; /* of all texts */
  kvf_offer_counters counters;
} kvf_offers;

void kvf_offers_init(kvf_offers *offers, kvf_context *context, const kvf_lease_table *leases);
void kvf_offers_free(kvf_offers *offers);

/* Offers this ticket of the lease by this key; `text` is copied. KVF_NOT_FOUND: the lease is not published here, or has
 * ended. KVF_EXISTS: it has been offered. KVF_NO_RESOURCE: KVF_OFFERS_BYTES_MAX. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_offers_add(kvf_offers *offers, uint64_t now_ns, const kvf_lease *lease,
                                       const kvf_find_key *key, const char *text, size_t text_bytes);

/* The offer that this asker is given, or was given before; NULL: there is none. Good until the next call. */
const kvf_offer *kvf_offers_take(kvf_offers *offers, uint64_t now_ns, const kvf_asker *asker);

/* For kvf_core_check(). */
void kvf_offers_check(const kvf_offers *offers);

/* The lease that is in this slot has ended: with it goes its offer, if there is one. */
void kvf_offers_lease_ended(kvf_offers *offers, uint32_t slot);

#endif
