/* Addresses as text, and the record by which a rank is found: there and back, and what is refused. */
#include "wire/rank_record.h"

#include <stdio.h>

#include "base/crypto.h"
#include "wire_test.h"

TEST(test_parse_and_format)
{
  static const struct {
    const char *text;
    const char *formatted; /* with 4242 as the default port */
  } rows[] = {{"127.0.0.1:80", "127.0.0.1:80"},
              {"127.0.0.1", "127.0.0.1:4242"},
              {"0.0.0.0:0", "0.0.0.0:0"},
              {"255.255.255.255:65535", "255.255.255.255:65535"},
              {"[::1]:80", "[::1]:80"},
              {"[::1]", "[::1]:4242"},
              {"::1", "[::1]:4242"},
              {"::", "[::]:4242"},
              {"[fe80::1:2]:00080", "[fe80::1:2]:80"},
              {"[::ffff:10.0.0.1]:7", "10.0.0.1:7"},
              {"::ffff:10.0.0.1", "10.0.0.1:4242"},
              {"[1111:2222:3333:4444:5555:6666:7777:8888]:65535", "[1111:2222:3333:4444:5555:6666:7777:8888]:65535"}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_address address;
    kvf_address again;
    char text[KVF_ADDRESS_TEXT_BYTES];
    assert_int_equal(kvf_address_parse(rows[i].text, 4242, &address), KVF_OK);
    kvf_address_format(&address, text);
    assert_string_equal(text, rows[i].formatted);
    assert_int_equal(kvf_address_parse(text, 1, &again), KVF_OK);
    assert_memory_equal(&again, &address, sizeof(address));
  }
}

TEST(test_parse_refuses)
{
  static const char *const rows[] = {"",
                                     ":",
                                     ":80",
                                     "localhost",
                                     "host:80",
                                     "127.0.0.1:",
                                     "127.0.0:80",
                                     "127.0.0.1.1",
                                     "127.0.0.256",
                                     "127.0.0.1:-1",
                                     "127.0.0.1:+1",
                                     "127.0.0.1: 1",
                                     "127.0.0.1:65536",
                                     "127.0.0.1:000080",
                                     "127.0.0.1:99999999999",
                                     "127.0.0.1:80x",
                                     "127.0.0.1:80:80",
                                     " 127.0.0.1",
                                     "127.0.0.1 ",
                                     "[127.0.0.1]:80",
                                     "[::1",
                                     "::1]",
                                     "[::1]80",
                                     "[::1]:",
                                     "[]:80",
                                     "[::1]:x",
                                     "[[::1]]:80",
                                     "::g",
                                     "fe80::1%lo",
                                     "[::1]x:80",
                                     "1111:2222:3333:4444:5555:6666:7777:8888:9999",
                                     "[1111:2222:3333:4444:5555:6666:7777:8888.8888.8888.8888.8888.8888.8888]:80"};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_address address;
    kvf_address before;
    memset(&address, 0x5a, sizeof(address));
    before = address;
    if (kvf_address_parse(rows[i], 1, &address) != KVF_INVALID) {
      fail_msg("\"%s\" was taken for an address", rows[i]);
    }
    assert_memory_equal(&address, &before, sizeof(address));
  }
}

TEST(test_kinds)
{
  static const struct {
    const char *text;
    bool v4;
    bool loopback;
    bool any;
  } rows[] = {
      {"127.0.0.1", true, true, false},  {"127.255.0.9", true, true, false}, {"::ffff:127.1.2.3", true, true, false},
      {"126.0.0.1", true, false, false}, {"128.0.0.1", true, false, false},  {"0.0.0.0", true, false, true},
      {"0.0.0.1", true, false, false},   {"::1", false, true, false},        {"::", false, false, true},
      {"::2", false, false, false},      {"7f00::1", false, false, false},   {"1::1", false, false, false}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_address address;
    assert_int_equal(kvf_address_parse(rows[i].text, 1, &address), KVF_OK);
    assert_int_equal(kvf_address_is_v4(&address), rows[i].v4);
    assert_int_equal(kvf_address_is_loopback(&address), rows[i].loopback);
    assert_int_equal(kvf_address_is_any(&address), rows[i].any);
  }
}

TEST(test_hosts)
{
  static const struct {
    const char *one;
    const char *other;
    bool same;
  } rows[] = {{"10.0.0.1:7", "10.0.0.1:8", true},        {"10.0.0.1:7", "10.0.0.2:7", false},
              {"127.0.0.1", "::ffff:127.0.0.1", true},   {"[fd00::1]:7", "[fd00::ffff:2:3:4]:8", true},
              {"fd00:0:0:1::1", "fd00:0:0:2::1", false}, {"0.0.0.0", "::", false}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    kvf_address one;
    kvf_address other;
    assert_int_equal(kvf_address_parse(rows[i].one, 1, &one), KVF_OK);
    assert_int_equal(kvf_address_parse(rows[i].other, 1, &other), KVF_OK);
    const kvf_host hosts[] = {kvf_address_host(&one), kvf_address_host(&other)};
    assert_int_equal(memcmp(&hosts[0], &hosts[1], sizeof(hosts[0])) == 0, rows[i].same);
  }
}

static kvf_rank_record some_record(void)
{
  kvf_rank_record record = {
      .address = {.port = 80}, .rank = KVF_RANKS_MAX - 1, .layers = {3, KVF_LAYERS_MAX - 3}, .dealt = KVF_RANKS_MAX};
  fill(record.address.ip, sizeof(record.address.ip), 1);
  fill(&record.incarnation, sizeof(record.incarnation), 50);
  return record;
}

