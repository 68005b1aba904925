#include "core/context.h"
#include "base/time.h"
#include "test.h"

#define S KVF_NS_PER_S

static kvf_config with_fields(const char *const (*fields)[2], size_t count)
{
  kvf_config config;
  kvf_config_init(&config);
  for (size_t i = 0; i < count; i++) {
    assert_int_equal(kvf_config_identity(&config, fields[i][0], fields[i][1]), KVF_OK);
  }
  return config;
}

static void hash_of(const char *const (*fields)[2], size_t count, uint8_t out[KVF_HASH_BYTES])
{
  kvf_config config = with_fields(fields, count);
  assert_int_equal(kvf_context_compat(&config, out), KVF_OK);
}

TEST(hash_is_of_the_set)
{
  static const char *const one[][2] = {{"dtype", "f16"}, {"model", "m"}, {"layers", "32"}};
  static const char *const two[][2] = {{"layers", "32"}, {"dtype", "f16"}, {"model", "m"}};
  uint8_t hash_one[KVF_HASH_BYTES];
  uint8_t hash_two[KVF_HASH_BYTES];
  hash_of(one, 3, hash_one);
  hash_of(two, 3, hash_two);
  assert_memory_equal(hash_one, hash_two, sizeof(hash_one));
}

/* Neither a value, nor a name, nor where one ends and the other begins may be changed unseen. */
TEST(hash_tells_sets_apart)
{
  static const char *const sets[][2][2] = {
      {{"a", "bc"}, {"d", "e"}}, {{"ab", "c"}, {"d", "e"}}, {{"a", "bc"}, {"d", "f"}},
      {{"a", "bc"}, {"e", "d"}}, {{"a", "b"}, {"cd", "e"}}, {{"a", "e"}, {"d", "bc"}},
  };
  uint8_t hashes[sizeof(sets) / sizeof(sets[0])][KVF_HASH_BYTES];
  for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++) {
    hash_of(sets[i], 2, hashes[i]);
    for (size_t j = 0; j < i; j++) {
      assert_memory_not_equal(hashes[i], hashes[j], KVF_HASH_BYTES);
    }
  }
  uint8_t shorter[KVF_HASH_BYTES];
  hash_of(sets[0], 1, shorter);
  assert_memory_not_equal(shorter, hashes[0], KVF_HASH_BYTES);
}

TEST(hash_takes_as_many_fields_as_a_configuration)
{
  kvf_config config;
  uint8_t hash[KVF_HASH_BYTES];
  kvf_config_init(&config);
  assert_int_equal(kvf_context_compat(&config, hash), KVF_OK);
  for (int i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    char name[32];
    (void)snprintf(name, sizeof(name), "field %d", i);
    assert_int_equal(kvf_config_identity(&config, name, "v"), KVF_OK);
  }
  assert_int_equal(kvf_context_compat(&config, hash), KVF_OK);
}

static void assert_differs(const char *const (*ours)[2], size_t ours_count, const char *const (*theirs)[2],
                           size_t theirs_count, const char *expected)
{
  kvf_context context = {.config = with_fields(ours, ours_count)};
  kvf_config peer = with_fields(theirs, theirs_count);
  char difference[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_context_matches(&context, peer.identity, peer.identity_fields, difference), expected == NULL);
  assert_string_equal(difference, expected == NULL ? "" : expected);
}

TEST(difference_names_the_field)
{
  static const char *const ours[][2] = {{"model", "m"}, {"dtype", "f16"}};
  static const char *const turned[][2] = {{"dtype", "f16"}, {"model", "m"}};
  static const char *const other[][2] = {{"model", "m"}, {"dtype", "f32"}};
  static const char *const more[][2] = {{"model", "m"}, {"dtype", "f16"}, {"layers", "2"}};
  assert_differs(ours, 2, turned, 2, NULL);
  assert_differs(ours, 2, other, 2, "dtype differs: producer has \"f16\", consumer has \"f32\"");
  assert_differs(ours, 2, ours, 1, "dtype differs: producer has \"f16\", consumer has \"(nothing)\"");
  assert_differs(ours, 2, more, 3, "layers differs: producer has \"(nothing)\", consumer has \"2\"");
  assert_differs(ours, 2, ours, 0, "model differs: producer has \"m\", consumer has \"(nothing)\"");
}

