#include "node.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "../memory_kind.h"
#include "base/time.h"
#include "memory/own_fds.h"
#include "test.h"
#include "transport/checksums.h"
#include "transport/fence_memory.h"

bool node_has_checksums;
kvf_tls_use node_tls;

#define SESSION_ID 7
#define REGION_GAP_BYTES 4096

uint64_t now_ns(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * KVF_NS_PER_S + (uint64_t)now.tv_nsec;
}

void *allocate(size_t bytes)
{
  void *memory = calloc(1, bytes == 0 ? 1 : bytes);
  if (memory == NULL) {
    abort();
  }
  return memory;
}

void sleep_us(uint64_t us)
{
  const struct timespec pause = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000};
  (void)nanosleep(&pause, NULL);
}

static kvf_key session_key(void)
{
  kvf_key key = {.bytes = 32};
  for (uint8_t i = 0; i < 32; i++) {
    key.data[i] = (uint8_t)(i * 3);
  }
  return key;
}

/* ---- the host ---- */

static void fault(side *node, const char *what)
{
  if (node->fault == NULL) {
    node->fault = what;
  }
}

static void host_read_done(void *context, const kvf_read_result *result)
{
  side *node = context;
  (void)pthread_mutex_lock(&node->lock);
  if (result->id == 0 || result->id > node->last_read_id) {
    fault(node, "read_done() of a read that was never started");
  } else {
    node_read_record *record = &node->reads[result->id];
    record->result = *result;
    record->done++;
    if (record->done > 1) {
      fault(node, "read_done() twice");
    }
  }
  (void)pthread_cond_broadcast(&node->changed);
  (void)pthread_mutex_unlock(&node->lock);
}

static void host_read_progress(void *context, uint64_t read_id)
{
  side *node = context;
  (void)pthread_mutex_lock(&node->lock);
  if (read_id == 0 || read_id > node->last_read_id || node->reads[read_id].done > 0) {
    fault(node, "read_progress() of a read that is not open");
  } else {
    node->reads[read_id].progress++;
  }
  (void)pthread_mutex_unlock(&node->lock);
}

static void host_link_up(void *context, kvf_link *link, kvf_status status)
{
  side *node = context;
  (void)pthread_mutex_lock(&node->lock);
  node_link_record *record = &node->links[link->user];
  if (record->up_told) {
    fault(node, "link_up() twice");
  }
  record->up_told = true;
  record->up = status;
  (void)pthread_cond_broadcast(&node->changed);
  (void)pthread_mutex_unlock(&node->lock);
}

static void host_link_down(void *context, kvf_link *link, kvf_status status)
{
  side *node = context;
  (void)pthread_mutex_lock(&node->lock);
  node_link_record *record = &node->links[link->user];
  if (!record->up_told || record->up != KVF_OK || record->down_told) {
    fault(node, "link_down() of a link that was not up, or twice");
  }
  record->down_told = true;
  record->down = status;
  (void)pthread_cond_broadcast(&node->changed);
  (void)pthread_mutex_unlock(&node->lock);
}

static bool host_session_key(void *context, uint64_t session_id, kvf_key *out)
{
  (void)context;
  if (session_id != SESSION_ID) {
    return false;
  }
  *out = session_key();
  return true;
}

static kvf_status authorize_locked(side *node, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  const node_lease *found = NULL;
  for (size_t i = 0; i < NODE_LEASES_MAX; i++) {
    if (node->leases[i].known && node->leases[i].lease.id == lease->id) {
      found = &node->leases[i];
    }
  }
  if (found == NULL || memcmp(found->lease.token, lease->token, sizeof(lease->token)) != 0) {
    return KVF_LEASE_UNKNOWN;
  }
  if (!found->published) {
    return KVF_NOT_PUBLISHED;
  }
  if (found->over) {
    return KVF_LEASE_EXPIRED;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (items[i].position >= found->positions) {
      return KVF_INVALID;
    }
    items[i].remote_block = found->blocks[items[i].position];
  }
  return KVF_OK;
}

