#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/prng.h"
#include "bench.h"

void bench_give_up(const char *what)
{
  (void)fprintf(stderr, "transfer_bench: %s\n", what);
  exit(1);
}

uint64_t bench_now_ns(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

uint8_t *bench_pool(void)
{
  uint8_t *pool = mmap(NULL, BENCH_POOL_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  bench_must(pool != MAP_FAILED, "no memory for the pool");
  memset(pool, 1, BENCH_POOL_BYTES);
  return pool;
}

static char key_path[] = "/tmp/kvferry-bench-key.XXXXXX";

void bench_key_make(void)
{
  static const char key[] = "the key of a benchmark, which protects nothing";
  int fd = mkstemp(key_path);
  bench_must(fd >= 0 && write(fd, key, sizeof(key)) == (ssize_t)sizeof(key), "cannot write a key file");
  (void)close(fd);
}

void bench_key_remove(void)
{
  (void)unlink(key_path);
}

void bench_choose(uint32_t *ids, uint32_t count, uint32_t pool_blocks, uint64_t seed)
{
  kvf_prng prng = {seed};
  uint32_t *all = malloc(pool_blocks * sizeof(*all));
  bench_must(all != NULL && count <= pool_blocks && count <= BENCH_BLOCKS_MAX, "shape too large");
  for (uint32_t i = 0; i < pool_blocks; i++) {
    all[i] = i;
  }
  for (uint32_t i = 0; i < count; i++) {
    uint32_t j = i + (uint32_t)kvf_prng_below(&prng, pool_blocks - i);
    ids[i] = all[j];
    all[j] = all[i];
  }
  free(all);
}

kvf_node *bench_node(const bench_shape *shape, uint8_t *pool)
{
  kvf_config config;
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_config_init(&config);
  bench_must(kvf_config_set(&config, "transports", shape->transport, message) == KVF_OK &&
                 kvf_config_set(&config, "checksum", shape->checksums ? "on" : "off", message) == KVF_OK &&
                 kvf_config_set(&config, "key_file", shape->tls ? key_path : "", message) == KVF_OK &&
                 kvf_config_set(&config, "tls", shape->tls ? "always" : "never", message) == KVF_OK &&
                 kvf_config_set(&config, "lease_ttl_ms", "600000", message) == KVF_OK &&
                 kvf_config_set(&config, "lease_pool_share_percent", "100", message) == KVF_OK &&
                 kvf_node_open(&config, &node, message) == KVF_OK,
             message);
  kvf_region region = {.base = pool,
                       .stride_bytes = shape->block_bytes,
                       .block_bytes = shape->block_bytes,
                       .blocks = (uint32_t)(BENCH_POOL_BYTES / shape->block_bytes),
                       .heads = 1,
                       .heads_total = 1};
  bench_must(kvf_node_register(node, &region, 1) == KVF_OK, "cannot register the pool");
  return node;
}

void bench_share(uint32_t total, uint32_t i, uint32_t n, uint32_t *first, uint32_t *count)
{
  *first = total * i / n;
  *count = total * (i + 1) / n - *first;
}
