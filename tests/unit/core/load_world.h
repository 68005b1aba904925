/* What the tests of the load machine share: loads, peers and memory that are the test's, a way to ask for loads, and
 * what the machine says as text.
 *
 * A trace has one entry for each call of the peers' machine, then for each cancel, read and event: "want 1; read 1 over
 * 11: 0,1,2; outcome 500 ok 3/8; released 500". Items are positions, or group.position where there are several groups.
 */
#ifndef KVF_TESTS_LOAD_WORLD_H
#define KVF_TESTS_LOAD_WORLD_H

#include "base/time.h"
#include "core/load.h"
#include "test.h"
#include "wire/rank_shares.h"

#define MS KVF_NS_PER_MS
#define WORLD_ITEMS_MAX 4096
#define WORLD_PEERS 10
#define LEASE_ID 77u
#define DIGEST 4242u

typedef struct world_slice {
  uint32_t peer;
  uint32_t remote_head;
  uint32_t local_head;
  uint32_t heads;
} world_slice;

/* A load of `items`, from `slices`; other positions are not wanted. */
typedef struct world_load {
  uint64_t request_id;
  uint64_t deadline_ns;
  kvf_lease lease;
  uint32_t groups;
  uint32_t positions; /* of all groups together */
  uint32_t items_count;
  const kvf_transfer_item *items;
  uint32_t slices_count;
  const world_slice *slices;
} world_load;

typedef struct world {
  kvf_context context;
  kvf_pool pool;
  kvf_peers peers;
  kvf_peer peer[WORLD_PEERS];
  kvf_loads loads;
  kvf_load_readers readers;
  world_load spec; /* kvf_stage_shares() plans its slices */
  kvf_transfer_item items[WORLD_ITEMS_MAX];
  world_slice slices[KVF_RANKS_MAX];
  uint32_t other_peer;    /* that does not have what is planned to be read from it; 0: all have */
  uint32_t stale_link_id; /* the last that was said to be */
  char said[4096];
  char trace[16384];
} world;

static world w;

static inline kvf_incarnation world_incarnation(uint32_t peer)
{
  return (kvf_incarnation){.bytes = {[0] = (uint8_t)peer, [15] = 1}};
}

/* ---- what is said ---- */

__attribute__((format(printf, 3, 4))) static inline void world_add(char *text, size_t room, const char *format, ...)
{
  size_t used = strlen(text);
  va_list args;
  va_start(args, format);
  int written = vsnprintf(text + used, room - used, format, args);
  va_end(args);
  assert_true(written >= 0 && (size_t)written < room - used);
}

#define world_say(...) world_add(w.trace, sizeof(w.trace), __VA_ARGS__)

static inline void world_say_of(const char *what, uint32_t number, const char *more)
{
  world_add(w.said, sizeof(w.said), "%s%s %u%s", w.said[0] == 0 ? "" : "; ", what, number, more);
}

/* ---- what the machine calls ---- */

kvf_status kvf_requests_check_sources(kvf_requests *requests, uint64_t now_ns, const kvf_sources *all,
                                      const kvf_prompt *prompt, kvf_sources *good)
{
  (void)requests;
  (void)now_ns;
  (void)prompt;
  *good = *all;
  return KVF_OK;
}

kvf_status kvf_pool_check_destination(const kvf_pool *pool, const kvf_ticket *ticket, const kvf_blocks *destination)
{
  (void)pool;
  (void)ticket;
  (void)destination;
  return KVF_OK;
}

/* The linker's name. NOLINTBEGIN(bugprone-reserved-identifier) */
kvf_status __wrap_kvf_stage_shares(const kvf_pages *pages, const kvf_holding *own, const kvf_rank_record *ranks,
                                   uint32_t ranks_count, uint64_t turn, kvf_rank_share shares[KVF_RANKS_MAX],
                                   uint32_t *count, char *message);

kvf_status __wrap_kvf_stage_shares(const kvf_pages *pages, const kvf_holding *own, const kvf_rank_record *ranks,
                                   uint32_t ranks_count, uint64_t turn, kvf_rank_share shares[KVF_RANKS_MAX],
                                   uint32_t *count, char *message)
{
  (void)pages;
  (void)own;
  (void)ranks;
  (void)ranks_count;
  (void)turn;
  (void)message;
  *count = w.spec.slices_count;
  for (uint32_t i = 0; i < *count; i++) {
    const world_slice *slice = &w.spec.slices[i];
    shares[i] = (kvf_rank_share){
        .rank = i, .remote_head = slice->remote_head, .local_head = slice->local_head, .heads = slice->heads};
  }
  return KVF_OK;
}

