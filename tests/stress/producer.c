/* A prefill engine: publishes, ends early, uses blocks again at once. */
#include "stress.h"

/* With the site's lock. */
static stress_lease *find_lease(stress_site *site, uint64_t id)
{
  for (uint32_t i = 0; i < STRESS_LEASES; i++) {
    if (site->leases[i].lease.id == id) {
      return &site->leases[i];
    }
  }
  return NULL;
}

static bool note_lease(stress_site *site, const stress_lease *lease)
{
  (void)pthread_mutex_lock(&site->lock);
  stress_lease *entry = find_lease(site, 0);
  if (entry != NULL) {
    *entry = *lease;
  }
  (void)pthread_mutex_unlock(&site->lock);
  return entry != NULL;
}

static void fill(stress_site *site, const stress_lease *lease, uint64_t seed)
{
  for (uint32_t i = 0; i < lease->count; i++) {
    stress_fill(site, lease->blocks[i], seed, i);
  }
}

/* Never published: no event will come. */
static void drop_lease(stress_site *site, const stress_lease *lease)
{
  (void)pthread_mutex_lock(&site->lock);
  find_lease(site, lease->lease.id)->lease.id = 0;
  (void)pthread_mutex_unlock(&site->lock);
  (void)kvf_lease_release(site->n.node, lease->lease.id);
  stress_blocks_give(site, lease->blocks, lease->count);
}

/* The engine takes the blocks back: when lease_end() has returned it may write to them. */
static void end_early(stress_site *site, kvf_prng *prng, const stress_lease *lease)
{
  sleep_us(kvf_prng_below(prng, 3000));
  (void)kvf_lease_end(site->n.node, &lease->lease);
  (void)pthread_mutex_lock(&site->lock);
  const stress_lease *entry = find_lease(site, lease->lease.id);
  if (entry != NULL) { /* else: it has ended, and its blocks may be another's by now */
    fill(site, lease, stress_new_seed(prng));
  }
  (void)pthread_mutex_unlock(&site->lock);
}

/* The ticket leaves before, or after, the bytes are there. */
static void publish(stress_site *site, kvf_prng *prng, const stress_lease *lease, const stress_ticket *ticket)
{
  const kvf_blocks blocks = {.ids = lease->blocks, .counts = &lease->count, .groups = 1};
  const kvf_prompt prompt = stress_prompt(ticket->seed, ticket->count);
  bool early = stress_one_in(prng, 3);
  if (early) {
    stress_offer(ticket);
    sleep_us(kvf_prng_below(prng, 1000));
  }
  fill(site, lease, ticket->seed);
  kvf_status status =
      kvf_lease_publish(site->n.node, &lease->lease, &blocks, &prompt, stress_point(site), lease->lease.id ^ 1);
  if (status != KVF_OK) {
    if (status != KVF_INVALID) { /* the memory is not registered just now */
      stress_fail("P6", "publish: %s", kvf_status_name(status));
    }
    drop_lease(site, lease);
    return;
  }
  if (!early) {
    stress_offer(ticket);
  }
  if (ticket->source.ends_early) {
    end_early(site, prng, lease);
  }
}

void stress_produce(stress_site *site, kvf_prng *prng)
{
  stress_lease lease = {.count = 1 + (uint32_t)kvf_prng_below(prng, stress_mix_now->ticket_blocks)};
  stress_ticket ticket = {.seed = stress_new_seed(prng), .count = lease.count};
  ticket.source.ends_early = site->setting.ends_early || stress_one_in(prng, stress_mix_now->ends_early_one_in);
  size_t bytes = 0;
  if (!stress_blocks_take(site, prng, lease.count, lease.blocks)) {
    return;
  }
  const kvf_blocks blocks = {.ids = lease.blocks, .counts = &lease.count, .groups = 1};
  kvf_status status = kvf_lease_reserve_blocks(site->n.node, &blocks, STRESS_BLOCKS, &lease.lease);
  if (status != KVF_OK || !note_lease(site, &lease)) {
    if (status == KVF_OK) {
      (void)kvf_lease_release(site->n.node, lease.lease.id);
    } else if (status != KVF_NO_LEASE) {
      stress_fail("P6", "reserve: %s", kvf_status_name(status));
    }
    stress_blocks_give(site, lease.blocks, lease.count);
    return;
  }
  const kvf_prompt prompt = stress_prompt(ticket.seed, ticket.count);
  status = kvf_ticket_make(site->n.node, &lease.lease, &blocks, &prompt, ticket.text, sizeof(ticket.text), &bytes);
  if (status != KVF_OK) {
    stress_fail("P6", "ticket: %s", kvf_status_name(status));
    drop_lease(site, &lease);
    return;
  }
  ticket.bytes = (uint32_t)bytes;
  publish(site, prng, &lease, &ticket);
}

static void on_ended(stress_site *site, const kvf_event *event)
{
  stress_lease ended = {.count = 0};
  (void)pthread_mutex_lock(&site->lock);
  stress_lease *entry = find_lease(site, event->id);
  if (entry != NULL) {
    ended = *entry;
    entry->lease.id = 0;
  }
  (void)pthread_mutex_unlock(&site->lock);
  if (entry == NULL || event->user != (event->id ^ 1)) {
    stress_fail("P3", "lease %llu has ended twice, or never was", (unsigned long long)event->id);
    return;
  }
  (void)kvf_lease_release(site->n.node, ended.lease.id);
  stress_blocks_give(site, ended.blocks, ended.count);
  atomic_fetch_add(&site->lease_ends, 1);
}

size_t stress_produce_poll(stress_site *site)
{
  kvf_event events[STRESS_EVENTS];
  size_t count = kvf_node_poll(site->n.node, events, STRESS_EVENTS);
  for (size_t i = 0; i < count; i++) {
    if (events[i].kind == KVF_EVENT_LEASE_ENDED) {
      on_ended(site, &events[i]);
    } else {
      stress_fail("P3", "a producer has an event of kind %d", (int)events[i].kind);
    }
  }
  return count;
}
