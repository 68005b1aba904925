/* What is always true of a recovery table between two calls. Without assertions nothing happens. */
#ifndef KVF_RECOVERY_RECOVERY_CHECK_H
#define KVF_RECOVERY_RECOVERY_CHECK_H

#include "kvferry/recovery.h"

/* Costs time in its entries and blocks. */
void kvf_recovery_check(const kvf_recovery *recovery);

#endif
