/* Log lines on their way out. The sink's thread writes them, because their reader may stall: a full pipe, a stopped
 * terminal. No other thread waits for that. A kvf_log_queue (config.h) is a sink too: the program takes its lines, and
 * its thread writes those that are not taken. */
#ifndef KVF_RUNTIME_LOG_SINK_H
#define KVF_RUNTIME_LOG_SINK_H

#include <stddef.h>

#include "base/log.h"
#include "kvferry/status.h"
#include "transport/thread.h"

/* Lines that may wait at once; more are dropped and counted. */
#define KVF_LOG_SINK_LINES_MAX 1024
/* How long kvf_log_sink_close() waits for a stalled standard error. */
#define KVF_LOG_SINK_CLOSE_MS 1000

typedef struct kvf_log_queue kvf_log_sink;

/* `fn` is the user's; NULL: standard error. `cpus` are its thread's. KVF_NO_MEMORY, KVF_SYSTEM: no thread. */
KVF_MUST_USE kvf_status kvf_log_sink_open(kvf_log_fn fn, void *context, const kvf_thread_cpus *cpus,
                                          kvf_log_sink **out);
/* Writes what waits, then frees the sink: it waits for `fn`, whose context may go after this. What a stalled standard
 * error does not take in time is lost. NULL is allowed. */
void kvf_log_sink_close(kvf_log_sink *sink);

/* Of a node that goes: closes a sink; of a kvf_log_queue waits until all its lines are out, for a bounded time. */
void kvf_log_sink_leave(kvf_log_sink *sink);

/* Keeps a copy of the line. False: there is no room, and it is dropped. Any thread, under any lock; never waits for
 * what is being written. */
bool kvf_log_sink_put(kvf_log_sink *sink, kvf_log_level level, const char *text);

#endif
