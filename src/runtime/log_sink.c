/* The thread that writes log lines. */
#include "runtime/log_sink.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/list.h"

typedef struct log_line {
  kvf_list link;
  kvf_log_level level;
  char text[];
} log_line;

struct kvf_log_sink {
  kvf_log_fn fn; /* constant */
  void *context; /* constant */
  pthread_t thread;

  pthread_mutex_t lock; /* of what follows; innermost */
  pthread_cond_t work;
  pthread_cond_t done;
  kvf_list lines;
  uint32_t count;
  uint64_t dropped;
  uint64_t reported; /* of the dropped ones */
  bool closing;
  bool ended;     /* the thread has nothing left to write */
  bool abandoned; /* nobody waits for the thread: it frees the sink */
};

static bool wait_for_room(void)
{
  struct pollfd room = {.fd = STDERR_FILENO, .events = POLLOUT};
  return poll(&room, 1, -1) == 1 && (room.revents & POLLOUT) != 0;
}

/* Not by stdio: its lock would be held while the write waits, and exit() takes that. */
static void write_to_stderr(kvf_log_level level, const char *text)
{
  static const char *const names[] = {"error", "warn", "info", "debug"};
  char line[KVF_LOG_LINE_BYTES_MAX + 32];
  int length = snprintf(line, sizeof(line), "kvferry %s: %s\n", names[level], text);
  size_t bytes = (size_t)length < sizeof(line) ? (size_t)length : sizeof(line) - 1;
  for (size_t at = 0; at < bytes;) {
    ssize_t written = write(STDERR_FILENO, line + at, bytes - at);
    if (written < 0 && errno != EINTR && !(errno == EAGAIN && wait_for_room())) {
      return;
    }
    at += written < 0 ? 0 : (size_t)written;
  }
}

static void write_line(const kvf_log_sink *sink, kvf_log_level level, const char *text)
{
  if (sink->fn != NULL) {
    sink->fn(sink->context, level, text);
  } else {
    write_to_stderr(level, text);
  }
}

/* With the lock, which it gives up meanwhile. Dropped lines are told of after those that came before them. */
static void write_next(kvf_log_sink *sink)
{
  kvf_list *node = kvf_list_pop_front(&sink->lines);
  uint64_t unreported = node == NULL ? sink->dropped - sink->reported : 0;
  sink->reported += unreported;
  (void)pthread_mutex_unlock(&sink->lock);
  if (node != NULL) {
    log_line *line = KVF_CONTAINER_OF(node, log_line, link);
    write_line(sink, line->level, line->text);
    free(line);
  } else {
    char text[64];
    (void)snprintf(text, sizeof(text), "%" PRIu64 " lines were left out", unreported);
    write_line(sink, KVF_LOG_WARN, text);
  }
  (void)pthread_mutex_lock(&sink->lock);
  sink->count -= node != NULL ? 1 : 0;
}

static void free_sink(kvf_log_sink *sink)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(&sink->lines)) != NULL) {
    free(KVF_CONTAINER_OF(node, log_line, link));
  }
  (void)pthread_cond_destroy(&sink->done);
  (void)pthread_cond_destroy(&sink->work);
  (void)pthread_mutex_destroy(&sink->lock);
  free(sink);
}

static void *run(void *context)
{
  kvf_log_sink *sink = context;
  (void)pthread_mutex_lock(&sink->lock);
  while (!sink->abandoned) {
    if (!kvf_list_is_empty(&sink->lines) || sink->reported < sink->dropped) {
      write_next(sink);
    } else if (sink->closing) {
      break;
    } else {
      (void)pthread_cond_wait(&sink->work, &sink->lock);
    }
  }
  const bool abandoned = sink->abandoned;
  sink->ended = true;
  (void)pthread_cond_signal(&sink->done);
  (void)pthread_mutex_unlock(&sink->lock);
  if (abandoned) {
    free_sink(sink);
  }
  return NULL;
}

static void init_conditions(kvf_log_sink *sink)
{
  pthread_condattr_t attributes;
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&sink->work, &attributes);
  (void)pthread_cond_init(&sink->done, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

kvf_status kvf_log_sink_open(kvf_log_fn fn, void *context, const kvf_thread_cpus *cpus, kvf_log_sink **out)
{
  *out = NULL;
  kvf_log_sink *sink = calloc(1, sizeof(*sink));
  if (sink == NULL) {
    return KVF_NO_MEMORY;
  }
  sink->fn = fn;
  sink->context = context;
  kvf_list_init(&sink->lines);
  (void)pthread_mutex_init(&sink->lock, NULL);
  init_conditions(sink);
  if (kvf_thread_start(&sink->thread, "kvf-log", run, sink, cpus) != 0) {
    free_sink(sink);
    return KVF_SYSTEM;
  }
  *out = sink;
  return KVF_OK;
}

/* With the lock: until the thread has ended, or the time is over. */
static void wait_for_end(kvf_log_sink *sink)
{
  const uint64_t until_ns = kvf_time_add(kvf_clock_now(), KVF_LOG_SINK_CLOSE_MS * KVF_NS_PER_MS);
  const struct timespec until = {.tv_sec = (time_t)(until_ns / KVF_NS_PER_S),
                                 .tv_nsec = (long)(until_ns % KVF_NS_PER_S)};
  while (!sink->ended && pthread_cond_timedwait(&sink->done, &sink->lock, &until) != ETIMEDOUT) {
  }
}

void kvf_log_sink_close(kvf_log_sink *sink)
{
  if (sink == NULL) {
    return;
  }
  (void)pthread_mutex_lock(&sink->lock);
  sink->closing = true;
  (void)pthread_cond_signal(&sink->work);
  if (sink->fn == NULL) {
    wait_for_end(sink);
    sink->abandoned = !sink->ended;
  }
  const bool abandoned = sink->abandoned;
  const pthread_t thread = sink->thread;
  (void)pthread_mutex_unlock(&sink->lock);
  if (abandoned) {
    (void)pthread_detach(thread);
  } else {
    (void)pthread_join(thread, NULL);
    free_sink(sink);
  }
}

void kvf_log_sink_put(void *context, kvf_log_level level, const char *line)
{
  kvf_log_sink *sink = context;
  size_t bytes = strlen(line) + 1;
  log_line *copy = malloc(sizeof(*copy) + bytes);
  if (copy != NULL) {
    kvf_list_init(&copy->link);
    copy->level = level;
    memcpy(copy->text, line, bytes);
  }
  (void)pthread_mutex_lock(&sink->lock);
  if (copy != NULL && sink->count < KVF_LOG_SINK_LINES_MAX) {
    sink->count++;
    kvf_list_push_back(&sink->lines, &copy->link);
    copy = NULL;
  } else {
    sink->dropped++;
  }
  (void)pthread_cond_signal(&sink->work);
  (void)pthread_mutex_unlock(&sink->lock);
  free(copy);
}

uint64_t kvf_log_sink_dropped(kvf_log_sink *sink)
{
  (void)pthread_mutex_lock(&sink->lock);
  uint64_t dropped = sink->dropped;
  (void)pthread_mutex_unlock(&sink->lock);
  return dropped;
}