static kvf_status host_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  side *node = context;
  (void)pthread_mutex_lock(&node->lock);
  kvf_status status = authorize_locked(node, lease, items, count);
  (void)pthread_mutex_unlock(&node->lock);
  return status;
}

static void host_connection(void *context, kvf_status why)
{
  side *node = context;
  (void)pthread_mutex_lock(&node->lock);
  if (why == KVF_OK) {
    node->connections_accepted++;
  } else {
    node->connections_ended++;
    node->connection_ended = why;
  }
  (void)pthread_mutex_unlock(&node->lock);
}

static void host_log(void *context, kvf_log_level level, const char *line)
{
  side *node = context;
  (void)level;
  (void)pthread_mutex_lock(&node->lock);
  if (node->lines_count < NODE_LINES_MAX) {
    (void)snprintf(node->lines[node->lines_count++], KVF_MESSAGE_BYTES_MAX, "%s", line);
  }
  (void)pthread_mutex_unlock(&node->lock);
}

bool node_has_logged(side *node, const char *text)
{
  bool found = false;
  (void)pthread_mutex_lock(&node->lock);
  for (uint32_t i = 0; i < node->lines_count; i++) {
    found = found || strstr(node->lines[i], text) != NULL;
  }
  (void)pthread_mutex_unlock(&node->lock);
  return found;
}

/* ---- memory ---- */

node_shape node_shape_simple(uint32_t blocks, uint32_t block_bytes)
{
  return (node_shape){.count = 1, .regions = {{block_bytes, block_bytes, blocks, 1, 1, 0, 0}}};
}

uint8_t *node_block(const side *node, uint32_t region, uint32_t block)
{
  return (uint8_t *)node->regions[region].base + block * node->regions[region].stride_bytes;
}

void node_fill(side *node, uint32_t seed)
{
  for (uint32_t i = 0; i < node->shape.count; i++) {
    const kvf_region *region = &node->regions[i];
    uint8_t *bytes = allocate(region->stride_bytes * region->blocks);
    test_memory_get(bytes, region->base, region->stride_bytes * region->blocks);
    for (uint32_t block = 0; block < region->blocks; block++) {
      pattern_fill(bytes + block * region->stride_bytes, (pattern_place){seed, i, block, 0}, region->block_bytes);
    }
    test_memory_put(region->base, bytes, region->stride_bytes * region->blocks);
    free(bytes);
  }
}

static size_t region_bytes(const kvf_region_layout *layout)
{
  return layout->stride_bytes * layout->blocks;
}

void node_set_all(side *node, uint8_t value)
{
  for (uint32_t i = 0; i < node->shape.count; i++) {
    test_memory_set(node->regions[i].base, value, region_bytes(&node->shape.regions[i]));
  }
}

bool node_all_are(const side *node, uint8_t value)
{
  for (uint32_t i = 0; i < node->shape.count; i++) {
    if (!test_memory_all_are(node->regions[i].base, value, region_bytes(&node->shape.regions[i]))) {
      return false;
    }
  }
  return true;
}

static bool is_host(const kvf_region_layout *layout)
{
  return layout->memory == KVF_MEMORY_HOST;
}

static size_t allocated_bytes(const kvf_region_layout *layout)
{
  return region_bytes(layout) + REGION_GAP_BYTES;
}

static void *allocate_host(size_t bytes)
{
  void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_ptr_not_equal(base, MAP_FAILED);
  return base;
}

static void allocate_regions(side *node)
{
  for (uint32_t i = 0; i < node->shape.count; i++) {
    const kvf_region_layout *layout = &node->shape.regions[i];
    void *base = is_host(layout) ? allocate_host(allocated_bytes(layout))
                                 : test_memory_allocate(layout->memory, allocated_bytes(layout));
    node->regions[i] = (kvf_region){
        .base = base,
        .stride_bytes = layout->stride_bytes,
        .block_bytes = layout->block_bytes,
        .blocks = layout->blocks,
        .heads = layout->heads,
        .heads_total = layout->heads_total,
        .group = layout->group,
    };
    memcpy(&node->regions[i].memory, &layout->memory, sizeof(layout->memory)); /* not all are enumerators */
  }
}

