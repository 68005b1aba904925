/* uthash, told to report a failed allocation instead of ending the process: after a HASH_ADD, `item->handle.tbl` is
 * NULL if there was no memory. */
#ifndef KVF_CORE_HASH_H
#define KVF_CORE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#endif
