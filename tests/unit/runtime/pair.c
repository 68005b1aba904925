#include "pair.h"

#include "../../cuda_driver.h"
#include "../../memory_kind.h"
#include "runtime/pump.h"
#include "test.h"

#include <dirent.h>
#include <time.h>

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

/* Until the lines so far have been written. */
static void flush_log(pair_node *n)
{
  char mark[32];
  bool found = false;
  (void)snprintf(mark, sizeof(mark), "mark %u", ++n->marks);
  kvf_log_sink_put(n->node->log, KVF_LOG_DEBUG, mark);
  for (uint64_t until_ms = pair_now_ms() + PATIENT_MS; !found && pair_now_ms() < until_ms;) {
    (void)pthread_mutex_lock(&n->log->lock);
    for (uint32_t i = 0; i < n->log->count && i < PAIR_LOG_LINES && !found; i++) {
      found = strcmp(n->log->lines[i], mark) == 0;
    }
    (void)pthread_mutex_unlock(&n->log->lock);
    if (!found) {
      pair_sleep_ms(1);
    }
  }
  assert_true(found);
}

bool pair_logged(pair_node *n, const char *text, const char *other_text)
{
  pair_log *log = n->log;
  bool found = false;
  flush_log(n);
  (void)pthread_mutex_lock(&log->lock);
  for (uint32_t i = 0; i < log->count && i < PAIR_LOG_LINES && !found; i++) {
    found = strstr(log->lines[i], text) != NULL && (other_text == NULL || strstr(log->lines[i], other_text) != NULL);
  }
  (void)pthread_mutex_unlock(&log->lock);
  return found;
}

static pair_log *new_log(void)
{
  pair_log *log = calloc(1, sizeof(*log));
  assert_non_null(log);
  (void)pthread_mutex_init(&log->lock, NULL);
  return log;
}

const kvf_layout *pair_layout;

static void free_log(pair_log *log)
{
  (void)pthread_mutex_destroy(&log->lock);
  free(log);
}

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

static void *allocate(const pair_node *n, size_t bytes)
{
  if (n->is_mapped) {
    return test_memory_map(bytes);
  }
  return n->memory == KVF_MEMORY_HOST ? calloc(1, bytes) : test_memory_allocate(n->memory, bytes);
}

/* Of its kind; all zeros, unless it is mapped. */
static void register_memory(pair_node *n)
{
  kvf_region regions[PAIR_REGIONS];
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
    n->bases[i] = allocate(n, (size_t)PAIR_BLOCKS * PAIR_BLOCK_BYTES);
    n->pool[i] = n->is_mapped ? NULL : test_memory_bytes(n->bases[i]);
    regions[i] = (kvf_region){.base = n->bases[i],
                              .stride_bytes = PAIR_BLOCK_BYTES,
                              .block_bytes = PAIR_BLOCK_BYTES,
                              .blocks = PAIR_BLOCKS,
                              .heads = 4,
                              .heads_total = 4};
    memcpy(&regions[i].memory, &n->memory, sizeof(n->memory)); /* not all are enumerators */
  }
  assert_int_equal(pair_layout == NULL ? kvf_node_register(n->node, regions, PAIR_REGIONS)
                                       : kvf_node_register_layout(n->node, regions, PAIR_REGIONS, pair_layout),
                   KVF_OK);
}

