/* What the files of the core share: core.c (life, producer, time), core_load.c (starting and aborting loads),
 * core_attempt.c (their attempts and events), core_route.c, core_stats.c. */
#ifndef KVF_CORE_CORE_INTERNAL_H
#define KVF_CORE_CORE_INTERNAL_H

#include "core/core.h"

/* The load of this request, until its quiet has been taken; NULL: there is none. */
kvf_core_load *kvf_core_find_load(const kvf_core *core, uint64_t request_id);

/* Starts an attempt of the load at one source, for the wanted blocks beyond load->report.prefix. */
KVF_MUST_USE kvf_status kvf_core_attempt(kvf_core *core, uint64_t now_ns, kvf_core_load *load, const kvf_ticket *ticket,
                                         uint64_t digest, const uint32_t *destination);

/* Hears one word of the load machine; false: it has none. */
bool kvf_core_take_load_event(kvf_core *core, uint64_t now_ns);
bool kvf_core_next_load_event(kvf_core *core, uint64_t now_ns, kvf_event *out);
void kvf_core_load_on_timer(kvf_core *core, kvf_core_load *load);

/* No other source is tried. */
void kvf_core_load_give_up(kvf_core *core, kvf_core_load *load);
/* It holds no peers. */
void kvf_core_load_free(kvf_core *core, kvf_core_load *load);

#endif
