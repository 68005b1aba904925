/* A side's host, memory, leases, links and reads; two linked sides, what they read, and processes for one of them. */
#include "side.h"

#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "../memory_kind.h"
#include "memory/own_fds.h"
#include "transport/checksums.h"
#include "transport/fence_memory.h"
#include "transport/ucx/libucp.h"

struct under_test under_test;

#define REGION_GAP_BYTES 4096

static kvf_key session_key(void)
{
  kvf_key key = {.bytes = 32};
  for (uint8_t i = 0; i < 32; i++) {
    key.data[i] = (uint8_t)(i * 3);
  }
  return key;
}

/* ---- the host ---- */

static void fault(side *one, const char *what)
{
  if (one->fault == NULL) {
    one->fault = what;
  }
}

static void host_read_done(void *context, const kvf_read_result *result)
{
  side *one = context;
  (void)pthread_mutex_lock(&one->lock);
  if (result->id == 0 || result->id > one->last_read_id) {
    fault(one, "read_done() of a read that was never started");
  } else {
    side_read_record *record = &one->reads[result->id];
    record->result = *result;
    record->done++;
    one->reads_done++;
    if (record->done > 1) {
      fault(one, "read_done() twice");
    }
  }
  (void)pthread_cond_broadcast(&one->changed);
  (void)pthread_mutex_unlock(&one->lock);
}

static void host_read_progress(void *context, uint64_t read_id)
{
  side *one = context;
  (void)pthread_mutex_lock(&one->lock);
  if (read_id == 0 || read_id > one->last_read_id || one->reads[read_id].done > 0) {
    fault(one, "read_progress() of a read that is not open");
  } else {
    one->reads[read_id].progress++;
  }
  (void)pthread_mutex_unlock(&one->lock);
}

/* A call of the host's has begun, or returns. */
static void note(side *one, side_link_record *record, char event)
{
  record->events[strlen(record->events)] = event;
  (void)pthread_cond_broadcast(&one->changed);
}

static void on_link_event(side *one, kvf_link *link, char event, kvf_status status)
{
  (void)pthread_mutex_lock(&one->lock);
  side_link_record *record = &one->links[link->user];
  const bool was_up = strchr(record->events, 'U') != NULL;
  if (strchr(record->events, event) != NULL || (record->link != NULL && record->link != link)) {
    fault(one, "link_up() or link_down() twice, or of another link");
  } else if (event == 'D' && (!was_up || record->up != KVF_OK)) {
    fault(one, "link_down() of a link that was not up");
  } else {
    record->link = link;
    *(event == 'U' ? &record->up : &record->down) = status;
    note(one, record, event);
    const bool disconnects = one->disconnects == event;
    (void)pthread_mutex_unlock(&one->lock);
    if (disconnects) {
      one->ops->disconnect(link);
    }
    (void)sched_yield(); /* so that others come between */
    (void)pthread_mutex_lock(&one->lock);
    while (one->holds == event) {
      (void)pthread_cond_wait(&one->changed, &one->lock);
    }
    /* The link is there until this returns, given back or not. */
    note(one, &one->links[link->user], event == 'U' ? 'u' : 'd');
  }
  (void)pthread_mutex_unlock(&one->lock);
}

static void host_link_up(void *context, kvf_link *link, kvf_status status)
{
  on_link_event(context, link, 'U', status);
}

static void host_link_down(void *context, kvf_link *link, kvf_status status)
{
  on_link_event(context, link, 'D', status);
}

void side_release(side *one)
{
  (void)pthread_mutex_lock(&one->lock);
  one->holds = 0;
  (void)pthread_cond_broadcast(&one->changed);
  (void)pthread_mutex_unlock(&one->lock);
}

static bool host_session_key(void *context, uint64_t session_id, kvf_key *out)
{
  (void)context;
  if (session_id != SIDE_SESSION_ID) {
    return false;
  }
  *out = session_key();
  return true;
}

