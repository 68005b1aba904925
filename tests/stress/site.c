/* A node, its engine's blocks, and how it is restarted. */
#include <stdio.h>
#include <string.h>

#include "stress.h"

#define OPTIONS_MAX 32

/* ---- blocks ---- */

bool stress_blocks_take(stress_site *site, kvf_prng *prng, uint32_t count, uint32_t *blocks)
{
  uint32_t found = 0;
  uint32_t first = (uint32_t)kvf_prng_below(prng, STRESS_BLOCKS);
  (void)pthread_mutex_lock(&site->lock);
  for (uint32_t i = 0; i < STRESS_BLOCKS && found < count; i++) {
    uint32_t block = (first + i) % STRESS_BLOCKS;
    if (!site->used[block]) {
      blocks[found++] = block;
    }
  }
  bool enough = found == count && atomic_load(&site->queued) < STRESS_QUEUED_MAX;
  for (uint32_t i = 0; i < count && enough; i++) {
    site->used[blocks[i]] = true;
    if (site->setting.consumer) {
      stress_expect_untouched(site, blocks[i]);
    }
  }
  (void)pthread_mutex_unlock(&site->lock);
  return enough;
}

/* With the lock. */
static void give(stress_site *site, const uint32_t *blocks, uint32_t count)
{
  for (uint32_t i = 0; i < count; i++) {
    stress_fill(site, blocks[i], 0, 0);
    site->used[blocks[i]] = false;
  }
}

void stress_blocks_give(stress_site *site, const uint32_t *blocks, uint32_t count)
{
  (void)pthread_mutex_lock(&site->lock);
  give(site, blocks, count);
  (void)pthread_mutex_unlock(&site->lock);
}

/* ---- the node ---- */

static void list_options(const stress_site *site, bool on_device, pair_option *out)
{
  const pair_option options[] = {
      {"listen", site->setting.listen},
      {"transports", site->setting.transports},
      {"key_file", site->setting.key_file},
      {"tls", site->setting.key_file[0] == '\0' ? "off_loopback" : "always"},
      {"memory", on_device ? "cuda" : "host"},
      {"blocks", "32"}, /* STRESS_BLOCKS */
      {"block_bytes", "8192"},
      {"regions", "2"},
      {"register_tries", on_device ? "100" : "1"}, /* a call of the driver's may fail */
      {"load_timeout_ms", "1500"},                 /* STRESS_LOAD_TIMEOUT_MS */
      {"release_timeout_ms", "1000"},
      {"handshake_timeout_ms", "300"},
      {"breaker_cooldown_ms", "5"},
      {"breaker_cooldown_max_ms", "50"},
      {"backoff_min_ms", "1"},
      {"backoff_max_ms", "20"},
      {"lease_slots", "64"},
      {"chunk_bytes", "16384"},
      {"inline_bytes", "40000"},
      {"connections_max", "24"},
      {"idle_timeout_ms", "400"},
  };
  const size_t count = sizeof(options) / sizeof(options[0]);
  memcpy(out, options, sizeof(options));
  memcpy(out + count, stress_mix_now->options, sizeof(stress_mix_now->options)); /* the last has no name */
}

/* Where its memory may be a GPU's, each node has other memory, maybe of the other kind; else all have the same. */
static void open_node(stress_site *site)
{
  pair_option options[OPTIONS_MAX];
  kvf_prng prng = stress_prng();
  list_options(site, site->setting.devices && stress_one_in(&prng, 2), options);
  stress_enter_device(site);
  if (site->n.log != NULL && !site->setting.devices) {
    pair_restart_node(&site->n, options);
  } else {
    pair_close_node(&site->n);
    pair_open_node(&site->n, options);
    (void)pair_point(&site->n);
  }
  stress_leave_device(site);
  (void)pthread_mutex_lock(&site->lock);
  for (uint32_t i = 0; i < STRESS_BLOCKS; i++) {
    give(site, &i, 1);
  }
  memset(site->leases, 0, sizeof(site->leases));
  memset(site->loads, 0, sizeof(site->loads));
  (void)pthread_mutex_unlock(&site->lock);
}

