#include "runtime/log_sink.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct log_line {
  kvf_list link;
  kvf_log_level level;
  char text[];
} log_line;

void kvf_log_sink_init(kvf_log_sink *sink, kvf_log_fn fn, void *context)
{
  *sink = (kvf_log_sink){.fn = fn, .context = context};
  kvf_list_init(&sink->lines);
}

void kvf_log_sink_collect(void *context, kvf_log_level level, const char *line)
{
  kvf_log_sink *sink = context;
  size_t bytes = strlen(line) + 1;
  log_line *copy = sink->count < KVF_LOG_SINK_LINES_MAX ? malloc(sizeof(*copy) + bytes) : NULL;
  if (copy == NULL) {
    sink->dropped++;
    return;
  }
  kvf_list_init(&copy->link);
  copy->level = level;
  memcpy(copy->text, line, bytes);
  kvf_list_push_back(&sink->lines, &copy->link);
  sink->count++;
}

void kvf_log_sink_take(kvf_log_sink *sink, kvf_list *lines)
{
  kvf_list *node;
  kvf_list_init(lines);
  if (sink->dropped > 0) {
    char text[64];
    (void)snprintf(text, sizeof(text), "%u lines were left out", sink->dropped);
    sink->dropped = 0;
    sink->count = 0;
    kvf_log_sink_collect(sink, KVF_LOG_WARN, text);
  }
  while ((node = kvf_list_pop_front(&sink->lines)) != NULL) {
    kvf_list_push_back(lines, node);
  }
  sink->count = 0;
}

void kvf_log_sink_write_line(const kvf_log_sink *sink, kvf_log_level level, const char *line)
{
  static const char *const names[] = {"error", "warn", "info", "debug"};
  if (sink->fn != NULL) {
    sink->fn(sink->context, level, line);
  } else {
    (void)fprintf(stderr, "kvferry %s: %s\n", names[level], line);
  }
}

void kvf_log_sink_write(const kvf_log_sink *sink, kvf_list *lines)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(lines)) != NULL) {
    log_line *line = KVF_CONTAINER_OF(node, log_line, link);
    kvf_log_sink_write_line(sink, line->level, line->text);
    free(line);
  }
}
