/* The queue of log lines, and the thread that writes them, or those of a kvf_log_queue that nobody takes. */
#include "runtime/log_sink.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/list.h"
#include "base/status.h"

#define STDERR_LINE_BYTES_MAX (KVF_LOG_LINE_BYTES_MAX + 96)

typedef struct log_line {
  kvf_list link;
  kvf_log_level level;
  uint64_t put_ns;
  char text[];
} log_line;

struct kvf_log_queue {
  kvf_log_fn fn; /* constant */
  void *context; /* constant */
  bool is_taken; /* constant: lines are for kvf_log_queue_take() */
  pid_t owner;   /* constant: a forked child has only a copy of it */
  pthread_t thread;

  pthread_mutex_t lock; /* of what follows; innermost */
  pthread_cond_t work;  /* for the thread */
  pthread_cond_t taker; /* for kvf_log_queue_wait() */
  pthread_cond_t done;  /* for those who wait for the end of all lines, or of the thread */
  kvf_list lines;
  uint64_t taken_ns; /* when one was taken last */
  bool in_hand;      /* the thread that took it may still be busy with it */
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

static const char *level_name(kvf_log_level level)
{
  static const char *const names[] = {"error", "warn", "info", "debug"};
  return names[level];
}

/* Not by stdio: its lock would be held while the write waits, and exit() takes that. */
static void write_to_stderr(const char *line, size_t bytes)
{
  for (size_t at = 0; at < bytes;) {
    ssize_t written = write(STDERR_FILENO, line + at, bytes - at);
    if (written < 0 && errno != EINTR && !(errno == EAGAIN && wait_for_room())) {
      return;
    }
    at += written < 0 ? 0 : (size_t)written;
  }
}

/* The time of day at which it was put, in UTC. */
static void format_time(uint64_t put_ns, char *out, size_t bytes)
{
  struct timespec now;
  struct tm parts;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  const uint64_t now_ns = (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
  const uint64_t then_ns = now_ns - kvf_time_until(put_ns, kvf_clock_now());
  const time_t then_s = (time_t)(then_ns / KVF_NS_PER_S);
  char date[32] = "";
  (void)strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", gmtime_r(&then_s, &parts));
  (void)snprintf(out, bytes, "%s.%03uZ", date, (unsigned)(then_ns % KVF_NS_PER_S / KVF_NS_PER_MS));
}

/* A line that was meant for another log says what it would have had there. */
static void write_line(const kvf_log_sink *sink, const log_line *line)
{
  char text[STDERR_LINE_BYTES_MAX];
  if (sink->fn != NULL) {
    sink->fn(sink->context, line->level, line->text);
    return;
  }
  char at[64] = "";
  char from[96] = "";
  if (sink->is_taken) {
    format_time(line->put_ns, at, sizeof(at));
    (void)snprintf(from, sizeof(from), " %s pid %d", at, (int)sink->owner);
  }
  int length = snprintf(text, sizeof(text), "kvferry %s%s: %s\n", level_name(line->level), from, line->text);
  write_to_stderr(text, (size_t)length < sizeof(text) ? (size_t)length : sizeof(text) - 1);
}

static log_line *make_line(kvf_log_level level, const char *text)
{
  const size_t bytes = strlen(text) + 1;
  log_line *line = malloc(sizeof(*line) + bytes);
  if (line != NULL) {
    kvf_list_init(&line->link);
    line->level = level;
    line->put_ns = kvf_clock_now();
    memcpy(line->text, text, bytes);
  }
  return line;
}

/* ---- with the lock ---- */

static bool has_next(const kvf_log_sink *sink)
{
  return !kvf_list_is_empty(&sink->lines) || sink->reported < sink->dropped;
}

/* Where there is one. Dropped lines are told of after those that came before them. NULL: no memory to tell of them. */
static log_line *pop_next(kvf_log_sink *sink)
{
  char text[64];
  kvf_list *node = kvf_list_pop_front(&sink->lines);
  if (node != NULL) {
    return KVF_CONTAINER_OF(node, log_line, link);
  }
  (void)snprintf(text, sizeof(text), "%" PRIu64 " lines were left out", sink->dropped - sink->reported);
  sink->reported = sink->dropped;
  return make_line(KVF_LOG_WARN, text);
}

/* From when on the thread writes the next line. */
static uint64_t write_due_ns(const kvf_log_sink *sink)
{
  if (!has_next(sink)) {
    return KVF_TIME_NEVER;
  }
  if (!sink->is_taken || sink->closing) {
    return 0;
  }
  uint64_t since_ns = sink->taken_ns;
  if (!kvf_list_is_empty(&sink->lines)) {
    const uint64_t put_ns = KVF_CONTAINER_OF(sink->lines.next, log_line, link)->put_ns;
    since_ns = put_ns > since_ns ? put_ns : since_ns;
  }
  return kvf_time_add(since_ns, KVF_LOG_QUEUE_UNTAKEN_MS * KVF_NS_PER_MS);
}

/* The lock is given up meanwhile. A line that is being written has its place still. */
static void write_next(kvf_log_sink *sink)
{
  const bool has_place = !kvf_list_is_empty(&sink->lines);
  log_line *line = pop_next(sink);
  (void)pthread_mutex_unlock(&sink->lock);
  if (line != NULL) {
    write_line(sink, line);
    free(line);
  }
  (void)pthread_mutex_lock(&sink->lock);
  sink->count -= has_place;
  (void)pthread_cond_broadcast(&sink->done);
}

/* False: the time is over. */
static bool wait_until(kvf_log_sink *sink, pthread_cond_t *condition, uint64_t until_ns)
{
  const struct timespec until = {.tv_sec = (time_t)(until_ns / KVF_NS_PER_S),
                                 .tv_nsec = (long)(until_ns % KVF_NS_PER_S)};
  return until_ns == KVF_TIME_NEVER ? pthread_cond_wait(condition, &sink->lock) == 0
                                    : pthread_cond_timedwait(condition, &sink->lock, &until) != ETIMEDOUT;
}

/* ---- the thread ---- */

static void free_sink(kvf_log_sink *sink)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(&sink->lines)) != NULL) {
    free(KVF_CONTAINER_OF(node, log_line, link));
  }
  (void)pthread_cond_destroy(&sink->done);
  (void)pthread_cond_destroy(&sink->taker);
  (void)pthread_cond_destroy(&sink->work);
  (void)pthread_mutex_destroy(&sink->lock);
  free(sink);
}

