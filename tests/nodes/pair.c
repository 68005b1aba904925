/* Whole nodes, their engines, tickets and loads, and a producer in a process of its own: see pair.h. */
#include "pair.h"

#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../cuda_driver.h"
#include "../memory_kind.h"
#include "fake_cuda.h"
#include "runtime/pump.h"
#include "transport/thread.h"

#define PATIENT_MS 20000
#define LATE_NS 50000 /* a real device's kernels are as late as this; the fake's by its seed */

static void keep_log(void *context, kvf_log_level level, const char *line)
{
  pair_log *log = context;
  (void)level;
  (void)pthread_mutex_lock(&log->lock);
  (void)snprintf(log->lines[log->count % PAIR_LOG_LINES], PAIR_LOG_BYTES, "%s", line);
  log->count++;
  (void)pthread_mutex_unlock(&log->lock);
}

static bool has_line(pair_log *log, const char *text, const char *other_text)
{
  bool found = false;
  (void)pthread_mutex_lock(&log->lock);
  for (uint32_t i = 0; i < log->count && i < PAIR_LOG_LINES && !found; i++) {
    found = strstr(log->lines[i], text) != NULL && (other_text == NULL || strstr(log->lines[i], other_text) != NULL);
  }
  (void)pthread_mutex_unlock(&log->lock);
  return found;
}

/* When the lines so far have been written. */
bool pair_logged(pair_node *n, const char *text, const char *other_text)
{
  char mark[32];
  const uint64_t until_ms = now_ms() + PATIENT_MS;
  (void)snprintf(mark, sizeof(mark), "mark %u.", ++n->marks);
  kvf_node_log(n->node, KVF_LOG_DEBUG, mark);
  while (!has_line(n->log, mark, NULL) && pair_tick(until_ms)) {
  }
  assert_true(has_line(n->log, mark, NULL));
  return has_line(n->log, text, other_text);
}

const kvf_layout *pair_layout;

static uint32_t memory_named(const char *name)
{
  static const struct {
    const char *name;
    uint32_t memory;
  } kinds[] = {{"host", KVF_MEMORY_HOST},
               {"cuda", KVF_MEMORY_CUDA},
               {"mapped", KVF_MEMORY_CUDA},
               {"test", TEST_MEMORY},
               {"other", TEST_MEMORY_OTHER}};
  size_t i = 0;
  while (strcmp(kinds[i].name, name) != 0) {
    i++;
  }
  return kinds[i].memory;
}

static void *allocate_region(const pair_node *n, size_t bytes)
{
  if (n->is_mapped) {
    return test_memory_map(bytes);
  }
  return n->memory == KVF_MEMORY_HOST ? calloc(1, bytes) : test_memory_allocate(n->memory, bytes);
}

/* Of its kind; all zeros, unless it is mapped. */
static void allocate_memory(pair_node *n)
{
  for (uint32_t i = 0; i < n->regions; i++) {
    n->bases[i] = allocate_region(n, (size_t)n->blocks * n->block_bytes);
    assert_non_null(n->bases[i]);
    n->pool[i] = n->is_mapped ? NULL : test_memory_bytes(n->bases[i]);
  }
}

static void register_memory(pair_node *n)
{
  kvf_region regions[PAIR_REGIONS_MAX];
  kvf_status status = KVF_TRANSFER_SETUP;
  for (uint32_t i = 0; i < n->regions; i++) {
    regions[i] = (kvf_region){.base = n->bases[i],
                              .stride_bytes = n->block_bytes,
                              .block_bytes = n->block_bytes,
                              .blocks = n->blocks,
                              .heads = 4,
                              .heads_total = 4};
    memcpy(&regions[i].memory, &n->memory, sizeof(n->memory)); /* not all are enumerators */
  }
  for (uint32_t i = 0; i < n->register_tries && status == KVF_TRANSFER_SETUP; i++) {
    status = pair_layout == NULL ? kvf_node_register(n->node, regions, n->regions)
                                 : kvf_node_register_layout(n->node, regions, n->regions, pair_layout);
  }
  assert_int_equal(status, KVF_OK);
}

static void free_memory(const pair_node *n, void *const *bases)
{
  for (uint32_t i = 0; i < n->regions; i++) {
    if (n->memory == KVF_MEMORY_HOST) {
      free(bases[i]);
    } else if (bases[i] != NULL) {
      test_memory_free(bases[i]);
    }
  }
}

void pair_move(pair_node *n)
{
  assert_null(n->left[0]);
  assert_int_equal(kvf_node_unregister(n->node), KVF_OK);
  memcpy(n->left, n->bases, sizeof(n->left));
  allocate_memory(n);
  register_memory(n);
}

/* ---- a node's engine ---- */

