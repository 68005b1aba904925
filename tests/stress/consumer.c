/* A decode engine: loads, aborts, checks. */
#include "stress.h"

/* With the site's lock. */
static stress_load *find_load(stress_site *site, uint64_t id)
{
  for (uint32_t i = 0; i < STRESS_LOADS; i++) {
    if (site->loads[i].id == id) {
      return &site->loads[i];
    }
  }
  return NULL;
}

/* With the site's lock: forgets it when nothing of it can come any more. */
static void forget_if_done(stress_load *load)
{
  if ((load->released || !load->started) && (load->decided || load->cancelled)) {
    load->id = 0;
  }
}

static void cancel(stress_site *site, uint64_t id)
{
  (void)pthread_mutex_lock(&site->lock); /* around the call: no verdict may be polled after it */
  (void)kvf_request_cancel(site->n.node, id);
  stress_load *load = find_load(site, id);
  if (load != NULL) {
    load->cancelled = true;
    forget_if_done(load);
  }
  (void)pthread_mutex_unlock(&site->lock);
}

static void give_up(stress_site *site, kvf_prng *prng, uint64_t id)
{
  sleep_us(kvf_prng_below(prng, 2000));
  if (stress_one_in(prng, 2)) {
    cancel(site, id);
  }
  (void)kvf_load_abort(site->n.node, id);
  if (stress_one_in(prng, 2)) {
    (void)kvf_load_abort(site->n.node, id);
    cancel(site, id);
  }
}

/* With the site's lock. */
static bool note_load(stress_site *site, const stress_load *load)
{
  stress_load *entry = find_load(site, 0);
  if (entry != NULL) {
    *entry = *load;
  }
  return entry != NULL;
}

/* Opens the request and notes its load before its verdict can be polled; KVF_EXISTS: there is no room for it. */
static kvf_status open_noted(stress_site *site, const stress_ticket *ticket, const kvf_prompt *prompt,
                             stress_load *load)
{
  kvf_request_info info;
  (void)pthread_mutex_lock(&site->lock);
  kvf_status status = kvf_request_open(site->n.node, ticket->text, ticket->bytes, prompt, NULL, ticket->seed, &info);
  if (status == KVF_OK) {
    load->id = info.id;
    load->started = true;
    load->begin_ms = now_ms();
    load->begin_given_us = stress_given_us();
    if (!note_load(site, load)) {
      (void)kvf_request_cancel(site->n.node, load->id);
      status = KVF_EXISTS;
    }
  }
  (void)pthread_mutex_unlock(&site->lock);
  return status;
}

/* The load was not started: its blocks are the engine's, and only the request is left. */
static void not_started(stress_site *site, const stress_load *load, kvf_status status)
{
  /* No memory registered just now; too many peers; no source is left, which has been polled. */
  if (status != KVF_INVALID && status != KVF_NO_RESOURCE && status != KVF_NOT_FOUND) {
    stress_fail("P6", "load: %s", kvf_status_name(status));
  }
  (void)pthread_mutex_lock(&site->lock);
  stress_load *entry = find_load(site, load->id);
  if (entry != NULL) {
    entry->started = false;
    forget_if_done(entry);
  }
  (void)pthread_mutex_unlock(&site->lock);
  stress_blocks_give(site, load->blocks, load->count);
  cancel(site, load->id);
}

static void start(stress_site *site, kvf_prng *prng, const stress_ticket *ticket, const stress_load *load)
{
  const kvf_load_params request = {.request_id = load->id,
                                   .ticket = ticket->text,
                                   .ticket_bytes = ticket->bytes,
                                   .prompt = stress_prompt(ticket->seed, ticket->count),
                                   .destination = {.ids = load->blocks, .counts = &load->count, .groups = 1},
                                   .user = load->id ^ 2,
                                   .after = stress_point(site)};
  kvf_status status = kvf_request_begin(site->n.node, load->id);
  if (status == KVF_OK) {
    status = kvf_load_start(site->n.node, &request);
  }
  if (status != KVF_OK) {
    not_started(site, load, status);
  } else if (load->gives_up) {
    give_up(site, prng, load->id);
  }
}