bool __wrap_kvf_rank_share_is_held(const kvf_rank_share *share, const kvf_holding *own, const kvf_holding *rank);

bool __wrap_kvf_rank_share_is_held(const kvf_rank_share *share, const kvf_holding *own, const kvf_holding *rank)
{
  (void)share;
  (void)own;
  return rank != &w.peer[w.other_peer].holding;
}
/* NOLINTEND(bugprone-reserved-identifier) */

kvf_status kvf_peers_acquire_rank(kvf_peers *peers, const kvf_rank_record *rank, kvf_peer **out)
{
  (void)peers;
  *out = &w.peer[rank->address.port];
  (*out)->users++;
  return KVF_OK;
}

void kvf_peers_release(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  (void)peers;
  (void)now_ns;
  assert_true(peer->users-- > 0);
}

void kvf_peers_want_link(kvf_peers *peers, uint64_t now_ns, kvf_peer *peer)
{
  (void)peers;
  (void)now_ns;
  world_say_of("want", (uint32_t)(peer - w.peer), "");
}

void kvf_peers_ping(kvf_peers *peers, kvf_peer *peer)
{
  (void)peers;
  world_say_of("ping", (uint32_t)(peer - w.peer), "");
}

void kvf_peers_link_stalled(kvf_peers *peers, uint64_t now_ns, uint32_t link_id, bool silent)
{
  (void)peers;
  (void)now_ns;
  world_say_of("stalled", link_id, silent ? " silent" : "");
}

void kvf_peers_link_is_stale(kvf_peers *peers, uint64_t now_ns, uint32_t link_id)
{
  (void)peers;
  (void)now_ns;
  w.stale_link_id = link_id;
}

/* ---- the world ---- */

/* A load of `items` wanted blocks of one group, positions 0 and up, from one peer for each number in `peers`. */
static inline void world_spec(uint64_t request_id, uint32_t items, const char *peers)
{
  memset(&w.spec, 0, sizeof(w.spec));
  assert_true(items <= WORLD_ITEMS_MAX);
  for (uint32_t i = 0; i < items; i++) {
    w.items[i] = (kvf_transfer_item){.position = i, .remote_block = 1000 + i, .local_block = 2000 + i};
  }
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    w.pool.head_bytes[i] = 100;
  }
  for (uint32_t i = 0; peers[i] != 0; i++) {
    w.slices[i] = (world_slice){.peer = (uint32_t)(peers[i] - '0'), .local_head = i, .heads = 1};
    w.spec.slices_count = i + 1;
  }
  w.spec.request_id = request_id;
  w.spec.deadline_ns = 30000 * MS;
  w.spec.lease.id = LEASE_ID;
  w.spec.groups = 1;
  w.spec.positions = items;
  w.spec.items_count = items;
  w.spec.items = w.items;
  w.spec.slices = w.slices;
}

/* Chunks of at most 4 items of one head, 2 in flight; a pause is 5 to 10 ms; the stall timeout is 1000 ms. */
static inline void world_init(void)
{
  memset(&w, 0, sizeof(w));
  w.readers = (kvf_load_readers){.count = 1, .spread_bytes = 1};
  w.context.config = (kvf_config){.rank = 3,
                                  .ranks = 4,
                                  .loads_max = 64,
                                  .stall_timeout_ms = 1000,
                                  .release_timeout_ms = 5000,
                                  .backoff_min_ms = 10,
                                  .backoff_max_ms = 10,
                                  .chunk_bytes = 400,
                                  .chunks_in_flight = 2};
}

static inline void world_open(void)
{
  for (uint32_t i = 0; i < WORLD_PEERS; i++) {
    w.peer[i] = (kvf_peer){.users = 0};
    kvf_list_init(&w.peer[i].slices.all);
    kvf_list_init(&w.peer[i].slices.waiting);
  }
  kvf_wheel_init(&w.context.wheel, 0);
  w.pool.holding.share = (kvf_share){0, KVF_RANKS_MAX, KVF_RANKS_MAX}; /* no replicas */
  kvf_loads_init(&w.loads, &w.context, &w.peers, NULL, &w.pool, 1);
  w.loads.readers = w.readers;
  w.said[0] = 0;
}

/* With another configuration. */
static inline void world_reopen(void)
{
  kvf_loads_free(&w.loads);
  world_open();
}