const kvf_ordering_point *pair_point(pair_node *n)
{
  if (n->memory != KVF_MEMORY_CUDA) {
    return NULL;
  }
  if (n->point.handle == NULL) {
    kvf_cu_stream stream;
    cuda_driver_must(cuda_driver_open()->cuda->api.stream_create_with_priority(&stream, KVF_CU_STREAM_NON_BLOCKING, 0));
    n->point = (kvf_ordering_point){.memory = KVF_MEMORY_CUDA, .handle = stream};
  }
  return &n->point;
}

/* Not a race: an engine may write to the blocks of a lease that it has ended while a reader still copies them, whose
 * look at the fence comes after that. No memset(), which the sanitizer would see. */
__attribute__((no_sanitize("thread"))) static void write_value(volatile uint8_t *to, size_t bytes, uint8_t value)
{
  for (size_t i = 0; i < bytes; i++) {
    to[i] = value;
  }
}

void pair_write(pair_node *n, uint32_t block, uint8_t value)
{
  const kvf_ordering_point *point = pair_point(n);
  for (uint32_t region = 0; region < n->regions; region++) {
    uint8_t *to = (uint8_t *)n->bases[region] + (size_t)block * n->block_bytes;
    if (point != NULL) {
      cuda_driver_fill(point->handle, to, n->block_bytes, value, LATE_NS);
    } else {
      write_value(to, n->block_bytes, value);
    }
  }
}

bool pair_is_written(const pair_node *n, uint32_t block, uint8_t value)
{
  bool is = true;
  for (uint32_t region = 0; region < n->regions; region++) {
    const uint8_t *bytes = (uint8_t *)n->bases[region] + (size_t)block * n->block_bytes;
    is = is && test_memory_all_are(bytes, value, n->block_bytes);
  }
  return is;
}

void pair_finish(const pair_node *n)
{
  if (n->point.handle != NULL) {
    cuda_driver_must(cuda_driver_open()->stream_synchronize(n->point.handle));
  }
}

static void end_engine(const pair_node *n)
{
  pair_finish(n);
  if (n->point.handle != NULL) {
    cuda_driver_must(cuda_driver_open()->cuda->api.stream_destroy(n->point.handle));
  }
}

/* What a test alone sets. */
static bool set_own(pair_node *n, kvf_config *config, const pair_option *option)
{
  const struct {
    const char *name;
    uint32_t *value;
  } numbers[] = {{"blocks", &n->blocks},
                 {"block_bytes", &n->block_bytes},
                 {"regions", &n->regions},
                 {"register_tries", &n->register_tries},
                 {"breaker_cooldown_ms", &config->breaker_cooldown_ms},
                 {"breaker_cooldown_max_ms", &config->breaker_cooldown_max_ms},
                 {"backoff_min_ms", &config->backoff_min_ms},
                 {"backoff_max_ms", &config->backoff_max_ms},
                 {"chunks_in_flight", &config->chunks_in_flight}};
  for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    if (strcmp(option->name, numbers[i].name) == 0) {
      *numbers[i].value = (uint32_t)strtoul(option->value, NULL, 10);
      return true;
    }
  }
  if (strcmp(option->name, "memory") == 0) {
    n->memory = memory_named(option->value);
    n->is_mapped = strcmp(option->value, "mapped") == 0;
  } else if (strcmp(option->name, "listen_other") == 0) {
    (void)snprintf(config->listen_other, sizeof(config->listen_other), "%s", option->value);
  } else if (strcmp(option->name, "model") == 0) {
    assert_int_equal(kvf_config_identity(config, "model", option->value), KVF_OK);
  } else {
    return false;
  }
  return true;
}

static void configure(pair_node *n, const pair_option *options, kvf_config *config)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_config_init(config);
  config->block_tokens = PAIR_BLOCK_TOKENS;
  config->handshake_timeout_ms = PATIENT_MS;
  config->stall_timeout_ms = PATIENT_MS;
  config->log = n->log == NULL ? NULL : keep_log;
  config->log_context = n->log;
  assert_int_equal(kvf_config_identity(config, "model", "test"), KVF_OK);
  for (; options != NULL && options->name != NULL; options++) {
    if (!set_own(n, config, options)) {
      assert_int_equal(kvf_config_set(config, options->name, options->value, message), KVF_OK);
    }
  }
  assert_true(n->blocks <= PAIR_BLOCKS_MAX && n->regions <= PAIR_REGIONS_MAX);
}

static void start(pair_node *n, const kvf_config *config)
{
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  if (kvf_node_open(config, &n->node, message) != KVF_OK) {
    fail_msg("node: %s", message);
  }
  register_memory(n);
  if (config->listen[0] != '\0') { /* else it only loads */
    assert_int_equal(kvf_node_address(n->node, record, sizeof(record), &bytes), KVF_OK);
    assert_int_equal(kvf_node_set_ranks(n->node, record, &bytes, 1), KVF_OK);
  }
}

