/* A consumer whose engine cannot rewind by itself: it parks a request while its ranks load, goes on where its recovery
 * tables say, computes what is missing into the same blocks, and shares what it has computed. */
#include <string.h>

#include "world.h"

#define USE_NS (5 * SIM_MS)
#define PATIENCE_NS (3 * SIM_MS)
#define ANSWER_NS (120 * SIM_MS)

static void on_compute(sim_world *world, const sim_event *event);
static void on_finish(sim_world *world, const sim_event *event);
static void on_end(sim_world *world, const sim_event *event);
static void on_released(sim_world *world, const sim_event *event);
static void on_take_back(sim_world *world, const sim_event *event);
static void on_patience(sim_world *world, const sim_event *event);
static void on_answer(sim_world *world, const sim_event *event);

sim_scheduler *sim_scheduler_of(sim_world *world, const sim_job *job)
{
  return &world->schedulers[job->engine];
}

static void later(sim_world *world, const sim_job *job, sim_event_fn fn, uint32_t b, uint64_t after_ns)
{
  sim_push(world, world->now_ns + after_ns, fn, sim_job_index(world, job), b, job->life);
}

/* The job that an event is for, NULL if there is nothing to do any more. */
static sim_job *parked_job(sim_world *world, const sim_event *event)
{
  sim_job *job = sim_job_of(world, event);
  return job != NULL && job->parked.is_in && !sim_waits(world, job->engine, event) ? job : NULL;
}

/* ---- lives ---- */

void sim_scheduler_choose(sim_world *world, uint32_t engine, uint32_t choice)
{
  static const sim_way ways[8] = {SIM_WAY_NONE,    SIM_WAY_NONE, SIM_WAY_NONE,    SIM_WAY_NONE,
                                  SIM_WAY_REPORTS, SIM_WAY_EACH, SIM_WAY_REPORTS, SIM_WAY_EACH};
  static const uint32_t recompute_max_tokens[4] = {0, 0, 8, 4};
  static const uint32_t requests_max[4] = {64, 64, 3, 64};
  sim_scheduler *scheduler = &world->schedulers[engine];
  memset(scheduler, 0, sizeof(*scheduler));
  scheduler->way = engine < world->producers ? SIM_WAY_NONE : ways[choice % 8];
  scheduler->recompute_max_tokens = recompute_max_tokens[choice / 8 % 4];
  scheduler->requests_max = requests_max[choice / 8 % 4];
}

void sim_scheduler_start(sim_world *world, const sim_engine *engine)
{
  sim_scheduler *scheduler = &world->schedulers[engine->index];
  kvf_recovery_options options = {.ranks = engine->ranks,
                                  .block_tokens = SIM_BLOCK_TOKENS,
                                  .requests_max = scheduler->requests_max,
                                  .recompute_max_tokens = scheduler->recompute_max_tokens,
                                  .groups = world->groups};
  for (uint32_t group = 0; group < world->groups; group++) {
    options.pool_blocks[group] = engine->blocks;
  }
  if (scheduler->way == SIM_WAY_NONE) {
    return;
  }
  scheduler->tables_count = scheduler->way == SIM_WAY_EACH ? engine->ranks : 1;
  for (uint32_t i = 0; i < scheduler->tables_count; i++) {
    if (kvf_recovery_open(&options, &scheduler->tables[i]) != KVF_OK) {
      sim_fail(world, "SIM", "engine %u has no recovery table", engine->index);
    }
  }
}

void sim_scheduler_stop(sim_world *world, const sim_engine *engine)
{
  sim_scheduler *scheduler = &world->schedulers[engine->index];
  for (uint32_t i = 0; i < scheduler->tables_count; i++) {
    kvf_recovery_close(scheduler->tables[i]);
  }
  scheduler->tables_count = 0;
  scheduler->news_count = 0;
  scheduler->step_waits = false;
  memset(scheduler->cache, 0, sizeof(scheduler->cache));
}

static bool did_the_same(const kvf_recovery_stats *a, const kvf_recovery_stats *b)
{
  return a->ready == b->ready && a->rewound == b->rewound && a->terminated == b->terminated &&
         a->aborted == b->aborted && a->kept_blocks == b->kept_blocks && a->recompute_tokens == b->recompute_tokens &&
         a->errors == b->errors;
}