void node_withdraw(const side *node, uint32_t region)
{
  const kvf_region_layout *layout = &node->shape.regions[region];
  if (is_host(layout)) {
    assert_int_equal(mprotect(node->regions[region].base, region_bytes(layout), PROT_NONE), 0);
  } else {
    test_memory_withdraw(node->regions[region].base);
  }
}

static void free_regions(side *node)
{
  for (uint32_t i = 0; i < node->shape.count; i++) {
    const kvf_region_layout *layout = &node->shape.regions[i];
    if (!is_host(layout)) {
      test_memory_free(node->regions[i].base);
    } else if (node->regions[i].base != NULL) {
      (void)munmap(node->regions[i].base, allocated_bytes(layout));
    }
    node->regions[i].base = NULL;
  }
  free(node->pages);
  kvf_checksums_close(node->checksums, node->checksums_count);
  kvf_checksums_close(node->checksums_read, node->checksums_count);
  kvf_fence_table_close(node->table, NODE_SLOTS);
  kvf_own_fd_close(node->table_fd);
  node->table = NULL;
}

/* ---- open and close ---- */

kvf_transport_config node_config(void)
{
  return (kvf_transport_config){
      .listen = "127.0.0.1",
      .connections_max = 64,
      .handshake_timeout_ms = 5000,
      .copy_threads = 2,
      .inline_bytes = 65536,
      .tcp_streams = 2,
      .tcp_buffer_bytes = 1 << 20,
      .tls = node_tls,
  };
}

static kvf_layout layout_of(const node_shape *shape)
{
  return (kvf_layout){
      .parts = shape->parts_count == 0 ? NULL : shape->parts, .parts_count = shape->parts_count, .share = shape->share};
}

/* As a node does. */
static void open_checksums(side *node, kvf_transport_memory *memory)
{
  const kvf_pages pages = {node->shape.regions, node->shape.count, memory->layout};
  kvf_checksums_layout layout;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(kvf_checksums_lay_out(&pages, &layout, message), KVF_OK);
  assert_int_equal(kvf_checksums_open(&layout, node->checksums), KVF_OK);
  assert_int_equal(kvf_checksums_open(&layout, node->checksums_read), KVF_OK);
  node->checksums_count = layout.count;
  memory->checksums_count = layout.count;
  memory->checksums = node->checksums;
  memory->checksums_read = node->checksums_read;
  node->pages = kvf_paging_of_memory(memory);
  assert_non_null(node->pages);
}

void node_open_with(side *node, const kvf_transport_ops *ops, const node_shape *shape, uint32_t seed,
                    const kvf_transport_config *config)
{
  memset(node, 0, sizeof(*node));
  node->ops = ops;
  node->shape = *shape;
  node->reads = allocate(NODE_READS_MAX * sizeof(*node->reads));
  (void)pthread_mutex_init(&node->lock, NULL);
  (void)pthread_cond_init(&node->changed, NULL);
  assert_int_equal(getentropy(&node->incarnation, sizeof(node->incarnation)), 0);

  const kvf_transport_host host = {
      .context = node,
      .read_done = host_read_done,
      .read_progress = host_read_progress,
      .link_up = host_link_up,
      .link_down = host_link_down,
      .session_key = host_session_key,
      .authorize = host_authorize,
      .connection = host_connection,
      .log = host_log,
  };
  kvf_transport_config own = *config;
  own.incarnation = node->incarnation;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = ops->open(&own, &host, &node->transport, message);
  if (status != KVF_OK) {
    fail_msg("open: %s: %s", kvf_status_name(status), message);
  }
  assert_ptr_equal(node->transport->ops, ops);
  allocate_regions(node);
  node_fill(node, seed);
  assert_int_equal(kvf_fence_table_open(NODE_SLOTS, &node->incarnation, &node->table, &node->table_fd), KVF_OK);
  kvf_fence_store_generation(node->table, NODE_GENERATION);
  kvf_transport_memory memory = {.regions = node->regions,
                                 .regions_count = shape->count,
                                 .layout = layout_of(&node->shape),
                                 .table = node->table,
                                 .table_slots = NODE_SLOTS,
                                 .table_fd = node->table_fd};
  if (node_has_checksums) {
    open_checksums(node, &memory);
  }
  if (kvf_memory_check(node->regions, shape->count, message) != KVF_OK) { /* as a node does */
    fail_msg("%s", message);
  }
  assert_int_equal(ops->set_memory(node->transport, &memory), KVF_OK);
  node->memory_set = true;
}

