/* What engines that cannot rewind by themselves need, as TensorRT-LLM's Remote-G2 has spelled it out: each of its
 * tests, under its own name, and each behaviour that it describes. They are scenes (tests/cluster/scene.h) of a table
 * of an engine with two ranks and blocks of 16 tokens. A command is followed by the events that are there then, and by
 * "empty" when nothing is left in the table, and all that came in has gone out once. "rewind 1: 3, 80+16 peer_down":
 * the blocks that are confirmed, the tokens that are computed and to be recomputed, and why.
 *
 *   open [NAME=VALUE…]         another table
 *   admit N [NAME=VALUE…]      of six blocks, two are of the local prefix; four are loaded into 4N and so on
 *   report N RANKS PREFIX STATUS [BLOCKS], released N RANKS, over N RANKS PREFIX STATUS (both)
 *   blocks RANK GROUP ID,ID… STATUS
 *   end N, drain [MAX], stats NAME…
 *   hold, next, let            of events none, one, or all
 */
#include "kvferry/recovery.h"
#include "../../allocation.h"
#include "scene.h"

enum { POOL = 64, REQUESTS = 8, IDS_MAX = 16 };

static const kvf_recovery_options usual = {
    .ranks = 2, .block_tokens = 16, .requests_max = REQUESTS, .groups = 1, .pool_blocks = {POOL}};

static kvf_recovery *recovery;
static bool is_held;
static bool was_empty;

static void close_table(void)
{
  kvf_recovery_close(recovery);
  recovery = NULL;
}

static void open_table(const kvf_recovery_options *options)
{
  close_table();
  (void)cluster_said(); /* by a test that failed */
  is_held = was_empty = false;
  assert_int_equal(kvf_recovery_open(options, &recovery), KVF_OK);
}

#define RECOVERY_TEST(name) TEST_WITH(name, NULL, close_table)
#define RECOVERY_SCENE(name, text) \
  RECOVERY_TEST(name)              \
  {                                \
    open_table(&usual);            \
    scene(text);                   \
  }

/* Begins while request 1 loads. */
#define LOADING_SCENE(name, text) RECOVERY_SCENE(name, "admit 1\n" text)

/* ---- what is said ---- */

static void say_event(const kvf_recovery_event *event)
{
  static const char *const kinds[] = {"", "ready", "rewind", "terminate", "abort", "release"};
  static const char *const blockers[] = {"generated", "published", "gone", "beams",  "no_context", "",
                                         "",          "",          "long", "unsafe", "",           "used"};
  const bool goes_on = event->kind == KVF_RECOVERY_READY || event->kind == KVF_RECOVERY_REWIND;
  char more[64] = "";
  if (goes_on) {
    (void)snprintf(more, sizeof(more), ": %u, %u+%u", event->confirmed_blocks, event->computed_tokens,
                   event->recompute_tokens);
  } else if (event->kind == KVF_RECOVERY_TERMINATE) {
    assert_int_equal(__builtin_popcount(event->blockers), 1);
    (void)snprintf(more, sizeof(more), ": %s", blockers[__builtin_ctz(event->blockers)]);
  } else if (event->kind == KVF_RECOVERY_ABORT) {
    (void)snprintf(more, sizeof(more), " on %llu", (unsigned long long)event->ranks_mask);
  }
  assert_int_equal(event->user, 100 + event->request_id);
  assert_true(event->kind == KVF_RECOVERY_TERMINATE || event->blockers == 0);
  const bool has_failed = event->kind <= KVF_RECOVERY_TERMINATE && event->status != KVF_OK;
  cluster_say("%s %u%s%s%s", kinds[event->kind], (uint32_t)event->request_id, more, has_failed ? " " : "",
              has_failed ? kvf_status_name(event->status) : "");
}

static void say_what_is_new(void)
{
  kvf_recovery_event event;
  kvf_recovery_stats stats;
  while (!is_held && kvf_recovery_next_event(recovery, &event)) {
    say_event(&event);
  }
  kvf_recovery_get_stats(recovery, &stats);
  const bool is_empty = stats.admitted > 0 && stats.open + stats.loading == 0 && stats.released == stats.admitted;
  if (is_empty && !was_empty) {
    cluster_say("empty");
  }
  was_empty = is_empty;
}

/* ---- commands ---- */

static uint32_t number_of(const scene_line *at, const char *name, uint32_t usual_number)
{
  const char *value = scene_value(at, name);
  return value == NULL ? usual_number : (uint32_t)strtoul(value, NULL, 0);
}

