/* A guest: what lives on a core's peers, sessions, leases and clock, and is no part of a load. The core calls it by
 * this and knows no more of it. What the core gives it, it uses by the headers of those machines.
 *
 * Its memory is its owner's, and does not move from kvf_core_invite() on (core.h) until the core is freed. */
#ifndef KVF_CORE_GUEST_H
#define KVF_CORE_GUEST_H

#include "core/context.h"
#include "core/lease_table.h"
#include "core/peer.h"

typedef struct kvf_guest kvf_guest;

struct kvf_guest {
  /* Set by kvf_core_invite(). */
  kvf_context *context;
  kvf_peers *peers;
  const kvf_lease_table *leases;
  kvf_list events; /* the guest's own: what has an event; empty: there is none to take */

  /* What others send over sessions, and what peers send back: types of frames that are nobody else's. */
  kvf_frame_type question;
  kvf_frame_type answer;

  /* A question came over an open session of a node that does not only check. KVF_PROTOCOL: it is none. KVF_LIMIT: what
   * it is to be answered does not fit the outbox. Any failure ends the session. */
  kvf_status (*on_question)(kvf_guest *guest, uint64_t now_ns, kvf_session *session, const uint8_t *body,
                            size_t body_bytes);
  /* An answer came from a peer that is READY. Any failure ends its connection. */
  kvf_status (*on_answer)(kvf_guest *guest, uint64_t now_ns, kvf_peer *peer, const uint8_t *body, size_t body_bytes);
  /* OPEN, which may be an answer to others, NAMED and CLOSED. */
  void (*on_peer)(kvf_guest *guest, uint64_t now_ns, const kvf_peer_notice *notice);
  /* A timer of kind KVF_TIMER_GUEST went off. */
  void (*on_timer)(kvf_guest *guest, uint64_t now_ns, kvf_timer *timer);
  /* The store that ends the lease in this slot goes out. */
  void (*on_lease_ended)(kvf_guest *guest, uint32_t slot);
  /* The next of `events`; false: there is none. */
  bool (*next_event)(kvf_guest *guest, uint64_t now_ns, kvf_event *out);
  /* For kvf_core_check(). Returns how many holds of peers it has. */
  uint32_t (*check)(const kvf_guest *guest);
  /* The core goes: lets go of all peers and timers, and frees what is the guest's. */
  void (*leave)(kvf_guest *guest);
};

#endif