static const kvf_address some_v4 = {.ip = {[10] = 0xff, [11] = 0xff, [12] = 10}, .port = 81};

static void check_record(const kvf_rank_record *record, size_t expected_bytes)
{
  kvf_rank_record back;
  uint8_t data[KVF_RANK_RECORD_BYTES_MAX];
  size_t bytes = 77;
  assert_int_equal(kvf_rank_record_encode(record, data, expected_bytes - 1, &bytes), KVF_LIMIT);
  assert_int_equal(bytes, 77);
  assert_int_equal(kvf_rank_record_encode(record, data, sizeof(data), &bytes), KVF_OK);
  assert_int_equal(bytes, expected_bytes);
  memset(&back, 0x5a, sizeof(back));
  assert_int_equal(kvf_rank_record_decode(data, bytes, &back), KVF_OK);
  assert_memory_equal(&back.address, &record->address, sizeof(record->address));
  assert_memory_equal(&back.other, &record->other, sizeof(record->other));
  assert_memory_equal(&back.incarnation, &record->incarnation, sizeof(record->incarnation));
  assert_int_equal(back.rank, record->rank);
  assert_int_equal(back.layers.first, record->layers.first);
  assert_int_equal(back.layers.count, record->layers.count);
  assert_int_equal(back.dealt, record->dealt);
}

TEST(test_record_round_trip)
{
  kvf_rank_record record = some_record();
  check_record(&record, KVF_RANK_RECORD_BYTES);
  record.other = some_v4;
  check_record(&record, KVF_RANK_RECORD_BYTES_MAX);
  record.other = record.address;
  record.address = some_v4;
  check_record(&record, KVF_RANK_RECORD_BYTES_MAX);
}

TEST(test_record_limits)
{
  kvf_rank_record record;
  uint8_t data[KVF_RANK_RECORD_BYTES_MAX];
  size_t bytes = 0;
#define REFUSED(change)                                                                         \
  do {                                                                                          \
    record = some_record();                                                                     \
    record.change;                                                                              \
    assert_int_equal(kvf_rank_record_encode(&record, data, sizeof(data), &bytes), KVF_INVALID); \
  } while (0)
  REFUSED(rank = KVF_RANKS_MAX);
  REFUSED(address.port = 0);
  REFUSED(other.port = 81); /* a second IPv6 one */
  REFUSED(layers.first = 4);
  REFUSED(layers.count = UINT32_MAX);
  REFUSED(layers.first = UINT32_MAX);
  REFUSED(layers.count = 0); /* none has one form */
  REFUSED(dealt = 0);
  REFUSED(dealt = KVF_RANKS_MAX + 1);
  record = some_record();
  record.layers = (kvf_layers){0, 0};
  assert_int_equal(kvf_rank_record_encode(&record, data, sizeof(data), &bytes), KVF_OK);
}

TEST(test_record_garbage_is_refused)
{
  kvf_rank_record record = some_record();
  kvf_rank_record back;
  uint8_t data[KVF_RANK_RECORD_BYTES_MAX + 1] = {0};
  size_t bytes = 0;
  record.other = some_v4;
  assert_int_equal(kvf_rank_record_encode(&record, data, sizeof(data), &bytes), KVF_OK);
  for (size_t cut = 0; cut <= bytes + 1; cut++) {
    uint8_t *copy = exact_copy(data, cut);
    assert_int_equal(kvf_rank_record_decode(copy, cut, &back), cut == bytes ? KVF_OK : KVF_INVALID);
    free(copy);
  }
  for (size_t bit = 0; bit < bytes * 8; bit++) {
    data[bit / 8] ^= (uint8_t)(1u << bit % 8);
    assert_int_equal(kvf_rank_record_decode(data, bytes, &back), KVF_INVALID);
    data[bit / 8] ^= (uint8_t)(1u << bit % 8);
  }
}

/* A record whose checksum is right although its fields are not: from a newer version, or made by hand. */
static kvf_status decode_resealed(uint8_t *data, size_t bytes)
{
  kvf_rank_record back;
  uint8_t hash[KVF_HASH_BYTES];
  kvf_span fields = {data, bytes - 8};
  assert_int_equal(kvf_sha256(&fields, 1, hash), KVF_OK);
  memcpy(data + fields.bytes, hash, 8);
  return kvf_rank_record_decode(data, bytes, &back);
}

TEST(test_record_fields_are_checked)
{
  kvf_rank_record record = some_record();
  uint8_t data[KVF_RANK_RECORD_BYTES_MAX];
  size_t bytes = 0;
  record.other = some_v4;
  assert_int_equal(kvf_rank_record_encode(&record, data, sizeof(data), &bytes), KVF_OK);
  assert_int_equal(decode_resealed(data, bytes), KVF_OK);
  /* Each is one too many, or none. */
  static const struct {
    size_t at;
    uint8_t value;
  } rows[] = {{0, 4}, /* version */
              {1, 0}, /* addresses */
              {1, 1},
              {1, 3},
              {18, 0},                 /* port */
              {20, 1},                 /* two IPv6 ones */
              {36, 0},                 /* the other one's port */
              {54, 4},                 /* first layer: the last is one too many */
              {62, KVF_RANKS_MAX + 1}, /* dealt */
              {63, KVF_RANKS_MAX}};    /* rank */
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const uint8_t good = data[rows[i].at];
    assert_int_not_equal(good, rows[i].value);
    data[rows[i].at] = rows[i].value;
    if (decode_resealed(data, bytes) != KVF_INVALID) {
      fail_msg("row %zu was taken", i);
    }
    data[rows[i].at] = good;
  }
  assert_int_equal(decode_resealed(data, bytes), KVF_OK);
}
