/* What the tests of the load machine share: a table of loads, a way to ask for loads, and what the machine says as
 * text.
 *
 * A trace has one entry for each action, then for each event: "want 1; read 1 over 11: 0,1,2; outcome 500 ok 3/8;
 * quiet 500". Items are positions, or group.position where there are several groups. */
#ifndef KVF_TESTS_LOAD_WORLD_H
#define KVF_TESTS_LOAD_WORLD_H

#include "base/time.h"
#include "core/attempt.h"
#include "test.h"

#define MS KVF_NS_PER_MS
#define WORLD_ITEMS_MAX 4096
#define LEASE_ID 77u
#define DIGEST 4242u

#define WORLD_ASKED_MAX 16

typedef struct world_asked {
  uint64_t request_id; /* 0: unused */
  kvf_attempt *attempt;
} world_asked;

typedef struct world {
  kvf_attempts *loads;
  kvf_attempts_config config;
  kvf_attempt_spec spec;
  kvf_transfer_item items[WORLD_ITEMS_MAX];
  uint64_t head_bytes[KVF_GROUPS_MAX];
  kvf_slice_spec slices[KVF_RANKS_MAX];
  world_asked asked[WORLD_ASKED_MAX];
  char trace[16384];
} world;

static world w;

static inline kvf_incarnation world_incarnation(uint32_t peer)
{
  return (kvf_incarnation){.bytes = {[0] = (uint8_t)peer, [15] = 1}};
}

/* A load of `items` wanted blocks of one group, positions 0 and up, from one peer for each number in `peers`. */
static inline void world_spec(uint64_t request_id, uint32_t items, const char *peers)
{
  memset(&w.spec, 0, sizeof(w.spec));
  assert_true(items <= WORLD_ITEMS_MAX);
  for (uint32_t i = 0; i < items; i++) {
    w.items[i] = (kvf_transfer_item){.position = i, .remote_block = 1000 + i, .local_block = 2000 + i};
  }
  for (uint32_t i = 0; i < KVF_GROUPS_MAX; i++) {
    w.head_bytes[i] = 100;
  }
  for (uint32_t i = 0; peers[i] != 0; i++) {
    uint32_t peer = (uint32_t)(peers[i] - '0');
    w.slices[i] = (kvf_slice_spec){
        .peer = peer, .local_head = i, .heads = 1, .claim = {world_incarnation(peer), LEASE_ID, DIGEST}};
    w.spec.slices_count = i + 1;
  }
  w.spec.request_id = request_id;
  w.spec.deadline_ns = 30000 * MS;
  w.spec.lease.id = LEASE_ID;
  w.spec.rank = 3;
  w.spec.groups = 1;
  w.spec.positions = items;
  w.spec.items_count = items;
  w.spec.items = w.items;
  w.spec.head_bytes = w.head_bytes;
  w.spec.slices = w.slices;
}

/* Chunks of at most 4 items of one head, 2 in flight; a pause is 5 to 10 ms; the stall timeout is 1000 ms. */
static inline void world_init(void)
{
  memset(&w, 0, sizeof(w));
  w.config = (kvf_attempts_config){.stall_timeout_ns = 1000 * MS,
                                   .quiet_timeout_ns = 5000 * MS,
                                   .backoff_min_ns = 10 * MS,
                                   .backoff_max_ns = 10 * MS,
                                   .chunk_bytes = 400,
                                   .chunks_in_flight = 2,
                                   .inline_bytes = 0,
                                   .seed = 1};
}

static inline void world_open(void)
{
  assert_int_equal(kvf_attempts_create(&w.config, 0, &w.loads), KVF_OK);
}

/* With another configuration. */
static inline void world_reopen(void)
{
  kvf_attempts_destroy(w.loads);
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
  kvf_attempts_destroy(w.loads);
  w.loads = NULL;
  return 0;
}

static inline kvf_fence_sample world_sample(uint32_t peer, uint64_t word)
{
  return (kvf_fence_sample){{KVF_FENCE_MAGIC, world_incarnation(peer), 16}, {word, DIGEST}};
}

/* ---- what goes in ---- */

/* What is asked of this request, or room for another one (0); NULL: there is none. */
static inline world_asked *world_find(uint64_t request_id)
{
  for (size_t i = 0; i < WORLD_ASKED_MAX; i++) {
    if (w.asked[i].request_id == request_id) {
      return &w.asked[i];
    }
  }
  return NULL;
}

static inline void world_start(uint64_t now_ms)
{
  world_asked *asked = world_find(0);
  assert_non_null(asked);
  asked->request_id = w.spec.request_id;
  w.spec.owner = asked;
  assert_int_equal(kvf_attempts_start(w.loads, now_ms * MS, &w.spec, &asked->attempt), KVF_OK);
}

/* False: there is none of this request. */
static inline bool world_abort(uint64_t now_ns, uint64_t request_id)
{
  const world_asked *asked = world_find(request_id);
  if (asked == NULL) {
    return false;
  }
  kvf_attempt_abort(w.loads, now_ns, asked->attempt);
  return true;
}

static inline void world_ask(uint64_t now_ms, uint64_t request_id, uint32_t items, const char *peers)
{
  world_spec(request_id, items, peers);
  world_start(now_ms);
}

