/* What consumers and producers say to each other about leases, held against what the leases then do: none runs out
 * before its time or lives on after it, none ends while a consumer that is attached still needs it (P3, P5), and none
 * by whoever does not have its token (P8). */
#include <string.h>

#include "wire/lease_message.h"
#include "world.h"

static kvf_leases leases;
static kvf_lease_states states;

static sim_offer *offer_of(sim_world *world, const sim_node *node, const kvf_lease *lease)
{
  uint32_t engine = node->index / SIM_NODES_EACH;
  for (uint32_t i = world->offers_count; i > 0; i--) {
    sim_offer *offer = &world->offers[i - 1];
    if (offer->engine == engine && offer->life == world->engines[engine].life && offer->lease.id == lease->id) {
      return offer;
    }
  }
  return NULL;
}

static bool has_token(const sim_offer *offer, const kvf_lease *lease)
{
  return offer->lease.slot == lease->slot && memcmp(offer->lease.token, lease->token, sizeof(lease->token)) == 0;
}

/* The request as its control node sees it: it needs the lease until it is decided or cancelled. */
static bool needs_lease(const sim_world *world, const sim_job *job)
{
  const sim_engine *engine = &world->engines[job->engine];
  const kvf_request *request;
  if ((job->state != SIM_JOB_OPEN && job->state != SIM_JOB_LOADING) || engine->life != job->life ||
      engine->state == SIM_ENGINE_DOWN) {
    return false;
  }
  HASH_FIND(by_id, world->nodes[engine->control].core.requests.by_id, &job->info.id, sizeof(job->info.id), request);
  return request != NULL && request->state != KVF_REQUEST_DONE;
}

/* Whether it is one of those that keep leases alive together, of an engine in this life. */
static bool is_of_attachment(const sim_job *job, uint32_t engine, uint32_t life, uint64_t attachment)
{
  return job->engine == engine && job->life == life && job->info.attachment == attachment && attachment != 0;
}

/* One of those, which needs the lease; NULL: none does. */
static const sim_job *needing_job_of(const sim_world *world, uint32_t node, uint32_t life, uint64_t attachment)
{
  for (uint32_t i = world->jobs_count; i > 0; i--) {
    const sim_job *job = &world->jobs[i - 1];
    if (is_of_attachment(job, node / SIM_NODES_EACH, life, attachment) && needs_lease(world, job)) {
      return job;
    }
  }
  return NULL;
}

/* ---- at the producer ---- */

void sim_watch_published(sim_world *world, sim_offer *offer, uint32_t rank)
{
  offer->until_max_ns[rank] = world->now_ns + kvf_ms_to_ns(world->config.lease_max_ms);
  offer->until_ns[rank] =
      kvf_time_min(world->now_ns + kvf_ms_to_ns(world->config.lease_ttl_ms), offer->until_max_ns[rank]);
  offer->until_surely_ns[rank] = offer->until_ns[rank];
}

/* The rank has told its attachment so. */
static bool is_attached(const sim_world *world, const sim_job *job, const sim_offer *offer, uint32_t rank)
{
  const uint32_t index = (uint32_t)(offer - world->offers);
  uint32_t attached = 0;
  for (uint32_t i = 0; i < world->jobs_count; i++) {
    const sim_job *other = &world->jobs[i];
    if (is_of_attachment(other, job->engine, job->life, job->info.attachment)) {
      attached |= other->offer == index ? other->attached : other->other == index ? other->attached_other : 0;
    }
  }
  return (attached & 1u << rank) != 0;
}

/* Whether its renewal surely lengthens the lease. */
static bool has_a_place(const sim_world *world, const sim_job *job, const sim_offer *offer, uint32_t rank)
{
  return world->consumers_max == KVF_LEASE_CONSUMERS_MAX || is_attached(world, job, offer, rank);
}

static void on_renewed(sim_world *world, const sim_conn *conn, const sim_node *node, const kvf_leases_item *item)
{
  sim_offer *offer = offer_of(world, node, &item->lease);
  uint32_t rank = node->rank;
  if (offer == NULL || (offer->published & 1u << rank) == 0 || !has_token(offer, &item->lease)) {
    return;
  }
  if (world->now_ns >= offer->until_ns[rank]) {
    if (node->table[offer->lease.slot].word < kvf_fence_word_ended(offer->lease.id)) {
      sim_fail(world, "P3", "node %u: lease %llu is renewed after it has run out", node->index,
               (unsigned long long)offer->lease.id);
    }
    return;
  }
  uint64_t until_ns = kvf_time_min(world->now_ns + kvf_ms_to_ns(world->config.lease_ttl_ms), offer->until_max_ns[rank]);
  const sim_job *job = conn->end[0].node == SIM_NOBODY
                           ? NULL
                           : needing_job_of(world, conn->end[0].node, conn->end[0].life, item->request_id);
  offer->until_ns[rank] = until_ns;
  if (job != NULL && has_a_place(world, job, offer, rank)) {
    offer->until_surely_ns[rank] = until_ns;
  }
}

/* Noted before the node hears of it. */
static void on_finish(sim_world *world, const sim_node *node, const kvf_leases_item *item)
{
  sim_offer *offer = offer_of(world, node, &item->lease);
  if (offer != NULL && has_token(offer, &item->lease) && item->kind != KVF_FINISH_DETACHED) {
    offer->wanted_over |= 1u << node->rank;
  }
}

static void on_finished(sim_world *world, const sim_node *node, const kvf_leases_item *item)
{
  sim_offer *offer = offer_of(world, node, &item->lease);
  uint64_t ended = node->core.leases.counters.ended[KVF_LEASE_END_COMPLETED];
  ended += node->core.leases.counters.ended[KVF_LEASE_END_ABANDONED];
  if (ended == world->ended_before) {
    return;
  }
  if (offer == NULL || !has_token(offer, &item->lease)) {
    sim_fail(world, "P8", "node %u: a lease was ended without its token", node->index);
  }
}