void pair_open_node(pair_node *n, const pair_option *options)
{
  kvf_config config;
  *n = (pair_node){.blocks = PAIR_BLOCKS,
                   .block_bytes = PAIR_BLOCK_BYTES,
                   .regions = PAIR_REGIONS,
                   .register_tries = 1,
                   .memory = KVF_MEMORY_HOST,
                   .log = calloc(1, sizeof(*n->log))};
  assert_non_null(n->log);
  (void)pthread_mutex_init(&n->log->lock, NULL);
  configure(n, options, &config);
  allocate_memory(n);
  start(n, &config);
}

kvf_status pair_open_bare(const pair_option *options, kvf_node **out, char *message)
{
  pair_node n = {0};
  kvf_config config;
  configure(&n, options, &config);
  return kvf_node_open(&config, out, message);
}

void pair_expect_refused(const pair_option *options, kvf_status status, const char *said)
{
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(pair_open_bare(options, &node, message), status);
  assert_null(node);
  if (strstr(message, said) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", message, said);
  }
}

void pair_restart_node(pair_node *n, const pair_option *options)
{
  kvf_config config;
  kvf_node_close(n->node);
  configure(n, options, &config);
  start(n, &config);
}

void pair_close_node(pair_node *n)
{
  if (n->log == NULL) {
    return;
  }
  kvf_node_close(n->node);
  end_engine(n);
  free_memory(n, n->bases);
  free_memory(n, n->left);
  (void)pthread_mutex_destroy(&n->log->lock);
  free(n->log);
  *n = (pair_node){0};
}

pair p;

void pair_open(const pair_option *options)
{
  pair_open_node(&p.producer, options);
  pair_open_node(&p.consumer, options);
}

void pair_close(void)
{
  pair_close_node(&p.consumer);
  pair_close_node(&p.producer);
}

kvf_prompt pair_prompt(uint32_t tokens, uint32_t seed)
{
  uint32_t ids[PAIR_BLOCKS_MAX * PAIR_BLOCK_TOKENS];
  kvf_prompt prompt;
  for (uint32_t i = 0; i < tokens; i++) {
    ids[i] = seed * 1000 + i;
  }
  assert_int_equal(kvf_prompt_hash(ids, tokens, NULL, 0, &prompt), KVF_OK);
  return prompt;
}

