/* What becomes of a log line on its way to the sink, and how many a second there may be. */
#include "base/log.h"
#include "test.h"

#define SECOND_NS UINT64_C(1000000000)

typedef struct sink {
  unsigned lines;
  kvf_log_level level;
  char last[KVF_LOG_LINE_BYTES_MAX];
} sink;

static void take(void *context, kvf_log_level level, const char *line)
{
  sink *to = context;
  assert_true(strlen(line) < sizeof(to->last));
  to->lines++;
  to->level = level;
  memcpy(to->last, line, strlen(line) + 1);
}

TEST(line_is_formatted)
{
  sink to = {0};
  const kvf_logger logger = {.fn = take, .context = &to, .level = KVF_LOG_INFO};
  kvf_log(&logger, KVF_LOG_WARN, "lease %d of %s", 7, "peer");
  assert_string_equal(to.last, "lease 7 of peer");
  assert_int_equal(to.level, KVF_LOG_WARN);
}

TEST(level_decides)
{
  sink to = {0};
  const kvf_logger logger = {.fn = take, .context = &to, .level = KVF_LOG_INFO};
  kvf_log(&logger, KVF_LOG_DEBUG, "not written");
  assert_int_equal(to.lines, 0);
  kvf_log(&logger, KVF_LOG_INFO, "written");
  assert_int_equal(to.lines, 1);
}

TEST(no_sink_is_fine)
{
  const kvf_logger logger = {.fn = NULL, .level = KVF_LOG_DEBUG};
  kvf_log(&logger, KVF_LOG_ERROR, "nowhere");
}

TEST(long_line_is_cut_visibly)
{
  sink to = {0};
  const kvf_logger logger = {.fn = take, .context = &to, .level = KVF_LOG_INFO};
  kvf_log(&logger, KVF_LOG_INFO, "%0512d", 1);
  assert_int_equal(strlen(to.last), 511);
  assert_string_equal(to.last + 508, "...");
  kvf_log(&logger, KVF_LOG_INFO, "%0511d", 1);
  assert_string_equal(to.last + 508, "001");
}

TEST(control_characters_are_replaced)
{
  sink to = {0};
  const kvf_logger logger = {.fn = take, .context = &to, .level = KVF_LOG_INFO};
  kvf_log(&logger, KVF_LOG_INFO, "%s", "a\nb\r\x1b[2J\x7f\tz");
  assert_string_equal(to.last, "a?b??[2J??z");
}

TEST(utf8_stays_but_for_its_controls)
{
  char text[] = "caf\xc3\xa9 \xc2\xa0 \xc2\x9b!";
  kvf_log_clean(text);
  assert_string_equal(text, "caf\xc3\xa9 \xc2\xa0 ?\x9b!");
}

TEST(limit_counts_what_it_leaves_out)
{
  kvf_log_limit limit = {.lines_per_s = 2};
  uint32_t left_out = 99;
  assert_true(kvf_log_limit_allows(&limit, 5, 100, &left_out));
  assert_int_equal(left_out, 0);
  assert_true(kvf_log_limit_allows(&limit, 5, 100, &left_out));
  left_out = 99;
  for (int i = 0; i < 3; i++) {
    assert_false(kvf_log_limit_allows(&limit, 5, 101, &left_out));
  }
  assert_int_equal(left_out, 99);
  assert_false(kvf_log_limit_allows(&limit, 5, SECOND_NS - 1, &left_out));
  assert_true(kvf_log_limit_allows(&limit, 5, SECOND_NS + 100, &left_out));
  assert_int_equal(left_out, 4);
  assert_true(kvf_log_limit_allows(&limit, 5, SECOND_NS + 101, &left_out));
  assert_int_equal(left_out, 0);
  assert_false(kvf_log_limit_allows(&limit, 5, SECOND_NS + 102, &left_out));
}

TEST(keys_have_limits_of_their_own)
{
  kvf_log_limit limit = {.lines_per_s = 1};
  uint32_t left_out = 0;
  assert_true(kvf_log_limit_allows(&limit, 1, 0, &left_out));
  assert_false(kvf_log_limit_allows(&limit, 1, 0, &left_out));
  assert_true(kvf_log_limit_allows(&limit, 2, 0, &left_out));
}

/* Two keys in one slot: each one's first line is written, and both together cannot write without end. */
TEST(keys_of_one_slot_do_not_silence_each_other)
{
  kvf_log_limit limit = {.lines_per_s = 1};
  uint32_t left_out = 0;
  uint32_t written = 0;
  assert_true(kvf_log_limit_allows(&limit, 1, 0, &left_out));
  assert_false(kvf_log_limit_allows(&limit, 1, 0, &left_out));
  assert_true(kvf_log_limit_allows(&limit, 1 + KVF_LOG_LIMIT_SLOTS, 0, &left_out));
  assert_int_equal(left_out, 1);
  for (uint32_t i = 0; i < 1000; i++) {
    written += kvf_log_limit_allows(&limit, 1 + i % 2 * KVF_LOG_LIMIT_SLOTS, 0, &left_out);
  }
  assert_int_equal(written, KVF_LOG_LIMIT_SLOTS - 2);
}

/* ---- requests ---- */

static void assert_name(const char *given, const char *expected)
{
  char name[KVF_REQUEST_NAME_BYTES_MAX];
  kvf_log_copy_name(name, given);
  assert_string_equal(name, expected);
}

TEST(names_are_cut_and_cleaned)
{
  char longest[KVF_REQUEST_NAME_BYTES_MAX];
  char longer[2 * KVF_REQUEST_NAME_BYTES_MAX];
  char cut[KVF_REQUEST_NAME_BYTES_MAX];
  memset(longest, 'a', sizeof(longest));
  memset(longer, 'a', sizeof(longer));
  memset(cut, 'a', sizeof(cut));
  longest[sizeof(longest) - 1] = longer[sizeof(longer) - 1] = '\0';
  memcpy(cut + sizeof(cut) - 4, "...", 4);
  assert_name(NULL, "");
  assert_name("", "");
  assert_name("cmpl-8cf87847-0-974a438f", "cmpl-8cf87847-0-974a438f");
  assert_name("a\nb\x1b[31m\x7f\xc2\x9b", "a?b?[31m??\x9b");
  assert_name(longest, longest);
  assert_name(longer, cut);
  longest[sizeof(longest) - 1] = 'a'; /* it has no end in sight */
  assert_name(longest, cut);
}

static void assert_prefix(uint64_t id, const char *name, const char *expected)
{
  assert_string_equal(kvf_log_request_prefix((kvf_log_request){.id = id, .name = name}).text, expected);
}

TEST(lines_begin_with_their_request)
{
  char longest[2 * KVF_REQUEST_NAME_BYTES_MAX];
  memset(longest, 'a', sizeof(longest));
  assert_prefix(0, NULL, "");
  assert_prefix(7, NULL, "request 7: ");
  assert_prefix(7, "", "request 7: ");
  assert_prefix(0, "cmpl-1", "request cmpl-1: ");
  assert_prefix(7, "cmpl-1\n", "request cmpl-1? (7): ");
  const kvf_log_prefix prefix = kvf_log_request_prefix((kvf_log_request){.id = UINT64_MAX, .name = longest});
  assert_string_equal(prefix.text + strlen(prefix.text) - 28, "... (18446744073709551615): ");
}
