/* Where a status stands in the table: for arrays of counters by reason. */
#ifndef KVF_BASE_STATUS_H
#define KVF_BASE_STATUS_H

#include "kvferry/status.h"

/* The i for which kvf_status_at(i) describes `status`; that of KVF_INVALID for a value that is none. */
unsigned kvf_status_index(int status);

#endif
