/* The shape of a world: engines, ranks, heads, options, clocks, and which faults it has. All zeros: one producer and
 * one consumer of one rank each, nothing goes wrong. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "world.h"

static sim_prompt prompts[SIM_PROMPTS];
static bool prompts_are_made;

/* The second is the first one again, computed with other weights. The last three share their first block; the last
 * block of some is not full. */
static void make_prompts(void)
{
  static const uint32_t tokens[SIM_PROMPTS] = {8, 8, 16, 5, 20, 12, 10, 4};
  for (uint32_t p = 0; p < SIM_PROMPTS; p++) {
    uint32_t ids[SIM_POSITIONS_MAX * SIM_BLOCK_TOKENS];
    const char weights = p == 1;
    uint64_t hash = p == 1;
    for (uint32_t i = 0; i < tokens[p]; i++) {
      ids[i] = p >= SIM_PROMPTS - 3 && i < SIM_BLOCK_TOKENS ? 7 + i : 1000 * (p + (p != 1)) + i;
      hash = (hash ^ ids[i]) * UINT64_C(0x100000001b3) + 1;
      prompts[p].prefix[i / SIM_BLOCK_TOKENS] = hash;
    }
    prompts[p].positions = kvf_ticket_positions(tokens[p], SIM_BLOCK_TOKENS);
    kvf_status status = kvf_prompt_hash(ids, tokens[p], NULL, 0, &prompts[p].identity);
    status = status == KVF_OK ? kvf_prompt_set_model(&prompts[p].identity, &weights, 1) : status;
    prompts[p].identity.tokens = status == KVF_OK ? tokens[p] : 0;
  }
  prompts_are_made = true;
}

const sim_prompt *sim_prompt_at(uint32_t index)
{
  return &prompts[index];
}

static uint32_t random_bits(sim_tape *tape)
{
  uint32_t bits = 0;
  for (uint32_t i = 0; i < 4; i++) {
    bits = bits << 8 | sim_choose(tape, 256);
  }
  return bits;
}

static void choose_faults(sim_world *world)
{
  sim_tape *tape = &world->tape;
  uint32_t how_many = sim_choose(tape, 8);
  uint32_t a = random_bits(tape);
  uint32_t b = random_bits(tape);
  uint32_t c = random_bits(tape);
  switch (how_many) {
    case 0:
      world->faults = 0;
      break;
    case 1:
    case 2:
      world->faults = a & b & c;
      break;
    case 3:
    case 4:
    case 5:
      world->faults = a & b;
      break;
    default:
      world->faults = a;
      break;
  }
  world->faults &= (1u << SIM_FAULT_COUNT) - 1;
}

static uint32_t choose_of(sim_tape *tape, const uint32_t values[4])
{
  return values[sim_choose(tape, 4)];
}

static void choose_times(sim_world *world)
{
  static const uint32_t ttls[] = {1000, 300, 150, 3000};
  static const uint32_t lingers[] = {0, 50, 5, 500};
  static const uint32_t load_timeouts[] = {2000, 500, 200, 1000};
  static const uint32_t stalls[] = {200, 50, 20, 100};
  static const uint32_t released[] = {500, 100, 50, 1000};
  static const uint32_t handshakes[] = {300, 60, 100, 1000};
  static const uint32_t idles[] = {6000, 2000, 600, 6000};
  static const uint32_t cooldowns[] = {50, 10, 100, 20};
  sim_tape *tape = &world->tape;
  kvf_config *config = &world->config;
  config->lease_ttl_ms = choose_of(tape, ttls);
  config->lease_max_ms = config->lease_ttl_ms * (2 + sim_choose(tape, 4));
  config->lease_linger_ms = choose_of(tape, lingers);
  config->load_timeout_ms = choose_of(tape, load_timeouts);
  config->stall_timeout_ms = choose_of(tape, stalls);
  config->release_timeout_ms = choose_of(tape, released);
  config->handshake_timeout_ms = choose_of(tape, handshakes);
  config->idle_timeout_ms = choose_of(tape, idles);
  config->breaker_cooldown_ms = choose_of(tape, cooldowns);
  config->breaker_cooldown_max_ms = config->breaker_cooldown_ms * (4 + sim_choose(tape, 8));
  config->backoff_min_ms = 1 + sim_choose(tape, 10);
  config->backoff_max_ms = config->backoff_min_ms * (1 + sim_choose(tape, 10));
}

