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

/* Returns how many of them have been dropped. */
static uint32_t put_numbered(kvf_log_sink *sink, uint32_t count)
{
  uint32_t dropped = 0;
  for (uint32_t i = 0; i < count; i++) {
    char text[32];
    (void)snprintf(text, sizeof(text), "line %u", i);
    dropped += !kvf_log_sink_put(sink, KVF_LOG_INFO, text);
  }
  return dropped;
}

TEST(lines_come_in_order_and_whole)
{
  book b;
  char text[] = "one";
  kvf_log_sink *sink = open_sink(&b);
  assert_true(kvf_log_sink_put(sink, KVF_LOG_WARN, text));
  text[0] = 'X'; /* a copy is kept */
  assert_true(kvf_log_sink_put(sink, KVF_LOG_INFO, "two"));
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
    assert_true(kvf_log_sink_put(sink, KVF_LOG_INFO, "stuck"));
    while (atomic_load(&b.begun) == 0) {
      sleep_ms(1);
    }
    /* The one that is being written has its place still. */
    assert_int_equal(put_numbered(sink, KVF_LOG_SINK_LINES_MAX - 1 + 36), 36);
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

/* Closes the other end. */
static void give_back(int end)
{
  assert_int_equal(dup2(error_before, STDERR_FILENO), STDERR_FILENO);
  (void)close(error_before);
  (void)close(end);
}

TEST(without_a_function_lines_go_to_standard_error)
{
  kvf_log_sink *sink;
  char text[256] = {0};
  int end = take_stderr(false);
  assert_int_equal(kvf_log_sink_open(NULL, NULL, &anywhere, &sink), KVF_OK);
  for (kvf_log_level level = KVF_LOG_ERROR; level <= KVF_LOG_DEBUG; level++) {
    assert_true(kvf_log_sink_put(sink, level, "text"));
  }
  kvf_log_sink_close(sink);
  ssize_t bytes = read(end, text, sizeof(text) - 1);
  give_back(end);
  assert_true(bytes > 0);
  assert_string_equal(text, "kvferry error: text\nkvferry warn: text\nkvferry info: text\nkvferry debug: text\n");
}

TEST(stalled_standard_error_is_left_behind)
{
  kvf_log_sink *sink;
  int end = take_stderr(true);
  assert_int_equal(kvf_log_sink_open(NULL, NULL, &anywhere, &sink), KVF_OK);
  assert_int_equal(put_numbered(sink, 10), 0);
  const uint64_t began_ms = now_ms();
  kvf_log_sink_close(sink);
  const uint64_t took_ms = now_ms() - began_ms;
  give_back(end); /* the thread's write fails, and it frees the sink */
  assert_true(took_ms >= KVF_LOG_SINK_CLOSE_MS && took_ms < KVF_LOG_SINK_CLOSE_MS + 5000);
  sleep_ms(20); /* for the sanitizer's sake */
}

/* ---- lines that are taken ---- */

static kvf_log_queue *queue;

static void open_queue(void)
{
  assert_int_equal(kvf_log_queue_open(&queue), KVF_OK);
}

static void close_queue(void)
{
  kvf_log_queue_close(queue);
  queue = NULL;
}

#define QUEUE_TEST(name) TEST_WITH(name, open_queue, close_queue)

/* Takes a line, which must be this one. */
static void assert_taken(kvf_log_level level, const char *text)
{
  char line[KVF_LOG_LINE_BYTES_MAX];
  kvf_log_level found = KVF_LOG_DEBUG;
  assert_true(kvf_log_queue_take(queue, &found, line));
  assert_string_equal(line, text);
  assert_int_equal(found, level);
}

static void assert_nothing_to_take(void)
{
  char line[KVF_LOG_LINE_BYTES_MAX];
  kvf_log_level level = KVF_LOG_DEBUG;
  assert_false(kvf_log_queue_take(queue, &level, line));
}

QUEUE_TEST(lines_are_taken_in_order)
{
  char long_text[2 * KVF_LOG_LINE_BYTES_MAX];
  char cut[KVF_LOG_LINE_BYTES_MAX];
  memset(long_text, 'x', sizeof(long_text) - 1);
  long_text[sizeof(long_text) - 1] = '\0';
  memcpy(cut, long_text, sizeof(cut) - 1);
  cut[sizeof(cut) - 1] = '\0';
  assert_int_equal(kvf_log_queue_open(NULL), KVF_INVALID);
  assert_nothing_to_take();
  assert_false(kvf_log_queue_wait(queue, 1));
  assert_true(kvf_log_sink_put(queue, KVF_LOG_WARN, "one"));
  assert_true(kvf_log_sink_put(queue, KVF_LOG_INFO, "two"));
  assert_true(kvf_log_sink_put(queue, KVF_LOG_INFO, long_text));
  assert_true(kvf_log_queue_wait(queue, 10000));
  assert_true(kvf_log_queue_wait(queue, 10000)); /* it leaves them there */
  assert_taken(KVF_LOG_WARN, "one");
  assert_taken(KVF_LOG_INFO, "two");
  assert_taken(KVF_LOG_INFO, cut);
  assert_nothing_to_take();
  kvf_log_queue_close(NULL);
}

/* P6: what waits to be taken is bounded, and what is dropped is counted and told. */
QUEUE_TEST(lines_that_wait_to_be_taken_are_bounded)
{
  char text[32];
  for (uint32_t round = 0; round < 3; round++) {
    assert_int_equal(put_numbered(queue, KVF_LOG_SINK_LINES_MAX + 7), 7);
    assert_taken(KVF_LOG_INFO, "line 0");
    assert_true(kvf_log_sink_put(queue, KVF_LOG_ERROR, "room again"));
    for (uint32_t i = 1; i < KVF_LOG_SINK_LINES_MAX; i++) {
      (void)snprintf(text, sizeof(text), "line %u", i);
      assert_taken(KVF_LOG_INFO, text);
    }
    assert_taken(KVF_LOG_ERROR, "room again");
    assert_taken(KVF_LOG_WARN, "7 lines were left out");
    assert_nothing_to_take();
  }
}

/* What is read at the other end of standard error until it holds `expected` lines, or a while has passed. */
static void read_lines(int end, uint32_t expected, char *text, size_t bytes)
{
  size_t used = 0;
  const uint64_t until_ms = now_ms() + 20000;
  assert_int_equal(fcntl(end, F_SETFL, O_NONBLOCK), 0);
  for (uint32_t lines = 0; lines < expected && now_ms() < until_ms;) {
    const ssize_t got = read(end, text + used, bytes - 1 - used);
    used += got > 0 ? (size_t)got : 0;
    text[used] = '\0';
    lines = 0;
    for (const char *at = strchr(text, '\n'); at != NULL; at = strchr(at + 1, '\n')) {
      lines++;
    }
    sleep_ms(1);
  }
}

/* "kvferry LEVEL 2026-11-29T14:34:38.123Z pid 1: TEXT", and what follows it. */
static const char *assert_written(const char *at, const char *level, const char *text)
{
  char word[16];
  char date[32];
  int pid = 0;
  int used = 0;
  assert_int_equal(sscanf(at, "kvferry %15s %31s pid %d: %n", word, date, &pid, &used), 3);
  assert_string_equal(word, level);
  assert_int_equal(strlen(date), strlen("2026-11-29T14:34:38.123Z"));
  assert_true(date[10] == 'T' && date[19] == '.' && date[23] == 'Z');
  assert_int_equal(pid, (int)getpid());
  assert_int_equal(strncmp(at + used, text, strlen(text)), 0);
  assert_int_equal(at[(size_t)used + strlen(text)], '\n');
  return at + used + strlen(text) + 1;
}

/* P6: whoever should take them hangs: they are not lost, and come in order; and it may come back. */
QUEUE_TEST(lines_that_nobody_takes_go_to_standard_error)
{
  char text[1024] = {0};
  int end = take_stderr(false);
  assert_true(kvf_log_sink_put(queue, KVF_LOG_WARN, "taken"));
  assert_true(kvf_log_queue_wait(queue, 10000));
  assert_taken(KVF_LOG_WARN, "taken");
  const uint64_t began_ms = now_ms();
  assert_true(kvf_log_sink_put(queue, KVF_LOG_WARN, "one"));
  assert_true(kvf_log_sink_put(queue, KVF_LOG_ERROR, "two"));
  read_lines(end, 2, text, sizeof(text));
  const double took_s = (double)(now_ms() - began_ms) / 1000;
  assert_true(kvf_log_sink_put(queue, KVF_LOG_INFO, "three"));
  assert_true(kvf_log_queue_wait(queue, 10000));
  assert_taken(KVF_LOG_INFO, "three");
  give_back(end);
  const char *second = assert_written(text, "warn", "one");
  assert_string_equal(assert_written(second, "error", "two"), "");
  assert_true(took_s >= KVF_LOG_QUEUE_UNTAKEN_MS / 1000.0);
}

/* Where one is taken now and then, the others wait for their turn, however long. */
QUEUE_TEST(lines_wait_while_others_are_taken)
{
  assert_int_equal(put_numbered(queue, 6), 0);
  for (uint32_t i = 0; i < 6; i++) {
    char text[32];
    (void)snprintf(text, sizeof(text), "line %u", i);
    assert_taken(KVF_LOG_INFO, text);
    sleep_ms(i < 5 ? KVF_LOG_QUEUE_UNTAKEN_MS / 4 : 0);
  }
}

typedef struct taker {
  atomic_bool stop;
  uint32_t taken;
} taker;

static void *take_all(void *context)
{
  taker *t = context;
  char line[KVF_LOG_LINE_BYTES_MAX];
  kvf_log_level level = KVF_LOG_DEBUG;
  while (!atomic_load(&t->stop)) {
    if (kvf_log_queue_wait(queue, 10) && kvf_log_queue_take(queue, &level, line)) {
      sleep_ms(1); /* the log is slow */
      t->taken++;
    }
  }
  return NULL;
}

QUEUE_TEST(who_leaves_waits_until_its_lines_are_out)
{
  pthread_t thread;
  taker t = {.taken = 0};
  assert_int_equal(put_numbered(queue, 50), 0);
  assert_int_equal(pthread_create(&thread, NULL, take_all, &t), 0);
  kvf_log_sink_leave(queue);
  assert_nothing_to_take();
  atomic_store(&t.stop, true);
  (void)pthread_join(thread, NULL);
  assert_int_equal(t.taken, 50);
  kvf_log_sink_leave(queue); /* at once */
}

/* P6: nor does it wait for ever where nobody takes them. */
QUEUE_TEST(who_leaves_a_queue_that_nobody_empties_waits_for_a_bounded_time)
{
  int end = take_stderr(false);
  const uint64_t began_ms = now_ms();
  assert_int_equal(put_numbered(queue, 5), 0);
  kvf_log_sink_leave(queue);
  const double took_s = (double)(now_ms() - began_ms) / 1000;
  give_back(end);
  assert_true(took_s >= KVF_LOG_QUEUE_UNTAKEN_MS / 1000.0 && took_s < KVF_LOG_QUEUE_UNTAKEN_MS / 1000.0 + 5);
}

QUEUE_TEST(what_is_left_goes_to_standard_error_when_the_queue_is_closed)
{
  char text[1024] = {0};
  int end = take_stderr(false);
  const uint64_t began_ms = now_ms();
  assert_true(kvf_log_sink_put(queue, KVF_LOG_ERROR, "last words"));
  close_queue();
  const double took_s = (double)(now_ms() - began_ms) / 1000;
  read_lines(end, 1, text, sizeof(text));
  give_back(end);
  (void)assert_written(text, "error", "last words");
  assert_true(took_s < KVF_LOG_QUEUE_UNTAKEN_MS / 1000.0);
}
