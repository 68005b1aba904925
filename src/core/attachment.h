/* Attachments: how this engine keeps the leases of a ticket alive. All its requests with that ticket share one
 * attachment, and producers know them as one consumer. So the end of a request never takes the lease from another one.
 *
 *   HELD ──the last request leaves──► LEFT ──every producer rank has answered, or its lease has run out──► freed
 *
 * A ticket's text may name several sources, each with its own ranks and lease. All leases are renewed, and all sources
 * are told the end: the engine's ranks may be reading from any of them. An attachment is lost as soon as no source is
 * left. A source is lost if it has ended the lease, does not know it, or is another process. It is also lost if it
 * could not be reached twice in a row. Requests that come with the same ticket afterwards begin another one.
 */
#ifndef KVF_CORE_ATTACHMENT_H
#define KVF_CORE_ATTACHMENT_H

#include "core/peer.h"
#include "wire/lease_message.h"
#include "wire/sources.h"

typedef struct kvf_attachment kvf_attachment;

/* One producer rank of one source. */
typedef struct kvf_attachment_rank {
  kvf_attachment *attachment;
  kvf_list due; /* in peer->due while there is something to tell it */
  kvf_peer *peer;
  uint32_t source;
  uint32_t finish_seq; /* of the first message that told it of the end; 0: none */
  bool acked;          /* it has answered our finish */
  bool unreached;      /* it could not be reached when there was last something to tell it */
} kvf_attachment_rank;

struct kvf_attachment {
  uint64_t id; /* what the producers know it by: the request_id of their consumer */
  UT_hash_handle by_id;
  UT_hash_handle by_leases; /* while requests may join it: neither lost nor left */
  kvf_list requests;        /* their `member`s; empty: it is left */
  kvf_finish_kind finish; /* what the producers are told of the end: of those requests that have left, the strongest */
  kvf_status lost;        /* why; KVF_OK: it is not */
  bool crowded;           /* a lease had no room for it */
  kvf_list losing;        /* in kvf_attachments.lost until its requests have been told */
  kvf_timer timer;        /* when to renew, or to tell again */
  uint64_t until_ns;      /* of one that is left: when the leases have run out by themselves */
  uint64_t ttl_min_ns;
  uint64_t ttl_max_ns;
  kvf_lease leases[KVF_SOURCES_MAX]; /* by source */
  uint32_t sources_left;             /* a bit for each that has all of its ranks, as far as is known */
  uint32_t ranks_count;
  kvf_attachment_rank ranks[]; /* source by source */
};

typedef struct kvf_attachment_counters {
  uint64_t renewals;
  uint64_t finishes;
  uint64_t finishes_given_up;
} kvf_attachment_counters;

typedef struct kvf_attachments {
  kvf_context *context;
  kvf_peers *peers;
  kvf_attachment *by_id;
  kvf_attachment *by_leases;
  kvf_list lost;
  uint64_t next_id;
  uint32_t next_seq;
  uint32_t left; /* attachments that only wait for producers to hear of their end */
  kvf_attachment_counters counters;
} kvf_attachments;

void kvf_attachments_init(kvf_attachments *attachments, kvf_context *context, kvf_peers *peers);
/* Before the peers, after the requests. */
void kvf_attachments_free(kvf_attachments *attachments);

/* The one of these sources (at least one), which the request keeps until it leaves. On failure nothing has changed.
 * KVF_NO_RESOURCE: too many peers. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_attachments_join(kvf_attachments *attachments, uint64_t now_ns, const kvf_sources *sources,
                                             kvf_list *member, kvf_attachment **out);

/* The request is over; `kind` is never KVF_FINISH_NONE. The attachment must not be used by it afterwards. */
void kvf_attachments_leave(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment, kvf_list *member,
                           kvf_finish_kind kind);

/* One that has been lost; NULL: none (any more). */
KVF_MUST_USE kvf_attachment *kvf_attachments_next_lost(kvf_attachments *attachments);

/* KVF_OK: the peer's connection is open: says all that is due. Else that is dropped until its next time. */
void kvf_attachments_on_open(kvf_attachments *attachments, uint64_t now_ns, kvf_peer *peer, kvf_status status);
/* A producer rank answered. KVF_PROTOCOL. */
KVF_MUST_USE kvf_status kvf_attachments_on_states(kvf_attachments *attachments, uint64_t now_ns, const kvf_peer *peer,
                                                  const uint8_t *body, size_t body_bytes);
/* For kvf_core_check(). Returns how many requests have one; adds to *holds of peers its ranks'. */
uint32_t kvf_attachments_check(const kvf_attachments *attachments, uint32_t *holds);

void kvf_attachments_on_timer(kvf_attachments *attachments, uint64_t now_ns, kvf_attachment *attachment);

#endif