static void do_open(const scene_line *at)
{
  kvf_recovery_options options = usual;
  options.recompute_max_tokens = number_of(at, "recompute_max", 0);
  options.groups = number_of(at, "groups", 1);
  options.pool_blocks[1] = options.pool_blocks[2] = POOL;
  open_table(&options);
}

/* Block ids; "-" is KVF_BLOCK_NONE, and "/" begins another group. */
static kvf_blocks blocks_of(const char *text)
{
  static uint32_t ids[IDS_MAX];
  static uint32_t counts[3];
  kvf_blocks blocks = {.ids = ids, .counts = counts, .groups = 1};
  uint32_t count = 0;
  memset(counts, 0, sizeof(counts));
  for (char *next; *text != 0; text = next) {
    ids[count++] = *text == '-' ? KVF_BLOCK_NONE : (uint32_t)strtoul(text, &next, 0);
    counts[blocks.groups - 1]++;
    next = *text == '-' ? (char *)text + 1 : next;
    blocks.groups += *next == '/';
    next += *next != 0;
    assert_true(count < IDS_MAX && blocks.groups <= 3);
  }
  return blocks;
}

static void do_admit(const scene_line *at)
{
  const uint32_t id = scene_number(at, 1);
  char own[64];
  (void)snprintf(own, sizeof(own), "-,-,%u,%u,%u,%u", 4 * id, 4 * id + 1, 4 * id + 2, 4 * id + 3);
  const char *ids = scene_value(at, "ids");
  const kvf_recovery_request request = {.request_id = id,
                                        .user = 100 + id,
                                        .blocks = blocks_of(ids == NULL ? own : ids),
                                        .local_prefix_tokens = number_of(at, "local", 32),
                                        .tokens = number_of(at, "tokens", 96),
                                        .prompt_tokens = number_of(at, "prompt", 101),
                                        .blockers = number_of(at, "blockers", 0)};
  scene_say_unless_ok(kvf_recovery_admit(recovery, &request));
}

static void do_report(const scene_line *at)
{
  const kvf_report report = {.request_id = scene_number(at, 1),
                             .ranks_mask = scene_number(at, 2),
                             .prefix = scene_number(at, 3),
                             .status = at->word[4][0] == '-' ? -9999 : scene_status(at, 4),
                             .blocks = at->count > 5 ? scene_number(at, 5) : 6};
  scene_say_unless_ok(kvf_recovery_report(recovery, &report));
}

static void do_released(const scene_line *at)
{
  scene_say_unless_ok(kvf_recovery_released(recovery, scene_number(at, 1), scene_number(at, 2)));
}

static void do_over(const scene_line *at)
{
  do_report(at);
  do_released(at);
}

static void do_blocks(const scene_line *at)
{
  const kvf_blocks blocks = blocks_of(scene_word(at, 3));
  scene_say_unless_ok(kvf_recovery_report_blocks(recovery, scene_number(at, 1), scene_number(at, 2), blocks.ids,
                                                 blocks.counts[0], scene_status(at, 4)));
}

static void do_end(const scene_line *at)
{
  scene_say_unless_ok(kvf_recovery_end(recovery, scene_number(at, 1)));
}

static void do_drain(const scene_line *at)
{
  kvf_recovery_error errors[POOL];
  const size_t count = kvf_recovery_drain_errors(recovery, errors, at->count > 1 ? scene_number(at, 1) : POOL);
  for (size_t i = 0; i < count; i++) {
    cluster_say("%u %u.%u=%u %s", (uint32_t)errors[i].request_id, errors[i].group, errors[i].position,
                errors[i].block_id, kvf_status_name(errors[i].status));
  }
}

static void do_stats(const scene_line *at)
{
  kvf_recovery_stats stats;
  kvf_recovery_get_stats(recovery, &stats);
  const struct {
    const char *name;
    uint64_t value;
  } rows[] = {{"admitted", stats.admitted}, {"open", stats.open},
              {"loading", stats.loading},   {"rewound", stats.rewound},
              {"kept", stats.kept_blocks},  {"recompute", stats.recompute_tokens},
              {"errors", stats.errors},     {"unknown", stats.unknown_blocks},
              {"late", stats.late_reports}, {"aborted", stats.aborted}};
  for (uint32_t i = 1; i < at->count; i++) {
    for (size_t k = 0; k < sizeof(rows) / sizeof(rows[0]); k++) {
      if (strcmp(at->word[i], rows[k].name) == 0) {
        cluster_say("%u", (uint32_t)rows[k].value);
      }
    }
  }
}

