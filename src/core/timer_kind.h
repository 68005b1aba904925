/* What the timers of the node's wheel are part of. */
#ifndef KVF_CORE_TIMER_KIND_H
#define KVF_CORE_TIMER_KIND_H

enum { KVF_TIMER_SESSION = 1, KVF_TIMER_PEER = 2, KVF_TIMER_REQUEST = 3, KVF_TIMER_LOAD = 4 };

#endif
