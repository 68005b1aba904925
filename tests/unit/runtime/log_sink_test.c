#include <unistd.h>

#include "runtime/log_sink.h"
#include "test.h"

typedef struct book {
  uint32_t lines;
  char first[64];
  char last[64];
  kvf_log_level last_level;
} book;

static void write_down(void *context, kvf_log_level level, const char *line)
{
  book *b = context;
  if (b->lines == 0) {
    (void)snprintf(b->first, sizeof(b->first), "%s", line);
  }
  (void)snprintf(b->last, sizeof(b->last), "%s", line);
  b->last_level = level;
  b->lines++;
}

static void flush(kvf_log_sink *sink)
{
  kvf_list lines;
  kvf_log_sink_take(sink, &lines);
  assert_true(kvf_list_is_empty(&sink->lines));
  kvf_log_sink_write(sink, &lines);
  assert_true(kvf_list_is_empty(&lines));
}

TEST(lines_wait_until_they_are_taken)
{
  kvf_log_sink sink;
  book b = {0};
  char text[] = "one";
  kvf_log_sink_init(&sink, write_down, &b);
  kvf_log_sink_collect(&sink, KVF_LOG_WARN, text);
  text[0] = 'X'; /* a copy is kept */
  kvf_log_sink_collect(&sink, KVF_LOG_INFO, "two");
  assert_int_equal(b.lines, 0);
  flush(&sink);
  assert_int_equal(b.lines, 2);
  assert_string_equal(b.first, "one");
  assert_string_equal(b.last, "two");
  assert_int_equal(b.last_level, KVF_LOG_INFO);
  flush(&sink);
  assert_int_equal(b.lines, 2);
}

/* P6 */
TEST(lines_that_wait_are_bounded)
{
  kvf_log_sink sink;
  book b = {0};
  kvf_log_sink_init(&sink, write_down, &b);
  for (int i = 0; i < KVF_LOG_SINK_LINES_MAX + 36; i++) {
    char text[32];
    (void)snprintf(text, sizeof(text), "line %d", i);
    kvf_log_sink_collect(&sink, KVF_LOG_INFO, text);
  }
  flush(&sink);
  assert_int_equal(b.lines, KVF_LOG_SINK_LINES_MAX + 1);
  assert_string_equal(b.first, "line 0");
  assert_string_equal(b.last, "36 lines were left out");
  assert_int_equal(b.last_level, KVF_LOG_WARN);
}

TEST(places_are_free_again_after_a_flush)
{
  kvf_log_sink sink;
  book b = {0};
  kvf_log_sink_init(&sink, write_down, &b);
  for (int round = 0; round < 3; round++) {
    b.lines = 0;
    for (int i = 0; i < KVF_LOG_SINK_LINES_MAX; i++) {
      kvf_log_sink_collect(&sink, KVF_LOG_INFO, "line");
    }
    flush(&sink);
    assert_int_equal(b.lines, KVF_LOG_SINK_LINES_MAX);
    assert_int_equal(sink.dropped, 0);
  }
}

TEST(one_line_goes_out_at_once)
{
  kvf_log_sink sink;
  book b = {0};
  kvf_log_sink_init(&sink, write_down, &b);
  kvf_log_sink_write_line(&sink, KVF_LOG_ERROR, "now");
  assert_string_equal(b.last, "now");
  assert_int_equal(b.last_level, KVF_LOG_ERROR);
}

TEST(without_a_function_lines_go_to_standard_error)
{
  kvf_log_sink sink;
  char text[256] = {0};
  int ends[2];
  assert_int_equal(pipe(ends), 0);
  int before = dup(STDERR_FILENO);
  assert_true(before >= 0);
  assert_int_equal(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  kvf_log_sink_init(&sink, NULL, NULL);
  for (kvf_log_level level = KVF_LOG_ERROR; level <= KVF_LOG_DEBUG; level++) {
    kvf_log_sink_collect(&sink, level, "text");
  }
  flush(&sink);
  (void)fflush(stderr);
  assert_int_equal(dup2(before, STDERR_FILENO), STDERR_FILENO);
  (void)close(before);
  (void)close(ends[1]);
  ssize_t bytes = read(ends[0], text, sizeof(text) - 1);
  (void)close(ends[0]);
  assert_true(bytes > 0);
  assert_string_equal(text, "kvferry error: text\nkvferry warn: text\nkvferry info: text\nkvferry debug: text\n");
}
