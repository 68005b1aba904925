/* Fails the n-th hash or MAC, for every n, as OpenSSL does without memory: what cannot be proved is not believed, and
 * what failed once works later. Linked with --wrap for kvf_sha256, kvf_hmac, kvf_mac_init and kvf_mac_make. */

#include "core/core_state.h" /* for connections that have not proved a key */
#include "scene.h"

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

static void open_keyed(void)
{
  cluster_open("key=a-key-of-sixteen");
}

CLUSTER_TEST(init)
{
  kvf_core *core = NULL;
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
    status = kvf_core_create(&config, 0, &core);
    assert_int_equal(disarm(), status == KVF_NO_MEMORY);
  } while (status == KVF_NO_MEMORY);
  assert_int_equal(status, KVF_OK);
  assert_int_equal(hashes, 7); /* the identity, twice for its field; two keys; the first lease's id with the seeds */
  kvf_core_destroy(core);
}

/* P8: no lease whose token could be guessed. */
CLUSTER_TEST(no_lease_without_a_token)
{
  kvf_lease lease = {.id = 77};
  open_keyed();
  arm(0);
  assert_int_equal(kvf_core_lease_reserve(c.p[0].core, NULL, 1, 0, &lease), KVF_NO_MEMORY);
  assert_true(disarm());
  assert_int_equal(lease.id, 77);
  assert_int_equal(cluster_stat(&c.p[0], "leases_reserved", ""), 1); /* ticket A's */
  assert_int_equal(kvf_core_lease_reserve(c.p[0].core, NULL, 1, 0, &lease), KVF_OK);
}

/* P8, P2: a handshake that cannot be computed opens nothing on either side, and the next one does. */
CLUSTER_TEST(handshake)
{
  bool failed = true;
  long hashes = 0;
  for (; failed; hashes++) {
    open_keyed();
    assert_int_equal(cluster_publish(0, &c.tickets[0]), KVF_OK);
    const kvf_sources sources = cluster_sources("A");
    uint64_t id = 0;
    assert_int_equal(kvf_core_request_open(c.d.core, c.now_ns, &sources, &c.tickets[0].prompt, NULL, 1, &id, NULL),
                     KVF_OK);
    arm(hashes);
    cluster_settle();
    failed = disarm();
    assert_int_equal(cluster_stat(&c.d, "peer_handshakes", ""), failed ? 0 : 1);
    assert_int_equal(cluster_stat(&c.p[0], "sessions_open", ""), failed ? 0 : 1);
    assert_int_equal(c.p[0].core->sessions.unproven.count, 0);
    cluster_advance(501);  /* the breaker's cooldown, where it counts as the peer's failure */
    cluster_advance(9500); /* renews */
    assert_int_equal(cluster_stat(&c.d, "peer_handshakes", ""), 1);
    assert_int_equal(cluster_stat(&c.p[0], "sessions_open", ""), 1);
  }
  assert_int_equal(hashes, 10); /* nine that can fail, and the run without a failure */
}