static uint64_t word_of(uint64_t seed, uint32_t position, uint32_t region, uint32_t i)
{
  return (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + ((uint64_t)position << 40) + ((uint64_t)region << 32) + i;
}

/* Not a race, for the reason of write_value(). */
__attribute__((no_sanitize("thread"))) void pair_fill_region(pair_node *n, uint32_t region, uint32_t block,
                                                             uint64_t seed, uint32_t position)
{
  volatile uint64_t *to = (void *)(n->pool[region] + (size_t)block * n->block_bytes);
  for (uint32_t i = 0; i < n->block_bytes / sizeof(*to); i++) {
    to[i] = word_of(seed, position, region, i);
  }
}

bool pair_region_holds(const pair_node *n, uint32_t region, uint32_t block, uint64_t seed, uint32_t position)
{
  const uint64_t *words = (const void *)(n->pool[region] + (size_t)block * n->block_bytes);
  uint32_t i = 0;
  while (i < n->block_bytes / sizeof(*words) && words[i] == word_of(seed, position, region, i)) {
    i++;
  }
  return i == n->block_bytes / sizeof(*words);
}

void pair_fill(pair_node *n, uint32_t block, uint64_t seed, uint32_t position)
{
  for (uint32_t region = 0; region < n->regions; region++) {
    pair_fill_region(n, region, block, seed, position);
  }
}

bool pair_holds(const pair_node *n, uint32_t block, uint64_t seed, uint32_t position)
{
  bool holds = true;
  for (uint32_t region = 0; region < n->regions; region++) {
    holds = holds && pair_region_holds(n, region, block, seed, position);
  }
  return holds;
}

bool pair_holds_all(const pair_node *n, uint32_t first, uint32_t count, uint64_t seed)
{
  bool holds = true;
  for (uint32_t i = 0; i < count; i++) {
    holds = holds && pair_holds(n, first + i, seed, i);
  }
  return holds;
}

/* ---- tickets ---- */

uint32_t pair_groups = 1;

typedef struct all_groups {
  uint32_t ids[PAIR_GROUPS_MAX * PAIR_BLOCKS_MAX];
  uint32_t counts[PAIR_GROUPS_MAX];
  kvf_blocks blocks;
} all_groups;

static void list_groups(const uint32_t *ids, uint32_t count, all_groups *out)
{
  for (uint32_t group = 0; group < pair_groups; group++) {
    memcpy(&out->ids[(size_t)group * count], ids, count * sizeof(ids[0]));
    out->counts[group] = count;
  }
  out->blocks = (kvf_blocks){.ids = out->ids, .counts = out->counts, .groups = pair_groups};
}

void pair_reserve(pair_node *producer, uint32_t first, uint32_t count, uint32_t seed, pair_ticket *out)
{
  memset(out, 0, sizeof(*out));
  out->count = count;
  out->seed = seed;
  out->prompt = pair_prompt(count * PAIR_BLOCK_TOKENS, seed);
  for (uint32_t i = 0; i < count; i++) {
    out->blocks[i] = (first + 2 * i) % producer->blocks;
  }
  assert_int_equal(kvf_lease_reserve(producer->node, pair_groups * count, 0, &out->lease), KVF_OK);
  all_groups all;
  list_groups(out->blocks, count, &all);
  assert_int_equal(kvf_ticket_make(producer->node, &out->lease, &all.blocks, &out->prompt, out->text, sizeof(out->text),
                                   &out->bytes),
                   KVF_OK);
}

void pair_offer(pair_node *producer, uint32_t first, uint32_t count, uint32_t seed, bool publish, pair_ticket *out)
{
  pair_reserve(producer, first, count, seed, out);
  for (uint32_t i = 0; i < count; i++) {
    pair_fill(producer, out->blocks[i], seed, i);
  }
  if (publish) {
    pair_publish(producer, out);
  }
}

void pair_publish(pair_node *producer, const pair_ticket *ticket)
{
  assert_int_equal(pair_publish_after(producer, ticket, NULL), KVF_OK);
}

kvf_status pair_publish_after(pair_node *producer, const pair_ticket *ticket, const kvf_ordering_point *after)
{
  all_groups all;
  list_groups(ticket->blocks, ticket->count, &all);
  return kvf_lease_publish(producer->node, &ticket->lease, &all.blocks, &ticket->prompt, after, 7);
}

void pair_add_source(pair_ticket *ticket, const pair_ticket *other)
{
  ticket->bytes += (size_t)snprintf(ticket->text + ticket->bytes, sizeof(ticket->text) - ticket->bytes, ",%.*s",
                                    (int)other->bytes, other->text);
}

kvf_status pair_request(pair_node *consumer, const pair_ticket *ticket, const kvf_prompt *prompt, uint64_t *id)
{
  kvf_request_info info;
  kvf_status status = kvf_request_open(consumer->node, ticket->text, ticket->bytes, prompt, NULL, 9, &info);
  if (status == KVF_OK) {
    *id = info.id;
    status = kvf_request_begin(consumer->node, info.id);
  }
  return status;
}

kvf_status pair_load_after(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first,
                           const kvf_ordering_point *after, uint32_t timeout_ms)
{
  uint32_t destination[PAIR_BLOCKS_MAX];
  for (uint32_t i = 0; i < ticket->count; i++) {
    destination[i] = first + i;
  }
  all_groups all;
  list_groups(destination, ticket->count, &all);
  kvf_load_params load = {.request_id = id,
                          .ticket = ticket->text,
                          .ticket_bytes = ticket->bytes,
                          .prompt = ticket->prompt,
                          .destination = all.blocks,
                          .user = 5,
                          .timeout_ms = timeout_ms,
                          .after = after};
  return kvf_load_start(consumer->node, &load);
}

kvf_status pair_load(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first)
{
  return pair_load_after(consumer, ticket, id, first, NULL, 0);
}

bool pair_tick(uint64_t until_ms)
{
  sleep_ms(1);
  return now_ms() < until_ms;
}

uint64_t pair_begin(pair_node *consumer, const pair_ticket *ticket, uint32_t first)
{
  uint64_t id = 0;
  assert_int_equal(pair_request(consumer, ticket, &ticket->prompt, &id), KVF_OK);
  assert_int_equal(pair_load(consumer, ticket, id, first), KVF_OK);
  return id;
}

static void take(pair_node *consumer, uint64_t id, const kvf_event *event, pair_result *out)
{
  if (event->id != id) {
    return;
  }
  switch (event->kind) {
    case KVF_EVENT_LOAD:
      assert_false(out->loaded);
      out->loaded = true;
      out->report = event->u.report;
      (void)kvf_request_report(consumer->node, &event->u.report);
      break;
    case KVF_EVENT_RELEASED:
      assert_true(out->loaded);
      assert_false(out->load_released);
      out->load_released = true;
      (void)kvf_request_released(consumer->node, id, 1);
      break;
    case KVF_EVENT_VERDICT:
      assert_false(out->decided);
      out->decided = true;
      out->verdict = event->u.verdict;
      break;
    case KVF_EVENT_REQUEST_RELEASED:
      assert_true(out->load_released && out->decided);
      assert_false(out->released);
      out->released = true;
      break;
    default:
      break;
  }
}

pair_result pair_poll_for(pair_node *consumer, uint64_t id, uint32_t timeout_ms)
{
  pair_result result = {0};
  uint64_t until_ms = now_ms() + timeout_ms;
  while (!(result.load_released && result.decided) && now_ms() < until_ms) {
    kvf_event event;
    if (kvf_node_poll(consumer->node, &event, 1) == 0) {
      sleep_ms(1);
    } else {
      take(consumer, id, &event, &result);
    }
  }
  return result;
}

pair_result pair_wait_for(pair_node *consumer, uint64_t id, uint32_t timeout_ms)
{
  const pair_result result = pair_poll_for(consumer, id, timeout_ms);
  assert_true(result.load_released && result.decided);
  return result;
}

pair_result pair_wait(pair_node *consumer, uint64_t id)
{
  return pair_wait_for(consumer, id, PAIR_LATE_MS);
}

/* Returns what the calls say. */
static kvf_status fetch(pair_node *consumer, const pair_ticket *ticket, uint32_t first, uint32_t timeout_ms,
                        pair_result *out)
{
  uint64_t id = 0;
  *out = (pair_result){0};
  kvf_status started = pair_request(consumer, ticket, &ticket->prompt, &id);
  if (started != KVF_OK) {
    return started;
  }
  started = pair_load(consumer, ticket, id, first);
  if (started == KVF_OK) {
    *out = pair_wait_for(consumer, id, timeout_ms);
    out->holds = pair_holds_all(consumer, first, out->report.prefix, ticket->seed);
  } else {
    (void)kvf_request_cancel(consumer->node, id);
  }
  return started;
}

kvf_status pair_fetch(pair_node *consumer, const pair_ticket *ticket, uint32_t first, pair_result *out)
{
  pair_result result;
  const kvf_status started = fetch(consumer, ticket, first, PAIR_LATE_MS, &result);
  assert_true(started != KVF_OK || result.holds);
  if (out != NULL) {
    *out = result;
  }
  return started != KVF_OK ? started : (kvf_status)result.report.status;
}

void pair_fetch_whole(pair_node *consumer, const pair_ticket *ticket, uint32_t first)
{
  pair_result result;
  const kvf_status status = pair_fetch(consumer, ticket, first, &result);
  if (status != KVF_OK) {
    fail_msg("the load: %s", kvf_status_name(status));
  }
  assert_int_equal(result.report.prefix, ticket->count);
  assert_int_equal(result.verdict.action, KVF_ACTION_USE);
  assert_int_equal(result.verdict.recompute_tokens, 0);
}

bool pair_poll_load(pair_node *consumer, uint64_t id, uint64_t within_us, pair_result *out)
{
  const uint64_t until_ns = kvf_clock_now() + within_us * 1000;
  while (!out->load_released && kvf_clock_now() < until_ns) {
    kvf_event event;
    if (kvf_node_poll(consumer->node, &event, 1) == 0) {
      sleep_us(20);
    } else {
      take(consumer, id, &event, out);
    }
  }
  return out->load_released;
}

kvf_lease_end_cause pair_wait_lease_end(pair_node *producer, uint64_t lease_id, uint32_t timeout_ms)
{
  uint64_t until_ms = now_ms() + timeout_ms;
  while (now_ms() < until_ms) {
    kvf_event event;
    if (kvf_node_poll(producer->node, &event, 1) == 0) {
      sleep_ms(1);
    } else if (event.kind == KVF_EVENT_LEASE_ENDED && event.id == lease_id) {
      return event.u.lease_end;
    }
  }
  fail_msg("the lease has not ended");
  return KVF_LEASE_END_EXPIRED;
}

void pair_take_back(pair_node *producer, const pair_ticket *ticket)
{
  (void)kvf_lease_end(producer->node, &ticket->lease);
  (void)kvf_lease_release(producer->node, ticket->lease.id);
}

uint64_t pair_stat(pair_node *n, const char *name, const char *reason)
{
  kvf_stat stats[KVF_STATS_MAX];
  size_t count = kvf_node_stats(n->node, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(stats[i].name, name) == 0 && strcmp(stats[i].reason, reason) == 0) {
      return stats[i].value;
    }
  }
  fail_msg("no statistic %s %s", name, reason);
  return 0;
}