static void choose_options(sim_world *world)
{
  static const uint32_t chunks[] = {4096, 1, 24, 64};
  static const char *const transports[] = {"local", "tcp", "local,tcp", "tcp,local"};
  sim_tape *tape = &world->tape;
  kvf_config *config = &world->config;
  kvf_config_init(config);
  choose_times(world);
  config->block_tokens = SIM_BLOCK_TOKENS;
  config->chunk_bytes = choose_of(tape, chunks);
  config->chunks_in_flight = 1 + sim_choose(tape, 4);
  config->lease_slots = SIM_SLOTS_MAX;
  config->loads_max = 64;
  config->connections_max = 64;
  config->lease_pool_share_percent = 100;
  world->consumers_max = KVF_LEASE_CONSUMERS_MAX;
  if (sim_may(world, SIM_FAULT_TABLES)) {
    config->lease_slots = 1 + sim_choose(tape, SIM_SLOTS_MAX);
    config->loads_max = 1 + sim_choose(tape, 4);
    config->connections_max = 16 + sim_choose(tape, 16);
    config->lease_pool_share_percent = 100 - 10 * sim_choose(tape, 6);
    world->consumers_max = 1 + sim_choose(tape, 3);
  }
  uint32_t transport = sim_choose(tape, 4);
  (void)snprintf(config->transports, sizeof(config->transports), "%s", transports[transport]);
  static const kvf_policy policies[] = {KVF_POLICY_RECOMPUTE, KVF_POLICY_FAIL, KVF_POLICY_AUTO, KVF_POLICY_RECOMPUTE};
  config->policy = policies[sim_choose(tape, 4)];
  config->auto_max_recompute_tokens = 8;
  static const uint32_t budgets[] = {0, 0, 8, 100};
  config->recompute_budget_tokens_per_s = choose_of(tape, budgets);
  config->checksum = sim_may(world, SIM_FAULT_CORRUPT);
  config->log_level = KVF_LOG_INFO;
  world->core_config.logger = (kvf_logger){.level = KVF_LOG_INFO};
  if (world->trace != NULL) {
    world->core_config.logger = (kvf_logger){.fn = sim_log_line, .context = world, .level = KVF_LOG_INFO};
  }
}

/* Small numbers far more often than large ones: a world of many nodes costs time. */
static uint32_t choose_small(sim_tape *tape, uint32_t most)
{
  static const uint8_t likely[16] = {0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3};
  uint32_t number = 1u + likely[sim_choose(tape, 16)];
  return number > most ? most : number;
}

/* A number of ranks over which the heads can be split, or replicated. */
static uint32_t choose_ranks(sim_world *world)
{
  uint32_t ranks = choose_small(&world->tape, SIM_RANKS_MAX);
  while (ranks > 1 && ranks < world->heads_total && world->heads_total % ranks != 0) {
    ranks--;
  }
  return ranks;
}

static uint64_t choose_clock(sim_tape *tape)
{
  static const uint64_t clocks[] = {KVF_NS_PER_S, 0, UINT64_MAX / 2 - KVF_NS_PER_S, UINT64_C(1) << 48, 1};
  return clocks[sim_choose(tape, sizeof(clocks) / sizeof(clocks[0]))];
}

static void choose_engine(sim_world *world, uint32_t index)
{
  static const uint64_t late_ns[] = {0, SIM_MS / 3, 2 * SIM_MS, 9 * SIM_MS};
  sim_engine *engine = &world->engines[index];
  *engine = (sim_engine){.index = index, .is_producer = index < world->producers};
  engine->ranks = choose_ranks(world);
  assert(engine->ranks > 0);
  engine->clock_ns = choose_clock(&world->tape);
  uint32_t scheduler;
  engine->blocks =
      SIM_POSITIONS_MAX + sim_choose_both(&world->tape, SIM_BLOCKS_MAX - SIM_POSITIONS_MAX + 1, &scheduler);
  engine->late_ns = sim_may(world, SIM_FAULT_LATE) ? late_ns[sim_choose(&world->tape, 4)] : 0;
  engine->is_other = sim_may(world, SIM_FAULT_FORGE) && sim_choose(&world->tape, 8) == 7;
  bool is_joint = engine->ranks == 1 && sim_choose(&world->tape, 4) == 1;
  engine->control = index * SIM_NODES_EACH + (is_joint ? 0 : SIM_RANKS_MAX);
  for (uint32_t i = 0; i < SIM_NODES_EACH; i++) {
    sim_node *node = &world->nodes[index * SIM_NODES_EACH + i];
    node->index = index * SIM_NODES_EACH + i;
    node->rank = i;
    node->is_up = false;
    node->is_rank = i < engine->ranks;
    node->is_control = node->index == engine->control;
    node->heads = world->heads_total > engine->ranks ? world->heads_total / engine->ranks : 1;
    node->first_head = i * world->heads_total / engine->ranks;
  }
  sim_scheduler_choose(world, index, scheduler);
}

void sim_setup(sim_world *world)
{
  static const char secret[] = "the simulated cluster's shared key";
  sim_tape *tape = &world->tape;
  if (!prompts_are_made) {
    make_prompts();
  }
  choose_faults(world);
  choose_options(world);
  uint32_t replicas;
  world->has_key = sim_choose_both(tape, 4, &replicas) != 3;
  world->has_replicas = replicas % 2 == 1;
  world->has_finds = replicas / 2 % 4 == 1;
  if (world->has_key) {
    world->key.bytes = sizeof(secret);
    memcpy(world->key.data, secret, sizeof(secret));
  }
  if (kvf_mac_init(&world->mac, &world->key) != KVF_OK) {
    abort();
  }
  world->heads_total = choose_small(tape, SIM_HEADS_MAX);
  world->groups = sim_choose(tape, 8) == 7 ? SIM_GROUPS_MAX : 1;
  world->regions = world->groups == 1 ? 1 + sim_choose(tape, 2) : 1 + world->groups;
  world->delay_ns = (1 + sim_choose(tape, 8)) * (SIM_MS / 20);
  world->producers = choose_small(tape, SIM_SIDE_MAX);
  world->engines_count = world->producers + choose_small(tape, SIM_SIDE_MAX);
  for (uint32_t i = 0; i < world->engines_count; i++) {
    choose_engine(world, i);
    sim_push(world, 0, sim_on_start, i, 0, 0);
  }
}