static inline int world_setup(void **state)
{
  (void)state;
  world_init();
  world_open();
  return 0;
}

static inline int world_teardown(void **state)
{
  (void)state;
  kvf_loads_free(&w.loads);
  return 0;
}

static inline kvf_fence_sample world_sample(uint32_t peer, uint64_t word)
{
  return (kvf_fence_sample){{KVF_FENCE_MAGIC, world_incarnation(peer), 16, 0, 0}, {word, DIGEST}};
}

/* ---- what goes in ---- */

/* What it is given is the test's again when it returns. */
static inline void world_start(uint64_t now_ms)
{
  const world_load *spec = &w.spec;
  const uint64_t now_ns = now_ms * MS;
  static kvf_ticket ticket;
  static uint32_t remote[KVF_BLOCKS_PER_LEASE_MAX];
  static uint32_t local[KVF_BLOCKS_PER_LEASE_MAX];
  const uint32_t each = spec->positions / spec->groups;
  ticket = (kvf_ticket){
      .ranks = spec->slices_count, .lease = spec->lease, .block_tokens = 16, .groups = spec->groups, .ids = remote};
  ticket.prompt.tokens = each * ticket.block_tokens;
  for (uint32_t i = 0; i < spec->slices_count; i++) {
    const uint32_t peer = spec->slices[i].peer;
    ticket.rank[i] =
        (kvf_rank_record){.address = {.port = (uint16_t)peer}, .incarnation = world_incarnation(peer), .dealt = 1};
  }
  for (uint32_t i = 0; i < spec->groups; i++) {
    ticket.group_tokens[i] = ticket.block_tokens;
    ticket.counts[i] = each;
  }
  for (uint32_t i = 0; i < spec->positions; i++) {
    remote[i] = 1;
    local[i] = KVF_BLOCK_NONE;
  }
  for (uint32_t i = 0; i < spec->items_count; i++) {
    const kvf_transfer_item *item = &spec->items[i];
    remote[item->group * each + item->position] = item->remote_block;
    local[item->group * each + item->position] = item->local_block;
  }
  const kvf_sources sources = {.count = 1, .tickets = {&ticket}, .digests = {DIGEST}};
  const kvf_load_params load = {.request_id = spec->request_id,
                                .timeout_ms = (uint32_t)((spec->deadline_ns - now_ns) / MS),
                                .destination = {.ids = local, .counts = ticket.counts, .groups = spec->groups}};
  assert_int_equal(kvf_loads_start(&w.loads, now_ns, &sources, &load, 0), KVF_OK);
  memset(&ticket, 0xff, sizeof(ticket));
  memset(remote, 0xff, spec->positions * sizeof(remote[0]));
  memset(local, 0xff, spec->positions * sizeof(local[0]));
}

/* False: there is none of this request. */
static inline bool world_abort(uint64_t now_ns, uint64_t request_id)
{
  return kvf_loads_abort(&w.loads, now_ns, request_id) == KVF_OK;
}

static inline void world_ask(uint64_t now_ms, uint64_t request_id, uint32_t items, const char *peers)
{
  world_spec(request_id, items, peers);
  world_start(now_ms);
}

static inline void world_fenced(uint64_t now_ms, uint32_t peer, uint64_t read_id, uint64_t word)
{
  kvf_fence_sample sample = world_sample(peer, word);
  kvf_loads_on_read_done(&w.loads, now_ms * MS, read_id, KVF_OK, 0, &sample, 400);
}

static inline void world_live(uint64_t now_ms, uint32_t peer, uint64_t read_id)
{
  world_fenced(now_ms, peer, read_id, kvf_fence_word_live(LEASE_ID));
}

static inline void world_over(uint64_t now_ms, uint32_t peer, uint64_t read_id)
{
  world_fenced(now_ms, peer, read_id, kvf_fence_word_ended(LEASE_ID));
}

static inline void world_not_published(uint64_t now_ms, uint32_t peer, uint64_t read_id)
{
  world_fenced(now_ms, peer, read_id, 0);
}

static inline void world_failed(uint64_t now_ms, uint64_t read_id, kvf_status status)
{
  kvf_loads_on_read_done(&w.loads, now_ms * MS, read_id, status, 0, NULL, 0);
}

static inline void world_path(uint64_t now_ms, uint32_t peer, uint32_t link_id)
{
  kvf_loads_on_link(&w.loads, now_ms * MS, &w.peer[peer], link_id, KVF_OK);
}