void stress_consume(stress_site *site, kvf_prng *prng)
{
  stress_ticket ticket;
  if (!stress_mix_now->take(site, prng, &ticket)) {
    return;
  }
  stress_load load = {
      .source = ticket.source, .seed = ticket.seed, .count = ticket.count, .gives_up = stress_one_in(prng, 4)};
  bool forged = stress_mix_now->forged_one_in > 0 && stress_one_in(prng, stress_mix_now->forged_one_in);
  kvf_prompt prompt = stress_prompt(forged ? ticket.seed + 2 : ticket.seed, ticket.count);
  if (!stress_blocks_take(site, prng, load.count, load.blocks)) {
    return;
  }
  kvf_status status = open_noted(site, &ticket, &prompt, &load);
  if ((status == KVF_BAD_TICKET || status == KVF_OTHER_KEY) && !forged && stress_mix_now->outcome != NULL) {
    (void)pthread_mutex_lock(&site->lock);
    stress_mix_now->outcome(site, &load, status);
    (void)pthread_mutex_unlock(&site->lock);
  } else if (status != (forged ? KVF_BAD_TICKET : KVF_OK) && status != KVF_NO_RESOURCE && status != KVF_EXISTS) {
    stress_fail("P8", "request: %s", kvf_status_name(status));
  }
  if (status != KVF_OK) {
    stress_blocks_give(site, load.blocks, load.count);
    return;
  }
  start(site, prng, &ticket, &load);
}

/* ---- events; all with the site's lock ---- */

static void check_bytes(const stress_site *site, const stress_load *load, const char *when)
{
  for (uint32_t i = 0; i < load->prefix; i++) {
    if (!pair_holds(&site->n, load->blocks[i], load->seed, i)) {
      stress_fail("P1", "block %u of %u good ones is not the prompt's, %s", i, load->prefix, when);
      return;
    }
  }
}

static void on_load(stress_site *site, stress_load *load, const kvf_event *event)
{
  const kvf_report *report = &event->u.report;
  if (load->loaded || event->user != (load->id ^ 2)) {
    stress_fail("P3", "a second outcome");
  }
  if (report->prefix > load->count || (report->status == KVF_OK) != (report->prefix == load->count)) {
    stress_fail("P3", "%u of %u blocks are good, and the status is %s", report->prefix, load->count,
                kvf_status_name(report->status));
    return;
  }
  load->loaded = true;
  load->prefix = report->prefix;
  check_bytes(site, load, "at the outcome");
  (void)kvf_request_report(site->n.node, report);
  atomic_fetch_add(&site->outcomes, 1);
  atomic_fetch_add(&site->good, report->status == KVF_OK);
  if (stress_mix_now->outcome != NULL) {
    stress_mix_now->outcome(site, load, (kvf_status)report->status);
  }
}

static void on_released(stress_site *site, stress_load *load)
{
  if (!load->loaded || load->load_released) {
    stress_fail("P3", "released twice, or before the outcome");
    return;
  }
  check_bytes(site, load, "when released");
  load->load_released = true;
  if (kvf_request_released(site->n.node, load->id, 1) != KVF_OK) {
    stress_fail("P4", "a request is forgotten before it is released");
  }
  for (uint32_t i = 0; i < load->count; i++) {
    stress_fill(site, load->blocks[i], 0, 0);
    site->used[load->blocks[i]] = false;
  }
}

static void on_event(stress_site *site, const kvf_event *event)
{
  stress_load *load = find_load(site, event->id);
  if (load == NULL) {
    stress_fail("P3", "an event of kind %d of a load that is over", (int)event->kind);
    return;
  }
  if (event->kind == KVF_EVENT_LOAD) {
    on_load(site, load, event);
  } else if (event->kind == KVF_EVENT_RELEASED) {
    on_released(site, load);
  } else if (event->kind == KVF_EVENT_VERDICT) {
    if (load->decided || load->cancelled || event->user != load->seed) {
      stress_fail("P3", "a second verdict, or one after cancel");
    }
    load->decided = true;
  } else if (event->kind == KVF_EVENT_REQUEST_RELEASED) {
    if (load->released || !load->load_released || !(load->decided || load->cancelled)) {
      stress_fail("P4", "released twice, before it is released, or before its verdict");
    }
    load->released = true;
  } else {
    stress_fail("P3", "a consumer has an event of kind %d", (int)event->kind);
  }
  forget_if_done(load);
}

static void check_deadlines(stress_site *site)
{
  const uint64_t now = now_ms();
  for (uint32_t i = 0; i < STRESS_LOADS; i++) {
    const stress_load *load = &site->loads[i];
    if (load->id != 0 && now > load->begin_ms + STRESS_LOAD_TIMEOUT_MS + STRESS_PATIENCE_MS) {
      stress_fail("P2", "a load goes on for ever (outcome %d, released %d, verdict %d)", load->loaded,
                  load->load_released, load->decided);
    }
  }
}

size_t stress_consume_poll(stress_site *site)
{
  kvf_event events[STRESS_EVENTS];
  (void)pthread_mutex_lock(&site->lock);
  size_t count = kvf_node_poll(site->n.node, events, STRESS_EVENTS);
  if (stress_mix_now->look != NULL) {
    stress_mix_now->look(site);
  }
  for (size_t i = 0; i < count; i++) {
    on_event(site, &events[i]);
  }
  check_deadlines(site);
  (void)pthread_mutex_unlock(&site->lock);
  return count;
}
