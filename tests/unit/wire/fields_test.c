/* Leases, addresses and texts inside messages, at their limits. */
#include "wire/fields.h"

#include "wire_test.h"

TEST(test_lease_round_trip)
{
  kvf_lease lease = {.id = KVF_LEASE_ID_MAX, .slot = 7};
  fill(lease.token, sizeof(lease.token), 3);
  uint8_t data[KVF_LEASE_FIELD_BYTES];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  kvf_code_lease(&writer, &lease);
  assert_int_equal(writer.at, KVF_LEASE_FIELD_BYTES);
  assert_false(writer.failed);

  kvf_lease back;
  memset(&back, 0xff, sizeof(back));
  kvf_codec reader = kvf_reader_of(data, sizeof(data));
  kvf_code_lease(&reader, &back);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_OK);
  assert_memory_equal(&back, &lease, sizeof(lease));
}

TEST(test_lease_id_limit)
{
  kvf_lease lease = {.id = KVF_LEASE_ID_MAX};
  assert_true(kvf_lease_is_valid(&lease));
  lease.id++;
  assert_false(kvf_lease_is_valid(&lease));
  uint8_t data[KVF_LEASE_FIELD_BYTES];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  kvf_code_lease(&writer, &lease);
  assert_true(writer.failed);
  memset(data, 0xff, sizeof(data));
  kvf_codec reader = kvf_reader_of(data, sizeof(data));
  kvf_code_lease(&reader, &lease);
  assert_true(reader.failed);
}

TEST(test_address_and_incarnation_round_trip)
{
  kvf_address address = {.port = 0x1234};
  kvf_incarnation incarnation;
  fill(address.ip, sizeof(address.ip), 1);
  fill(&incarnation, sizeof(incarnation), 99);
  uint8_t data[KVF_ADDRESS_FIELD_BYTES + KVF_INCARNATION_FIELD_BYTES];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  kvf_code_address(&writer, &address);
  assert_int_equal(writer.at, KVF_ADDRESS_FIELD_BYTES);
  kvf_code_incarnation(&writer, &incarnation);
  assert_false(writer.failed);

  kvf_address address_back;
  kvf_incarnation incarnation_back;
  kvf_codec reader = kvf_reader_of(data, sizeof(data));
  kvf_code_address(&reader, &address_back);
  kvf_code_incarnation(&reader, &incarnation_back);
  assert_int_equal(kvf_reader_end(&reader, true), KVF_OK);
  assert_memory_equal(&address_back, &address, sizeof(address));
  assert_memory_equal(&incarnation_back, &incarnation, sizeof(incarnation));
}

static bool get_text(const char *data, size_t bytes, char *out, size_t room)
{
  char *copy = exact_copy(data, bytes);
  kvf_codec reader = kvf_reader_of(copy, bytes);
  kvf_code_text(&reader, out, room);
  free(copy);
  return kvf_reader_end(&reader, true) == KVF_OK;
}

TEST(test_text_fits_with_its_zero)
{
  char out[4];
  assert_true(get_text("\000", 1, out, sizeof(out)));
  assert_string_equal(out, "");
  assert_true(get_text("\003abc", 4, out, sizeof(out)));
  assert_string_equal(out, "abc");
  assert_false(get_text("\004abcd", 5, out, sizeof(out)));
  assert_false(get_text("\003ab", 3, out, sizeof(out)));
  assert_false(get_text("", 0, out, sizeof(out)));
}

TEST(test_text_has_no_control_characters)
{
  char out[8];
  assert_true(get_text("\003a b", 4, out, sizeof(out)));
  assert_true(get_text("\002\303\251", 3, out, sizeof(out)));
  assert_false(get_text("\003a\nb", 4, out, sizeof(out)));
  assert_false(get_text("\003a\000b", 4, out, sizeof(out)));
  assert_false(get_text("\003a\037b", 4, out, sizeof(out)));
  assert_false(get_text("\003a\177b", 4, out, sizeof(out)));
  assert_true(kvf_text_is_valid("a b", 4));
  assert_false(kvf_text_is_valid("a b", 3));
  assert_false(kvf_text_is_valid("a\tb", 4));
}

TEST(test_text_that_is_not_terminated)
{
  char *text = exact_copy("abcd", 4);
  uint8_t data[8];
  kvf_codec writer = kvf_writer_of(data, sizeof(data));
  kvf_code_text(&writer, text, 4);
  assert_int_equal(writer.at, 4);
  assert_memory_equal(data, "\003abc", 4);
  free(text);
}