void node_open(side *node, const kvf_transport_ops *ops, const node_shape *shape, uint32_t seed)
{
  kvf_transport_config config = node_config();
  node_open_with(node, ops, shape, seed, &config);
}

void node_close_transport(side *node)
{
  if (node->memory_set) {
    node->ops->clear_memory(node->transport);
    node->memory_set = false;
  }
  node->ops->close(node->transport);
  node->transport = NULL;
}

void node_free(side *node)
{
  free_regions(node);
  for (uint64_t id = 1; id <= node->last_read_id; id++) {
    if (node->reads[id].done != 1) {
      fault(node, "a read without its read_done()");
    }
  }
  free(node->reads);
  (void)pthread_cond_destroy(&node->changed);
  (void)pthread_mutex_destroy(&node->lock);
  if (node->fault != NULL) {
    fail_msg("%s", node->fault);
  }
}

void node_close(side *node)
{
  node_close_transport(node);
  node_free(node);
}

void node_introduce(side *node, node_introduction *out)
{
  out->incarnation = node->incarnation;
  out->generation = kvf_fence_generation(node->table);
  out->shape = node->shape;
  kvf_status status =
      node->ops->describe(node->transport, out->description, sizeof(out->description), &out->description_bytes);
  assert_int_equal(status, KVF_OK);
}

/* ---- leases ---- */

node_lease *node_reserve(side *node, uint64_t lease_id)
{
  node_lease *lease = &node->leases[lease_id % NODE_LEASES_MAX];
  uint32_t blocks = node->shape.regions[0].blocks;
  for (uint32_t i = 1; i < node->shape.count; i++) {
    blocks = node->shape.regions[i].blocks < blocks ? node->shape.regions[i].blocks : blocks;
  }
  (void)pthread_mutex_lock(&node->lock);
  *lease = (node_lease){.lease = {.id = lease_id, .slot = (uint32_t)(lease_id % NODE_SLOTS)}, .known = true};
  memset(lease->lease.token, (int)(lease_id & 0xff), sizeof(lease->lease.token));
  lease->digest = lease_id * 1000003;
  lease->positions = blocks < NODE_POSITIONS_MAX ? blocks : NODE_POSITIONS_MAX;
  for (uint32_t i = 0; i < lease->positions; i++) {
    lease->blocks[i] = (uint32_t)((uint64_t)i * 7919 % blocks);
  }
  (void)pthread_mutex_unlock(&node->lock);
  return lease;
}

void node_go_live(side *node, node_lease *lease)
{
  const kvf_fence_entry entry = {kvf_fence_word_live(lease->lease.id), lease->digest};
  kvf_fence_store_live(node->table, lease->lease.slot, entry);
  (void)pthread_mutex_lock(&node->lock);
  lease->published = true;
  (void)pthread_mutex_unlock(&node->lock);
}

node_lease *node_publish(side *node, uint64_t lease_id)
{
  node_lease *lease = node_reserve(node, lease_id);
  for (uint32_t i = 0; i < node->checksums_count * lease->positions; i++) {
    assert_true(kvf_checksums_make(&node->pages->plan, node->pages->served, i % node->checksums_count,
                                   lease->blocks[i / node->checksums_count]));
  }
  node_go_live(node, lease);
  return lease;
}

