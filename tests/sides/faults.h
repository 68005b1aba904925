/* A transport around another one that does to it, and to whoever uses it, what networks, kernels and peers may do, and
 * keeps the contract of transport/transport.h all the while. Without a plan it does nothing but pass everything on.
 *
 * What may happen is chosen by one plan for the whole process, since a transport's operations have no context. A
 * program that is linked with --wrap of the three transports has these in their place, in whole nodes too. */
#ifndef KVF_TESTS_SIDES_FAULTS_H
#define KVF_TESTS_SIDES_FAULTS_H

#include "transport/transport.h"

typedef enum fault_kind {
  FAULT_NONE,
  FAULT_LATE,    /* the completion is told later than it came */
  FAULT_FAIL,    /* the read is carried out, and then said to have failed */
  FAULT_REFUSE,  /* the read fails without having begun */
  FAULT_STALL,   /* the read does not begin: only a cancel, or the link's end, ends it */
  FAULT_NO_STOP, /* a cancel is passed on late: bytes land in between */
  FAULT_KINDS
} fault_kind;

typedef struct fault_plan {
  uint64_t seed;
  uint32_t permille[FAULT_KINDS]; /* of reads; the rest is passed on */
  uint32_t late_us_max;           /* of LATE and NO_STOP */
  kvf_status status;              /* of FAIL and REFUSE; KVF_OK: any of fault_statuses[] */
  uint32_t down_after; /* each link goes down at its n-th event: begun reads, cancels and completions; 0: never */

  /* What these operations say instead of being carried out; KVF_OK: they are. */
  kvf_status open;
  kvf_status set_memory;
  kvf_status describe;
  kvf_status connect;
  kvf_status link_up;     /* the outcome of connecting */
  uint32_t link_up_us;    /* how much later that outcome is told */
  bool describes_garbage; /* a bit of each description is wrong */
} fault_plan;

/* What reads of transports end with, and what they ought not to. */
extern const kvf_status fault_statuses[];
extern const size_t fault_statuses_count;

#define fault_transport_local __wrap_kvf_transport_local
#define fault_transport_tcp __wrap_kvf_transport_tcp
#define fault_transport_ucx __wrap_kvf_transport_ucx
extern const kvf_transport_ops fault_transport_local;
extern const kvf_transport_ops fault_transport_tcp;
extern const kvf_transport_ops fault_transport_ucx;
/* What they stand around; with --wrap the program sets them to the real ones. */
extern const kvf_transport_ops *fault_inner_local;
extern const kvf_transport_ops *fault_inner_tcp;
extern const kvf_transport_ops *fault_inner_ucx;

/* From here on; NULL: pass everything on. */
void fault_plan_set(const fault_plan *plan);

#endif
