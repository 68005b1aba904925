/* A look at a peer's process before its memory is read: whether it is there, may be read, and is the one that described
 * itself; and the import of its memory. The kernel may keep whoever looks waiting, so each look has a thread of its
 * own, which nobody waits for. */
#ifndef KVF_TRANSPORT_LOCAL_CHECK_H
#define KVF_TRANSPORT_LOCAL_CHECK_H

#include "transport/local/description.h"
#include "transport/thread.h"

/* Looks under way in this process, those included that were abandoned and are stuck: all, and at one process. */
#define KVF_LOCAL_CHECKS_MAX 64
#define KVF_LOCAL_CHECKS_OF_ONE_MAX 8

typedef struct kvf_local_check kvf_local_check;

/* `remote` and `exports` go with the description, and are copied. `wake_fd`, an eventfd, becomes readable when it is
 * done; it may be closed before. KVF_LIMIT: too many are under way. KVF_NO_MEMORY, KVF_SYSTEM: no descriptor or thread
 * left, as the message says. */
KVF_MUST_USE kvf_status kvf_local_check_start(const kvf_local_description *description, const kvf_region_layout *remote,
                                              kvf_memory_exports exports, int wake_fd, const kvf_thread_cpus *cpus,
                                              kvf_local_check **out, char *message);
bool kvf_local_check_is_done(kvf_local_check *check);
/* Of one that is done: what it found, and the end of it. If KVF_OK, *pidfd, *fence (kvf_fence_table_close(), NULL:
 * it cannot be mapped) and the imports (kvf_memory_release(), one for each of `remote`) are the caller's; else
 * KVF_TRANSFER_SETUP with a message. */
KVF_MUST_USE kvf_status kvf_local_check_take(kvf_local_check *check, int *pidfd, void **fence,
                                             kvf_memory_import *imports, char *message);
/* Nobody wants to know any more; it ends by itself. NULL is allowed. */
void kvf_local_check_abandon(kvf_local_check *check);

#endif