static kvf_status authorize_locked(side *one, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  const side_lease *found = NULL;
  for (size_t i = 0; i < SIDE_LEASES_MAX; i++) {
    if (one->leases[i].known && one->leases[i].lease.id == lease->id) {
      found = &one->leases[i];
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
  side *one = context;
  (void)pthread_mutex_lock(&one->lock);
  kvf_status status = authorize_locked(one, lease, items, count);
  (void)pthread_mutex_unlock(&one->lock);
  return status;
}

static void host_connection(void *context, kvf_status why)
{
  side *one = context;
  (void)pthread_mutex_lock(&one->lock);
  one->connection = why;
  (void)pthread_mutex_unlock(&one->lock);
}

static void host_log(void *context, kvf_log_level level, const char *line)
{
  side *one = context;
  (void)pthread_mutex_lock(&one->lock);
  one->level = level;
  if (one->lines_count < SIDE_LINES_MAX) {
    (void)snprintf(one->lines[one->lines_count++], KVF_MESSAGE_BYTES_MAX, "%s", line);
  }
  (void)pthread_mutex_unlock(&one->lock);
}

bool side_has_logged(side *one, const char *text)
{
  bool found = false;
  (void)pthread_mutex_lock(&one->lock);
  for (uint32_t i = 0; i < one->lines_count; i++) {
    found = found || strstr(one->lines[i], text) != NULL;
  }
  (void)pthread_mutex_unlock(&one->lock);
  return found;
}

/* ---- patterns ----
 *
 * What the blocks of a region hold until somebody writes to them. A word at a time: a byte at a time is most of what
 * the whole suite costs, and with a sanitizer many times that. */

typedef struct pattern_place {
  uint32_t seed;
  uint32_t region;
  uint32_t block;
  uint64_t offset; /* in the block */
} pattern_place;

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

static void pattern_fill(uint8_t *to, pattern_place at, size_t bytes)
{
  part made;
  for (; bytes > 0; bytes -= made.count, at.offset += made.count, to += made.count) {
    make_part(&made, at, bytes);
    memcpy(to, made.bytes, made.count);
  }
}

static bool pattern_is(const uint8_t *got, pattern_place at, size_t bytes)
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

/* ---- memory ---- */

side_shape side_shape_simple(uint32_t blocks, uint32_t block_bytes)
{
  return (side_shape){.count = 1, .regions = {{block_bytes, block_bytes, blocks, 1, 1, 0, 0}}};
}

uint8_t *side_block(const side *one, uint32_t region, uint32_t block)
{
  return (uint8_t *)one->regions[region].base + block * one->regions[region].stride_bytes;
}

static void fill(side *one, uint32_t seed)
{
  for (uint32_t i = 0; i < one->shape.count; i++) {
    const kvf_region *region = &one->regions[i];
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

void side_set_all(side *one, uint8_t value)
{
  for (uint32_t i = 0; i < one->shape.count; i++) {
    test_memory_set(one->regions[i].base, value, region_bytes(&one->shape.regions[i]));
  }
}

bool side_all_are(const side *one, uint8_t value)
{
  for (uint32_t i = 0; i < one->shape.count; i++) {
    if (!test_memory_all_are(one->regions[i].base, value, region_bytes(&one->shape.regions[i]))) {
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

static void allocate_regions(side *one)
{
  for (uint32_t i = 0; i < one->shape.count; i++) {
    const kvf_region_layout *layout = &one->shape.regions[i];
    void *base = is_host(layout) ? allocate_host(allocated_bytes(layout))
                                 : test_memory_allocate(layout->memory, allocated_bytes(layout));
    one->regions[i] = (kvf_region){
        .base = base,
        .stride_bytes = layout->stride_bytes,
        .block_bytes = layout->block_bytes,
        .blocks = layout->blocks,
        .heads = layout->heads,
        .heads_total = layout->heads_total,
        .group = layout->group,
    };
    memcpy(&one->regions[i].memory, &layout->memory, sizeof(layout->memory)); /* not all are enumerators */
  }
}

void side_withdraw(const side *one, uint32_t region)
{
  const kvf_region_layout *layout = &one->shape.regions[region];
  if (is_host(layout)) {
    assert_int_equal(mprotect(one->regions[region].base, region_bytes(layout), PROT_NONE), 0);
  } else {
    test_memory_withdraw(one->regions[region].base);
  }
}

static void free_regions(side *one)
{
  for (uint32_t i = 0; i < one->shape.count; i++) {
    const kvf_region_layout *layout = &one->shape.regions[i];
    if (!is_host(layout)) {
      test_memory_free(one->regions[i].base);
    } else if (one->regions[i].base != NULL) {
      (void)munmap(one->regions[i].base, allocated_bytes(layout));
    }
    one->regions[i].base = NULL;
  }
  free(one->pages);
  kvf_checksums_close(one->checksums, one->checksums_count);
  kvf_checksums_close(one->checksums_read, one->checksums_count);
  if (one->table != NULL) {
    kvf_fence_table_close(one->table, SIDE_SLOTS);
    kvf_own_fd_close(one->table_fd);
    one->table = NULL;
  }
}

/* ---- open and close ---- */

kvf_transport_config side_config(void)
{
  return (kvf_transport_config){
      .listen = "127.0.0.1",
      .connections_max = 64,
      .handshake_timeout_ms = 5000,
      .copy_threads = 2,
      .inline_bytes = 65536,
      .tcp_streams = 2,
      .tcp_buffer_bytes = 1 << 20,
      .tls = under_test.tls,
  };
}

static kvf_layout layout_of(const side_shape *shape)
{
  return (kvf_layout){
      .parts = shape->parts_count == 0 ? NULL : shape->parts, .parts_count = shape->parts_count, .share = shape->share};
}

/* As a one does. */
static void open_checksums(side *one, kvf_transport_memory *memory)
{
  const kvf_pages pages = {one->shape.regions, one->shape.count, memory->layout};
  kvf_checksums_layout layout;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(kvf_checksums_lay_out(&pages, &layout, message), KVF_OK);
  assert_int_equal(kvf_checksums_open(&layout, one->checksums), KVF_OK);
  assert_int_equal(kvf_checksums_open(&layout, one->checksums_read), KVF_OK);
  one->checksums_count = layout.count;
  memory->checksums_count = layout.count;
  memory->checksums = one->checksums;
  memory->checksums_read = one->checksums_read;
  one->pages = kvf_paging_of_memory(memory);
  assert_non_null(one->pages);
}

kvf_transport_host side_host(side *one, const kvf_transport_ops *ops)
{
  memset(one, 0, sizeof(*one));
  one->ops = ops;
  one->table_fd = -1;
  one->reads = allocate(SIDE_READS_MAX * sizeof(*one->reads));
  (void)pthread_mutex_init(&one->lock, NULL);
  (void)pthread_cond_init(&one->changed, NULL);
  return (kvf_transport_host){
      .context = one,
      .read_done = host_read_done,
      .read_progress = host_read_progress,
      .link_up = host_link_up,
      .link_down = host_link_down,
      .session_key = host_session_key,
      .authorize = host_authorize,
      .connection = host_connection,
      .log = host_log,
  };
}

kvf_transport_memory side_memory(const side *one)
{
  return (kvf_transport_memory){.regions = one->regions,
                                .regions_count = one->shape.count,
                                .layout = layout_of(&one->shape),
                                .table = one->table,
                                .table_slots = SIDE_SLOTS,
                                .table_fd = one->table_fd};
}

void side_open(side *one, const kvf_transport_ops *ops, const side_shape *shape, uint32_t seed,
               const kvf_transport_config *config)
{
  const kvf_transport_host host = side_host(one, ops);
  kvf_transport_config own = config == NULL ? side_config() : *config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  one->shape = *shape;
  assert_int_equal(getentropy(&one->incarnation, sizeof(one->incarnation)), 0);
  own.incarnation = one->incarnation;
  kvf_status status = ops->open(&own, &host, &one->transport, message);
  if (status != KVF_OK) {
    fail_msg("open: %s: %s", kvf_status_name(status), message);
  }
  assert_ptr_equal(one->transport->ops, ops);
  allocate_regions(one);
  fill(one, seed);
  assert_int_equal(kvf_fence_table_open(SIDE_SLOTS, &one->incarnation, &one->table, &one->table_fd), KVF_OK);
  kvf_fence_store_generation(one->table, SIDE_GENERATION);
  kvf_transport_memory memory = side_memory(one);
  if (under_test.has_checksums) {
    open_checksums(one, &memory);
  }
  if (kvf_memory_check(one->regions, shape->count, message) != KVF_OK) { /* as a node does */
    fail_msg("%s", message);
  }
  assert_int_equal(ops->set_memory(one->transport, &memory), KVF_OK);
  one->memory_set = true;
}

void side_close_transport(side *one)
{
  if (one->memory_set) {
    one->ops->clear_memory(one->transport);
    one->memory_set = false;
  }
  one->ops->close(one->transport);
  one->transport = NULL;
}

void side_free(side *one)
{
  free_regions(one);
  for (uint64_t id = 1; id <= one->last_read_id; id++) {
    if (one->reads[id].done != 1) {
      fault(one, "a read without its read_done()");
    }
  }
  free(one->reads);
  (void)pthread_cond_destroy(&one->changed);
  (void)pthread_mutex_destroy(&one->lock);
  if (one->fault != NULL) {
    fail_msg("%s", one->fault);
  }
}

void side_close(side *one)
{
  side_close_transport(one);
  side_free(one);
}

void side_introduce(side *one, side_introduction *out)
{
  out->incarnation = one->incarnation;
  out->generation = kvf_fence_generation(one->table);
  out->shape = one->shape;
  kvf_status status =
      one->ops->describe(one->transport, out->description, sizeof(out->description), &out->description_bytes);
  assert_int_equal(status, KVF_OK);
}

/* ---- leases ---- */

side_lease *side_reserve(side *one, uint64_t lease_id)
{
  side_lease *lease = &one->leases[lease_id % SIDE_LEASES_MAX];
  uint32_t blocks = one->shape.regions[0].blocks;
  for (uint32_t i = 1; i < one->shape.count; i++) {
    blocks = one->shape.regions[i].blocks < blocks ? one->shape.regions[i].blocks : blocks;
  }
  (void)pthread_mutex_lock(&one->lock);
  *lease = (side_lease){.lease = {.id = lease_id, .slot = (uint32_t)(lease_id % SIDE_SLOTS)}, .known = true};
  memset(lease->lease.token, (int)(lease_id & 0xff), sizeof(lease->lease.token));
  lease->digest = lease_id * 1000003;
  lease->positions = blocks < SIDE_POSITIONS_MAX ? blocks : SIDE_POSITIONS_MAX;
  for (uint32_t i = 0; i < lease->positions; i++) {
    lease->blocks[i] = (uint32_t)((uint64_t)i * 7919 % blocks);
  }
  (void)pthread_mutex_unlock(&one->lock);
  return lease;
}

void side_go_live(side *one, side_lease *lease)
{
  const kvf_fence_entry entry = {kvf_fence_word_live(lease->lease.id), lease->digest};
  kvf_fence_store_live(one->table, lease->lease.slot, entry);
  (void)pthread_mutex_lock(&one->lock);
  lease->published = true;
  (void)pthread_mutex_unlock(&one->lock);
}

side_lease *side_publish(side *one, uint64_t lease_id)
{
  side_lease *lease = side_reserve(one, lease_id);
  for (uint32_t i = 0; i < one->checksums_count * lease->positions; i++) {
    assert_true(kvf_checksums_make(&one->pages->plan, one->pages->served, i % one->checksums_count,
                                   lease->blocks[i / one->checksums_count]));
  }
  side_go_live(one, lease);
  return lease;
}

void side_end(side *one, side_lease *lease)
{
  (void)pthread_mutex_lock(&one->lock);
  lease->over = true;
  (void)pthread_mutex_unlock(&one->lock);
  const kvf_fence_entry entry = {kvf_fence_word_ended(lease->lease.id), lease->digest};
  kvf_fence_store_ended(one->table, lease->lease.slot, entry);
}

kvf_fence_claim side_claim(const side_introduction *producer, const side_lease *lease)
{
  return (kvf_fence_claim){.incarnation = producer->incarnation,
                           .generation = producer->generation,
                           .lease_id = lease->lease.id,
                           .digest = lease->digest};
}

kvf_status side_verdict(const kvf_read_result *result, const kvf_fence_claim *claim)
{
  const bool has_sample = result->status == KVF_OK || result->status == KVF_CHECKSUM;
  const kvf_status fence = has_sample ? kvf_fence_check(&result->sample, claim) : KVF_OK;
  return fence == KVF_OK ? result->status : fence;
}

/* ---- links ---- */

/* Waits for a change of what the lock guards. False: patience is at its end. */
static bool wait_change(side *one)
{
  struct timespec until;
  (void)clock_gettime(CLOCK_REALTIME, &until);
  until.tv_sec += SIDE_PATIENCE_MS / 1000;
  return pthread_cond_timedwait(&one->changed, &one->lock, &until) == 0;
}

kvf_link_spec side_spec(const side_introduction *introduction)
{
  return (kvf_link_spec){
      .peer = {.ip = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1}, .port = 9},
      .incarnation = introduction->incarnation,
      .generation = introduction->generation,
      .session_id = SIDE_SESSION_ID,
      .session_key = session_key(),
      .description = introduction->description,
      .description_bytes = introduction->description_bytes,
      .remote = introduction->shape.regions,
      .remote_count = introduction->shape.count,
      .layout = layout_of(&introduction->shape),
  };
}

static void wait_event(side *one, uint64_t user, char event)
{
  bool waited = true;
  (void)pthread_mutex_lock(&one->lock);
  while (strchr(one->links[user].events, event) == NULL && waited) {
    waited = wait_change(one);
  }
  (void)pthread_mutex_unlock(&one->lock);
  assert_true(waited);
}

side_link_record side_link(side *one, uint64_t user)
{
  (void)pthread_mutex_lock(&one->lock);
  const side_link_record record = one->links[user];
  (void)pthread_mutex_unlock(&one->lock);
  return record;
}

kvf_status side_begin_connect(side *one, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_link_spec own = *spec;
  (void)pthread_mutex_lock(&one->lock);
  own.user = ++one->last_user;
  (void)pthread_mutex_unlock(&one->lock);
  assert_true(own.user < SIDE_LINKS_MAX);
  kvf_status status = one->ops->connect(one->transport, &own, out);
  if (status != KVF_OK) {
    assert_null(*out);
    return status;
  }
  assert_int_equal((*out)->user, own.user);
  assert_ptr_equal((*out)->transport, one->transport);
  return KVF_OK;
}

kvf_status side_wait_up(side *one, const kvf_link *link)
{
  wait_event(one, link->user, 'U');
  return side_link(one, link->user).up;
}

kvf_status side_connect(side *one, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_status status = side_begin_connect(one, spec, out);
  return status == KVF_OK ? side_wait_up(one, *out) : status;
}

kvf_link *side_connect_ok(side *one, const side_introduction *introduction)
{
  kvf_link_spec spec = side_spec(introduction);
  kvf_link *link = NULL;
  kvf_status status = side_connect(one, &spec, &link);
  if (status != KVF_OK) {
    fail_msg("connect: %s: %s", kvf_status_name(status), one->lines_count > 0 ? one->lines[0] : "");
  }
  return link;
}

kvf_status side_wait_down(side *one, const kvf_link *link)
{
  wait_event(one, link->user, 'D');
  return side_link(one, link->user).down;
}

/* ---- reads ---- */

kvf_transfer side_read(side *one, const kvf_lease *lease, const kvf_transfer_item *items, uint32_t count)
{
  (void)pthread_mutex_lock(&one->lock);
  const side_shape *shape = &one->shape;
  kvf_transfer read = {.id = ++one->last_read_id,
                       .lease = *lease,
                       .items = items,
                       .items_count = count,
                       .heads = shape->parts_count == 0 ? shape->regions[0].heads : shape->share.heads};
  (void)pthread_mutex_unlock(&one->lock);
  assert_true(read.id < SIDE_READS_MAX);
  return read;
}

kvf_transfer_item *side_items(const side *one, const side_lease *lease, uint32_t first, uint32_t *count)
{
  const kvf_pages pages = {one->shape.regions, one->shape.count, layout_of(&one->shape)};
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

kvf_read_result side_wait(side *one, uint64_t read_id)
{
  bool waited = true;
  (void)pthread_mutex_lock(&one->lock);
  while (one->reads[read_id].done == 0 && waited) {
    waited = wait_change(one);
  }
  kvf_read_result result = one->reads[read_id].result;
  (void)pthread_mutex_unlock(&one->lock);
  if (!waited) {
    fail_msg("read %llu has no end", (unsigned long long)read_id);
  }
  return result;
}

bool side_is_done(side *one, uint64_t read_id)
{
  (void)pthread_mutex_lock(&one->lock);
  bool done = one->reads[read_id].done > 0;
  (void)pthread_mutex_unlock(&one->lock);
  return done;
}

kvf_read_result side_read_now(side *one, kvf_link *link, const kvf_transfer *read)
{
  one->ops->read(link, read);
  bool may_help = read->small && one->ops->assist != NULL;
  while (may_help && one->ops->assist(one->transport) && !side_is_done(one, read->id)) {
  }
  return side_wait(one, read->id);
}

/* ---- ucx ---- */

int with_ucx(void)
{
  const kvf_ucx_api *api;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  (void)setenv("UCX_TLS", "tcp", 0);
  (void)setenv("UCX_LOG_LEVEL", "fatal", 0);
  if (SANITIZED) { /* UCX's hook of madvise() runs in threads that the thread sanitizer has forgotten already */
    (void)setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
  }
  const char *library = getenv("KVFERRY_TEST_UCX_LIBRARY");
  if (kvf_ucx_load(library == NULL ? "" : library, &api, message) == KVF_OK) {
    return 0;
  }
  (void)printf("skipped: %s\n", message);
  return WITHOUT_UCX;
}

/* ---- two sides ---- */

sides *two;

static void open_with(side *one, const side_shape *shape, uint32_t memory, uint32_t seed)
{
  side_shape own = *shape;
  for (uint32_t i = 0; i < own.count; i++) {
    own.regions[i].memory = memory;
  }
  side_open(one, under_test.ops, &own, seed, NULL);
}

void producer_open(side *one, const side_shape *shape)
{
  open_with(one, shape, under_test.producer_memory, SEED);
}

void consumer_open(side *one, const side_shape *shape)
{
  open_with(one, shape, under_test.consumer_memory, SEED + 1);
}

void sides_meet(void)
{
  side_introduce(&two->producer, &two->introduction);
  two->lease = side_publish(&two->producer, LEASE_ID);
}

void sides_open_unlinked(const side_shape *producer, const side_shape *consumer)
{
  two = allocate(sizeof(*two));
  producer_open(&two->producer, producer);
  consumer_open(&two->consumer, consumer);
  sides_meet();
}

void sides_open(const side_shape *producer, const side_shape *consumer)
{
  sides_open_unlinked(producer, consumer);
  sides_link();
}

void sides_open_simple(uint32_t blocks, uint32_t block_bytes)
{
  const side_shape shape = side_shape_simple(blocks, block_bytes);
  sides_open(&shape, &shape);
}

void sides_link(void)
{
  two->link = side_connect_ok(&two->consumer, &two->introduction);
}

void sides_disconnect(void)
{
  two->consumer.ops->disconnect(two->link);
  two->link = NULL;
}

void sides_close(void)
{
  if (two == NULL) {
    return;
  }
  if (two->link != NULL) {
    sides_disconnect();
  }
  side_close(&two->consumer);
  if (two->producer.transport != NULL) {
    side_close(&two->producer);
    assert_true(test_memory_is_released()); /* no link of this process has kept one */
  }
  if (two->process.pid != 0) {
    assert_int_equal(child_end(&two->process), 0);
  }
  free(two);
  two = NULL;
}

bool read_has(const kvf_transfer *read, uint32_t region)
{
  return read->layers.count == 0 || kvf_layers_have(&read->layers, region);
}

static bool item_matches(const kvf_transfer *read, const kvf_transfer_item *item)
{
  const side_shape *producer = &two->introduction.shape;
  bool matches = true;
  for (uint32_t region = 0; region < producer->count && matches; region++) {
    const kvf_region_layout *layout = &producer->regions[region];
    if (layout->group != item->group || !read_has(read, region)) {
      continue;
    }
    uint64_t head_bytes = layout->block_bytes / layout->heads;
    const size_t bytes = read->heads * head_bytes;
    uint8_t *got = allocate(bytes);
    test_memory_get(got, side_block(&two->consumer, region, item->local_block) + read->local_head * head_bytes, bytes);
    matches = pattern_is(got, (pattern_place){SEED, region, item->remote_block, read->remote_head * head_bytes}, bytes);
    free(got);
  }
  return matches;
}

bool sides_match(const kvf_transfer *read)
{
  for (uint32_t i = 0; i < read->items_count; i++) {
    if (!item_matches(read, &read->items[i])) {
      return false;
    }
  }
  return true;
}

kvf_transfer lease_read(side *consumer, const side_lease *lease, uint32_t first)
{
  uint32_t count;
  const kvf_transfer_item *items = side_items(consumer, lease, first, &count);
  return side_read(consumer, &lease->lease, items, count);
}

void read_free(const kvf_transfer *read)
{
  free((void *)read->items);
}

/* ---- volleys ---- */

#define NEXT_OWNER 0x5A

static void next_owner(const side *consumer)
{
  test_memory_set(side_block(consumer, 0, 0), NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

static void volley_producer(side *one)
{
  const side_shape shape = side_shape_simple(VOLLEY_BLOCKS, VOLLEY_BLOCK_BYTES);
  producer_open(one, &shape);
}

void volley_sides_apart(void)
{
  const side_shape shape = side_shape_simple(VOLLEY_BLOCKS + 1, VOLLEY_BLOCK_BYTES);
  two = allocate(sizeof(*two));
  consumer_open(&two->consumer, &shape);
  next_owner(&two->consumer);
}

void volley_sides(void)
{
  volley_sides_apart();
  volley_producer(&two->producer);
  sides_meet();
  sides_link();
}

read_volley volley_start(void)
{
  const uint32_t each = VOLLEY_BLOCKS / VOLLEY_READS;
  read_volley volley;
  uint32_t count;
  volley.items = side_items(&two->consumer, two->lease, 0, &count);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley.reads[i] = side_read(&two->consumer, &two->lease->lease, &volley.items[(size_t)i * each], each);
    two->consumer.ops->read(two->link, &volley.reads[i]);
  }
  return volley;
}

void volley_cancel(const read_volley *volley)
{
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    two->consumer.ops->cancel(two->link, volley->reads[i].id);
  }
}

void volley_end(read_volley *volley)
{
  uint64_t begun_ns = now_ns();
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    kvf_read_result result = side_wait(&two->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || sides_match(&volley->reads[i]));
  }
  assert_true(now_ns() - begun_ns < VOLLEY_CANCEL_NS);
  free(volley->items);
  next_owner(&two->consumer);
}

bool next_owner_is_alone(void)
{
  const uint8_t *blocks = side_block(&two->consumer, 0, 0);
  return test_memory_all_are(blocks, NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

void volleys_are_over(void)
{
  side *consumer = &two->consumer;
  const kvf_transfer_item item = {0, 1, two->lease->blocks[1], VOLLEY_BLOCKS};
  for (int tries = 0; tries < 2; tries++) {
    const kvf_transfer read = side_read(consumer, &two->lease->lease, &item, 1);
    const kvf_status status = side_read_now(consumer, two->link, &read).status;
    if (status == KVF_OK) {
      assert_true(sides_match(&read));
      break;
    }
    assert_true(tries == 0);
    sides_disconnect();
    sides_link();
  }
  assert_true(next_owner_is_alone());
}

/* ---- a producer in a process of its own ---- */

void process_start(void)
{
  const int *channel = &two->process.channel;
  two->lease = &two->producer.leases[0];
  assert_true(child_start(&two->process, "--producer", SOCK_STREAM));
  assert_true(child_receive(*channel, &two->introduction, sizeof(two->introduction)));
  assert_true(child_receive(*channel, two->lease, sizeof(*two->lease)));
  sides_link();
}

void process_kill(void)
{
  assert_true(child_kill(&two->process));
  two->process.pid = 0;
}

int process_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  two = allocate(sizeof(*two));
  volley_producer(&two->producer);
  sides_meet();
  if (!child_send(STDIN_FILENO, &two->introduction, sizeof(two->introduction)) ||
      !child_send(STDIN_FILENO, two->lease, sizeof(*two->lease))) {
    return EXIT_FAILURE;
  }
  char byte;
  while (child_receive(STDIN_FILENO, &byte, sizeof(byte))) {
  }
  side_close(&two->producer);
  free(two);
  return EXIT_SUCCESS;
}

/* ---- a consumer in a process of its own ---- */

#define CONSUMER_VOLLEYS 32 /* at once: more than sockets hold */

void consumer_start(child_process *child)
{
  char begun;
  assert_true(child_start(child, "--consumer", SOCK_STREAM));
  assert_true(child_send(child->channel, &two->introduction, sizeof(two->introduction)));
  assert_true(child_send(child->channel, two->lease, sizeof(*two->lease)));
  assert_true(child_receive(child->channel, &begun, sizeof(begun)));
}

int consumer_main(void)
{
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  volley_sides_apart();
  two->lease = &two->producer.leases[0];
  if (!child_receive(STDIN_FILENO, &two->introduction, sizeof(two->introduction)) ||
      !child_receive(STDIN_FILENO, two->lease, sizeof(*two->lease))) {
    return EXIT_FAILURE;
  }
  sides_link();
  for (int i = 0; i < CONSUMER_VOLLEYS; i++) {
    const char begun = 1;
    (void)volley_start();
    if (i == 0 && !child_send(STDIN_FILENO, &begun, sizeof(begun))) {
      return EXIT_FAILURE;
    }
  }
  sleep_us(SIDE_PATIENCE_MS * UINT64_C(1000));
  return EXIT_FAILURE; /* nobody has killed it */
}
