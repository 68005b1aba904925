/* Log lines on their way out: collected under the node's lock, written when it has been let go. */
#ifndef KVF_RUNTIME_LOG_SINK_H
#define KVF_RUNTIME_LOG_SINK_H

#include "base/list.h"
#include "base/log.h"

/* Lines that may wait at once; more are dropped and counted. */
#define KVF_LOG_SINK_LINES_MAX 64

typedef struct kvf_log_sink {
  kvf_log_fn fn; /* the user's; NULL: standard error */
  void *context;
  kvf_list lines;
  uint32_t count;
  uint32_t dropped;
} kvf_log_sink;

void kvf_log_sink_init(kvf_log_sink *sink, kvf_log_fn fn, void *context);

/* A kvf_log_fn with a kvf_log_sink as context: keeps a copy of the line. */
void kvf_log_sink_collect(void *context, kvf_log_level level, const char *line);

/* Takes the lines that wait into *lines (to be called under the lock), then writes and frees them (under none). */
void kvf_log_sink_take(kvf_log_sink *sink, kvf_list *lines);
void kvf_log_sink_write(const kvf_log_sink *sink, kvf_list *lines);

/* Writes one line at once. */
void kvf_log_sink_write_line(const kvf_log_sink *sink, kvf_log_level level, const char *line);

#endif