TEST(difference_is_bounded)
{
  char name[KVF_IDENTITY_BYTES_MAX] = {0};
  char value[KVF_IDENTITY_BYTES_MAX] = {0};
  char difference[KVF_MESSAGE_BYTES_MAX];
  memset(name, 'n', sizeof(name) - 1);
  memset(value, 'v', sizeof(value) - 1);
  kvf_context context = {0};
  kvf_config peer;
  kvf_config_init(&context.config);
  kvf_config_init(&peer);
  assert_int_equal(kvf_config_identity(&context.config, name, value), KVF_OK);
  value[0] = 'w';
  assert_int_equal(kvf_config_identity(&peer, name, value), KVF_OK);
  assert_false(kvf_context_matches(&context, peer.identity, 1, difference));
  assert_non_null(memchr(difference, 0, sizeof(difference)));
  assert_non_null(strstr(difference, "consumer has"));
}

typedef struct log_book {
  uint32_t lines;
  char last[KVF_LOG_LINE_BYTES_MAX];
} log_book;

static void write_down(void *context, kvf_log_level level, const char *line)
{
  log_book *book = context;
  (void)level;
  book->lines++;
  (void)snprintf(book->last, sizeof(book->last), "%s", line);
}

static void open_self(kvf_context *context, log_book *book)
{
  memset(context, 0, sizeof(*context));
  memset(book, 0, sizeof(*book));
  context->logger = (kvf_logger){.fn = write_down, .context = book, .level = KVF_LOG_INFO};
  context->log_limit.lines_per_s = KVF_LOG_LINES_PER_S;
}

TEST(lines_are_limited_and_those_left_out_counted)
{
  kvf_context context;
  log_book book;
  open_self(&context, &book);
  for (int i = 0; i < 12; i++) {
    kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 1, KVF_LOG_WARN, "peer is down %d", i);
  }
  assert_int_equal(book.lines, KVF_LOG_LINES_PER_S);
  assert_string_equal(book.last, "peer is down 4");
  kvf_context_log(&context, 11 * S, KVF_PEER_DOWN, 1, KVF_LOG_WARN, "peer is down %d", 12);
  assert_string_equal(book.last, "peer is down 12 (and 7 more like it)");
  kvf_context_log(&context, 11 * S, KVF_PEER_DOWN, 1, KVF_LOG_WARN, "peer is down %d", 13);
  assert_string_equal(book.last, "peer is down 13");
}

/* One noisy peer, or reason, does not hide another. */
TEST(each_reason_and_peer_has_its_own_limit)
{
  kvf_context context;
  log_book book;
  open_self(&context, &book);
  for (int i = 0; i < 12; i++) {
    kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 1, KVF_LOG_WARN, "noise");
  }
  kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 2, KVF_LOG_WARN, "another peer");
  assert_string_equal(book.last, "another peer");
  kvf_context_log(&context, 10 * S, KVF_PROTOCOL, 1, KVF_LOG_WARN, "another reason");
  assert_string_equal(book.last, "another reason");
}

/* Lines that are not wanted do not use up the places of those that are. */
TEST(unwanted_levels_cost_nothing)
{
  kvf_context context;
  log_book book;
  open_self(&context, &book);
  for (int i = 0; i < 12; i++) {
    kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 1, KVF_LOG_DEBUG, "chatter");
  }
  kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 1, KVF_LOG_INFO, "news");
  assert_int_equal(book.lines, 1);
  assert_string_equal(book.last, "news");
}

TEST(lines_are_bounded_and_clean)
{
  kvf_context context;
  log_book book;
  char text[2 * KVF_LOG_LINE_BYTES_MAX];
  open_self(&context, &book);
  memset(text, 'x', sizeof(text));
  text[sizeof(text) - 1] = 0;
  kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 1, KVF_LOG_WARN, "%s", text);
  assert_int_equal(strlen(book.last), KVF_LOG_LINE_BYTES_MAX - 1);
  kvf_context_log(&context, 10 * S, KVF_PEER_DOWN, 1, KVF_LOG_WARN, "it says \"%s\"", "a\nb");
  assert_string_equal(book.last, "it says \"a?b\"");
}
