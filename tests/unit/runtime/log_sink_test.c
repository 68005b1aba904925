/* The queue of log lines between a node's threads and its log. */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "runtime/log_sink.h"
#include "test.h"

typedef struct book {
  pthread_mutex_t gate; /* whoever holds it keeps the writer waiting */
  atomic_uint begun;
  uint32_t lines;
  char first[64];
  char last[64];
  kvf_log_level last_level;
} book;

static void write_down(void *context, kvf_log_level level, const char *line)
{
  book *b = context;
  atomic_fetch_add(&b->begun, 1);
  (void)pthread_mutex_lock(&b->gate);
  if (b->lines == 0) {
    (void)snprintf(b->first, sizeof(b->first), "%s", line);
  }
  (void)snprintf(b->last, sizeof(b->last), "%s", line);
  b->last_level = level;
  b->lines++;
  (void)pthread_mutex_unlock(&b->gate);
}

static const kvf_thread_cpus anywhere = {0};

static kvf_log_sink *open_sink(book *b)
{
  kvf_log_sink *sink;
  *b = (book){0};
  assert_int_equal(pthread_mutex_init(&b->gate, NULL), 0);
  assert_int_equal(kvf_log_sink_open(write_down, b, &anywhere, &sink), KVF_OK);
  return sink;
}

static void put_numbered(kvf_log_sink *sink, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    char text[32];
    (void)snprintf(text, sizeof(text), "line %u", i);
    kvf_log_sink_put(sink, KVF_LOG_INFO, text);
  }
}

TEST(lines_come_in_order_and_whole)
{
  book b;
  char text[] = "one";
  kvf_log_sink *sink = open_sink(&b);
  kvf_log_sink_put(sink, KVF_LOG_WARN, text);
  text[0] = 'X'; /* a copy is kept */
  kvf_log_sink_put(sink, KVF_LOG_INFO, "two");
  kvf_log_sink_close(sink);
  assert_int_equal(b.lines, 2);
  assert_string_equal(b.first, "one");
  assert_string_equal(b.last, "two");
  assert_int_equal(b.last_level, KVF_LOG_INFO);
}

/* P6: whoever logs does not wait for who reads, and what waits is bounded. */
TEST(lines_that_wait_are_bounded)
{
  book b;
  kvf_log_sink *sink = open_sink(&b);
  for (uint32_t round = 0; round < 3; round++) {
    atomic_store(&b.begun, 0);
    b.lines = 0;
    (void)pthread_mutex_lock(&b.gate);
    kvf_log_sink_put(sink, KVF_LOG_INFO, "stuck");
    while (atomic_load(&b.begun) == 0) {
      sleep_ms(1);
    }
    put_numbered(sink, KVF_LOG_SINK_LINES_MAX - 1 + 36); /* the one that is being written has its place still */
    assert_int_equal(kvf_log_sink_dropped(sink), 36 * (round + 1));
    (void)pthread_mutex_unlock(&b.gate);
    while (atomic_load(&b.begun) < KVF_LOG_SINK_LINES_MAX + 1) {
      sleep_ms(1);
    }
    (void)pthread_mutex_lock(&b.gate);
    (void)pthread_mutex_unlock(&b.gate);
  }
  kvf_log_sink_close(sink);
  assert_int_equal(b.lines, KVF_LOG_SINK_LINES_MAX + 1);
  assert_string_equal(b.first, "stuck");
  assert_string_equal(b.last, "36 lines were left out");
  assert_int_equal(b.last_level, KVF_LOG_WARN);
}

/* ---- standard error ---- */

static int error_before;

/* Standard error is a pipe from here to give_back(); returns its other end. */
static int take_stderr(bool full)
{
  int ends[2];
  char filler[4096] = {0};
  assert_int_equal(pipe(ends), 0);
  if (full) {
    assert_int_equal(fcntl(ends[1], F_SETFL, O_NONBLOCK), 0);
    while (write(ends[1], filler, sizeof(filler)) > 0 || write(ends[1], filler, 1) > 0) {
    }
    assert_int_equal(fcntl(ends[1], F_SETFL, 0), 0);
  }
  error_before = dup(STDERR_FILENO);
  assert_true(error_before >= 0);
  assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  (void)close(ends[1]);
  return ends[0];
}

static void give_back(void)
{
  assert_int_equal(dup2(error_before, STDERR_FILENO), STDERR_FILENO);
  (void)close(error_before);
}

TEST(without_a_function_lines_go_to_standard_error)
{
  kvf_log_sink *sink;
  char text[256] = {0};
  int end = take_stderr(false);
  assert_int_equal(kvf_log_sink_open(NULL, NULL, &anywhere, &sink), KVF_OK);
  for (kvf_log_level level = KVF_LOG_ERROR; level <= KVF_LOG_DEBUG; level++) {
    kvf_log_sink_put(sink, level, "text");
  }
  kvf_log_sink_close(sink);
  give_back();
  ssize_t bytes = read(end, text, sizeof(text) - 1);
  (void)close(end);
  assert_true(bytes > 0);
  assert_string_equal(text, "kvferry error: text\nkvferry warn: text\nkvferry info: text\nkvferry debug: text\n");
}

TEST(stalled_standard_error_is_left_behind)
{
  kvf_log_sink *sink;
  int end = take_stderr(true);
  assert_int_equal(kvf_log_sink_open(NULL, NULL, &anywhere, &sink), KVF_OK);
  put_numbered(sink, 10);
  const uint64_t began_ms = now_ms();
  kvf_log_sink_close(sink);
  const uint64_t took_ms = now_ms() - began_ms;
  give_back();
  (void)close(end); /* the thread's write fails, and it frees the sink */
  assert_true(took_ms >= KVF_LOG_SINK_CLOSE_MS && took_ms < KVF_LOG_SINK_CLOSE_MS + 5000);
  sleep_ms(20); /* for the sanitizer's sake */
}
