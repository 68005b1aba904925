/* What the files of the core share: core.c (life, producer, time), core_load.c, core_route.c, core_stats.c. */
#ifndef KVF_CORE_CORE_INTERNAL_H
#define KVF_CORE_CORE_INTERNAL_H

#include "core/core.h"

/* The load is over: lets go of the peers that it held, and frees the list. */
void kvf_core_release_peers(kvf_core *core, uint64_t now_ns, kvf_load_peers *held);

#endif