void sim_scheduler_check_rest(sim_world *world, const sim_engine *engine)
{
  const sim_scheduler *scheduler = &world->schedulers[engine->index];
  kvf_recovery_stats stats[SIM_RANKS_MAX];
  for (uint32_t i = 0; i < scheduler->tables_count; i++) {
    const kvf_recovery_stats *own = &stats[i];
    kvf_recovery_get_stats(scheduler->tables[i], &stats[i]);
    if (own->open != 0 || own->loading != 0 || own->released != own->admitted) {
      sim_fail(world, "P5", "engine %u: recovery table %u: of %llu requests %llu were released, %u are open",
               engine->index, i, (unsigned long long)own->admitted, (unsigned long long)own->released, own->open);
    } else if (!did_the_same(own, &stats[0])) {
      sim_fail(world, "P7", "engine %u: the recovery tables of ranks 0 and %u count differently", engine->index, i);
    }
  }
  for (uint32_t i = 0; i < world->jobs_count; i++) {
    const sim_job *job = &world->jobs[i];
    if (job->engine == engine->index && job->probe && job->parked.is_in && job->parked.told != KVF_RECOVERY_READY) {
      sim_fail(world, "P2", "job %u: nothing is wrong any more, but it is not told to go on", i);
    }
  }
}

/* ---- in ---- */

static uint32_t parked_count(const sim_world *world, const sim_job *job)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < world->jobs_count; i++) {
    const sim_job *other = &world->jobs[i];
    count += other->engine == job->engine && other->life == job->life && other->parked.is_in &&
             !(other->parked.ended && other->parked.released);
  }
  return count;
}

/* Some requests cannot be rewound, for reasons that are not modelled. */
static uint32_t choose_blockers(sim_world *world, const sim_job *job)
{
  uint32_t choice = job->probe ? 0 : sim_choose(&world->tape, 256);
  return choice >= 230 ? 1u << choice % 5 : 0;
}

static kvf_status enter_tables(sim_world *world, const sim_job *job, uint32_t blockers)
{
  const sim_scheduler *scheduler = sim_scheduler_of(world, job);
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  uint32_t ids[SIM_IDS_MAX];
  uint32_t counts[SIM_GROUPS_MAX];
  for (uint32_t i = 0; i < world->groups * prompt->positions; i++) {
    ids[i] = i % prompt->positions < job->skip ? KVF_BLOCK_NONE : job->ids[i];
    counts[i / prompt->positions] = prompt->positions;
  }
  const kvf_recovery_request request = {.request_id = job->info.id,
                                        .user = sim_job_index(world, job),
                                        .blocks = {.ids = ids, .counts = counts, .groups = world->groups},
                                        .local_prefix_tokens = job->skip * SIM_BLOCK_TOKENS,
                                        .tokens = job->info.tokens,
                                        .prompt_tokens = job->info.tokens,
                                        .blockers = blockers};
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; i < scheduler->tables_count; i++) {
    kvf_status own = kvf_recovery_admit(scheduler->tables[i], &request);
    if (i > 0 && own != status) {
      sim_fail(world, "P7", "engine %u: rank %u says %s to job %u, rank 0 another thing", job->engine, i,
               kvf_status_name(own), sim_job_index(world, job));
    }
    status = own;
  }
  return status;
}

bool sim_scheduler_admit(sim_world *world, sim_job *job)
{
  const sim_scheduler *scheduler = sim_scheduler_of(world, job);
  bool is_full = parked_count(world, job) >= scheduler->requests_max;
  if (!sim_cache_take(world, job, !job->probe)) {
    return false;
  }
  uint32_t blockers = is_full ? 0 : choose_blockers(world, job);
  kvf_status status = enter_tables(world, job, blockers);
  sim_note(world, world->engines[job->engine].control, "job % is parked, with a local prefix of % blocks: $",
           sim_job_index(world, job), job->skip, (uint64_t)(int64_t)status);
  if (status == KVF_NO_RESOURCE && is_full) {
    sim_cache_give(world, job);
    return false;
  }
  if (status != KVF_OK) {
    sim_fail(world, status == KVF_EXISTS ? "P4" : "P5", "job %u cannot be parked: %s", sim_job_index(world, job),
             kvf_status_name(status));
  }
  job->parked.is_in = true;
  job->parked.blockers = blockers;
  job->parked.prefix = UINT32_MAX;
  sim_job_check_ranks(world, job, job->skip, "has a local prefix");
  later(world, job, on_patience, 0,
        kvf_ms_to_ns(job->options.load_timeout_ms) + kvf_ms_to_ns(world->config.release_timeout_ms) + PATIENCE_NS);
  return true;
}