static void do_next(__attribute__((unused)) const scene_line *at)
{
  kvf_recovery_event event;
  assert_true(kvf_recovery_next_event(recovery, &event));
  say_event(&event);
}

static void do_hold(const scene_line *at)
{
  is_held = at->word[0][0] == 'h';
}

static bool do_own(const scene_line *at)
{
  static const scene_command commands[] = {{"open", do_open},         {"admit", do_admit}, {"report", do_report},
                                           {"released", do_released}, {"over", do_over},   {"blocks", do_blocks},
                                           {"end", do_end},           {"drain", do_drain}, {"stats", do_stats},
                                           {"hold", do_hold},         {"let", do_hold},    {"next", do_next}};
  if (!scene_call(commands, sizeof(commands) / sizeof(commands[0]), at)) {
    return false;
  }
  say_what_is_new();
  return true;
}

__attribute__((constructor)) static void join_the_scenes(void)
{
  scene_own = do_own;
}

/* ---- its tests ---- */

/* No block may be published. */
LOADING_SCENE(worker_failure_releases_once_and_publishes_nothing,
              "over 1 3 2 transfer_failed > rewind 1: 0, 32+64 transfer_failed; release 1\n"
              "over 1 3 2 transfer_failed\n" /* said again */
              "end 1 > empty\n")

/* The engine's own deadline ends a load; the table has no clock. */
LOADING_SCENE(worker_timeout_releases_transfer_and_lease_once,
              "over 1 1 3 deadline\n"
              "over 1 2 5 deadline > rewind 1: 1, 48+48 deadline; release 1\n"
              "end 1 > empty\n")

/* A failure that arrives before the engine has been told to go on is a fallback, even if all had looked well. */
LOADING_SCENE(worker_emits_fallback_before_validity_or_publication,
              "hold\n"
              "over 1 3 6 ok\n"
              "report 1 2 4 checksum\n"
              "let > rewind 1: 2, 64+32 checksum; release 1\n"
              "stats late > 0\n"
              "end 1 > empty\n")

/* After it, tokens may have been computed from the block: there is no way back. */
LOADING_SCENE(worker_emits_failed_after_validity_is_marked,
              "hold\n"
              "over 1 3 6 ok\n"
              "next > ready 1: 4, 96+0\n"
              "report 1 2 4 checksum\n"
              "let > terminate 1: used checksum; release 1\n"
              "report 1 2 2 checksum\n"
              "stats late > 2\n"
              "end 1 > empty\n")

/* A failed load is data of its own request. Others go on. */
LOADING_SCENE(worker_failed_state_does_not_propagate_and_reports_blocks,
              "admit 2\n"
              "over 1 3 4 transfer_failed > rewind 1: 2, 64+32 transfer_failed; release 1\n"
              "drain > 1 0.4=6 transfer_failed; 1 0.5=7 transfer_failed\n"
              "over 2 3 6 ok > ready 2: 4, 96+0; release 2\n"
              "end 2\n"
              "end 1 > empty\n")

LOADING_SCENE(worker_failed_block_ids_drained_once_per_step,
              "admit 2\n"
              "hold\n"
              "over 1 3 3 peer_down\n"
              "over 2 3 2 peer_down\n"
              "drain\n" /* nothing is decided yet */
              "let > rewind 1: 1, 48+48 peer_down; release 1; rewind 2: 0, 32+64 peer_down; release 2\n"
              "drain 0\n"
              "drain 2 > 1 0.3=5 peer_down; 1 0.4=6 peer_down\n"
              "drain 2 > 1 0.5=7 peer_down; 2 0.2=8 peer_down\n"
              "drain 2 > 2 0.3=9 peer_down; 2 0.4=10 peer_down\n"
              "drain 2 > 2 0.5=11 peer_down\n"
              "stats errors > 7\n"
              "drain\n"
              "end 2\n"
              "end 1 > empty\n")

LOADING_SCENE(abort_request_calls_result_abort,
              "over 1 1 6 ok\n"
              "end 1 > abort 1 on 2\n" /* only where it is in flight */
              "over 1 2 2 aborted > release 1; empty\n")

LOADING_SCENE(abort_request_releases_lease_once,
              "hold\n"
              "end 1\n"
              "end 1 > not_found\n"
              "let > abort 1 on 3\n"
              "hold\n"
              "released 1 3\n"
              "end 1 > not_found\n"
              "let > release 1; empty\n"
              "end 1 > not_found\n")

