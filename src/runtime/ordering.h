/* What waits for an ordering point: publications, and loads. A thread of its own asks the points' kind of memory again
 * and again, and tells the core: nobody else waits, and no engine's thread is needed. There is one while memory is
 * registered whose kind knows such points.
 */
#ifndef KVF_RUNTIME_ORDERING_H
#define KVF_RUNTIME_ORDERING_H

#include "memory/memory.h"
#include "runtime/checksummer.h"

/* How often they are asked. */
#define KVF_ORDERING_POLL_NS UINT64_C(50000)

/* What waits for one: a publication, or a load. */
typedef struct kvf_ordered {
  kvf_list in_list;
  uint64_t point; /* its number: 0 for a publication, whose lease's id is never used again */
  uint64_t request_id;
  kvf_lease lease;
  kvf_checksummer_job *job; /* of a publication: its blocks' checksums are made first; NULL: there are none */
  const kvf_memory_ops *ops;
  void *mark;
} kvf_ordered;

/* *out is the thread; NULL: no region of node->regions has a kind that knows ordering points. KVF_NO_MEMORY.
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
