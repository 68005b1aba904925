/* How grave a status is; kvf_report_merge() of kvferry/consumer.h builds on it. */
#ifndef KVF_CORE_MERGE_H
#define KVF_CORE_MERGE_H

#include "kvferry/consumer.h"

/* The graver of the two, by one total order over all ints: statuses after which recomputing is unsafe are graver than
 * all others (so that a merge never hides one), then by what was lost, then by value. */
int kvf_status_gravest(int a, int b);

#endif