bool pair_wait_stat(pair_node *n, const char *name, const char *reason, uint64_t value, uint32_t timeout_ms)
{
  const uint64_t until_ms = now_ms() + timeout_ms;
  while (pair_stat(n, name, reason) < value && pair_tick(until_ms)) {
  }
  return pair_stat(n, name, reason) >= value;
}

bool pair_wait_log(pair_node *n, const char *text, const char *other_text, uint32_t timeout_ms)
{
  const uint64_t until_ms = now_ms() + timeout_ms;
  while (!pair_logged(n, text, other_text) && pair_tick(until_ms)) {
  }
  return pair_logged(n, text, other_text);
}

kvf_rank_record pair_record(kvf_node *node)
{
  uint8_t bytes[KVF_ADDRESS_BYTES_MAX];
  size_t count = 0;
  kvf_rank_record record;
  assert_int_equal(kvf_node_address(node, bytes, sizeof(bytes), &count), KVF_OK);
  assert_int_equal(kvf_rank_record_decode(bytes, count, &record), KVF_OK);
  return record;
}

#define HEALTHY_FIRST 0 /* blocks 0, 2, … of the producer */
#define HARMED_FIRST 17 /* blocks 17, 19, … */
#define DESTINATION 20

/* ---- costs ---- */

costs costs_now(void)
{
  const struct mallinfo2 info = mallinfo2();
  return (costs){.descriptors = count_entries("/proc/self/fd"),
                 .threads = count_entries("/proc/self/task"),
                 .memory_bytes = SANITIZED ? 0 : info.uordblks + info.hblkhd};
}

