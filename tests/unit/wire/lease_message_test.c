#include "wire/lease_message.h"

#include "base/fence.h"
#include "wire_test.h"

DECODER(renew)
DECODER(finish)
DECODER(lease_states)

static kvf_lease lease_of(uint32_t i)
{
  kvf_lease lease = {.id = UINT64_C(0x0102030405060708) + i, .slot = 1000 + i};
  fill(lease.token, sizeof(lease.token), (uint8_t)i);
  return lease;
}

static void fill_renew(kvf_renew *renew, uint32_t count)
{
  memset(renew, 0, sizeof(*renew));
  renew->seq = 0x01020304;
  renew->count = count;
  for (uint32_t i = 0; i < count && i < KVF_LEASE_ITEMS_MAX; i++) {
    renew->items[i] = (kvf_renew_item){.lease = lease_of(i), .request_id = UINT64_MAX - i};
  }
}

static void fill_finish(kvf_finish *finish, uint32_t count)
{
  memset(finish, 0, sizeof(*finish));
  finish->seq = 0x01020304;
  finish->count = count;
  for (uint32_t i = 0; i < count && i < KVF_LEASE_ITEMS_MAX; i++) {
    finish->items[i].lease = lease_of(i);
    finish->items[i].request_id = UINT64_MAX - i;
    finish->items[i].kind = (uint8_t)(KVF_FINISH_COMPLETED + i % KVF_FINISH_DETACHED);
  }
}

static void fill_states(kvf_lease_states *states, uint32_t count)
{
  memset(states, 0, sizeof(*states));
  states->seq = 0x01020304;
  states->count = count;
  for (uint32_t i = 0; i < count && i < KVF_LEASE_ITEMS_MAX; i++) {
    states->items[i].lease_id = KVF_LEASE_ID_MAX - i;
    states->items[i].slot = i;
    states->items[i].request_id = UINT64_MAX - i;
    states->items[i].state = (uint8_t)(KVF_LEASE_STATE_LIVE + i % 4);
  }
}

