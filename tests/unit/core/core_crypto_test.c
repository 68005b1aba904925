/* Fails the n-th hash or MAC, for every n, as OpenSSL does without memory: what cannot be proved is not believed, and
 * what failed once works later. Linked with --wrap for kvf_sha256, kvf_hmac, kvf_mac_init and kvf_mac_make. */

#include "control_world.h"
#include "test.h"

kvf_status __real_kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __real_kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __real_kvf_mac_init(kvf_mac *mac, const kvf_key *key);
kvf_status __wrap_kvf_mac_init(kvf_mac *mac, const kvf_key *key);
kvf_status __real_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);
kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES]);

static bool armed;
static long hashes_left; /* until one fails */

static bool fails_now(void)
{
  return armed && hashes_left-- == 0;
}

kvf_status __wrap_kvf_sha256(const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return fails_now() ? KVF_NO_MEMORY : __real_kvf_sha256(spans, count, out);
}

kvf_status __wrap_kvf_hmac(const kvf_key *key, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return fails_now() ? KVF_NO_MEMORY : __real_kvf_hmac(key, spans, count, out);
}

kvf_status __wrap_kvf_mac_init(kvf_mac *mac, const kvf_key *key)
{
  if (fails_now()) {
    *mac = (kvf_mac){.keyed = NULL};
    return KVF_NO_MEMORY;
  }
  return __real_kvf_mac_init(mac, key);
}

kvf_status __wrap_kvf_mac_make(const kvf_mac *mac, const kvf_span *spans, size_t count, uint8_t out[KVF_HASH_BYTES])
{
  return fails_now() ? KVF_NO_MEMORY : __real_kvf_mac_make(mac, spans, count, out);
}

static void arm(long hashes)
{
  armed = true;
  hashes_left = hashes;
}

/* Whether one has failed since arm(). */
static bool disarm(void)
{
  armed = false;
  return hashes_left < 0;
}

static kvf_ticket ticket;
static uint32_t ids[4];

static void open_world(void)
{
  control_options options;
  control_options_init(&options);
  options.consumer_key = "a key of sixteen";
  options.producer_key = "a key of sixteen";
  control_world_open(&options);
  control_ticket(&ticket, ids, 4);
}

CONTROL_TEST(init)
{
  kvf_core core;
  kvf_core_config config;
  memset(&config, 0, sizeof(config));
  config.key.bytes = 16;
  config.other_key.bytes = 17;
  kvf_config_init(&config.options);
  config.options.lease_linger_ms = 0;
  config.options.lease_slots = 4;
  long hashes = 0;
  kvf_status status;
  do {
    arm(hashes++);
    status = kvf_core_init(&core, &config, 0);
    assert_int_equal(disarm(), status == KVF_NO_MEMORY);
  } while (status == KVF_NO_MEMORY);
  assert_int_equal(status, KVF_OK);
  assert_int_equal(hashes, 7); /* the identity, twice for its field; two keys; the first lease's id with the seeds */
  kvf_core_free(&core);
}

/* P8: no lease whose token could be guessed. */
CONTROL_TEST(no_lease_without_a_token)
{
  kvf_lease lease = {.id = 77};
  open_world();
  uint32_t live = kvf_lease_slots_live(&world.producer.core.slots);
  arm(0);
  assert_int_equal(kvf_core_lease_reserve(&world.producer.core, 1, 0, &lease), KVF_NO_MEMORY);
  assert_true(disarm());
  assert_int_equal(lease.id, 77);
  assert_int_equal(kvf_lease_slots_live(&world.producer.core.slots), live);
  assert_int_equal(kvf_core_lease_reserve(&world.producer.core, 1, 0, &lease), KVF_OK);
}

static void dial_all(void)
{
  control_settle();
  while (world.consumer.dial_wanted) {
    control_dial(KVF_OK);
  }
}

/* P8, P2: a handshake that cannot be computed opens nothing on either side, and the next one does. */
CONTROL_TEST(handshake)
{
  kvf_peers *peers = &world.consumer.core.peers;
  const kvf_sessions *sessions = &world.producer.core.sessions;
  bool failed = true;
  long hashes = 0;
  for (; failed; hashes++) {
    kvf_peer *peer;
    open_world();
    assert_int_equal(kvf_peers_acquire(peers, &ticket.rank[0].address, &ticket.rank[0].incarnation, &peer), KVF_OK);
    kvf_peers_want_open(peers, world.now_ns, peer);
    arm(hashes);
    dial_all();
    failed = disarm();
    assert_int_equal(peer->state, failed ? KVF_PEER_IDLE : KVF_PEER_READY);
    assert_int_equal(HASH_CNT(by_id, sessions->by_id), failed ? 0 : 1);
    assert_int_equal(sessions->unproven.count, 0);
    control_advance(501); /* the breaker's cooldown, where it counts as the peer's failure */
    kvf_peers_want_open(peers, world.now_ns, peer);
    dial_all();
    assert_int_equal(peer->state, KVF_PEER_READY);
    assert_int_equal(HASH_CNT(by_id, sessions->by_id), 1);
  }
  assert_true(hashes > 10);
}