/* ---- what the tables hear ---- */

/* Which blocks a rank lacks, for transports that say so; those after a gap may be good. */
static uint32_t failed_blocks(sim_world *world, const sim_job *job, uint32_t rank, sim_news *news)
{
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  uint32_t first = news->report.prefix > job->skip ? news->report.prefix : job->skip;
  news->first_failed = first;
  for (uint32_t position = first; position < prompt->positions; position++) {
    uint32_t block = job->ids[news->group * prompt->positions + position];
    if (position == first ||
        !sim_block_holds(world, sim_rank_of(world, job->engine, rank), news->group, block, prompt, position)) {
      news->failed[news->count++] = block;
    }
  }
  return news->count;
}

void sim_scheduler_report(sim_world *world, sim_job *job, uint32_t rank, const kvf_report *report)
{
  sim_news news = {.kind = SIM_NEWS_REPORT, .rank = rank, .report = *report};
  bool has_left = job->parked.ended && job->parked.released;
  if (report->status != KVF_OK && report->ranks_mask == UINT64_C(1) << rank && !has_left &&
      (job->parked.ranks_released & 1u << rank) == 0 && sim_choose(&world->tape, 2) == 1) {
    news.group = sim_choose(&world->tape, world->groups);
    if (failed_blocks(world, job, rank, &news) > 0) {
      news.kind = SIM_NEWS_FAILED;
    }
  }
  sim_tables_tell(world, job, &news);
}

static void on_released(sim_world *world, const sim_event *event)
{
  sim_job *job = parked_job(world, event);
  if (job != NULL) {
    sim_tables_tell(world, job, &(sim_news){.kind = SIM_NEWS_RELEASED, .rank = event->b});
  }
}

void sim_scheduler_advance(sim_world *world, sim_job *job)
{
  sim_parked *parked = &job->parked;
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    sim_load_state state = job->load[rank].state;
    if ((state == SIM_LOAD_RELEASED || state == SIM_LOAD_REFUSED) && (parked->released_heard & 1u << rank) == 0) {
      parked->released_heard |= 1u << rank;
      parked->released_ns = world->now_ns;
      later(world, job, on_released, rank, sim_lag(world, SIM_FAULT_DELAY, 5 * SIM_MS));
    }
  }
  if (parked->ended && parked->released && job->state == SIM_JOB_DECIDED) {
    job->state = SIM_JOB_OVER;
    sim_cache_give(world, job);
    sim_jobs_try(world, job->engine);
  }
}

/* A rank that has said nothing is reported in its place. */
static void on_patience(sim_world *world, const sim_event *event)
{
  sim_job *job = parked_job(world, event);
  if (job == NULL || (job->parked.ended && job->parked.released)) {
    return;
  }
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    bool is_released = job->load[rank].state == SIM_LOAD_RELEASED || job->load[rank].state == SIM_LOAD_REFUSED;
    if ((job->parked.reported & 1u << rank) == 0) {
      kvf_report report = {.request_id = job->info.id,
                           .ranks_mask = UINT64_C(1) << rank,
                           .blocks = sim_prompt_at(job->prompt)->positions * world->groups,
                           .status = is_released ? KVF_TRANSFER_FAILED : KVF_RANK_LOST};
      sim_tables_tell(world, job, &(sim_news){.kind = SIM_NEWS_REPORT, .rank = rank, .report = report});
    }
  }
  later(world, job, on_answer, 0, ANSWER_NS);
}

/* P2: by now the engine knows what to do, unless a copy goes on that cannot be stopped. */
static void on_answer(sim_world *world, const sim_event *event)
{
  const sim_job *job = parked_job(world, event);
  if (job == NULL || job->parked.told != 0 || job->parked.is_ending) {
    return;
  }
  uint64_t paused_ns = world->engines[job->engine].paused_until_ns;
  uint64_t since_ns = sim_is_released(world, job) ? job->parked.released_ns : world->now_ns;
  since_ns = since_ns < paused_ns ? paused_ns : since_ns;
  if (world->now_ns < since_ns + ANSWER_NS) {
    later(world, job, on_answer, 0, since_ns + ANSWER_NS - world->now_ns);
  } else {
    sim_fail(world, "P2", "job %u is parked for ever", event->a);
  }
}

