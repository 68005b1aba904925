/* Publications and loads that wait for an ordering point, and the thread that tells the core. This thread runs while
 * memory is registered whose kind knows such points.
 */
#ifndef KVF_RUNTIME_ORDERING_H
#define KVF_RUNTIME_ORDERING_H

#include "memory/points.h"
#include "runtime/checksummer.h"

/* What waits for one: a publication, or a load. */
typedef struct kvf_ordered {
  kvf_point point;
  uint64_t number; /* of a load's point: kvf_core_on_point(); 0: a publication */
  uint64_t request_id;
  kvf_lease lease;
  kvf_checksummer_job *job; /* of a publication: its blocks' checksums are made first; NULL: there are none */
} kvf_ordered;

/* *out is the thread; NULL: no region of node->memory.regions has a kind that knows ordering points. KVF_NO_MEMORY.
 * KVF_SYSTEM: no thread. */
KVF_MUST_USE kvf_status kvf_ordering_open(kvf_node *node, kvf_ordering **out);
/* When this returns nobody is told any more; what waited is dropped. Not under the node's lock. NULL is allowed. */
void kvf_ordering_close(kvf_ordering *ordering);

/* Notes the point, without the node's lock. *out is NULL if there is nothing to wait for: `point` is NULL, or complete
 * already. KVF_INVALID: its kind has none such. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_ordered_make(const kvf_ordering_point *point, kvf_ordered **out);
/* NULL is allowed. */
void kvf_ordered_free(kvf_ordered *ordered);

/* Takes it over: the core is told when its point is complete. Under the node's lock. */
void kvf_ordering_submit(kvf_ordering *ordering, kvf_ordered *ordered);

#endif