static void free_memory(const pair_node *n, void *const bases[PAIR_REGIONS])
{
  for (uint32_t i = 0; i < PAIR_REGIONS; i++) {
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

/* Not a race with readers that are too late: as write_block(). No memset(), which the sanitizer would see. */
__attribute__((no_sanitize("thread"))) static void write_value(volatile uint8_t *to, uint8_t value)
{
  for (size_t i = 0; i < PAIR_BLOCK_BYTES; i++) {
    to[i] = value;
  }
}

void pair_write(pair_node *n, uint32_t block, uint8_t value)
{
  const kvf_ordering_point *point = pair_point(n);
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    uint8_t *to = (uint8_t *)n->bases[region] + (size_t)block * PAIR_BLOCK_BYTES;
    if (point != NULL) {
      cuda_driver_fill(point->handle, to, PAIR_BLOCK_BYTES, value, LATE_NS);
    } else {
      write_value(to, value);
    }
  }
}

bool pair_is_written(const pair_node *n, uint32_t block, uint8_t value)
{
  bool is = true;
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    const uint8_t *bytes = (uint8_t *)n->bases[region] + (size_t)block * PAIR_BLOCK_BYTES;
    is = is && test_memory_all_are(bytes, value, PAIR_BLOCK_BYTES);
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

void pair_open_node(pair_node *n, const pair_option *options)
{
  kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX];
  uint32_t memory = KVF_MEMORY_HOST;
  memset(n, 0, sizeof(*n));
  n->log = new_log();
  kvf_config_init(&config);
  config.block_tokens = PAIR_BLOCK_TOKENS;
  config.handshake_timeout_ms = PATIENT_MS;
  config.stall_timeout_ms = PATIENT_MS;
  config.log = keep_log;
  config.log_context = n->log;
  assert_int_equal(kvf_config_identity(&config, "model", "test"), KVF_OK);
  for (; options != NULL && options->name != NULL; options++) {
    if (strcmp(options->name, "memory") == 0) {
      memory = memory_named(options->value);
      n->is_mapped = strcmp(options->value, "mapped") == 0;
    } else if (strcmp(options->name, "listen_other") == 0) {
      (void)snprintf(config.listen_other, sizeof(config.listen_other), "%s", options->value);
    } else if (strcmp(options->name, "model") == 0) {
      assert_int_equal(kvf_config_identity(&config, "model", options->value), KVF_OK);
    } else {
      assert_int_equal(kvf_config_set(&config, options->name, options->value, message), KVF_OK);
    }
  }
  if (kvf_node_open(&config, &n->node, message) != KVF_OK) {
    fail_msg("node: %s", message);
  }
  n->memory = memory;
  register_memory(n);
  if (config.listen[0] == '\0') {
    return; /* it only loads */
  }
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  assert_int_equal(kvf_node_address(n->node, record, sizeof(record), &bytes), KVF_OK);
  assert_int_equal(kvf_node_set_ranks(n->node, record, &bytes, 1), KVF_OK);
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
  free_log(n->log);
  *n = (pair_node){0};
}

void pair_open(pair *p, const pair_option *options)
{
  pair_open_node(&p->producer, options);
  pair_open_node(&p->consumer, options);
}

void pair_close(pair *p)
{
  pair_close_node(&p->consumer);
  pair_close_node(&p->producer);
}

kvf_prompt pair_prompt(uint32_t tokens, uint32_t seed)
{
  uint32_t ids[PAIR_BLOCKS * PAIR_BLOCK_TOKENS];
  kvf_prompt prompt;
  for (uint32_t i = 0; i < tokens; i++) {
    ids[i] = seed * 1000 + i;
  }
  assert_int_equal(kvf_prompt_hash(ids, tokens, NULL, 0, &prompt), KVF_OK);
  return prompt;
}

#define PAIR_RUN_BYTES 64 /* as many bytes are the same */
_Static_assert(PAIR_BLOCK_BYTES % PAIR_RUN_BYTES == 0, "blocks of whole runs");

static uint8_t byte_of(uint32_t region, uint32_t offset, uint32_t seed, uint32_t position)
{
  return (uint8_t)((seed * 31 + position * 7 + region * 3 + offset / PAIR_RUN_BYTES + 1) & 0xff);
}

/* Not a race: an engine may write to the blocks of a lease that it has ended while a reader still copies them. The
 * reader's look at the fence comes after that. */
__attribute__((no_sanitize("thread"))) static void write_block(volatile uint8_t *to, uint32_t region, uint32_t seed,
                                                               uint32_t position)
{
  for (uint32_t offset = 0; offset < PAIR_BLOCK_BYTES; offset++) {
    to[offset] = byte_of(region, offset, seed, position);
  }
}

void pair_fill(pair_node *n, uint32_t block, uint32_t seed, uint32_t position)
{
  const size_t at = (size_t)block * PAIR_BLOCK_BYTES;
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    if (n->pool[region] != NULL) {
      write_block(n->pool[region] + at, region, seed, position);
    } else {
      static uint8_t made[PAIR_BLOCK_BYTES]; /* one thread's: such memory has few tests */
      write_block(made, region, seed, position);
      test_memory_put((uint8_t *)n->bases[region] + at, made, sizeof(made));
    }
  }
}

