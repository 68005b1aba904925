/* Batches about leases, and their answers: there and back, counts, kinds and states. */
#include "wire/lease_message.h"

#include "base/fence.h"
#include "wire_test.h"

DECODER(leases)
DECODER(lease_states)

static kvf_leases leases;
static kvf_lease_states states;
static uint8_t body[KVF_LEASES_BYTES_MAX + 41]; /* one item more than allowed */
static uint8_t other[sizeof(body)];
static size_t bytes;

static kvf_lease lease_of(uint32_t i)
{
  kvf_lease lease = {.id = UINT64_C(0x0102030405060708) + i, .slot = 1000 + i};
  fill(lease.token, sizeof(lease.token), (uint8_t)i);
  return lease;
}

static void encode_leases(uint32_t count)
{
  memset(&leases, 0, sizeof(leases));
  leases.seq = 0x01020304;
  leases.count = count;
  for (uint32_t i = 0; i < count; i++) {
    leases.items[i].lease = lease_of(i);
    leases.items[i].request_id = UINT64_MAX - i;
    leases.items[i].kind = (uint8_t)(i % (KVF_FINISH_DETACHED + 1));
  }
  assert_int_equal(kvf_leases_encode(&leases, body, sizeof(body), &bytes), KVF_OK);
}

static void encode_states(uint32_t count)
{
  memset(&states, 0, sizeof(states));
  states.seq = 0x01020304;
  states.count = count;
  for (uint32_t i = 0; i < count; i++) {
    states.items[i].lease_id = KVF_LEASE_ID_MAX - i;
    states.items[i].slot = i;
    states.items[i].request_id = UINT64_MAX - i;
    states.items[i].state = (uint8_t)(KVF_LEASE_STATE_LIVE + i % 4);
  }
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_OK);
}

TEST(test_leases_round_trip)
{
  static kvf_leases back;
  encode_leases(KVF_LEASE_ITEMS_MAX);
  CHECK_CAPACITY(leases, &leases, KVF_LEASES_BYTES_MAX);
  assert_int_equal(kvf_leases_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.seq, leases.seq);
  assert_int_equal(back.count, leases.count);
  for (uint32_t i = 0; i < leases.count; i++) {
    assert_memory_equal(&back.items[i].lease, &leases.items[i].lease, sizeof(kvf_lease));
    assert_true(back.items[i].request_id == leases.items[i].request_id);
    assert_int_equal(back.items[i].kind, leases.items[i].kind);
  }
  encode_leases(3);
  check_length(decode_leases, body, bytes);
}

TEST(test_states_round_trip)
{
  static kvf_lease_states back;
  encode_states(KVF_LEASE_ITEMS_MAX);
  CHECK_CAPACITY(lease_states, &states, KVF_LEASE_STATES_BYTES_MAX);
  assert_int_equal(kvf_lease_states_decode(body, bytes, &back), KVF_OK);
  assert_int_equal(back.seq, states.seq);
  assert_int_equal(back.count, states.count);
  for (uint32_t i = 0; i < states.count; i++) {
    assert_true(back.items[i].lease_id == states.items[i].lease_id);
    assert_true(back.items[i].request_id == states.items[i].request_id);
    assert_int_equal(back.items[i].slot, states.items[i].slot);
    assert_int_equal(back.items[i].state, states.items[i].state);
  }
  encode_states(3);
  check_length(decode_lease_states, body, bytes);
}

TEST(test_count_limit)
{
  encode_leases(KVF_LEASE_ITEMS_MAX);
  memcpy(body + bytes, body + 6, 41);
  body[4]++;
  assert_int_equal(decode_leases(body, bytes + 41), KVF_PROTOCOL);
  encode_states(KVF_LEASE_ITEMS_MAX);
  memcpy(body + bytes, body + 6, 21);
  body[4]++;
  assert_int_equal(decode_lease_states(body, bytes + 21), KVF_PROTOCOL);

  leases.count++;
  states.count++;
  assert_int_equal(kvf_leases_encode(&leases, other, sizeof(other), &bytes), KVF_INVALID);
  assert_int_equal(kvf_lease_states_encode(&states, other, sizeof(other), &bytes), KVF_INVALID);
}

TEST(test_lease_ids)
{
  encode_leases(2);
  leases.items[1].lease.id = KVF_LEASE_ID_MAX;
  assert_int_equal(kvf_leases_encode(&leases, body, sizeof(body), &bytes), KVF_OK);
  assert_int_equal(decode_leases(body, bytes), KVF_OK);
  body[6 + 37]++;
  assert_int_equal(decode_leases(body, bytes), KVF_PROTOCOL);
  leases.items[1].lease.id++;
  assert_int_equal(kvf_leases_encode(&leases, body, sizeof(body), &bytes), KVF_INVALID);
  encode_states(1);
  body[6]++;
  assert_int_equal(decode_lease_states(body, bytes), KVF_PROTOCOL);
  states.items[0].lease_id++;
  assert_int_equal(kvf_lease_states_encode(&states, body, sizeof(body), &bytes), KVF_INVALID);
}

TEST(test_kinds)
{
  for (unsigned kind = 0; kind < 256; kind++) {
    bool valid = kind <= 3;
    encode_leases(1);
    leases.items[0].kind = (uint8_t)kind;
    assert_int_equal(kvf_leases_encode(&leases, other, sizeof(other), &bytes), valid ? KVF_OK : KVF_INVALID);
    body[42] = (uint8_t)kind;
    assert_int_equal(decode_leases(body, bytes), valid ? KVF_OK : KVF_PROTOCOL);
  }
}

TEST(test_state_rules)
{
  for (unsigned value = 0; value < 256; value++) {
    bool valid = value >= 1 && value <= 5;
    encode_states(1);
    states.items[0].state = (uint8_t)value;
    assert_int_equal(kvf_lease_states_encode(&states, other, sizeof(other), &bytes), valid ? KVF_OK : KVF_INVALID);
    body[26] = (uint8_t)value;
    assert_int_equal(decode_lease_states(body, bytes), valid ? KVF_OK : KVF_PROTOCOL);
  }
}
