/* What the library itself needs of statuses. */
#ifndef KVF_BASE_STATUS_H
#define KVF_BASE_STATUS_H

#include "kvferry/types.h"

/* Writes why into `message` (KVF_MESSAGE_BYTES_MAX), clean of control characters, and returns `status`. */
__attribute__((format(printf, 3, 4))) kvf_status kvf_fail(kvf_status status, char *message, const char *format, ...);

/* Where it stands in the table, for arrays of counters by reason: the i for which kvf_status_at(i) describes `status`;
 * that of KVF_INVALID for a value that is none. */
unsigned kvf_status_index(int status);

#endif