void node_end(side *node, node_lease *lease)
{
  (void)pthread_mutex_lock(&node->lock);
  lease->over = true;
  (void)pthread_mutex_unlock(&node->lock);
  const kvf_fence_entry entry = {kvf_fence_word_ended(lease->lease.id), lease->digest};
  kvf_fence_store_ended(node->table, lease->lease.slot, entry);
}

kvf_fence_claim node_claim(const node_introduction *producer, const node_lease *lease)
{
  return (kvf_fence_claim){.incarnation = producer->incarnation,
                           .generation = producer->generation,
                           .lease_id = lease->lease.id,
                           .digest = lease->digest};
}

kvf_status node_verdict(const kvf_read_result *result, const kvf_fence_claim *claim)
{
  const bool has_sample = result->status == KVF_OK || result->status == KVF_CHECKSUM;
  const kvf_status fence = has_sample ? kvf_fence_check(&result->sample, claim) : KVF_OK;
  return fence == KVF_OK ? result->status : fence;
}

/* ---- links ---- */

/* Waits for a change of what the lock guards. False: patience is at its end. */
static bool wait_change(side *node)
{
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += NODE_PATIENCE_MS / 1000;
  return pthread_cond_timedwait(&node->changed, &node->lock, &until) == 0;
}

kvf_link_spec node_spec(const node_introduction *introduction)
{
  return (kvf_link_spec){
      .peer = {.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, .port = 9},
      .incarnation = introduction->incarnation,
      .generation = introduction->generation,
      .session_id = SESSION_ID,
      .session_key = session_key(),
      .description = introduction->description,
      .description_bytes = introduction->description_bytes,
      .remote = introduction->shape.regions,
      .remote_count = introduction->shape.count,
      .layout = layout_of(&introduction->shape),
  };
}

/* Waits until the host was told, and of what. */
static kvf_status wait_told(side *node, const bool *told, const kvf_status *status)
{
  bool waited = true;
  (void)pthread_mutex_lock(&node->lock);
  while (!*told && waited) {
    waited = wait_change(node);
  }
  kvf_status found = *status;
  (void)pthread_mutex_unlock(&node->lock);
  assert_true(waited);
  return found;
}

kvf_status node_begin_connect(side *node, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_link_spec own = *spec;
  (void)pthread_mutex_lock(&node->lock);
  own.user = ++node->last_user;
  (void)pthread_mutex_unlock(&node->lock);
  assert_true(own.user < NODE_LINKS_MAX);
  kvf_status status = node->ops->connect(node->transport, &own, out);
  if (status != KVF_OK) {
    assert_null(*out);
    return status;
  }
  assert_int_equal((*out)->user, own.user);
  assert_ptr_equal((*out)->transport, node->transport);
  return KVF_OK;
}

kvf_status node_wait_up(side *node, const kvf_link *link)
{
  const node_link_record *record = &node->links[link->user];
  return wait_told(node, &record->up_told, &record->up);
}

kvf_status node_connect(side *node, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_status status = node_begin_connect(node, spec, out);
  return status == KVF_OK ? node_wait_up(node, *out) : status;
}

kvf_link *node_connect_ok(side *node, const node_introduction *introduction)
{
  kvf_link_spec spec = node_spec(introduction);
  kvf_link *link = NULL;
  kvf_status status = node_connect(node, &spec, &link);
  if (status != KVF_OK) {
    fail_msg("connect: %s: %s", kvf_status_name(status), node->lines_count > 0 ? node->lines[0] : "");
  }
  return link;
}

kvf_status node_wait_down(side *node, const kvf_link *link)
{
  const node_link_record *record = &node->links[link->user];
  return wait_told(node, &record->down_told, &record->down);
}

bool node_is_down(side *node, const kvf_link *link)
{
  (void)pthread_mutex_lock(&node->lock);
  bool down = node->links[link->user].down_told;
  (void)pthread_mutex_unlock(&node->lock);
  return down;
}

/* ---- reads ---- */