bool pair_holds(const pair_node *n, uint32_t block, uint32_t seed, uint32_t position)
{
  uint8_t expected[PAIR_RUN_BYTES];
  for (uint32_t region = 0; region < PAIR_REGIONS; region++) {
    for (uint32_t offset = 0; offset < PAIR_BLOCK_BYTES; offset += PAIR_RUN_BYTES) {
      memset(expected, byte_of(region, offset, seed, position), sizeof(expected));
      if (memcmp(n->pool[region] + (size_t)block * PAIR_BLOCK_BYTES + offset, expected, sizeof(expected)) != 0) {
        return false;
      }
    }
  }
  return true;
}

uint32_t pair_groups = 1;

typedef struct all_groups {
  uint32_t ids[PAIR_GROUPS_MAX * PAIR_BLOCKS];
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
  out->prompt = pair_prompt(count * PAIR_BLOCK_TOKENS, seed);
  for (uint32_t i = 0; i < count; i++) {
    out->blocks[i] = (first + 2 * i) % PAIR_BLOCKS;
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

kvf_status pair_load(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first)
{
  return pair_load_after(consumer, ticket, id, first, NULL);
}

kvf_status pair_load_after(pair_node *consumer, const pair_ticket *ticket, uint64_t id, uint32_t first,
                           const kvf_ordering_point *after)
{
  uint32_t destination[PAIR_BLOCKS];
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
                          .after = after};
  return kvf_load_start(consumer->node, &load);
}

uint64_t pair_now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

void pair_sleep_ms(uint32_t ms)
{
  struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
  (void)nanosleep(&pause, NULL);
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

void pair_poll_for(pair_node *consumer, uint64_t id, uint32_t timeout_ms, pair_result *out)
{
  uint64_t until_ms = pair_now_ms() + timeout_ms;
  memset(out, 0, sizeof(*out));
  while (!(out->load_released && out->decided) && pair_now_ms() < until_ms) {
    kvf_event event;
    if (kvf_node_poll(consumer->node, &event, 1) == 0) {
      pair_sleep_ms(1);
    } else {
      take(consumer, id, &event, out);
    }
  }
}

void pair_wait(pair_node *consumer, uint64_t id, uint32_t timeout_ms, pair_result *out)
{
  pair_poll_for(consumer, id, timeout_ms, out);
  assert_true(out->load_released && out->decided);
}

kvf_lease_end_cause pair_wait_lease_end(pair_node *producer, uint64_t lease_id, uint32_t timeout_ms)
{
  uint64_t until_ms = pair_now_ms() + timeout_ms;
  while (pair_now_ms() < until_ms) {
    kvf_event event;
    if (kvf_node_poll(producer->node, &event, 1) == 0) {
      pair_sleep_ms(1);
    } else if (event.kind == KVF_EVENT_LEASE_ENDED && event.id == lease_id) {
      return event.u.lease_end;
    }
  }
  fail_msg("the lease has not ended");
  return KVF_LEASE_END_EXPIRED;
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
  uint64_t until_ms = pair_now_ms() + timeout_ms;
  while (pair_stat(n, name, reason) < value) {
    if (pair_now_ms() >= until_ms) {
      return false;
    }
    pair_sleep_ms(1);
  }
  return true;
}

bool pair_wait_log(pair_node *n, const char *text, const char *other_text, uint32_t timeout_ms)
{
  uint64_t until_ms = pair_now_ms() + timeout_ms;
  while (!pair_logged(n, text, other_text)) {
    if (pair_now_ms() >= until_ms) {
      return false;
    }
    pair_sleep_ms(1);
  }
  return true;
}

size_t pair_count_entries(const char *link_id)
{
  size_t count = 0;
  DIR *directory = opendir(link_id);
  if (directory == NULL) {
    fail_msg("cannot list %s", link_id);
    return 0;
  }
  while (readdir(directory) != NULL) {
    count++;
  }
  (void)closedir(directory);
  return count;
}