/* The handle's memory is the load's until every rank is released, and it is let go of once. */
LOADING_SCENE(abort_request_releases_transfer_handle_once,
              "end 1 > abort 1 on 3\n"
              "report 1 3 2 aborted\n"
              "released 1 1\n"
              "hold\n"
              "released 1 2\n"
              "released 1 2\n"
              "let > release 1; empty\n"
              "released 1 2 > not_found\n")

LOADING_SCENE(abort_request_after_completion_is_noop,
              "over 1 3 6 ok > ready 1: 4, 96+0; release 1\n"
              "end 1 > empty\n" /* no abort, no second release */
              "end 1 > not_found\n"
              "stats aborted > 0\n")

LOADING_SCENE(abort_request_unknown_id_is_noop,
              "end 7 > not_found\n"
              "stats loading > 1\n")

/* Not even the positions that were not wanted were looked at. */
LOADING_SCENE(recompute_failed_load_rewinds_to_local_prefix,
              "over 1 3 0 bad_ticket > rewind 1: 0, 32+64 bad_ticket; release 1\n"
              "end 1 > empty\n")

/* ---- its behaviours ---- */

LOADING_SCENE(failure_is_decided_with_the_last_report,
              "over 1 1 5 transfer_failed\n"
              "over 1 2 6 ok > rewind 1: 3, 80+16 transfer_failed; release 1\n")

RECOVERY_TEST(every_failure_releases_once)
{
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    const char *said = info->status == KVF_OK ? "ready 1: 4, 96+0"
                       : info->recompute_safe ? "rewind 1: 2, 64+32"
                                              : "terminate 1: unsafe";
    const bool is_ok = info->status == KVF_OK;
    char text[256];
    (void)snprintf(text, sizeof(text), "open\nadmit 1\nover 1 3 %d %s > %s%s%s; release 1\nend 1 > empty\n",
                   is_ok ? 6 : 4, info->name, said, is_ok ? "" : " ", is_ok ? "" : info->name);
    scene(text);
  }
}

LOADING_SCENE(one_local_recompute_event_for_a_request,
              "over 1 3 3 peer_down > rewind 1: 1, 48+48 peer_down; release 1\n"
              "report 1 1 3 peer_down\n"
              "report 1 2 5 deadline\n"
              "stats rewound kept recompute > 1; 1; 48\n"
              "end 1 > empty\n")

/* A second rewind, further back, would take back what the engine has computed from: it ends the request. */
LOADING_SCENE(block_lost_after_the_rewind_terminates,
              "over 1 3 5 peer_down > rewind 1: 3, 80+16 peer_down; release 1\n"
              "drain > 1 0.5=7 peer_down\n"
              "report 1 1 3 checksum > terminate 1: used peer_down\n"
              "drain > 1 0.3=5 peer_down; 1 0.4=6 peer_down\n" /* the new ones only */
              "end 1 > empty\n")

#define TWO_FAILURES(drained)                                                \
  "open\n"                                                                   \
  "admit 1\n"                                                                \
  "over 1 3 4 peer_down > rewind 1: 2, 64+32 peer_down; release 1\n" drained \
  "report 1 1 2 checksum > terminate 1: used peer_down\n"

/* Blocks that wait to be drained when more are lost come once too. */
RECOVERY_SCENE(errors_of_two_failures_are_drained_once,
               TWO_FAILURES("drain 0\n")
               "drain > 1 0.2=4 peer_down; 1 0.3=5 peer_down; 1 0.4=6 peer_down; 1 0.5=7 peer_down\n"
               TWO_FAILURES("drain 1 > 1 0.4=6 peer_down\n")
               "drain > 1 0.2=4 peer_down; 1 0.3=5 peer_down; 1 0.5=7 peer_down\n"
               TWO_FAILURES("drain 2 > 1 0.4=6 peer_down; 1 0.5=7 peer_down\n")
               "drain > 1 0.2=4 peer_down; 1 0.3=5 peer_down\n"
               "end 1 > empty\n")

LOADING_SCENE(failed_blocks_of_all_ranks_map_to_their_requests,
              "admit 2\n"
              "admit 3\n"
              "blocks 0 0 7,13,60 transfer_failed\n"
              "blocks 1 0 15,14 peer_down\n"
              "stats unknown > 1\n"
              "report 1 2 6 ok\n"
              "report 2 3 6 ok\n"
              "released 1 3 > rewind 1: 3, 80+16 transfer_failed; release 1\n"
              "released 2 3 > ready 2: 4, 96+0; release 2\n"
              "released 3 3 > rewind 3: 1, 48+48 peer_down; release 3\n")

