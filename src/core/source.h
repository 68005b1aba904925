/* The sources of a ticket's text, for requests and loads: which of them are for this engine and this prompt. Also the
 * order in which a load tries them. Check them before acting on any of them.
 *
 * A load reads each source in turn. Then it tries each source with replicated heads once more, with the heads from
 * other ranks. There is no third try: if two ranks of an engine are lost, a third one will hardly answer, and the
 * deadline is for all.
 */
#ifndef KVF_CORE_SOURCE_H
#define KVF_CORE_SOURCE_H

#include "core/context.h"
#include "core/pool.h"
#include "wire/sources.h"

/* Which of these sources, whose MACs have been checked, are for this engine and this prompt, and offer what the first
 * of those does. *good borrows the tickets. KVF_INCOMPATIBLE, KVF_BAD_TICKET: none; what is wrong with the first. */
KVF_MUST_USE kvf_status kvf_sources_judge(kvf_context *context, uint64_t now_ns, kvf_log_request request,
                                          const kvf_sources *all, const kvf_prompt *prompt, kvf_sources *good);

/* See kvf_core_ticket_refused(). */
void kvf_sources_refused(kvf_context *context, uint64_t now_ns, kvf_log_request request, kvf_status status);

/* One reading of one source. */
typedef struct kvf_attempt {
  const kvf_ticket *ticket;
  uint64_t digest;
  const uint32_t *destination; /* block ids */
  bool is_again;               /* from other replicas */
} kvf_attempt;

/* Those of one load. */
typedef struct kvf_attempts {
  uint32_t next; /* after the first, which needs nothing of this */
  uint32_t count;
  kvf_attempt all[2 * KVF_SOURCES_MAX];
  kvf_ticket tickets[]; /* copies, with what they point to */
} kvf_attempts;

/* Copies what the attempts after the first need, for a rank that has this pool, in one allocation, to be freed with
 * free(). *out is NULL if there are none, and unchanged on failure. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_attempts_keep(const kvf_sources *sources, const kvf_pool *pool,
                                          const kvf_blocks *destination, kvf_attempts **out);

/* `attempts` may be NULL. */
bool kvf_attempts_has_next(const kvf_attempts *attempts);
/* Only where kvf_attempts_has_next(). */
kvf_attempt kvf_attempts_next(kvf_attempts *attempts);

#endif
