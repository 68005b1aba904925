/* One table of all statuses: name, text, and what they allow; and the message of a call that fails. */
#include "base/status.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "base/log.h"

enum {
  HERE = 1 << 0,      /* retry_here */
  ELSEWHERE = 1 << 1, /* retry_elsewhere */
  RECOMPUTE = 1 << 2, /* recompute_safe */
  BREAKER = 1 << 3    /* trips_breaker */
};

#define STATUS(code, text_name, what_lost, flags, text_meaning) \
  {                                                             \
      .status = (code),                                         \
      .name = (text_name),                                      \
      .meaning = (text_meaning),                                \
      .lost = (what_lost),                                      \
      .retry_here = ((flags) & HERE) != 0,                      \
      .retry_elsewhere = ((flags) & ELSEWHERE) != 0,            \
      .recompute_safe = ((flags) & RECOMPUTE) != 0,             \
      .trips_breaker = ((flags) & BREAKER) != 0,                \
  }

static const kvf_status_info table[] = {
    STATUS(KVF_OK, "ok", KVF_LOST_NOTHING, RECOMPUTE, "Nothing is wrong."),

    STATUS(KVF_TRANSFER_FAILED, "transfer_failed", KVF_LOST_BLOCK, HERE | ELSEWHERE | RECOMPUTE | BREAKER,
           "The transport failed while it read the blocks."),
    STATUS(KVF_TRANSFER_STALLED, "transfer_stalled", KVF_LOST_BLOCK, HERE | ELSEWHERE | RECOMPUTE | BREAKER,
           "No byte arrived within stall_timeout_ms."),
    /* The link works: it carried bytes, the wrong ones. */
    STATUS(KVF_CHECKSUM, "checksum", KVF_LOST_BLOCK, HERE | ELSEWHERE | RECOMPUTE,
           "The bytes differ from those that the producer published."),
    /* A read is cancelled for reasons that are not its peer's, such as another read's forced close. */
    STATUS(KVF_CANCELLED, "cancelled", KVF_LOST_BLOCK, HERE | ELSEWHERE | RECOMPUTE,
           "The read was cancelled before its end."),

    STATUS(KVF_BAD_TICKET, "bad_ticket", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE,
           "The ticket is forged, altered or of another prompt; nothing was read."),
    STATUS(KVF_LEASE_EXPIRED, "lease_expired", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE,
           "The producer has taken the blocks back."),
    STATUS(KVF_LEASE_UNKNOWN, "lease_unknown", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE,
           "The producer knows no such lease."),
    STATUS(KVF_NOT_PUBLISHED, "not_published", KVF_LOST_REQUEST, HERE | ELSEWHERE | RECOMPUTE,
           "The producer has not completed the blocks yet."),
    /* Not the breaker's: a load may run out of time at a peer that is only busy; a dead one shows in other ways. */
    STATUS(KVF_DEADLINE, "deadline", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE,
           "The load did not end within load_timeout_ms."),
    /* In a report it means that a rank gave up by itself (its memory was unregistered, its load could not start). The
     * request is still wanted. */
    STATUS(KVF_ABORTED, "aborted", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE,
           "The caller aborted the load, or it did not start."),
    STATUS(KVF_NO_LEASE, "no_lease", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE,
           "The producer has no free lease, or its leases fill their share of the pool."),
    STATUS(KVF_DRAINING, "draining", KVF_LOST_REQUEST, ELSEWHERE | RECOMPUTE, "The node takes no new leases."),
    /* There is room again as others finish. */
    STATUS(KVF_LEASE_CROWDED, "lease_crowded", KVF_LOST_REQUEST, HERE | ELSEWHERE | RECOMPUTE,
           "The lease has more consumers than the producer can count."),
    /* Not elsewhere: each ticket of that engine is the same, until somebody has changed a key file. */
    STATUS(KVF_OTHER_KEY, "other_key", KVF_LOST_REQUEST, RECOMPUTE,
           "The ticket was signed with another key, or with none; nothing was read."),

    /* Not here: the breaker's probe finds out when the peer is back, loads do not wait for that. */
    STATUS(KVF_PEER_DOWN, "peer_down", KVF_LOST_PEER, ELSEWHERE | RECOMPUTE | BREAKER,
           "The producer cannot be reached."),
    /* The new process is well, and its next tickets are good. */
    STATUS(KVF_PEER_RESTARTED, "peer_restarted", KVF_LOST_PEER, ELSEWHERE | RECOMPUTE,
           "Another process has the producer's address; the blocks are gone."),
    STATUS(KVF_HANDSHAKE_TIMEOUT, "handshake_timeout", KVF_LOST_PEER, HERE | ELSEWHERE | RECOMPUTE | BREAKER,
           "The producer did not complete the handshake within handshake_timeout_ms."),
    /* The peer answers, only not as wanted: a breaker would hide this reason behind peer_down. */
    STATUS(KVF_HANDSHAKE_REFUSED, "handshake_refused", KVF_LOST_PEER, ELSEWHERE | RECOMPUTE,
           "The two sides do not share a key."),
    STATUS(KVF_INCOMPATIBLE, "incompatible", KVF_LOST_PEER, ELSEWHERE | RECOMPUTE,
           "The two engines differ in model, layout or ticket version."),
    /* The breaker is per link: it keeps each next load from paying for the same failing connect. */
    STATUS(KVF_TRANSFER_SETUP, "transfer_setup", KVF_LOST_PEER, ELSEWHERE | RECOMPUTE | BREAKER,
           "No common transport could be set up, or serves both kinds of memory."),
    /* Costs the connection, so it counts as a reset does. */
    STATUS(KVF_PROTOCOL, "protocol", KVF_LOST_PEER, ELSEWHERE | RECOMPUTE | BREAKER,
           "The peer sent data that no version of the protocol allows."),

    /* Its reads may still be going on: computing into quarantined blocks would race with them. */
    STATUS(KVF_RANK_LOST, "rank_lost", KVF_LOST_ENGINE, ELSEWHERE,
           "A rank of this engine did not report by the deadline; its blocks stay quarantined."),
    STATUS(KVF_NO_MEMORY, "no_memory", KVF_LOST_ENGINE, ELSEWHERE | RECOMPUTE, "An allocation failed."),
    STATUS(KVF_NO_RESOURCE, "no_resource", KVF_LOST_ENGINE, ELSEWHERE | RECOMPUTE,
           "An option or limit allows no more loads, requests or peers."),

    /* A caller that has made a mistake knows too little of the blocks to compute into them. */
    STATUS(KVF_INVALID, "invalid", KVF_LOST_CALL, 0, "An argument is out of range."),
    STATUS(KVF_NOT_FOUND, "not_found", KVF_LOST_CALL, 0, "There is no such load, lease, request or option."),
    STATUS(KVF_LIMIT, "limit", KVF_LOST_CALL, 0,
           "An argument is beyond a limit of the library or an option, or the output buffer is too small. "
           "The text of the failed call names it."),
    STATUS(KVF_ADDRESS_IN_USE, "address_in_use", KVF_LOST_CALL, 0, "The listen address is in use."),
    STATUS(KVF_SYSTEM, "system", KVF_LOST_CALL, 0, "The operating system refused."),
    STATUS(KVF_CLOSED, "closed", KVF_LOST_CALL, 0, "The node is closing."),
    STATUS(KVF_EXISTS, "exists", KVF_LOST_CALL, 0, "The id is in use."),
    STATUS(KVF_AGAIN, "again", KVF_LOST_CALL, 0, "Not yet: poll, and call again."),
};

#define TABLE_COUNT (sizeof(table) / sizeof(table[0]))

_Static_assert(TABLE_COUNT <= KVF_STATUSES_MAX, "arrays of counters have that many entries");

kvf_status kvf_fail(kvf_status status, char *message, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, KVF_MESSAGE_BYTES_MAX, format, arguments);
  va_end(arguments);
  kvf_log_clean(message);
  return status;
}

unsigned kvf_status_index(int status)
{
  for (unsigned i = 0; i < TABLE_COUNT; i++) {
    if (table[i].status == status) {
      return i;
    }
  }
  return kvf_status_index(KVF_INVALID);
}

const kvf_status_info *kvf_status_describe(int status)
{
  return &table[kvf_status_index(status)];
}

const char *kvf_status_name(int status)
{
  return kvf_status_describe(status)->name;
}

const kvf_status_info *kvf_status_at(unsigned i)
{
  return i < TABLE_COUNT ? &table[i] : NULL;
}