/* What its reviewer found: a rank that alone has seen the error must not act on it. */
LOADING_SCENE(no_event_before_all_ranks_are_in,
              "over 1 2 3 transfer_failed\n"
              "over 1 2 3 transfer_failed\n" /* the same rank again */
              "report 1 1 6 ok\n"            /* rank 0 has its outcome; it may still write */
              "released 1 1 > rewind 1: 1, 48+48 transfer_failed; release 1\n"
              "admit 2\n"
              "released 2 3\n"
              "report 2 1 3 transfer_failed\n" /* what rank 1 has is on its way */
              "report 2 2 2 transfer_failed > rewind 2: 0, 32+64 transfer_failed; release 2\n")

/* Re-admitted without new blocks: they stay the request's, and nobody else's, through the rewind. */
LOADING_SCENE(rewound_request_keeps_its_blocks,
              "over 1 3 3 peer_down > rewind 1: 1, 48+48 peer_down; release 1\n"
              "admit 9 ids=7 local=0 tokens=16 prompt=16 > exists\n"
              "end 1 > empty\n"
              "admit 9 ids=7 local=0 tokens=16 prompt=16\n")

RECOVERY_TEST(terminated_only_if_the_rewind_cannot_apply)
{
  static const char *const blockers[] = {"generated", "published", "gone", "beams", "no_context"};
  for (uint32_t i = 0; i < 5; i++) {
    char text[512];
    (void)snprintf(text, sizeof(text),
                   "open\n"
                   "admit 1 blockers=%u\n"
                   "admit 2 blockers=%u\n"
                   "admit 3\n"
                   "over 1 3 4 peer_down > terminate 1: %s peer_down; release 1\n"
                   "over 2 3 6 ok > ready 2: 4, 96+0; release 2\n" /* nothing to take back */
                   "over 3 3 4 peer_down > rewind 3: 2, 64+32 peer_down; release 3\n",
                   1u << i, 1u << i, blockers[i]);
    scene(text);
  }
}

/* An engine without chunked context computes what it goes back for in one step. */
RECOVERY_SCENE(terminated_if_too_long_for_one_context_step,
               "open recompute_max=21\n"
               "admit 1\n"
               "admit 2\n"
               "admit 3\n"
               "over 1 3 5 peer_down > rewind 1: 3, 80+16 peer_down; release 1\n"
               "over 2 3 4 peer_down > terminate 2: long peer_down; release 2\n"
               "over 3 3 6 ok > ready 3: 4, 96+0; release 3\n")

/* Told at once, since a lost rank may never be released; what it may write to is held until it is. */
LOADING_SCENE(lost_rank_terminates_and_its_blocks_stay_held,
              "over 1 1 6 ok\n"
              "report 1 2 0 rank_lost > terminate 1: unsafe rank_lost; abort 1 on 2\n"
              "end 1\n" /* neither a second abort nor a release */
              "admit 1 > exists\n"
              "over 1 2 6 ok > release 1; empty\n" /* it comes back, too late */
              "admit 1\n")

/* No rewind: nobody wants it any more. */
LOADING_SCENE(canceled_request_is_not_tracked_as_loading,
              "report 1 3 3 peer_down\n"
              "end 1 > abort 1 on 3\n"
              "released 1 3 > release 1; empty\n")

/* An aborted load that was complete before the abort reached it has nothing more to say either. */
LOADING_SCENE(canceled_request_with_a_decision_due_says_nothing_of_it,
              "hold\n"
              "over 1 3 6 ok\n"
              "end 1\n"
              "let > release 1; empty\n")

LOADING_SCENE(errors_of_a_request_that_left_are_dropped,
              "hold\n"
              "over 1 3 3 peer_down\n"
              "next > rewind 1: 1, 48+48 peer_down\n"
              "end 1\n"
              "let > release 1; empty\n"
              "drain\n")

