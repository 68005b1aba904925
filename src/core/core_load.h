/* Loads: one after the other of their sources is tried. */
#ifndef KVF_CORE_CORE_LOAD_H
#define KVF_CORE_CORE_LOAD_H

#include "core/core_state.h"

/* `sources` have been decoded with the node's key, and have their digests. */
KVF_MUST_USE kvf_status kvf_core_load_start(kvf_core *core, uint64_t now_ns, const kvf_sources *sources,
                                            const kvf_load *load);
kvf_status kvf_core_load_abort(kvf_core *core, uint64_t now_ns, uint64_t request_id);

/* ---- for core.c ---- */

/* Takes one event of the load machine; false: it has none. */
bool kvf_core_take_load_event(kvf_core *core, uint64_t now_ns);
bool kvf_core_next_load_event(kvf_core *core, uint64_t now_ns, kvf_event *out);
void kvf_core_load_on_timer(kvf_core *core, kvf_core_load *load);

/* No other source is tried. */
void kvf_core_load_give_up(kvf_core *core, kvf_core_load *load);
/* It holds no peers. */
void kvf_core_load_free(kvf_core *core, kvf_core_load *load);

#endif
