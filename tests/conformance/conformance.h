/* Where transports may differ, for the cases of the conformance suite. */
#ifndef KVF_TESTS_CONFORMANCE_CONFORMANCE_H
#define KVF_TESTS_CONFORMANCE_CONFORMANCE_H

#include "../sides/side.h"
#include "test.h"

/* Of the suite that this program is, which the build names; what its sides are is in under_test. */
typedef struct conformance_traits {
  bool producer_checks;        /* a read of a lease that is not live or not known is refused before any byte, and a
                                * connection must show the session's key */
  bool reads_stopped_producer; /* nothing of the producer but its memory is needed */
  bool looks_first;            /* a read of other memory than the link is for moves no byte */
  bool is_slow;                /* fewer rounds of what is one round trip after the other */
  bool has_peers;              /* the cases of peers that come and go are run */
  bool has_faults;             /* it is a fault transport: the cases of cases_fault.c are run too */
} conformance_traits;

conformance_traits suite_traits(void);

/* Cases add themselves. */
#define PEER_TEST(name) TEST_IF(suite_traits().has_peers, name, NULL, sides_close)
#define FAULT_TEST(name) TEST_IF(suite_traits().has_faults, name, NULL, sides_close)

#endif