TEST(test_renew_round_trip)
{
  static kvf_renew renew;
  static kvf_renew back;
  static uint8_t body[KVF_RENEW_BYTES_MAX];
  size_t bytes = 0;
  fill_renew(&renew, KVF_LEASE_ITEMS_MAX);
  CHECK_CAPACITY(renew, &renew, KVF_RENEW_BYTES_MAX);
  for (uint32_t count = 0; count <= KVF_LEASE_ITEMS_MAX; count = count * 4 + 2) {
    fill_renew(&renew, count);
    memset(&back, 0, sizeof(back));
    assert_int_equal(kvf_renew_encode(&renew, body, sizeof(body), &bytes), KVF_OK);
    assert_int_equal(kvf_renew_decode(body, bytes, &back), KVF_OK);
    assert_memory_equal(&back, &renew, sizeof(renew));
  }
  fill_renew(&renew, 3);
  assert_int_equal(kvf_renew_encode(&renew, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_renew, body, bytes);
}

TEST(test_finish_round_trip)
{
  static kvf_finish finish;
  static kvf_finish back;
  static uint8_t body[KVF_FINISH_BYTES_MAX];
  size_t bytes = 0;
  fill_finish(&finish, KVF_LEASE_ITEMS_MAX);
  CHECK_CAPACITY(finish, &finish, KVF_FINISH_BYTES_MAX);
  assert_int_equal(kvf_finish_encode(&finish, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(kvf_finish_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.seq, finish.seq);
  assert_int_equal(back.count, finish.count);
  for (uint32_t i = 0; i < finish.count; i++) {
    assert_memory_equal(&back.items[i].lease, &finish.items[i].lease, sizeof(kvf_lease));
    assert_true(back.items[i].request_id == finish.items[i].request_id);
    assert_int_equal(back.items[i].kind, finish.items[i].kind);
  }
  fill_finish(&finish, 3);
  assert_int_equal(kvf_finish_encode(&finish, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_finish, body, bytes);
}

TEST(test_states_round_trip)
{
  static kvf_lease_states states;
  static kvf_lease_states back;
  static uint8_t body[KVF_LEASE_STATES_BYTES_MAX];
  size_t bytes = 0;
  fill_states(&states, KVF_LEASE_ITEMS_MAX);
  CHECK_CAPACITY(lease_states, &states, KVF_LEASE_STATES_BYTES_MAX);
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(kvf_lease_states_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.seq, states.seq);
  assert_int_equal(back.count, states.count);
  for (uint32_t i = 0; i < states.count; i++) {
    assert_true(back.items[i].lease_id == states.items[i].lease_id);
    assert_true(back.items[i].request_id == states.items[i].request_id);
    assert_int_equal(back.items[i].slot, states.items[i].slot);
    assert_int_equal(back.items[i].state, states.items[i].state);
  }
  fill_states(&states, 3);
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  check_length(decode_lease_states, body, bytes);
}

TEST(test_count_limit)
{
  static kvf_renew renew;
  static kvf_finish finish;
  static kvf_lease_states states;
  /* One item more than allowed, in a body that is long enough for it. */
  static uint8_t body[KVF_FINISH_BYTES_MAX + 41];
  static uint8_t room[KVF_FINISH_BYTES_MAX + 41];
  size_t bytes = 0;
  fill_renew(&renew, KVF_LEASE_ITEMS_MAX);
  assert_int_equal(kvf_renew_encode(&renew, body, sizeof(body), &bytes), KVF_OK);
  memcpy(body + bytes, body + 6, 36);
  body[4]++;
  assert_int_equal(decode_renew(body, bytes + 36), KVF_PROTOCOL);
  fill_finish(&finish, KVF_LEASE_ITEMS_MAX);
  assert_int_equal(kvf_finish_encode(&finish, body, sizeof(body), &bytes), KVF_OK);
  memcpy(body + bytes, body + 6, 41);
  body[4]++;
  assert_int_equal(decode_finish(body, bytes + 41), KVF_PROTOCOL);
  fill_states(&states, KVF_LEASE_ITEMS_MAX);
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  memcpy(body + bytes, body + 6, 21);
  body[4]++;
  assert_int_equal(decode_lease_states(body, bytes + 21), KVF_PROTOCOL);

  renew.count++;
  finish.count++;
  states.count++;
  assert_int_equal(kvf_renew_encode(&renew, room, sizeof(room), &bytes), KVF_INVALID);
  assert_int_equal(kvf_finish_encode(&finish, room, sizeof(room), &bytes), KVF_INVALID);
  assert_int_equal(kvf_lease_states_encode(&states, room, sizeof(room), &bytes), KVF_INVALID);
}

TEST(test_lease_ids)
{
  static kvf_renew renew;
  static kvf_lease_states states;
  static uint8_t body[KVF_RENEW_BYTES_MAX];
  size_t bytes = 0;
  fill_renew(&renew, 2);
  renew.items[1].lease.id = KVF_LEASE_ID_MAX;
  assert_int_equal(kvf_renew_encode(&renew, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(decode_renew(body, bytes), KVF_OK);
  body[6 + 36]++;
  assert_int_equal(decode_renew(body, bytes), KVF_PROTOCOL);
  renew.items[1].lease.id++;
  assert_int_equal(kvf_renew_encode(&renew, body, sizeof(body), &bytes), KVF_INVALID);
  fill_states(&states, 1);
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
  body[6]++;
  assert_int_equal(decode_lease_states(body, bytes), KVF_PROTOCOL);
  static kvf_finish finish;
  fill_finish(&finish, 1);
  finish.items[0].lease.id = KVF_LEASE_ID_MAX + 1;
  assert_int_equal(kvf_finish_encode(&finish, body, sizeof(body), &bytes), KVF_INVALID);
  states.items[0].lease_id++;
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_INVALID);
}

TEST(test_finish_rules)
{
  static kvf_finish finish;
  for (unsigned kind = 0; kind < 256; kind++) {
    uint8_t body[6 + 37];
    uint8_t other[6 + 37];
    size_t bytes = 0;
    bool valid = kind >= 1 && kind <= 3;
    fill_finish(&finish, 1);
    assert_int_equal(kvf_finish_encode(&finish, body, sizeof(body), &bytes), KVF_OK);
    finish.items[0].kind = (uint8_t)kind;
    assert_int_equal(kvf_finish_encode(&finish, other, sizeof(other), &bytes), valid ? KVF_OK : KVF_INVALID);
    body[42] = (uint8_t)kind;
    assert_int_equal(decode_finish(body, sizeof(body)), valid ? KVF_OK : KVF_PROTOCOL);
  }
}

TEST(test_state_rules)
{
  static kvf_lease_states states;
  for (unsigned value = 0; value < 256; value++) {
    uint8_t body[6 + 21];
    uint8_t other[6 + 21];
    size_t bytes = 0;
    bool valid = value >= 1 && value <= 4;
    fill_states(&states, 1);
    assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
    states.items[0].state = (uint8_t)value;
    assert_int_equal(kvf_lease_states_encode(&states, other, sizeof(other), &bytes), valid ? KVF_OK : KVF_INVALID);
    body[26] = (uint8_t)value;
    assert_int_equal(decode_lease_states(body, sizeof(body)), valid ? KVF_OK : KVF_PROTOCOL);
  }
}