RECOVERY_TEST(partial_prefix_is_the_shortest_of_the_ranks)
{
  for (uint32_t a = 0; a <= 4; a++) {
    for (uint32_t b = 0; b <= 4; b++) {
      const uint32_t kept = a < b ? a : b;
      char text[256];
      (void)snprintf(text, sizeof(text),
                     "open\nadmit 1\nover 1 1 %u %s\nover 1 2 %u %s > %s 1: %u, %u+%u%s; release 1\n", 2 + a,
                     a == 4 ? "ok" : "peer_down", 2 + b, b == 4 ? "ok" : "peer_down", kept == 4 ? "ready" : "rewind",
                     kept, 32 + 16 * kept, 64 - 16 * kept, kept == 4 ? "" : " peer_down");
      scene(text);
    }
  }
}

/* ---- what a table refuses, and that it then has not changed ---- */

static void try_open(kvf_recovery_options options, kvf_status expected)
{
  kvf_recovery *opened = (kvf_recovery *)&options;
  assert_int_equal(kvf_recovery_open(&options, &opened), expected);
  assert_true((opened != NULL) == (expected == KVF_OK));
  kvf_recovery_close(opened);
}

/* With these options changed. */
#define OPEN(expected, ...)               \
  do {                                    \
    kvf_recovery_options options = usual; \
    __VA_ARGS__;                          \
    try_open(options, expected);          \
  } while (0)

TEST(options_out_of_range)
{
  OPEN(KVF_INVALID, options.ranks = 0);
  OPEN(KVF_OK, options.ranks = KVF_RANKS_MAX);
  OPEN(KVF_LIMIT, options.ranks = KVF_RANKS_MAX + 1);
  OPEN(KVF_INVALID, options.block_tokens = 0);
  OPEN(KVF_INVALID, options.requests_max = 0);
  OPEN(KVF_OK, options.requests_max = KVF_RECOVERY_REQUESTS_MAX);
  OPEN(KVF_LIMIT, options.requests_max = KVF_RECOVERY_REQUESTS_MAX + 1);
  OPEN(KVF_INVALID, options.groups = 0);
  OPEN(KVF_INVALID, options.groups = 2); /* the second pool is empty */
  OPEN(KVF_LIMIT, options.groups = 2, options.pool_blocks[1] = KVF_RECOVERY_BLOCKS_MAX - POOL + 1);
  OPEN(KVF_LIMIT, options.groups = KVF_GROUPS_MAX + 1);
}

RECOVERY_SCENE(admissions_out_of_range,
               "admit 1 ids=-,-,5,6,7,63 local=31 tokens=81 prompt=96 > invalid\n" /* not whole blocks */
               "admit 1 ids=-,-,5,6,7,63 local=48 tokens=81 prompt=96 > invalid\n" /* its last block is loaded over */
               "admit 1 ids=-,-,5,6,7,63 local=96 tokens=81 prompt=96 > invalid\n"
               "admit 1 ids=-,-,5,6,7,63 tokens=97 prompt=96 > invalid\n"
               "admit 1 ids=-,-,5,6,7,63 tokens=97 prompt=97 > invalid\n"               /* a position is missing */
               "admit 1 ids=-,-,5,6,7,63,64 tokens=97 prompt=97 > invalid\n"            /* out of the pool */
               "admit 1 ids=-,-,5,6,7,63,7 tokens=97 prompt=97 > exists\n"              /* twice */
               "admit 1 ids=-,-,5,6,7,63 tokens=81 prompt=96 blockers=2048 > invalid\n" /* the table's own */
               "admit 1 ids=-,-,5,6,7,63/1 tokens=81 prompt=96 > invalid\n"
               "admit 1 ids=-,-,5,6,7,63 tokens=1048577 prompt=0xffffffff > limit\n"
               "stats admitted open > 0; 0\n"
               "admit 1 ids=-,-,5,6,7,63 tokens=81 prompt=96\n"
               "stats admitted open > 1; 1\n"
               "open\n"
               "admit 1 ids=-,-,5,6,7,63,0 tokens=97 prompt=97\n")

/* The blocks before the one that has an owner are not kept by a request that was not admitted. */
RECOVERY_SCENE(refused_admission_leaves_no_block_behind,
               "admit 1 ids=22,21,20 local=0 tokens=48 prompt=48\n"
               "admit 2 ids=21,20,23 local=0 tokens=48 prompt=48 > exists\n"
               "admit 2 ids=23,24,25 local=0 tokens=48 prompt=48\n")

