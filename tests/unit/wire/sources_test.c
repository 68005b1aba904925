/* Several tickets in one text: their order, those that cannot be read, and which can replace another. */
#include "wire/sources.h"

#include "ticket_tool.h"

static char text[KVF_TICKET_BYTES_MAX];

/* `count` tickets with lease ids 1, 2 …, joined; returns the length. */
static size_t join(uint32_t count, const kvf_key *key)
{
  size_t bytes = 0;
  for (uint32_t i = 0; i < count; i++) {
    kvf_ticket ticket = some_ticket();
    size_t more = 0;
    ticket.lease.id = i + 1;
    if (i > 0) {
      text[bytes++] = ',';
    }
    assert_int_equal(kvf_ticket_encode(&ticket, mac_of(key), text + bytes, sizeof(text) - bytes, &more), KVF_OK);
    bytes += more;
  }
  return bytes;
}

static kvf_status decode(const char *from, size_t bytes, const kvf_key *key)
{
  char *copy = exact_copy(from, bytes);
  kvf_sources sources = {.count = 77};
  kvf_status status = kvf_sources_decode(copy, bytes, mac_of(key), 1, &sources);
  if (status == KVF_OK) {
    kvf_sources_free(&sources);
    kvf_sources_free(&sources);
    assert_int_equal(sources.count, 0);
  } else {
    assert_int_equal(sources.count, 77);
  }
  free(copy);
  return status;
}

TEST(tickets_come_in_their_order)
{
  for (uint32_t count = 1; count <= KVF_SOURCES_MAX; count++) {
    kvf_sources sources;
    size_t bytes = join(count, &usual_key);
    assert_int_equal(kvf_sources_decode(text, bytes, mac_of(&usual_key), 1, &sources), KVF_OK);
    assert_int_equal(sources.count, count);
    for (uint32_t i = 0; i < count; i++) {
      assert_int_equal(sources.tickets[i]->lease.id, i + 1);
    }
    kvf_sources_free(&sources);
  }
  assert_int_equal(decode(text, join(KVF_SOURCES_MAX + 1, &usual_key), &usual_key), KVF_BAD_TICKET);
}

/* P8: whoever alters one of them has altered the text. */
TEST(one_bad_ticket_spoils_the_text)
{
  kvf_key other = key_of("other");
  size_t bytes = join(3, &usual_key);
  for (size_t i = 0; i < bytes; i++) {
    const size_t at = i % (bytes / 3 + 1);
    const bool is_of_key_id = at >= 5 && at < TICKET_BEFORE - 2; /* it is another key's then */
    text[i] ^= 1;
    assert_int_equal(decode(text, bytes, &usual_key), is_of_key_id ? KVF_OK : KVF_BAD_TICKET);
    text[i] ^= 1;
  }
  assert_int_equal(decode(text, bytes, &usual_key), KVF_OK);
  assert_int_equal(decode(text, bytes, &other), KVF_OTHER_KEY);
}

/* Of another key, or another release: they take no place of those that can be read, and are counted with them. */
TEST(what_cannot_be_read_is_left_out)
{
  static const char later[] = "kvf6.whatever";
  static char all[KVF_TICKET_BYTES_MAX];
  kvf_key other = key_of("other");
  kvf_sources sources;
  const size_t foreign = join(1, &other);
  memcpy(all, text, foreign);
  all[foreign] = ',';
  for (uint32_t count = 1; count < KVF_SOURCES_MAX; count++) {
    size_t bytes = foreign + 1;
    const size_t more = join(count, &usual_key);
    memcpy(all + bytes, text, more);
    bytes += more;
    assert_int_equal(kvf_sources_decode(all, bytes, mac_of(&usual_key), 1, &sources), KVF_OK);
    assert_int_equal(sources.count, count);
    assert_int_equal(sources.tickets[0]->lease.id, 1);
    assert_int_equal(sources.unread, 1);
    assert_int_equal(sources.unread_why, KVF_OTHER_KEY);
    kvf_sources_free(&sources);
    all[bytes++] = ',';
    memcpy(all + bytes, later, sizeof(later) - 1);
    bytes += sizeof(later) - 1;
    assert_int_equal(decode(all, bytes, &usual_key), count + 2 > KVF_SOURCES_MAX ? KVF_BAD_TICKET : KVF_OK);
  }
  memcpy(all + foreign + 1, later, sizeof(later) - 1);
  assert_int_equal(decode(all, foreign + sizeof(later), &usual_key), KVF_OTHER_KEY); /* the first's */
  assert_int_equal(decode(later, sizeof(later) - 1, &usual_key), KVF_INCOMPATIBLE);
}

TEST(empty_tickets_are_none)
{
  size_t bytes = join(1, &usual_key);
  text[bytes] = ',';
  text[bytes + 1] = ',';
  assert_int_equal(decode(text, bytes, &usual_key), KVF_OK);
  assert_int_equal(decode(text, bytes + 1, &usual_key), KVF_BAD_TICKET);
  assert_int_equal(decode(text, bytes + 2, &usual_key), KVF_BAD_TICKET);
  assert_int_equal(decode(text + bytes, 1, &usual_key), KVF_BAD_TICKET);
  assert_int_equal(decode(text, 0, &usual_key), KVF_BAD_TICKET);
}

TEST(each_source_has_its_digest)
{
  kvf_sources sources;
  assert_int_equal(kvf_sources_decode(text, join(2, &usual_key), mac_of(&usual_key), 1, &sources), KVF_OK);
  assert_int_equal(kvf_sources_digest(&sources), KVF_OK);
  for (uint32_t i = 0; i < 2; i++) {
    const kvf_ticket *ticket = sources.tickets[i];
    const kvf_blocks blocks = {.ids = ticket->ids, .counts = ticket->counts, .groups = ticket->groups};
    uint64_t digest = 0;
    assert_int_equal(kvf_fence_digest(&ticket->lease, &blocks, &ticket->prompt, &digest), KVF_OK);
    assert_true(sources.digests[i] == digest);
  }
  assert_true(sources.digests[0] != sources.digests[1]);
  kvf_sources_free(&sources);
}

TEST(a_replacement_has_all_that_is_offered)
{
  uint32_t ids[12];
  uint32_t other_ids[12];
  kvf_ticket ticket = some_ticket();
  kvf_ticket other = ticket;
  ticket.ids = ids;
  other.ids = other_ids;
  uint32_t total = ticket.counts[0] + ticket.counts[1];
  assert_int_equal(ticket.groups, 2);
  for (uint32_t i = 0; i < total; i++) {
    ids[i] = i;
    other_ids[i] = 100 + i;
  }
  assert_true(kvf_source_can_replace(&ticket, &other));
  for (uint32_t i = 0; i < total; i++) {
    other_ids[i] = KVF_BLOCK_NONE;
    assert_false(kvf_source_can_replace(&ticket, &other));
    assert_true(kvf_source_can_replace(&other, &ticket));
    other_ids[i] = i;
  }
  other.block_tokens++;
  assert_false(kvf_source_can_replace(&ticket, &other));
  other.block_tokens--;
  other.counts[1]--;
  assert_false(kvf_source_can_replace(&ticket, &other));
  other.counts[1]++;
  other.groups--;
  assert_false(kvf_source_can_replace(&ticket, &other));
}