void sim_watch_end(sim_world *world, const sim_node *node, const sim_offer *offer, kvf_lease_end_cause cause)
{
  if (cause == KVF_LEASE_END_EXPIRED && world->now_ns < offer->until_surely_ns[node->rank]) {
    sim_fail(world, "P5", "node %u: lease %llu has run out before its time", node->index,
             (unsigned long long)offer->lease.id);
  }
  if ((cause == KVF_LEASE_END_COMPLETED || cause == KVF_LEASE_END_ABANDONED) &&
      (offer->wanted_over & 1u << node->rank) == 0) {
    sim_fail(world, "P5", "node %u: lease %llu ends, but its consumers have only detached", node->index,
             (unsigned long long)offer->lease.id);
  }
  for (uint32_t i = 0; i < world->jobs_count; i++) {
    const sim_job *job = &world->jobs[i];
    if ((cause == KVF_LEASE_END_COMPLETED || cause == KVF_LEASE_END_ABANDONED) &&
        is_attached(world, job, offer, node->rank) && needs_lease(world, job)) {
      sim_fail(world, "P5", "node %u: lease %llu ends while job %u is attached", node->index,
               (unsigned long long)offer->lease.id, i);
    }
  }
}

/* ---- at the consumer ---- */

static bool is_of(const sim_world *world, const sim_conn *conn, const kvf_lease_states_item *item, uint32_t offer)
{
  return offer != SIM_NOBODY && world->offers[offer].lease.id == item->lease_id &&
         world->offers[offer].engine == conn->end[1].node / SIM_NODES_EACH &&
         world->offers[offer].life == conn->end[1].life;
}

static void on_state(sim_world *world, const sim_conn *conn, const sim_node *node, const kvf_lease_states_item *item)
{
  const uint32_t bit = 1u << conn->end[1].node % SIM_NODES_EACH; /* the rank */
  const uint32_t engine = node->index / SIM_NODES_EACH;
  for (uint32_t i = 0; i < world->jobs_count && item->state == KVF_LEASE_STATE_LIVE; i++) {
    sim_job *job = &world->jobs[i];
    if (is_of_attachment(job, engine, world->engines[engine].life, item->request_id) && needs_lease(world, job)) {
      job->attached |= is_of(world, conn, item, job->offer) ? bit : 0;
      job->attached_other |= is_of(world, conn, item, job->other) ? bit : 0;
    }
  }
}

/* P8: the process that answers is the one that the ticket names. */
static void check_impostor(sim_world *world, const sim_conn *conn, sim_node *node)
{
  const kvf_conn *own = kvf_conns_find(&node->core.context.conns, conn->end[0].conn_id);
  if (own != NULL && own->peer != NULL && own->is_trusted) {
    sim_fail(world, "P8", "node %u trusts one who does not have the key", node->index);
  }
}

static void on_welcome(sim_world *world, const sim_conn *conn, sim_node *node)
{
  const kvf_conn *own = kvf_conns_find(&node->core.context.conns, conn->end[0].conn_id);
  kvf_incarnation answering = sim_incarnation(conn->end[1].node, conn->end[1].life);
  if (own != NULL && own->peer != NULL && own->peer->state == KVF_PEER_READY &&
      memcmp(&own->peer->key.incarnation, &answering, sizeof(answering)) != 0) {
    sim_fail(world, "P8", "node %u takes another process for the one of its ticket", node->index);
  }
}

/* ---- frames ---- */

void sim_watch_before(sim_world *world, sim_node *node, uint64_t conn_id, kvf_frame_type type, const uint8_t *body,
                      size_t bytes)
{
  const kvf_conn *conn = kvf_conns_find(&node->core.context.conns, conn_id);
  world->is_heard = conn != NULL && (conn->session != NULL || conn->peer != NULL);
  const uint64_t *ended = node->core.leases.counters.ended;
  world->ended_before = ended[KVF_LEASE_END_COMPLETED] + ended[KVF_LEASE_END_ABANDONED];
  if (type == KVF_FRAME_LEASES && kvf_leases_decode(body, bytes, &leases) == KVF_OK) {
    for (uint32_t i = 0; i < leases.count; i++) {
      if (leases.items[i].kind != KVF_FINISH_NONE) {
        on_finish(world, node, &leases.items[i]);
      }
    }
  }
}

void sim_watch_after(sim_world *world, const sim_conn *conn, sim_node *node, kvf_frame_type type, const uint8_t *body,
                     size_t bytes)
{
  if (!world->is_heard) {
    return; /* the core has let go of the connection */
  }
  if (conn->stranger == SIM_STRANGER_IMPOSTOR) {
    check_impostor(world, conn, node);
    return;
  }
  if (type == KVF_FRAME_LEASES && kvf_leases_decode(body, bytes, &leases) == KVF_OK) {
    for (uint32_t i = 0; i < leases.count; i++) {
      if (leases.items[i].kind == KVF_FINISH_NONE) {
        on_renewed(world, conn, node, &leases.items[i]);
      } else if (leases.count == 1) {
        on_finished(world, node, &leases.items[i]);
      }
    }
  } else if (type == KVF_FRAME_LEASE_STATES && kvf_lease_states_decode(body, bytes, &states) == KVF_OK) {
    for (uint32_t i = 0; i < states.count; i++) {
      on_state(world, conn, node, &states.items[i]);
    }
  } else if (type == KVF_FRAME_WELCOME) {
    on_welcome(world, conn, node);
  }
}