costs costs_settled(void)
{
  const uint64_t until_ms = now_ms() + PAIR_PATIENCE_MS;
  costs before = costs_now();
  for (;;) {
    sleep_ms(COSTS_SETTLED_MS);
    const costs now = costs_now();
    if ((now.descriptors == before.descriptors && now.threads == before.threads) || !pair_tick(until_ms)) {
      return now;
    }
    before = now;
  }
}

void costs_expect(costs before, size_t slack_bytes)
{
  const size_t most_bytes = before.memory_bytes + slack_bytes;
  uint64_t until_ms = now_ms() + PAIR_PATIENCE_MS;
  costs now = costs_now();
  while ((now.descriptors != before.descriptors || now.threads != before.threads || now.memory_bytes > most_bytes) &&
         pair_tick(until_ms)) {
    now = costs_now();
  }
  assert_int_equal(now.descriptors, before.descriptors);
  assert_int_equal(now.threads, before.threads);
  if (now.memory_bytes > most_bytes) {
    fail_msg("%zu bytes are allocated, %zu were", now.memory_bytes, before.memory_bytes);
  }
}

/* ---- beside ---- */

static kvf_status load_good(beside *b, uint32_t seed)
{
  pair_ticket ticket;
  pair_result result;
  (void)pthread_mutex_lock(&b->offers);
  pair_offer(b->producer, HEALTHY_FIRST, PAIR_TRY_BLOCKS, seed, true, &ticket);
  (void)pthread_mutex_unlock(&b->offers);
  kvf_status status = fetch(&b->consumer, &ticket, DESTINATION, PAIR_PATIENCE_MS, &result);
  if (status == KVF_OK) {
    status = result.holds ? (kvf_status)result.report.status : KVF_CHECKSUM;
  }
  pair_take_back(b->producer, &ticket);
  return status;
}

/* The producer's engine takes its blocks back: a lease is kept until its end has been polled. */
static void take_ends(pair_node *producer)
{
  kvf_event events[16];
  while (kvf_node_poll(producer->node, events, 16) > 0) {
  }
}

static void *load_on(void *context)
{
  beside *b = context;
  for (uint32_t seed = 1; !atomic_load(&b->stop); seed++) {
    kvf_status status = load_good(b, seed % 1000);
    int none = KVF_OK;
    if (status != KVF_OK) {
      (void)atomic_compare_exchange_strong(&b->failure, &none, (int)status);
    }
    take_ends(b->producer);
    atomic_fetch_add(&b->loads, 1);
    sleep_ms(2); /* the machine is for the others, too */
  }
  return NULL;
}

static void wait_loads(beside *b, unsigned count)
{
  const uint64_t until_ms = now_ms() + PAIR_PATIENCE_MS;
  while (atomic_load(&b->loads) < count && pair_tick(until_ms)) {
  }
  assert_true(atomic_load(&b->loads) >= count);
}

void beside_start(beside *b, pair_node *producer, const pair_option *options)
{
  memset(b, 0, sizeof(*b));
  b->producer = producer;
  (void)pthread_mutex_init(&b->offers, NULL);
  pair_open_node(&b->consumer, options);
  assert_int_equal(pthread_create(&b->thread, NULL, load_on, b), 0);
  wait_loads(b, 2);
  b->before = costs_settled();
}

void beside_expect_undisturbed(beside *b, size_t slack_bytes)
{
  wait_loads(b, atomic_load(&b->loads) + 2);
  int failure = atomic_load(&b->failure);
  if (failure != KVF_OK) {
    fail_msg("a load beside has failed: %s", kvf_status_name(failure));
  }
  assert_int_equal(pair_stat(&b->consumer, "load_retries", ""), 0);
  assert_int_equal(pair_stat(&b->consumer, "peer_failures", ""), 0);
  costs_expect(b->before, slack_bytes);
}

void beside_stop(beside *b)
{
  atomic_store(&b->stop, true);
  (void)pthread_join(b->thread, NULL);
  pair_close_node(&b->consumer);
}

/* ---- a load ---- */

