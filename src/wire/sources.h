/* Sources: several tickets in one text, joined by ','. They are of the same prompt, each at another producer, the
 * preferred one first. Each is signed by itself, so that joining them needs no key. Any thread.
 */
#ifndef KVF_WIRE_SOURCES_H
#define KVF_WIRE_SOURCES_H

#include "wire/ticket.h"

typedef struct kvf_sources {
  uint32_t count;        /* 1 to KVF_SOURCES_MAX */
  uint32_t unread;       /* tickets beside these of another release's version, or of another key */
  kvf_status unread_why; /* of the first: KVF_INCOMPATIBLE or KVF_OTHER_KEY; of no meaning without any */
  kvf_ticket *tickets[KVF_SOURCES_MAX];
  uint64_t digests[KVF_SOURCES_MAX]; /* kvf_sources_digest(); of no meaning before */
} kvf_sources;

/* Takes a text of tickets. If one was altered or forged, the text is refused. A ticket that cannot be read is left out
 * if another one can be read. For while a fleet changes its release or key, engines of both run side by side. On
 * success give *out back with kvf_sources_free(); it is unchanged on failure. KVF_BAD_TICKET: also more than
 * KVF_SOURCES_MAX tickets, or an empty one. KVF_INCOMPATIBLE, KVF_OTHER_KEY: none can be read; this is the first one's
 * reason. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_sources_decode(const char *text, size_t text_bytes, const kvf_mac *macs, size_t macs_count,
                                           kvf_sources *out);

/* What the fence of each source must say. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_sources_digest(kvf_sources *sources);

/* Whether a load of what `ticket` offers can go on from `other`: the same positions, and a block at each that has one.
 */
bool kvf_source_can_replace(const kvf_ticket *ticket, const kvf_ticket *other);

/* Frees the tickets. Does nothing the second time. */
void kvf_sources_free(kvf_sources *sources);

#endif
