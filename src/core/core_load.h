/* What core.c needs of core_load.c. */
#ifndef KVF_CORE_CORE_LOAD_H
#define KVF_CORE_CORE_LOAD_H

#include "core/core.h"

/* Takes one event of the load machine; false: it has none. */
bool kvf_core_take_load_event(kvf_core *core, uint64_t now_ns);
bool kvf_core_next_load_event(kvf_core *core, uint64_t now_ns, kvf_event *out);
void kvf_core_load_on_timer(kvf_core *core, kvf_core_load *load);

/* No other source is tried. */
void kvf_core_load_give_up(kvf_core *core, kvf_core_load *load);
/* It holds no peers. */
void kvf_core_load_free(kvf_core *core, kvf_core_load *load);

#endif