void pair_try_ticket(pair_node *consumer, const pair_ticket *ticket, pair_outcome *out)
{
  pair_result result;
  const uint64_t begun_ms = now_ms();
  const uint64_t retries = pair_stat(consumer, "load_retries", "");
  for (uint32_t i = 0; i < PAIR_TRY_BLOCKS; i++) {
    pair_fill(consumer, DESTINATION + i, ticket->seed + 1, i); /* so that nothing is right by chance */
  }
  *out = (pair_outcome){.started = fetch(consumer, ticket, DESTINATION, PAIR_PATIENCE_MS, &result)};
  if (out->started != KVF_OK) {
    return;
  }
  out->took_ms = now_ms() - begun_ms;
  out->retries = pair_stat(consumer, "load_retries", "") - retries;
  out->status = (kvf_status)result.report.status;
  out->prefix = result.report.prefix;
  out->verdict = result.verdict;
  const kvf_status_info *info = kvf_status_describe(result.report.status);
  assert_int_equal(info->status, out->status);
  assert_int_not_equal(info->lost, KVF_LOST_CALL);
  assert_true(result.loaded && result.holds);
  assert_true(out->status != KVF_OK || out->prefix == PAIR_TRY_BLOCKS);
}

void pair_try(pair_node *producer, pair_node *consumer, uint32_t seed, pair_outcome *out)
{
  pair_ticket ticket;
  pair_offer(producer, HARMED_FIRST, PAIR_TRY_BLOCKS, seed, true, &ticket);
  pair_try_ticket(consumer, &ticket, out);
  pair_take_back(producer, &ticket);
}

void pair_expect_told(pair_node *consumer, const pair_outcome *out, const char *peer)
{
  const char *status = kvf_status_name(out->status);
  assert_int_equal(out->started, KVF_OK);
  if (out->took_ms > PAIR_TRY_TIMEOUT_MS + PAIR_LATE_MS) {
    fail_msg("%s after %llu ms", status, (unsigned long long)out->took_ms);
  }
  if (out->status != KVF_OK) {
    assert_true(pair_stat(consumer, "loads_failed", status) > 0);
    if (!pair_wait_log(consumer, status, peer, PAIR_PATIENCE_MS)) {
      fail_msg("no line says %s of %s", status, peer);
    }
  }
}

void pair_expect_recovery(pair_node *producer, pair_node *consumer, uint32_t seed)
{
  pair_outcome out = {.status = KVF_PEER_DOWN};
  uint64_t until_ms = now_ms() + PAIR_PATIENCE_MS;
  do {
    if (now_ms() >= until_ms) {
      fail_msg("no recovery: %s, %s", kvf_status_name(out.started), kvf_status_name(out.status));
    }
    pair_try(producer, consumer, seed, &out);
    if (out.status != KVF_OK) {
      sleep_ms(10);
    }
  } while (out.started != KVF_OK || out.status != KVF_OK);
}

/* ---- a producer in a process of its own: there ---- */

#define WRITES_BEFORE 30
#define READ_MS 5 /* readers come to a lease that has been written over */
#define TAKEN 32  /* descriptors of a child; more than a node has */

typedef enum order_kind { ORDER_OFFER = 1, ORDER_OVERWRITE = 2, ORDER_FORK = 3 } order_kind;

/* Name and value, as they travel. */
typedef char option_text[2][256];

typedef struct order {
  order_kind kind;
  uint32_t first;
  uint32_t count;
  uint32_t seed;
  engine_write write; /* its value is 0: the bytes of the seed are there at once */
  pair_ticket ticket; /* OVERWRITE, and the answer to OFFER */
} order;

/* In the child: closes the copy of the node. False: that took descriptors which have the numbers of the node's now. */
static bool close_copy(const pair_node *node)
{
  int taken[TAKEN];
  bool kept = true;
  for (int i = 0; i < TAKEN; i++) {
    taken[i] = dup(STDERR_FILENO);
  }
  kvf_node_close(node->node);
  for (int i = 0; i < TAKEN; i++) {
    kept = close(taken[i]) == 0 && kept;
  }
  return kept;
}

/* The child closes its copy of the node, and lives until the test lets it go. False: it does not come to that. */
static bool fork_child(const pair_node *node)
{
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return false;
  }
  pid_t pid = fork();
  if (pid == 0) {
    struct pollfd channel = {.fd = STDIN_FILENO}; /* that it is closed: what is in it is its parent's */
    if (!close_copy(node) || write(ends[1], "", 1) != 1) {
      _exit(EXIT_FAILURE);
    }
    (void)poll(&channel, 1, -1);
    _exit(EXIT_SUCCESS);
  }
  char done;
  struct pollfd child = {.fd = ends[0], .events = POLLIN};
  (void)close(ends[1]);
  bool closed = poll(&child, 1, PAIR_LATE_MS) == 1 && read(ends[0], &done, 1) == 1;
  (void)close(ends[0]);
  if (!closed) {
    (void)kill(pid, SIGKILL); /* it holds the channel */
  }
  return closed;
}

static void write_blocks(pair_node *node, const order *what)
{
  for (uint32_t i = 0; i < what->ticket.count; i++) {
    if (what->write.value != 0) {
      pair_write(node, what->ticket.blocks[i], what->write.value);
    } else {
      pair_fill(node, what->ticket.blocks[i], what->seed, i);
    }
  }
}

