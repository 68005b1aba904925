/* Requests: the control node's side of consuming a ticket. From the arrival of the ticket on, a request renews its
 * leases at every producer rank (attachment.h). It merges the reports of the engine's ranks, and decides once.
 *
 *   OPEN ──begin──► LOADING ──all ranks, or the deadline──► DONE
 *     └────── no source left, cancel, detach, the deadline ──┘
 *
 * A request that is DONE is freed once its events have been taken. If it has begun, all of the engine's ranks must also
 * have released it.
 */
#ifndef KVF_CORE_REQUEST_H
#define KVF_CORE_REQUEST_H

#include "base/prng.h"
#include "core/attachment.h"
#include "core/budget.h"
#include "core/ranks.h"
#include "kvferry/consumer.h"

/* Open requests, including those that only wait for their own ranks' release. Also the limit of attachments, including
 * those that only wait until producers know of their end. */
#define KVF_REQUESTS_MAX 65536

typedef enum kvf_request_state { KVF_REQUEST_OPEN, KVF_REQUEST_LOADING, KVF_REQUEST_DONE } kvf_request_state;

typedef struct kvf_request {
  uint64_t id;
  UT_hash_handle by_id;
  uint64_t user;
  kvf_request_state state;
  bool begun;
  bool verdict_pending;
  bool stuck_given;
  kvf_verdict verdict;
  kvf_attachment *attachment;            /* NULL once it is DONE */
  kvf_list member;                       /* in attachment->requests */
  kvf_list event;                        /* in kvf_requests.events while there is something to say */
  kvf_timer timer;                       /* its deadline: armed while it is LOADING, or OPEN and waits */
  uint64_t left_ns;                      /* of the time for waits and the load, when neither goes on */
  kvf_request_options options;           /* without the name: */
  char name[KVF_REQUEST_NAME_BYTES_MAX]; /* the engine's; empty: none */
  uint32_t tokens;
  uint32_t block_tokens;
  kvf_ranks own; /* the engine's */
} kvf_request;

typedef struct kvf_request_counters {
  uint64_t opened;
  uint64_t verdicts[KVF_ACTION_FAIL + 1];       /* by kvf_action */
  uint64_t recomputed_tokens[KVF_STATUSES_MAX]; /* by why: [i] of kvf_status_at(i) */
  uint64_t lost[KVF_STATUSES_MAX];              /* whose last source was lost while they waited, by why */
  uint64_t cancelled;
  uint64_t detached;
  uint64_t ranks_lost;
  uint64_t late_reports;
} kvf_request_counters;

typedef struct kvf_requests {
  kvf_context *context;
  kvf_attachments attachments;
  kvf_request *by_id;
  kvf_list events;
  uint64_t next_id;
  kvf_budget budget;
  kvf_prng prng;
  kvf_request_counters counters;
} kvf_requests;

void kvf_requests_init(kvf_requests *requests, kvf_context *context, kvf_peers *peers, uint64_t seed);
/* Before the peers. */
void kvf_requests_free(kvf_requests *requests);

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
/* What the request's attachment is known by, 0 if it is over. */
uint64_t kvf_requests_attachment(const kvf_requests *requests, uint64_t id);
KVF_MUST_USE kvf_status kvf_requests_wait(kvf_requests *requests, uint64_t now_ns, uint64_t id, bool waits);
KVF_MUST_USE kvf_status kvf_requests_begin(kvf_requests *requests, uint64_t now_ns, uint64_t id);
kvf_status kvf_requests_report(kvf_requests *requests, uint64_t now_ns, const kvf_report *report);
kvf_status kvf_requests_released(kvf_requests *requests, uint64_t now_ns, uint64_t id, uint64_t ranks_mask);
kvf_status kvf_requests_stuck(kvf_requests *requests, uint64_t id);
/* kvf_request_cancel() of kvferry/consumer.h, or, with KVF_FINISH_DETACHED, kvf_request_detach(). */
kvf_status kvf_requests_cancel(kvf_requests *requests, uint64_t now_ns, uint64_t id, kvf_finish_kind kind);

/* Requests that wait, and whose attachment has lost its last source, get their verdict. Call it after each message to
 * attachments. */
void kvf_requests_take_losses(kvf_requests *requests, uint64_t now_ns);
void kvf_requests_on_timer(kvf_requests *requests, uint64_t now_ns, kvf_request *request);

/* For kvf_core_check(). Returns how many holds of peers its attachments have. */
uint32_t kvf_requests_check(const kvf_requests *requests);

KVF_MUST_USE bool kvf_requests_next_event(kvf_requests *requests, kvf_event *out);

#endif