/* ---- what they say ---- */

void sim_scheduler_act(sim_world *world, sim_job *job, const kvf_recovery_event *event)
{
  switch (event->kind) {
    case KVF_RECOVERY_REWIND:
      /* fallthrough */
    case KVF_RECOVERY_READY:
      later(world, job, on_compute, 0, sim_lag(world, SIM_FAULT_SLOW, 20 * SIM_MS));
      if (sim_strikes(world, SIM_FAULT_READ, 2)) {
        uint32_t rank = sim_choose(&world->tape, world->engines[job->engine].ranks);
        later(world, job, on_take_back, rank, sim_lag(world, SIM_FAULT_DELAY, 20 * SIM_MS));
      }
      break;
    case KVF_RECOVERY_TERMINATE:
      later(world, job, on_end, 0, sim_lag(world, SIM_FAULT_SLOW, 20 * SIM_MS));
      break;
    case KVF_RECOVERY_ABORT:
      sim_job_abort(world, job, event->ranks_mask);
      break;
    case KVF_RECOVERY_RELEASE:
      break;
  }
}

static void compute(sim_world *world, const sim_job *job, sim_node *node)
{
  const sim_prompt *prompt = sim_prompt_at(job->prompt);
  for (uint32_t i = 0; i < world->groups * prompt->positions; i++) {
    uint32_t group = i / prompt->positions;
    if (i % prompt->positions < job->parked.kept) {
      continue;
    }
    if (node->writing[group][job->ids[i]] != 0) {
      sim_fail(world, "P4", "node %u: job %u is computed into block %u, which a read writes to", node->index,
               sim_job_index(world, job), job->ids[i]);
    }
    sim_write_block(world, node, group, job->ids[i], prompt, i % prompt->positions);
  }
}

static void on_compute(sim_world *world, const sim_event *event)
{
  sim_job *job = parked_job(world, event);
  if (job == NULL || job->parked.is_ending || job->parked.told == KVF_RECOVERY_TERMINATE) {
    return;
  }
  for (uint32_t rank = 0; rank < world->engines[job->engine].ranks; rank++) {
    compute(world, job, sim_rank_of(world, job->engine, rank));
  }
  sim_job_check_ranks(world, job, sim_prompt_at(job->prompt)->positions * world->groups, "was computed");
  sim_cache_publish(world, job);
  later(world, job, on_finish, 0, USE_NS);
}

static void on_finish(sim_world *world, const sim_event *event)
{
  sim_job *job = parked_job(world, event);
  if (job != NULL && !job->parked.is_ending) {
    sim_job_check_ranks(world, job, sim_prompt_at(job->prompt)->positions * world->groups, "was used");
    sim_scheduler_end(world, job);
  }
}

/* A rank finds out late that a block is not good. */
static void on_take_back(sim_world *world, const sim_event *event)
{
  sim_job *job = parked_job(world, event);
  if (job == NULL || job->parked.is_ending) {
    return;
  }
  uint32_t positions = sim_prompt_at(job->prompt)->positions;
  kvf_report report = {.request_id = job->info.id,
                       .ranks_mask = UINT64_C(1) << event->b,
                       .blocks = positions * world->groups,
                       .prefix = sim_choose(&world->tape, positions),
                       .status = KVF_CHECKSUM};
  sim_tables_tell(world, job, &(sim_news){.kind = SIM_NEWS_REPORT, .rank = event->b, .report = report});
}

/* ---- out ---- */

static void on_end(sim_world *world, const sim_event *event)
{
  sim_job *job = parked_job(world, event);
  if (job != NULL) {
    sim_scheduler_end(world, job);
  }
}

void sim_scheduler_end(sim_world *world, sim_job *job)
{
  if (!job->parked.is_ending) {
    job->parked.is_ending = true;
    sim_tables_tell(world, job, &(sim_news){.kind = SIM_NEWS_END});
  }
  sim_scheduler_advance(world, job);
}