static void offer(pair_node *node, order *what)
{
  fake_cuda_seed(what->seed);
  pair_reserve(node, what->first, what->count, what->seed, &what->ticket);
  for (int i = 0; i < WRITES_BEFORE && what->write.out_of_order; i++) { /* readers come before the last */
    pair_write(node, what->ticket.blocks[0], (uint8_t)(what->write.value + 1));
  }
  write_blocks(node, what);
  const kvf_ordering_point *after = what->write.out_of_order ? NULL : pair_point(node);
  assert_int_equal(pair_publish_after(node, &what->ticket, after), KVF_OK);
}

static void overwrite(pair_node *node, const order *what)
{
  const kvf_lease *lease = &what->ticket.lease;
  if (what->write.out_of_order) {
    write_blocks(node, what);
    pair_finish(node);
    sleep_ms(READ_MS);
  }
  (void)kvf_lease_end(node->node, lease);
  if (!what->write.out_of_order) {
    write_blocks(node, what);
  }
  (void)pair_wait_lease_end(node, lease->id, PAIR_LATE_MS);
  assert_int_equal(kvf_lease_release(node->node, lease->id), KVF_OK);
}

static bool carry_out(pair_node *node, order *what)
{
  switch (what->kind) {
    case ORDER_OFFER:
      offer(node, what);
      break;
    case ORDER_OVERWRITE:
      overwrite(node, what);
      break;
    case ORDER_FORK:
      return fork_child(node);
  }
  return true;
}

static int run_producer(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  option_text texts[PRODUCER_OPTIONS_MAX];
  pair_option options[PRODUCER_OPTIONS_MAX + 1] = {{NULL, NULL}};
  if (!child_receive(STDIN_FILENO, texts, sizeof(texts))) {
    return EXIT_FAILURE;
  }
  for (int i = 0; i < PRODUCER_OPTIONS_MAX && texts[i][0][0] != '\0'; i++) {
    options[i] = (pair_option){texts[i][0], texts[i][1]};
  }
  pair_node node;
  order what;
  pair_open_node(&node, options);
  if (node.memory == KVF_MEMORY_CUDA) {
    (void)cuda_driver_enter();
  }
  while (child_receive(STDIN_FILENO, &what, sizeof(what))) {
    if (!carry_out(&node, &what) || !child_send(STDIN_FILENO, &what, sizeof(what))) {
      break;
    }
  }
  pair_close_node(&node);
  return EXIT_SUCCESS;
}

int producer_process_main(int argc, char **argv)
{
  const char *argument = argc > 1 ? argv[1] : NULL;
  const bool is_producer = argument != NULL && strcmp(argument, "--producer") == 0;
  return is_producer ? run_producer() : test_run(argument);
}

/* ---- and in the test ---- */

void producer_process_start(producer_process *process, const pair_option *options)
{
  option_text texts[PRODUCER_OPTIONS_MAX] = {{{0}}};
  *process = (producer_process){.here = NULL};
  for (int i = 0; options[i].name != NULL; i++) {
    assert_true(i < PRODUCER_OPTIONS_MAX && strlen(options[i].value) < sizeof(texts[i][1]));
    (void)snprintf(texts[i][0], sizeof(texts[i][0]), "%s", options[i].name);
    (void)snprintf(texts[i][1], sizeof(texts[i][1]), "%s", options[i].value);
  }
  assert_true(child_start(&process->child, "--producer", SOCK_STREAM));
  assert_true(child_send(process->child.channel, texts, sizeof(texts)));
}

void producer_process_here(producer_process *process, pair_node *node)
{
  *process = (producer_process){.here = node};
}

void producer_process_end(producer_process *process)
{
  assert_int_equal(child_end(&process->child), EXIT_SUCCESS);
}

void producer_process_kill(producer_process *process)
{
  assert_int_equal(kill(process->child.pid, SIGKILL), 0);
  assert_int_equal(waitpid(process->child.pid, NULL, 0), process->child.pid);
}

static void give_order(producer_process *process, order *what)
{
  if (process->here != NULL) {
    assert_true(carry_out(process->here, what));
    return;
  }
  assert_true(child_send(process->child.channel, what, sizeof(*what)));
  assert_true(child_receive(process->child.channel, what, sizeof(*what)));
}

void producer_process_offer(producer_process *process, uint32_t first, uint32_t count, uint32_t seed,
                            engine_write write, pair_ticket *ticket)
{
  order what = {.kind = ORDER_OFFER, .first = first, .count = count, .seed = seed, .write = write};
  give_order(process, &what);
  *ticket = what.ticket;
}

void producer_process_overwrite(producer_process *process, const pair_ticket *ticket, uint32_t seed, engine_write write)
{
  order what = {.kind = ORDER_OVERWRITE, .seed = seed, .write = write, .ticket = *ticket};
  give_order(process, &what);
}

void producer_process_fork(producer_process *process)
{
  order what = {.kind = ORDER_FORK};
  give_order(process, &what);
}