RECOVERY_SCENE(table_full_and_ids_taken,
               "admit 0\nadmit 0 > exists\n"
               "admit 1\nadmit 1 > exists\n"
               "admit 2\nadmit 2 > exists\n"
               "admit 3\nadmit 3 > exists\n"
               "admit 4\nadmit 4 > exists\n"
               "admit 5\nadmit 5 > exists\n"
               "admit 6\nadmit 6 > exists\n"
               "admit 7\nadmit 7 > exists\n"
               "admit 8 > no_resource\n"
               "hold\n"
               "over 3 3 6 ok\n"
               "end 3\n"
               "admit 8 > no_resource\n" /* its blocks are not released yet */
               "let > release 3\n"
               "admit 8\n")

#define REPORT(report)    \
  "open\n"                \
  "admit 1\n"             \
  "released 1 3\n" report \
  " > invalid\n"          \
  "report 1 3 6 ok > ready 1: 4, 96+0; release 1\n"

RECOVERY_SCENE(reports_that_contradict_themselves,
               REPORT("report 1 0 3 peer_down") REPORT("report 1 4 3 peer_down") REPORT("report 1 3 3 peer_down 5")
                   REPORT("report 1 3 7 peer_down") REPORT("report 1 3 5 ok"))

LOADING_SCENE(a_status_of_a_newer_version_is_not_trusted, "over 1 3 4 -9999 > terminate 1: unsafe invalid; release 1\n")

LOADING_SCENE(what_is_of_no_request,
              "report 2 3 3 peer_down > not_found\n"
              "released 2 3 > not_found\n"
              "released 1 4 > invalid\n"
              "blocks 2 0 4 peer_down > invalid\n"
              "blocks 0 1 4 peer_down > invalid\n"
              "blocks 0 0 4 ok > invalid\n"
              "blocks 0 0 4,64 peer_down > invalid\n"
              "hold\n"
              "report 1 2 6 ok\n"
              "let\n") /* rank 0 has not been heard: the last of these changed nothing either */

/* ---- several groups, nothing to load ---- */

/* A failed load that has all three positions of each group contradicts itself. */
#define GROUPS(ids)                      \
  "open groups=3\n"                      \
  "admit 1 ids=" ids                     \
  " local=16 tokens=40 prompt=40\n"      \
  "report 1 3 3 peer_down 9 > invalid\n" \
  "released 1 3\n"

RECOVERY_SCENE(of_groups_is_kept_what_all_have,
               GROUPS("-,1,2/-,1,3/-,9,63")
               "report 1 3 9 ok 9 > ready 1: 2, 40+0; release 1\n"
               "drain\n"
               GROUPS("-,1,2/-,1,3/-,9,63")
               "hold\n"
               "report 1 3 9 ok 9\n"
               "blocks 1 1 3 checksum\n"
               "let > rewind 1: 1, 32+8 checksum; release 1\n"
               "drain > 1 0.2=2 checksum; 1 1.2=3 checksum; 1 2.2=63 checksum\n"
               GROUPS("-,1,2/-,1,3/-,9,63")
               "report 1 3 0 peer_down 9 > rewind 1: 0, 16+24 peer_down; release 1\n"
               "drain > 1 0.1=1 peer_down; 1 0.2=2 peer_down; 1 1.1=1 peer_down; 1 1.2=3 peer_down; 1 2.1=9 "
"peer_down; 1 2.2=63 peer_down\n")

/* Of the third group a window has passed a block that one before the last token has need of. */
RECOVERY_SCENE(behind_a_gap_is_all_kept_or_nothing,
               GROUPS("-,1,2/-,1,3/-,-,63")
               "report 1 3 9 ok 9 > ready 1: 2, 40+0; release 1\n"
               "drain\n"
               GROUPS("-,1,2/-,1,3/-,-,63")
               "hold\n"
               "report 1 3 9 ok 9\n"
               "blocks 1 1 3 checksum\n"
               "let > rewind 1: 0, 16+24 checksum; release 1\n"
               "drain > 1 0.1=1 checksum; 1 0.2=2 checksum; 1 1.1=1 checksum; 1 1.2=3 checksum; 1 2.2=63 checksum\n"
               GROUPS("-,1,2/-,1,3/-,-,63")
               "report 1 3 0 peer_down 9 > rewind 1: 0, 16+24 peer_down; release 1\n"
               "drain > 1 0.1=1 peer_down; 1 0.2=2 peer_down; 1 1.1=1 peer_down; 1 1.2=3 peer_down; 1 2.2=63 peer_down\n")

