/* Identities: their hashes and what is said of two that differ; and the limits of log lines. */
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

/* ---- the same by what a ticket says ---- */

static kvf_context context_of(const char *const (*fields)[2], size_t count)
{
  kvf_context context = {.config = with_fields(fields, count)};
  assert_int_equal(kvf_context_fields(&context.config, context.self.fields), KVF_OK);
  return context;
}

static kvf_ticket ticket_of(const char *const (*fields)[2], size_t count)
{
  const kvf_config config = with_fields(fields, count);
  kvf_ticket ticket = {.fields = (uint32_t)count};
  assert_int_equal(kvf_context_fields(&config, ticket.field), KVF_OK);
  return ticket;
}

static void assert_named(const kvf_context *ours, const kvf_ticket *theirs, const char *expected)
{
  char difference[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_context_name_difference(ours, theirs, difference);
  assert_string_equal(difference, expected);
}

#define NO_FIELD "made for another model or layout"

/* The consumer's order counts, whatever the producer's. */
TEST(ticket_names_the_consumers_first_field)
{
  static const char *const ours[][2] = {{"model", "m"}, {"attention", "TRTLLM"}, {"engine", "tensorrt-llm"}};
  static const char *const turned[][2] = {{"engine", "tensorrt-llm"}, {"model", "m"}, {"attention", "TRTLLM"}};
  static const char *const other[][2] = {{"engine", "tensorrt-llm"}, {"attention", "FLASH"}, {"model", "m"}};
  static const char *const missing[][2] = {{"attention", "TRTLLM"}, {"model", "m"}};
  static const char *const renamed[][2] = {{"model", "m"}, {"attention", "TRTLLM"}, {"motor", "tensorrt-llm"}};
  static const char *const swapped[][2] = {{"model", "TRTLLM"}, {"attention", "m"}, {"engine", "tensorrt-llm"}};
  static const char *const several[][2] = {{"engine", "vllm"}, {"attention", "FLASH"}, {"model", "m"}};
  static const char *const more[][2] = {
      {"layers", "2"}, {"model", "m"}, {"attention", "TRTLLM"}, {"engine", "tensorrt-llm"}};
  const kvf_context context = context_of(ours, 3);
  const struct {
    kvf_ticket theirs;
    const char *expected;
  } rows[] = {
      {ticket_of(other, 3), "attention differs: producer has another value, consumer has \"TRTLLM\""},
      {ticket_of(missing, 2), "engine differs: producer has \"(nothing)\", consumer has \"tensorrt-llm\""},
      {ticket_of(renamed, 3), "engine differs: producer has \"(nothing)\", consumer has \"tensorrt-llm\""},
      {ticket_of(swapped, 3), "model differs: producer has another value, consumer has \"m\""},
      {ticket_of(several, 3), "attention differs: producer has another value, consumer has \"TRTLLM\""},
      {ticket_of(ours, 0), "model differs: producer has \"(nothing)\", consumer has \"m\""},
      {ticket_of(more, 4), "producer has a field that consumer has not"},
      {ticket_of(turned, 3), NO_FIELD}, /* the short hashes are the same: what a collision looks like */
  };
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    assert_named(&context, &rows[i].theirs, rows[i].expected);
  }
}

/* Where two names share a hash, neither hides the other's value. */
TEST(names_that_share_a_hash_are_told_apart_by_their_values)
{
  static const char *const ours[][2] = {{"dtype", "f16"}, {"model", "m"}};
  kvf_context context = context_of(ours, 2);
  kvf_ticket theirs = ticket_of(ours, 2);
  context.self.fields[1].name = context.self.fields[0].name;
  theirs.field[1].name = theirs.field[0].name;
  assert_named(&context, &theirs, NO_FIELD);
  theirs.field[1].value ^= 1;
  assert_named(&context, &theirs, "model differs: producer has another value, consumer has \"m\"");
}

TEST(every_bit_of_a_short_hash_counts)
{
  static const char *const ours[][2] = {{"dtype", "f16"}};
  const kvf_context context = context_of(ours, 1);
  for (unsigned bit = 0; bit < 16; bit++) {
    kvf_ticket theirs = ticket_of(ours, 1);
    theirs.field[0].value = (uint16_t)(theirs.field[0].value ^ 1u << bit);
    assert_named(&context, &theirs, "dtype differs: producer has another value, consumer has \"f16\"");
    theirs = ticket_of(ours, 1);
    theirs.field[0].name = (uint16_t)(theirs.field[0].name ^ 1u << bit);
    assert_named(&context, &theirs, "dtype differs: producer has \"(nothing)\", consumer has \"f16\"");
  }
}

/* What travels: docs/protocol.md says it of these bytes. */
TEST(short_hashes_are_the_first_bytes_of_sha256)
{
  static const char *const fields[][2] = {{"dtype", "f16"}};
  uint8_t name[KVF_HASH_BYTES];
  uint8_t value[KVF_HASH_BYTES];
  assert_int_equal(kvf_sha256(&(kvf_span){"dtype", 6}, 1, name), KVF_OK);
  assert_int_equal(kvf_sha256(&(kvf_span){"f16", 4}, 1, value), KVF_OK);
  const kvf_ticket ticket = ticket_of(fields, 1);
  assert_int_equal(ticket.field[0].name, name[0] | name[1] << 8);
  assert_int_equal(ticket.field[0].value, value[0] | value[1] << 8);
}

TEST(named_difference_is_bounded)
{
  char name[KVF_IDENTITY_BYTES_MAX] = {0};
  char value[KVF_IDENTITY_BYTES_MAX] = {0};
  char difference[KVF_MESSAGE_BYTES_MAX];
  memset(name, 'n', sizeof(name) - 1);
  memset(value, 'v', sizeof(value) - 1);
  const char *const ours[][2] = {{name, value}};
  const kvf_context context = context_of(ours, 1);
  const kvf_ticket none = {.fields = 0};
  memset(difference, 'x', sizeof(difference));
  kvf_context_name_difference(&context, &none, difference);
  assert_non_null(memchr(difference, 0, sizeof(difference)));
  assert_int_equal(strspn(difference, "n"), 60);
  assert_int_equal(strspn(strchr(difference, 'v'), "v"), 70);
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
