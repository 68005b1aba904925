#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "stress.h"

#define REGISTER_TRIES_MAX 100

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

static void drop_line(void *context, kvf_log_level level, const char *line)
{
  (void)context;
  (void)level;
  (void)line;
}

static kvf_status configure(const stress_site *site, kvf_config *config)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  const char *const options[][2] = {
      {"listen", site->setting.listen},
      {"transports", site->setting.transports},
      {"key_file", site->setting.key_file},
      {"tls", site->setting.key_file[0] == '\0' ? "off_loopback" : "always"},
      {"block_tokens", "16"},
      {"load_timeout_ms", "1500"}, /* STRESS_LOAD_TIMEOUT_MS */
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
  kvf_config_init(config);
  config->log = drop_line;
  kvf_status status = kvf_config_identity(config, "model", "stress");
  for (size_t i = 0; i < sizeof(options) / sizeof(options[0]) && status == KVF_OK; i++) {
    status = kvf_config_set(config, options[i][0], options[i][1], message);
  }
  for (const char *const(*option)[2] = stress_mix_now->options; (*option)[0] != NULL && status == KVF_OK; option++) {
    status = kvf_config_set(config, (*option)[0], (*option)[1], message);
  }
  return status;
}

static kvf_status register_pool(stress_site *site)
{
  kvf_region regions[STRESS_REGIONS];
  for (uint32_t i = 0; i < STRESS_REGIONS; i++) {
    regions[i] = (kvf_region){.base = site->pool[i],
                              .stride_bytes = STRESS_BLOCK_BYTES,
                              .block_bytes = STRESS_BLOCK_BYTES,
                              .blocks = STRESS_BLOCKS,
                              .heads = 4,
                              .heads_total = 4,
                              .memory = site->on_device ? KVF_MEMORY_CUDA : KVF_MEMORY_HOST};
  }
  kvf_status status = kvf_node_register(site->node, regions, STRESS_REGIONS);
  /* A failing export leaves out its only transport. */
  for (int i = 0; i < REGISTER_TRIES_MAX && status == KVF_TRANSFER_SETUP && site->on_device; i++) {
    status = kvf_node_register(site->node, regions, STRESS_REGIONS);
  }
  return status;
}

static kvf_status introduce(stress_site *site)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  kvf_status status = kvf_node_address(site->node, record, sizeof(record), &bytes);
  return status == KVF_OK ? kvf_node_set_ranks(site->node, record, &bytes, 1) : status;
}

static bool open_node(stress_site *site)
{
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = configure(site, &config);
  if (status == KVF_OK) {
    status = kvf_node_open(&config, &site->node, message);
  }
  if (status == KVF_OK) {
    status = register_pool(site);
  }
  if (status == KVF_OK) {
    status = introduce(site);
  }
  if (status != KVF_OK) {
    stress_fail("P6", "a node does not open: %s %s", kvf_status_name(status), message);
  }
  return status == KVF_OK;
}

bool stress_site_open(stress_site *site, const stress_setting *setting)
{
  pthread_rwlockattr_t kind;
  *site = (stress_site){.setting = *setting};
  (void)pthread_rwlockattr_init(&kind);
  (void)pthread_rwlockattr_setkind_np(&kind, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
  (void)pthread_rwlock_init(&site->life, &kind);
  (void)pthread_rwlockattr_destroy(&kind);
  (void)pthread_mutex_init(&site->lock, NULL);
  return stress_pool_open(site) && open_node(site);
}

void stress_site_close(stress_site *site)
{
  kvf_node_close(site->node);
  stress_pool_close(site);
  (void)pthread_mutex_destroy(&site->lock);
  (void)pthread_rwlock_destroy(&site->life);
}

void stress_site_restart(stress_site *site)
{
  (void)pthread_rwlock_wrlock(&site->life);
  kvf_node_close(site->node);
  site->node = NULL;
  if (site->setting.devices) { /* other memory, maybe of the other kind */
    stress_pool_close(site);
    if (!stress_pool_open(site)) {
      stress_fail("P6", "no memory for another pool");
    }
  }
  (void)pthread_mutex_lock(&site->lock);
  for (uint32_t i = 0; i < STRESS_BLOCKS; i++) {
    give(site, &i, 1);
  }
  memset(site->leases, 0, sizeof(site->leases));
  memset(site->loads, 0, sizeof(site->loads));
  (void)pthread_mutex_unlock(&site->lock);
  (void)open_node(site);
  atomic_fetch_add(&site->restarts, 1);
  (void)pthread_rwlock_unlock(&site->life);
}

void stress_site_unregister(stress_site *site, kvf_prng *prng)
{
  const uint64_t until_ms = stress_now_ms() + STRESS_PATIENCE_MS;
  (void)pthread_rwlock_rdlock(&site->life);
  kvf_status status = kvf_node_unregister(site->node);
  while (status == KVF_AGAIN && stress_now_ms() < until_ms) {
    stress_sleep_us(200);
    status = kvf_node_unregister(site->node);
  }
  if (status != KVF_OK) {
    stress_fail("P4", "memory is not let go of: %s", kvf_status_name(status));
  }
  stress_sleep_us(kvf_prng_below(prng, 2000));
  (void)pthread_rwlock_unlock(&site->life);
  stress_site_restart(site); /* memory is registered once in a node's life */
}

uint64_t stress_site_stat(stress_site *site, const char *name)
{
  kvf_stat stats[KVF_STATS_MAX];
  uint64_t value = 0;
  size_t count = kvf_node_stats(site->node, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    value += strcmp(stats[i].name, name) == 0 ? stats[i].value : 0;
  }
  return value;
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
  uint64_t live = stress_site_stat(site, "leases_live");
  bool idle = leases == 0 && loads == 0 && live == 0;
  if (complain && !idle) {
    stress_fail("P5", "%u leases and %u loads do not end; the node counts %llu live leases", leases, loads,
                (unsigned long long)live);
  }
  if (complain && !kvf_node_healthy(site->node)) {
    stress_fail("P4", "a node is not healthy though all its loads are released");
  }
  (void)pthread_rwlock_unlock(&site->life);
  return idle;
}
