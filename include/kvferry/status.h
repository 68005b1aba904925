/* kvferry/status.h: the statuses of calls, loads and verdicts.
 *
 * Every call that can fail returns a kvf_status; every load and verdict has one. The library never exits, aborts or
 * throws. Statuses are grouped by their scope: block, request, peer, engine, call. kvf_status_describe() says for each
 * whether to retry here, whether to retry elsewhere, and whether recomputing the prompt is safe.
 */
#ifndef KVFERRY_STATUS_H
#define KVFERRY_STATUS_H

#include <stdbool.h>

#ifdef __cplusplus
#define KVF_C_BEGIN extern "C" {
#define KVF_C_END }
#else
#define KVF_C_BEGIN
#define KVF_C_END
#endif

#if defined(__GNUC__)
#define KVF_API __attribute__((visibility("default")))
#define KVF_MUST_USE __attribute__((warn_unused_result))
#else
#define KVF_API
#define KVF_MUST_USE
#endif

KVF_C_BEGIN

/* Values are stable: they travel between nodes and into logs. New ones are added at the end of their group. */
typedef enum kvf_status {
  KVF_OK = 0,

  /* A block was lost; the others of its load may be good. */
  KVF_TRANSFER_FAILED = -101,  /* the transport reported an error for these bytes */
  KVF_TRANSFER_STALLED = -102, /* no byte arrived within stall_timeout_ms */
  KVF_CHECKSUM = -103,         /* the bytes differ from those that the producer published */
  KVF_CANCELLED = -104,        /* the read was cancelled before it was complete */

  /* A request was lost; its peer is fine. */
  KVF_BAD_TICKET = -201,    /* forged, altered, or of another prompt: no connection was made, no byte read */
  KVF_LEASE_EXPIRED = -202, /* the producer has taken the blocks back */
  KVF_LEASE_UNKNOWN = -203, /* the producer knows no such lease, or its secret token does not match */
  KVF_NOT_PUBLISHED = -204, /* the producer has not completed the blocks yet */
  KVF_DEADLINE = -205,      /* load_timeout_ms has passed */
  KVF_ABORTED = -206,       /* the caller aborted it, or it did not start */
  KVF_NO_LEASE = -207,      /* no free lease slot, or the leased share of the pool is at its cap */
  KVF_DRAINING = -208,      /* the node takes no new leases */
  KVF_LEASE_CROWDED = -209, /* more consumers are attached to the lease than a producer can count */
  KVF_OTHER_KEY = -210,     /* the ticket was signed with another key, as all tickets of that engine will be */

  /* A peer was lost; other peers are fine. */
  KVF_PEER_DOWN = -301,         /* connection refused or closed, or its breaker is open */
  KVF_PEER_RESTARTED = -302,    /* another process answers at its address: its blocks are gone */
  KVF_HANDSHAKE_TIMEOUT = -303, /* connected, but the handshake did not end in handshake_timeout_ms */
  KVF_HANDSHAKE_REFUSED = -304, /* the two sides do not share a key */
  KVF_INCOMPATIBLE = -305,   /* the two engines interpret the bytes of a block differently, or the ticket's version is
                                that of another release */
  KVF_TRANSFER_SETUP = -306, /* no common transport could be set up, or none copies between the two sides' kinds of
                                memory: the log names the kinds */
  KVF_PROTOCOL = -307,       /* the peer sent something that no version of the protocol allows */

  /* This engine cannot go on with the request. */
  KVF_RANK_LOST = -401,   /* a rank did not report by the deadline; its blocks stay quarantined */
  KVF_NO_MEMORY = -402,   /* an allocation failed */
  KVF_NO_RESOURCE = -403, /* the number of open objects has reached an option or a named limit */

  /* The call was wrong; nothing was changed. */
  KVF_INVALID = -501,        /* an argument is out of range: kvf_error_text() names it */
  KVF_NOT_FOUND = -502,      /* the load, lease or request does not exist (any more) */
  KVF_LIMIT = -503,          /* an argument is beyond a named limit or an option, or the output buffer is too small:
                                kvf_error_text() says which */
  KVF_ADDRESS_IN_USE = -504, /* the listen address cannot be bound */
  KVF_SYSTEM = -505,         /* the operating system refused a call: the message names it */
  KVF_CLOSED = -506,         /* the node is closing */
  KVF_EXISTS = -507,         /* the id is in use */
  KVF_AGAIN = -508           /* not yet: poll, and call again */
} kvf_status;

/* The scope of a loss, smallest first. */
typedef enum kvf_lost {
  KVF_LOST_NOTHING,
  KVF_LOST_BLOCK,
  KVF_LOST_REQUEST,
  KVF_LOST_PEER,
  KVF_LOST_ENGINE,
  KVF_LOST_CALL /* a caller's mistake */
} kvf_lost;

typedef struct kvf_status_info {
  kvf_status status;
  const char *name;    /* the reason's name in metrics, logs and error bodies: "lease_expired" */
  const char *meaning; /* one sentence for a person */
  kvf_lost lost;
  bool retry_here;      /* the same load may succeed on a later attempt */
  bool retry_elsewhere; /* the request may succeed on another producer or with a new ticket */
  bool recompute_safe;  /* the engine may compute the missing blocks itself */
  bool trips_breaker;   /* counts as a failure of the peer or link */
} kvf_status_info;

/* The description of `status`. It is an int because a kvf_report has an int. An unknown value gets the description of
 * KVF_INVALID. Static memory; any thread. */
KVF_API const kvf_status_info *kvf_status_describe(int status);

/* The name of `status`: kvf_status_describe(status)->name. */
KVF_API const char *kvf_status_name(int status);

/* The reason of the last failed call of this thread: one sentence for a person. It names the argument, its value and
 * its bound, or the option. Calls that return KVF_OK or KVF_AGAIN do not change it. "" if no call has failed. Valid
 * until the thread's next call. If the failed call has a `message`, both texts are equal. Any thread. */
KVF_API const char *kvf_error_text(void);

#define KVF_STATUSES_MAX 48 /* no later version has more statuses */

/* The i-th status of the table, NULL past its end: to list all of them in documents and metrics. Static memory; any
 * thread. */
KVF_API const kvf_status_info *kvf_status_at(unsigned i);

KVF_C_END
#endif
