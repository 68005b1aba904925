/* Where transports may differ. */
#ifndef KVF_TESTS_CONFORMANCE_SUITE_H
#define KVF_TESTS_CONFORMANCE_SUITE_H

#include "transport/transport.h"

typedef struct conformance_traits {
  const kvf_transport_ops *ops;
  bool producer_checks_lease;   /* a read of a lease that is not live or not known is refused before any byte */
  bool producer_checks_session; /* a connection must show the session's key */
  bool reads_stopped_producer;  /* nothing of the producer but its memory is needed */
  bool has_sums;                /* both sides have checksums */
  bool is_slow;                 /* fewer rounds of what is one round trip after the other */
  bool has_no_peers;            /* the cases of peers that come and go are left out */
  bool is_inside_tls;           /* all connections */
  bool has_faults;              /* it is a fault transport: the cases of cases_fault.c are run too */
} conformance_traits;

#endif