static inline void world_live(uint64_t now_ms, uint32_t peer, uint64_t read_id)
{
  kvf_fence_sample sample = world_sample(peer, kvf_fence_word_live(LEASE_ID));
  kvf_attempts_on_read_done(w.loads, now_ms * MS, read_id, KVF_OK, &sample, 400);
}

static inline void world_over(uint64_t now_ms, uint32_t peer, uint64_t read_id)
{
  kvf_fence_sample sample = world_sample(peer, kvf_fence_word_over(LEASE_ID));
  kvf_attempts_on_read_done(w.loads, now_ms * MS, read_id, KVF_OK, &sample, 400);
}

static inline void world_not_published(uint64_t now_ms, uint32_t peer, uint64_t read_id)
{
  kvf_fence_sample sample = world_sample(peer, 0);
  kvf_attempts_on_read_done(w.loads, now_ms * MS, read_id, KVF_OK, &sample, 400);
}

static inline void world_failed(uint64_t now_ms, uint64_t read_id, kvf_status status)
{
  kvf_attempts_on_read_done(w.loads, now_ms * MS, read_id, status, NULL, 0);
}

static inline void world_path(uint64_t now_ms, uint32_t peer, uint32_t path)
{
  kvf_attempts_on_path(w.loads, now_ms * MS, peer, path, KVF_OK);
}

static inline void world_tick(uint64_t now_ms)
{
  kvf_attempts_tick(w.loads, now_ms * MS, UINT32_MAX);
}

/* ---- what comes out ---- */

__attribute__((format(printf, 1, 2))) static inline void world_say(const char *format, ...)
{
  size_t used = strlen(w.trace);
  va_list args;
  va_start(args, format);
  int written = vsnprintf(w.trace + used, sizeof(w.trace) - used, format, args);
  va_end(args);
  assert_true(written >= 0 && (size_t)written < sizeof(w.trace) - used);
}

static inline void world_say_read(const kvf_attempt_action *action)
{
  world_say("read %d over %d:%s", (int)action->transfer.id, (int)action->path, action->transfer.small ? " small" : "");
  for (uint32_t i = 0; i < action->transfer.items_count; i++) {
    if (w.spec.groups > 1) {
      world_say("%s%d.%d", i == 0 ? " " : ",", (int)action->transfer.items[i].group,
                (int)action->transfer.items[i].position);
    } else {
      world_say("%s%d", i == 0 ? " " : ",", (int)action->transfer.items[i].position);
    }
  }
}

static inline void world_say_action(const kvf_attempt_action *action)
{
  if (w.trace[0] != 0) {
    world_say("; ");
  }
  switch (action->kind) {
    case KVF_ATTEMPT_READ:
      world_say_read(action);
      break;
    case KVF_ATTEMPT_CANCEL:
      world_say("cancel %d over %d", (int)action->transfer.id, (int)action->path);
      break;
    case KVF_ATTEMPT_WANT_PATH:
      world_say("want %d", (int)action->peer);
      break;
    case KVF_ATTEMPT_PING:
      world_say("ping %d", (int)action->peer);
      break;
    case KVF_ATTEMPT_PATH_STALLED:
      world_say("stalled %d of %d%s", (int)action->path, (int)action->peer, action->silent ? " silent" : "");
      break;
    default:
      fail();
  }
}

static inline void world_say_event(const kvf_attempt_event *event)
{
  world_asked *asked = event->owner;
  const uint64_t request_id = event->report.request_id;
  assert_int_equal(asked->request_id, request_id);
  if (w.trace[0] != 0) {
    world_say("; ");
  }
  if (event->kind == KVF_ATTEMPT_QUIET) {
    world_say("quiet %d", (int)request_id);
    *asked = (world_asked){0};
    return;
  }
  assert_int_equal(event->report.ranks_mask, 1u << 3);
  world_say("outcome %d %s %d/%d", (int)request_id, kvf_status_name(event->report.status), (int)event->report.prefix,
            (int)event->report.blocks);
}

/* Takes all that the machine has to say. */
static inline const char *world_trace(uint64_t now_ms)
{
  kvf_attempt_action action;
  kvf_attempt_event event;
  w.trace[0] = 0;
  while (kvf_attempts_next_action(w.loads, now_ms * MS, &action)) {
    world_say_action(&action);
  }
  while (kvf_attempts_next_event(w.loads, &event)) {
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

/* A peer has this path: what is said then. */
#define expect_path(now_ms, peer, path, text) \
  do {                                        \
    world_path(now_ms, peer, path);           \
    expect(now_ms, text);                     \
  } while (0)

/* A read ends, and its fence is live. */
#define expect_live(now_ms, peer, read_id, text) \
  do {                                           \
    world_live(now_ms, peer, read_id);           \
    expect(now_ms, text);                        \
  } while (0)

/* A peer has no path. */
#define expect_refused(now_ms, peer, status, text)                 \
  do {                                                             \
    kvf_attempts_on_path(w.loads, (now_ms) * MS, peer, 0, status); \
    expect(now_ms, text);                                          \
  } while (0)

/* The load of world_spec() starts, and its one peer, 1, offers path 11: what is said then. */
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