kvf_transfer node_read(side *node)
{
  (void)pthread_mutex_lock(&node->lock);
  const node_shape *shape = &node->shape;
  kvf_transfer read = {.id = ++node->last_read_id,
                       .heads = shape->parts_count == 0 ? shape->regions[0].heads : shape->share.heads};
  (void)pthread_mutex_unlock(&node->lock);
  assert_true(read.id < NODE_READS_MAX);
  return read;
}

kvf_transfer_item *node_items(const side *node, const node_lease *lease, uint32_t first, uint32_t *count)
{
  const kvf_pages pages = {node->shape.regions, node->shape.count, layout_of(&node->shape)};
  uint32_t groups = 0;
  for (uint32_t i = 0; i < kvf_pages_parts(&pages); i++) {
    const uint32_t group = kvf_pages_part(&pages, i).group;
    groups = group >= groups ? group + 1 : groups;
  }
  *count = groups * lease->positions;
  kvf_transfer_item *items = allocate(*count * sizeof(*items));
  for (uint32_t i = 0; i < *count; i++) {
    uint32_t position = i / groups;
    items[i] = (kvf_transfer_item){i % groups, position, lease->blocks[position], first + position};
  }
  return items;
}

kvf_read_result node_wait(side *node, uint64_t read_id)
{
  bool waited = true;
  (void)pthread_mutex_lock(&node->lock);
  while (node->reads[read_id].done == 0 && waited) {
    waited = wait_change(node);
  }
  kvf_read_result result = node->reads[read_id].result;
  (void)pthread_mutex_unlock(&node->lock);
  if (!waited) {
    fail_msg("read %llu has no end", (unsigned long long)read_id);
  }
  return result;
}

bool node_is_done(side *node, uint64_t read_id)
{
  (void)pthread_mutex_lock(&node->lock);
  bool done = node->reads[read_id].done > 0;
  (void)pthread_mutex_unlock(&node->lock);
  return done;
}

kvf_read_result node_read_now(side *node, kvf_link *link, const kvf_transfer *read)
{
  node->ops->read(link, read);
  bool may_help = read->small && node->ops->assist != NULL;
  while (may_help && node->ops->assist(node->transport) && !node_is_done(node, read->id)) {
  }
  return node_wait(node, read->id);
}

/* ---- patterns ---- */

#define PART_BYTES 4096

typedef struct part {
  uint64_t words[PART_BYTES / sizeof(uint64_t)];
  const uint8_t *bytes; /* from the place on */
  size_t count;
} part;

static uint64_t word_at(pattern_place at, uint64_t index)
{
  uint64_t mixed = (at.seed * UINT64_C(0x9e3779b97f4a7c15)) ^ (at.region * UINT64_C(0xbf58476d1ce4e5b9)) ^
                   (at.block * UINT64_C(0x94d049bb133111eb)) ^ (index * UINT64_C(0xd6e8feb86659fd93));
  return (mixed ^ (mixed >> 32)) * UINT64_C(0xff51afd7ed558ccd);
}

/* As much of `bytes` as a part holds. */
static void make_part(part *out, pattern_place at, size_t bytes)
{
  size_t skip = at.offset % sizeof(uint64_t);
  out->bytes = (const uint8_t *)out->words + skip;
  out->count = bytes < PART_BYTES - skip ? bytes : PART_BYTES - skip;
  for (size_t i = 0; i * sizeof(uint64_t) < skip + out->count; i++) {
    out->words[i] = word_at(at, at.offset / sizeof(uint64_t) + i);
  }
}

void pattern_fill(uint8_t *to, pattern_place at, size_t bytes)
{
  part made;
  for (; bytes > 0; bytes -= made.count, at.offset += made.count, to += made.count) {
    make_part(&made, at, bytes);
    memcpy(to, made.bytes, made.count);
  }
}

bool pattern_is(const uint8_t *got, pattern_place at, size_t bytes)
{
  part made;
  for (; bytes > 0; bytes -= made.count, at.offset += made.count, got += made.count) {
    make_part(&made, at, bytes);
    if (memcmp(got, made.bytes, made.count) != 0) {
      return false;
    }
  }
  return true;
}
