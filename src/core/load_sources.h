/* What one load may be read from, in the order in which that is tried: each source of its ticket; then, where heads are
 * replicated over a source's ranks, each such source once more, with the heads from others of its ranks. Not more
 * often: of an engine that has lost two ranks no third one is expected to answer, and the deadline is for all.
 */
#ifndef KVF_CORE_LOAD_SOURCES_H
#define KVF_CORE_LOAD_SOURCES_H

#include "core/pool.h"
#include "wire/sources.h"

/* An attempt to come. */
typedef struct kvf_load_source {
  const kvf_ticket *ticket;
  uint64_t digest;
  bool is_again; /* from other replicas */
} kvf_load_source;

typedef struct kvf_load_sources {
  uint32_t count;                       /* of tickets, and of the next */
  uint64_t digests[KVF_SOURCES_MAX];    /* kvf_sources_digest() */
  uint32_t next;                        /* attempt */
  uint32_t attempts;                    /* there are */
  uint32_t replicated[KVF_SOURCES_MAX]; /* sources that have a second attempt */
  const uint32_t *destination;          /* ids; a copy, as what the tickets point to */
  kvf_ticket tickets[];
} kvf_load_sources;

/* Copies what the attempts after the first need, for a rank that has this pool, in one allocation, to be freed with
 * free(). *out is set on success only. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_load_sources_keep(const kvf_sources *sources, const kvf_pool *pool,
                                              const kvf_blocks *destination, kvf_load_sources **out);

/* `kept` may be NULL. */
bool kvf_load_sources_has_next(const kvf_load_sources *kept);
/* There is one. */
kvf_load_source kvf_load_sources_next(kvf_load_sources *kept);
/* There is none any more. */
void kvf_load_sources_end(kvf_load_sources *kept);

#endif