static inline void world_tick_some(uint64_t now_ms, uint32_t work)
{
  kvf_timer *timer;
  while ((timer = kvf_wheel_expire(&w.context.wheel, now_ms * MS, &work)) != NULL) {
    kvf_loads_on_timer(&w.loads, now_ms * MS, timer);
  }
}

static inline void world_tick(uint64_t now_ms)
{
  world_tick_some(now_ms, UINT32_MAX);
}

static inline uint64_t world_next_deadline(void)
{
  return kvf_wheel_next_deadline(&w.context.wheel);
}

/* ---- what comes out ---- */

static inline void world_next(void)
{
  if (w.trace[0] != 0) {
    world_say("; ");
  }
}

static inline void world_say_read(const kvf_load_read *read)
{
  world_next();
  world_say("read %d over %d:%s", (int)read->transfer.id, (int)read->link_id, read->transfer.small ? " small" : "");
  for (uint32_t i = 0; i < read->transfer.items_count; i++) {
    const kvf_transfer_item *item = &read->transfer.items[i];
    world_say(i == 0 ? " " : ",");
    if (w.spec.groups > 1) {
      world_say("%d.", (int)item->group);
    }
    world_say("%d", (int)item->position);
  }
}

static inline void world_say_event(const kvf_event *event)
{
  world_next();
  if (event->kind == KVF_EVENT_RELEASED) {
    world_say("released %d", (int)event->id);
    return;
  }
  const kvf_report *report = &event->u.report;
  assert_int_equal(event->kind, KVF_EVENT_LOAD);
  assert_int_equal(report->request_id, event->id);
  assert_int_equal(report->ranks_mask, 1u << 3);
  world_say("outcome %d %s %d/%d", (int)event->id, kvf_status_name(report->status), (int)report->prefix,
            (int)report->blocks);
}

/* Takes all that the machine has to say. */
static inline const char *world_trace(uint64_t now_ms)
{
  kvf_load_read read;
  kvf_event event;
  w.trace[0] = 0;
  kvf_loads_go_on(&w.loads, now_ms * MS);
  world_say("%s", w.said);
  w.said[0] = 0;
  while (kvf_loads_next_cancel(&w.loads, &read)) {
    world_next();
    world_say("cancel %d over %d", (int)read.transfer.id, (int)read.link_id);
  }
  while (kvf_loads_next_read(&w.loads, now_ms * MS, &read)) {
    world_say_read(&read);
  }
  while (kvf_loads_next_event(&w.loads, &event)) {
    world_say_event(&event);
  }
  return w.trace;
}

#define expect(now_ms, text) assert_string_equal(world_trace(now_ms), text)

/* What is said when the clock has come to this moment. */
#define expect_at(now_ms, text) \
  do {                          \
    world_tick(now_ms);         \
    expect(now_ms, text);       \
  } while (0)

/* A peer has this link: what is said then. */
#define expect_path(now_ms, peer, link_id, text) \
  do {                                           \
    world_path(now_ms, peer, link_id);           \
    expect(now_ms, text);                        \
  } while (0)

/* A read ends, and its fence is live. */
#define expect_live(now_ms, peer, read_id, text) \
  do {                                           \
    world_live(now_ms, peer, read_id);           \
    expect(now_ms, text);                        \
  } while (0)

/* A peer has no link. */
#define expect_refused(now_ms, number, status, text)                        \
  do {                                                                      \
    kvf_loads_on_link(&w.loads, (now_ms) * MS, &w.peer[number], 0, status); \
    expect(now_ms, text);                                                   \
  } while (0)

/* The load of world_spec() starts, and its one peer, 1, offers link 11: what is said then. */
#define expect_started(now_ms, text)  \
  do {                                \
    world_start(now_ms);              \
    expect(now_ms, "want 1");         \
    expect_path(now_ms, 1, 11, text); \
  } while (0)

/* world_spec() and that. */
#define world_started(now_ms, request_id, items, peers, text) \
  do {                                                        \
    world_spec(request_id, items, peers);                     \
    expect_started(now_ms, text);                             \
  } while (0)

/* A load starts, and its peers are asked for. */
#define world_begin(now_ms, request_id, items, peers, text) \
  do {                                                      \
    world_ask(now_ms, request_id, items, peers);            \
    expect(now_ms, text);                                   \
  } while (0)

#define LOAD_TEST(name) TEST_WITH(name, world_setup, world_teardown)

#endif
