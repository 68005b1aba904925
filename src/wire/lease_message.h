/* What consumers say about leases over a control connection, and the answer. Batched: one message speaks of up to
 * KVF_LEASE_ITEMS_MAX leases.
 *
 * Encode and decode as in handshake_message.h: KVF_LIMIT, KVF_INVALID; KVF_PROTOCOL.
 */
#ifndef KVF_WIRE_LEASE_MESSAGE_H
#define KVF_WIRE_LEASE_MESSAGE_H

#include "kvferry/types.h"

#define KVF_LEASE_ITEMS_MAX 512

#define KVF_LEASES_BYTES_MAX (6 + KVF_LEASE_ITEMS_MAX * 37)
#define KVF_LEASE_STATES_BYTES_MAX (6 + KVF_LEASE_ITEMS_MAX * 21)

/* How a request lets go of its lease. */
typedef enum kvf_finish_kind {
  KVF_FINISH_NONE = 0,      /* it does not: a renewal */
  KVF_FINISH_COMPLETED = 1, /* it has all it needs */
  KVF_FINISH_ABORTED = 2,   /* nobody wants it any more */
  KVF_FINISH_DETACHED = 3   /* this engine gives it up, another may take it */
} kvf_finish_kind;

typedef struct kvf_leases_item {
  kvf_lease lease;
  uint64_t request_id;
  uint8_t kind; /* kvf_finish_kind */
} kvf_leases_item;

/* LEASES: which leases requests still need, and which no longer. */
typedef struct kvf_leases {
  uint32_t seq; /* comes back in the answer */
  uint32_t count;
  kvf_leases_item items[KVF_LEASE_ITEMS_MAX];
} kvf_leases;

KVF_MUST_USE kvf_status kvf_leases_encode(const kvf_leases *leases, void *body, size_t capacity, size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_leases_decode(const void *body, size_t body_bytes, kvf_leases *out);

typedef enum kvf_lease_state {
  KVF_LEASE_STATE_LIVE = 1,
  KVF_LEASE_STATE_NOT_PUBLISHED = 2,
  KVF_LEASE_STATE_ENDED = 3,
  KVF_LEASE_STATE_UNKNOWN = 4, /* never heard of, or another token */
  KVF_LEASE_STATE_CROWDED = 5 /* no room for another consumer. From KVF_PROTOCOL_CROWDED on: before it, NOT_PUBLISHED */
} kvf_lease_state;

typedef struct kvf_lease_states_item {
  uint64_t lease_id;
  uint32_t slot;
  uint64_t request_id;
  uint8_t state; /* kvf_lease_state */
} kvf_lease_states_item;

/* LEASE_STATES: the answer to LEASES, item by item. */
typedef struct kvf_lease_states {
  uint32_t seq; /* of the message that is answered */
  uint32_t count;
  kvf_lease_states_item items[KVF_LEASE_ITEMS_MAX];
} kvf_lease_states;

KVF_MUST_USE kvf_status kvf_lease_states_encode(const kvf_lease_states *states, void *body, size_t capacity,
                                                size_t *body_bytes);
KVF_MUST_USE kvf_status kvf_lease_states_decode(const void *body, size_t body_bytes, kvf_lease_states *out);

#endif