void stress_site_open(stress_site *site, const stress_setting *setting)
{
  pthread_rwlockattr_t kind;
  *site = (stress_site){.setting = *setting};
  (void)pthread_rwlockattr_init(&kind);
  (void)pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  (void)pthread_rwlock_init(&site->life, &kind);
  (void)pthread_rwlockattr_destroy(&kind);
  (void)pthread_mutex_init(&site->lock, NULL);
  open_node(site);
}

void stress_site_close(stress_site *site)
{
  stress_enter_device(site);
  pair_close_node(&site->n);
  stress_leave_device(site);
  (void)pthread_mutex_destroy(&site->lock);
  (void)pthread_rwlock_destroy(&site->life);
}

void stress_site_restart(stress_site *site)
{
  (void)pthread_rwlock_wrlock(&site->life);
  open_node(site);
  atomic_fetch_add(&site->restarts, 1);
  (void)pthread_rwlock_unlock(&site->life);
}

void stress_site_unregister(stress_site *site, kvf_prng *prng)
{
  const uint64_t until_ms = now_ms() + STRESS_PATIENCE_MS;
  (void)pthread_rwlock_rdlock(&site->life);
  kvf_status status = kvf_node_unregister(site->n.node);
  while (status == KVF_AGAIN && now_ms() < until_ms) {
    sleep_us(200);
    status = kvf_node_unregister(site->n.node);
  }
  if (status != KVF_OK) {
    stress_fail("P4", "memory is not let go of: %s", kvf_status_name(status));
  }
  sleep_us(kvf_prng_below(prng, 2000));
  (void)pthread_rwlock_unlock(&site->life);
  stress_site_restart(site); /* memory is registered once in a node's life */
}

bool stress_is_idle(stress_site *site, bool complain)
{
  uint32_t leases = 0;
  uint32_t loads = 0;
  (void)pthread_rwlock_rdlock(&site->life);
  (void)pthread_mutex_lock(&site->lock);
  for (uint32_t i = 0; i < STRESS_LEASES; i++) {
    leases += site->leases[i].lease.id != 0;
  }
  for (uint32_t i = 0; i < STRESS_LOADS; i++) {
    const stress_load *load = &site->loads[i];
    loads += load->id != 0;
    if (complain && load->id != 0) {
      (void)fprintf(stderr, "load %llu: started %d, outcome %d, released %d, verdict %d, cancelled %d\n",
                    (unsigned long long)load->id, load->started, load->loaded, load->load_released, load->decided,
                    load->cancelled);
    }
  }
  (void)pthread_mutex_unlock(&site->lock);
  uint64_t live = pair_stat(&site->n, "leases_live", "");
  bool idle = leases == 0 && loads == 0 && live == 0;
  if (complain && !idle) {
    stress_fail("P5", "%u leases and %u loads do not end; the node counts %llu live leases", leases, loads,
                (unsigned long long)live);
  }
  if (complain && !kvf_node_healthy(site->n.node)) {
    stress_fail("P4", "a node is not healthy though all its loads are released");
  }
  (void)pthread_rwlock_unlock(&site->life);
  return idle;
}

/* ---- its threads ---- */

void *stress_engine(void *context)
{
  stress_site *site = context;
  kvf_prng prng = stress_prng();
  while (!atomic_load(&stress_stop)) {
    (void)pthread_rwlock_rdlock(&site->life);
    (site->setting.consumer ? stress_consume : stress_produce)(site, &prng);
    (void)pthread_rwlock_unlock(&site->life);
    sleep_us(kvf_prng_below(&prng, 1000));
  }
  return NULL;
}

void *stress_poll(void *context)
{
  stress_site *site = context;
  while (atomic_load(&stress_wrong) == 0 && (!atomic_load(&stress_last) || !stress_is_idle(site, false))) {
    (void)pthread_rwlock_rdlock(&site->life);
    size_t count = (site->setting.consumer ? stress_consume_poll : stress_produce_poll)(site);
    (void)pthread_rwlock_unlock(&site->life);
    sleep_us(count == 0 ? 300 : 0);
  }
  return NULL;
}
