/* Requests: the control node's side of consuming a ticket. Keeps the lease alive at every producer rank from the moment
 * the ticket arrives, merges what the engine's ranks report, decides once, and tells every producer rank how the
 * request lets go of the lease, until each has answered or must have let the lease run out by itself.
 *
 * A ticket's text may name several sources, each with ranks and a lease of its own. All are kept alive and told the
 * end: the engine's ranks may be reading from any of them. What becomes of a source concerns the ranks that read from
 * it, never the request.
 *
 *   OPEN ──begin──► LOADING ──all ranks, or the deadline──► FINISHING ──every producer rank knows──► ACKED
 *     └─────────── no source left, cancel, detach ────────────┘
 *
 * A request that is ACKED is freed once its events have been taken, with one that has begun when all of the engine's
 * ranks have released it.
 */
#ifndef KVF_CORE_REQUEST_H
#define KVF_CORE_REQUEST_H

#include "base/prng.h"
#include "core/budget.h"
#include "core/merge.h"
#include "core/peer.h"
#include "kvferry/consumer.h"
#include "wire/lease_message.h"
#include "wire/sources.h"

/* Open at once, those included that only wait for producers to hear of their end, or for their own ranks' release. */
#define KVF_REQUESTS_MAX 65536

typedef enum kvf_request_state {
  KVF_REQUEST_OPEN,
  KVF_REQUEST_LOADING,
  KVF_REQUEST_FINISHING,
  KVF_REQUEST_ACKED
} kvf_request_state;

typedef struct kvf_request kvf_request;

/* One producer rank of one source of a request. */
typedef struct kvf_request_rank {
  kvf_request *request;
  kvf_list due; /* in peer->due while there is something to tell it */
  kvf_peer *peer;
  uint32_t source;
  uint32_t finish_seq; /* of the first message that told it of the end; 0: none */
  bool acked;          /* it has answered our finish, or must have expired the lease */
  bool unreached;      /* it could not be reached when there was last something to tell it */
} kvf_request_rank;

struct kvf_request {
  uint64_t id;
  UT_hash_handle by_id;
  uint64_t user;
  kvf_request_state state;
  kvf_finish_kind finish; /* what FINISHING tells */
  bool crowded;           /* its lease has no room for it */
  bool begun;
  bool verdict_pending;
  bool stuck_given;
  bool released_given;
  kvf_verdict verdict;
  kvf_list event; /* in kvf_requests.events while there is something to say */
  kvf_timer timer;
  uint64_t renew_ns;   /* when to renew, or to tell again */
  uint64_t until_ns;   /* LOADING: the verdict's time; FINISHING: when the lease has run out */
  uint64_t ttl_min_ns; /* of the leases */
  uint64_t ttl_max_ns;
  kvf_request_options options;
  kvf_lease leases[KVF_SOURCES_MAX]; /* by source */
  uint32_t sources_left;             /* a bit for each that has all of its ranks, as far as is known */
  uint32_t tokens;
  uint32_t block_tokens;
  kvf_ranks own; /* the engine's */
  uint32_t ranks_count;
  kvf_request_rank ranks[]; /* of the producers, source by source */
};

typedef struct kvf_request_counters {
  uint64_t opened;
  uint64_t bad_tickets;
  uint64_t incompatible;
  uint64_t sources_left_out;
  uint64_t verdicts[KVF_ACTION_FAIL + 1];       /* by kvf_action */
  uint64_t recomputed_tokens[KVF_STATUSES_MAX]; /* by why: [i] of kvf_status_at(i) */
  uint64_t lost[KVF_STATUSES_MAX];              /* whose last source was lost while they waited, by why */
  uint64_t cancelled;
  uint64_t detached;
  uint64_t ranks_lost;
  uint64_t renewals;
  uint64_t finishes;
  uint64_t finishes_given_up;
  uint64_t late_reports;
} kvf_request_counters;

typedef struct kvf_requests {
  kvf_context *context;
  kvf_peers *peers;
  kvf_request *by_id;
  kvf_list events;
  uint64_t next_id;
  uint32_t next_seq;
  kvf_budget budget;
  kvf_prng prng;
  kvf_request_counters counters;
} kvf_requests;

void kvf_requests_init(kvf_requests *requests, kvf_context *context, kvf_peers *peers, uint64_t seed);
/* Before the peers. */
void kvf_requests_free(kvf_requests *requests);

/* Which of these sources, whose MACs have been checked, are for this engine and this prompt, and offer what the first
 * of those does: to be asked before anything of them is acted upon. *good borrows the tickets. KVF_INCOMPATIBLE,
 * KVF_BAD_TICKET: none; what is wrong with the first. */
KVF_MUST_USE kvf_status kvf_requests_check_sources(kvf_requests *requests, uint64_t now_ns, const kvf_sources *all,
                                                   const kvf_prompt *prompt, kvf_sources *good);
/* `options`, or the node's own if it is NULL: those of kvf_request_options_init(), the same in all the life of the
 * node. */
kvf_request_options kvf_requests_options(const kvf_requests *requests, const kvf_request_options *options);

/* kvf_request_open() of kvferry/consumer.h, on sources whose MACs have been checked. `prompt` is what this engine was
 * asked. *first (may be NULL) is the first source that is good. */
KVF_MUST_USE kvf_status kvf_requests_open(kvf_requests *requests, uint64_t now_ns, const kvf_sources *sources,
                                          const kvf_prompt *prompt, const kvf_request_options *options, uint64_t user,
                                          uint64_t *id, const kvf_ticket **first);
/* kvf_request_refused() of kvferry/consumer.h. */
kvf_verdict kvf_requests_refused(kvf_requests *requests, uint64_t now_ns, kvf_status status, uint32_t tokens,
                                 const kvf_request_options *options);
KVF_MUST_USE kvf_status kvf_requests_begin(kvf_requests *requests, uint64_t now_ns, uint64_t id);
kvf_status kvf_requests_report(kvf_requests *requests, uint64_t now_ns, const kvf_report *report);
kvf_status kvf_requests_released(kvf_requests *requests, uint64_t now_ns, uint64_t id, uint64_t ranks_mask);
kvf_status kvf_requests_stuck(kvf_requests *requests, uint64_t now_ns, uint64_t id);
/* kvf_request_cancel() of kvferry/consumer.h, or, with KVF_FINISH_DETACHED, kvf_request_detach(). */
kvf_status kvf_requests_cancel(kvf_requests *requests, uint64_t now_ns, uint64_t id, kvf_finish_kind kind);

/* KVF_OK: the peer's connection is open: says all that is due. Else that is dropped until its next time. */
void kvf_requests_on_open(kvf_requests *requests, uint64_t now_ns, kvf_peer *peer, kvf_status status);
/* A producer rank answered. */
KVF_MUST_USE kvf_status kvf_requests_on_states(kvf_requests *requests, uint64_t now_ns, const kvf_peer *peer,
                                               const uint8_t *body, size_t body_bytes);
void kvf_requests_on_timer(kvf_requests *requests, uint64_t now_ns, kvf_request *request);

KVF_MUST_USE bool kvf_requests_next_event(kvf_requests *requests, uint64_t now_ns, kvf_event *out);

#endif