static void *run(void *context)
{
  kvf_log_sink *sink = context;
  (void)pthread_mutex_lock(&sink->lock);
  while (!sink->abandoned && !(sink->closing && !has_next(sink))) {
    const uint64_t due_ns = write_due_ns(sink);
    if (due_ns == 0 || due_ns <= kvf_clock_now()) {
      write_next(sink);
    } else {
      (void)wait_until(sink, &sink->work, due_ns);
    }
  }
  const bool abandoned = sink->abandoned;
  sink->ended = true;
  (void)pthread_cond_broadcast(&sink->done);
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
  (void)pthread_cond_init(&sink->taker, &attributes);
  (void)pthread_cond_init(&sink->done, &attributes);
  (void)pthread_condattr_destroy(&attributes);
}

static kvf_status open_sink(kvf_log_fn fn, void *context, bool is_taken, const kvf_thread_cpus *cpus,
                            kvf_log_sink **out)
{
  *out = NULL;
  kvf_log_sink *sink = calloc(1, sizeof(*sink));
  if (sink == NULL) {
    return KVF_NO_MEMORY;
  }
  sink->fn = fn;
  sink->context = context;
  sink->is_taken = is_taken;
  sink->owner = getpid();
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

kvf_status kvf_log_sink_open(kvf_log_fn fn, void *context, const kvf_thread_cpus *cpus, kvf_log_sink **out)
{
  return open_sink(fn, context, false, cpus, out);
}

/* With the lock: until the thread has ended, or the time is over. */
static void wait_for_end(kvf_log_sink *sink)
{
  const uint64_t until_ns = kvf_time_add(kvf_clock_now(), KVF_LOG_SINK_CLOSE_MS * KVF_NS_PER_MS);
  while (!sink->ended && wait_until(sink, &sink->done, until_ns)) {
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

bool kvf_log_sink_put(kvf_log_sink *sink, kvf_log_level level, const char *text)
{
  log_line *line = make_line(level, text);
  (void)pthread_mutex_lock(&sink->lock);
  const bool had_next = has_next(sink);
  const bool has_room = line != NULL && sink->count < KVF_LOG_SINK_LINES_MAX;
  if (has_room) {
    sink->count++;
    kvf_list_push_back(&sink->lines, &line->link);
  } else {
    sink->dropped++;
  }
  if (!had_next) { /* else the thread that takes or writes lines does not sleep, or knows until when */
    (void)pthread_cond_signal(&sink->work);
    (void)pthread_cond_signal(&sink->taker);
  }
  (void)pthread_mutex_unlock(&sink->lock);
  if (!has_room) {
    free(line);
  }
  return has_room;
}

void kvf_log_sink_leave(kvf_log_sink *sink)
{
  if (sink == NULL || !sink->is_taken) {
    kvf_log_sink_close(sink);
    return;
  }
  const uint64_t wait_ns = (KVF_LOG_QUEUE_UNTAKEN_MS + KVF_LOG_SINK_CLOSE_MS) * KVF_NS_PER_MS;
  const uint64_t until_ns = kvf_time_add(kvf_clock_now(), wait_ns);
  (void)pthread_mutex_lock(&sink->lock);
  while ((has_next(sink) || sink->count > 0 || sink->in_hand) && wait_until(sink, &sink->done, until_ns)) {
  }
  (void)pthread_mutex_unlock(&sink->lock);
}

/* ---- kvf_log_queue ---- */

kvf_status kvf_log_queue_open(kvf_log_queue **out)
{
  const kvf_thread_cpus anywhere = {0};
  const kvf_status status = KVF_NOT_NULL(out);
  return kvf_answer(status == KVF_OK ? open_sink(NULL, NULL, true, &anywhere, out) : status);
}

void kvf_log_queue_close(kvf_log_queue *queue)
{
  if (queue != NULL && queue->owner == getpid()) {
    kvf_log_sink_close(queue);
  }
}

bool kvf_log_queue_wait(kvf_log_queue *queue, uint32_t timeout_ms)
{
  const uint64_t until_ns = kvf_time_add(kvf_clock_now(), kvf_ms_to_ns(timeout_ms));
  (void)pthread_mutex_lock(&queue->lock);
  queue->in_hand = false;
  (void)pthread_cond_broadcast(&queue->done);
  while (!has_next(queue) && wait_until(queue, &queue->taker, until_ns)) {
  }
  const bool has_line = has_next(queue);
  (void)pthread_mutex_unlock(&queue->lock);
  return has_line;
}

bool kvf_log_queue_take(kvf_log_queue *queue, kvf_log_level *level, char text[KVF_LOG_LINE_BYTES_MAX])
{
  (void)pthread_mutex_lock(&queue->lock);
  const bool has_place = !kvf_list_is_empty(&queue->lines);
  log_line *line = has_next(queue) ? pop_next(queue) : NULL;
  if (line != NULL) {
    queue->count -= has_place;
    queue->taken_ns = kvf_clock_now();
    queue->in_hand = true;
  }
  (void)pthread_mutex_unlock(&queue->lock);
  if (line == NULL) {
    return false;
  }
  *level = line->level;
  (void)snprintf(text, KVF_LOG_LINE_BYTES_MAX, "%s", line->text);
  free(line);
  return true;
}