/* A rank that fails a load of nothing has lost nothing. */
RECOVERY_SCENE(loads_of_no_blocks,
               "admit 1 ids= local=0 tokens=0 prompt=20\n"
               "report 1 3 0 peer_down 0\n"
               "released 1 3 > ready 1: 0, 0+0; release 1\n"
               "end 1 > empty\n"
               "open\n"
               "admit 1 ids=- local=16 tokens=16 prompt=20\n"
               "report 1 3 0 peer_down 1\n"
               "released 1 3 > ready 1: 0, 16+0; release 1\n"
               "end 1 > empty\n")

/* But for a lost rank, of which nothing is known: a request that it has a part in cannot go on. recompute_max is of no
 * interest, since nothing would have to be computed. */
RECOVERY_SCENE(lost_rank_ends_even_what_is_complete,
               "open recompute_max=1\n"
               "admit 1 ids=- local=16 tokens=16\n"
               "report 1 3 0 rank_lost 1 > terminate 1: unsafe rank_lost; abort 1 on 3\n")

/* ---- memory ---- */

/* Nothing is left of a table that could not be opened; an open one asks for no more. */
TEST(memory_is_from_its_opening_alone)
{
  const long live = allocation_live();
  kvf_status status = KVF_NO_MEMORY;
  for (long spared = 0; status != KVF_OK; spared++) {
    allocation_fail(spared, 1);
    status = kvf_recovery_open(&usual, &recovery);
    assert_true(allocation_stop() == (status == KVF_NO_MEMORY));
    assert_true((recovery == NULL) == (status == KVF_NO_MEMORY));
    assert_true((allocation_live() == live) == (status == KVF_NO_MEMORY));
  }
  allocation_fail(0, 1);
  for (uint32_t id = 0; id < REQUESTS; id++) {
    char text[64];
    (void)snprintf(text, sizeof(text), "hold\nadmit %u\nover %u 3 3 peer_down\n", id, id);
    scene(text);
  }
  kvf_recovery_event event;
  kvf_recovery_error error;
  uint32_t said = 0;
  while (kvf_recovery_next_event(recovery, &event) || kvf_recovery_drain_errors(recovery, &error, 1) > 0) {
    assert_true(said++ < REQUESTS * (2 + 4));
  }
  assert_false(allocation_stop());
  close_table();
  kvf_recovery_close(NULL);
}

/* ---- several ranks: a table for each, which says the same ---- */

#define THREE_LOAD              \
  "open\n"                      \
  "hold\n"                      \
  "admit 1\nadmit 2\nadmit 3\n" \
  "released 1 3\nreleased 2 3\nreleased 3 3\n"
#define THREE_SAY \
  "rewind 1: 1, 48+48 peer_down; release 1; rewind 2: 1, 48+48 peer_down; release 2; ready 3: 4, 96+0; release 3\n"

/* Each is told in an order of its own. */
RECOVERY_SCENE(tables_of_all_ranks_say_the_same, THREE_LOAD
               "report 2 1 5 peer_down\n"
               "report 1 1 3 lease_expired\n"
               "report 3 2 6 ok\n"
               "report 2 2 3 checksum\n"
               "report 1 2 4 peer_down\n"
               "report 3 1 6 ok\n"
               "let > " THREE_SAY THREE_LOAD
               "report 3 1 6 ok\n"
               "report 1 2 4 peer_down\n"
               "report 2 2 3 checksum\n"
               "report 3 2 6 ok\n"
               "report 1 1 3 lease_expired\n"
               "report 2 1 5 peer_down\n"
               "let > " THREE_SAY)

#define GOOD(id) "admit " id "\nover " id " 3 6 ok\n"
#define FOUR_LOAD \
  "open\n"                                          \
  "hold\n"                                          \
  GOOD("1") GOOD("2") GOOD("3") GOOD("4")           \
  "let > ready 1: 4, 96+0; release 1; ready 2: 4, 96+0; release 2; ready 3: 4, 96+0; release 3; " \
 "ready 4: 4, 96+0; release 4\n"                               \
  "hold\n"
#define THREE_MORE \
  GOOD("5")        \
  GOOD("6") GOOD("7") "let > ready 5: 4, 96+0; release 5; ready 6: 4, 96+0; release 6; ready 7: 4, 96+0; release 7\n"

/* Found by the simulator: requests that left in another order on another rank changed the order of later events. */
RECOVERY_SCENE(tables_say_the_same_whoever_left_first,
               FOUR_LOAD "end 1\nend 2\nend 3\n" THREE_MORE FOUR_LOAD "end 3\nend 2\nend 1\n" THREE_MORE)
