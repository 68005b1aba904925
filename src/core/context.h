/* What the machines share: what a node knows of itself, its timers and its connections. */
#ifndef KVF_CORE_CONTEXT_H
#define KVF_CORE_CONTEXT_H

#include "base/crypto.h"
#include "base/fence.h"
#include "base/log.h"
#include "base/wheel.h"
#include "core/conn.h"
#include "wire/handshake_message.h"
#include "wire/ticket.h"

#define KVF_LOG_LINES_PER_S 5

/* What the timers of the node's wheel are part of. */
enum {
  KVF_TIMER_SESSION,
  KVF_TIMER_PEER,
  KVF_TIMER_STATIC,
  KVF_TIMER_ATTACHMENT,
  KVF_TIMER_REQUEST,
  KVF_TIMER_GUEST,
  KVF_TIMER_LOAD,
  KVF_TIMER_SLICE
};

/* Nonces, tokens and ids from a secret that the runtime draws from the operating system: SHA-256 in counter mode. So
 * the core needs no I/O, and a simulated world can be replayed from its secret. The copies of a process (a virtual
 * machine's snapshot) have the same secret and counter. So the runtime stirs the secret before it draws a value that a
 * stranger could replay. */
typedef struct kvf_entropy {
  uint8_t secret[KVF_HASH_BYTES];
  uint64_t counter;
} kvf_entropy;

/* What is drawn from now on depends on these bytes, too. */
void kvf_entropy_stir(kvf_entropy *entropy, const uint8_t fresh[KVF_HASH_BYTES]);

/* Writes `bytes` (at most KVF_HASH_BYTES) that nobody without the secret can foretell. */
KVF_MUST_USE kvf_status kvf_entropy_draw(kvf_entropy *entropy, void *out, size_t bytes);

/* Tickets that were of no use here, and sources of others. */
typedef struct kvf_ticket_counters {
  uint64_t bad;
  uint64_t other_key; /* signed with another key */
  uint64_t incompatible;
  uint64_t sources_left_out;
} kvf_ticket_counters;

/* Who this node is, and what it has in common with those that it talks to. Constant. */
typedef struct kvf_self {
  kvf_incarnation incarnation;
  kvf_key key;
  kvf_key other_key;          /* bytes == 0: none */
  kvf_mac macs[KVF_KEYS_MAX]; /* of the keys, ours first */
  uint32_t macs_count;
  uint8_t compat[KVF_HASH_BYTES];                   /* kvf_context_compat() */
  kvf_ticket_field fields[KVF_IDENTITY_FIELDS_MAX]; /* kvf_context_fields() */
  uint32_t groups;                                  /* 0: any number, all alike */
  uint32_t group_tokens[KVF_GROUPS_MAX];
} kvf_self;

typedef struct kvf_context {
  kvf_config config; /* constant, but for lease_linger_ms when the node drains */
  kvf_self self;
  kvf_wheel wheel; /* of all timers but the leases' */
  kvf_conns conns;
  kvf_entropy entropy;
  kvf_logger logger;
  kvf_log_limit log_limit;
  kvf_ticket_counters tickets;
} kvf_context;

/* Logs a decision, at most KVF_LOG_LINES_PER_S a second for each reason and peer; the next line that is written says
 * how many were left out. `peer` is any number that tells peers apart. */
__attribute__((format(printf, 6, 7))) void kvf_context_log(kvf_context *context, uint64_t now_ns, kvf_status reason,
                                                           uint64_t peer, kvf_log_level level, const char *format, ...);

/* The hash of the identity fields, the same for any order of setting them. */
KVF_MUST_USE kvf_status kvf_context_compat(const kvf_config *config, uint8_t out[KVF_HASH_BYTES]);

/* What tickets say of the identity fields, in the order of config->identity. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_context_fields(const kvf_config *config, kvf_ticket_field out[KVF_IDENTITY_FIELDS_MAX]);

/* Whether a peer's identity fields are ours. If not, `difference` (KVF_MESSAGE_BYTES_MAX) names the first field. */
bool kvf_context_matches(const kvf_context *context, const kvf_identity_field *fields, uint32_t count,
                         char *difference);

/* As kvf_context_matches(), where there is only the ticket of a producer whose identity is not ours. The short hashes
 * may hide the difference, or tell another one: `difference` is for people. */
void kvf_context_name_difference(const kvf_context *context, const kvf_ticket *ticket,
                                 char difference[KVF_MESSAGE_BYTES_MAX]);

#endif
