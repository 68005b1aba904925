/* The public calls that code and decode tickets outside the core, as src/runtime/transfer.c does them. */
#include "world.h"

kvf_status sim_ticket_make(sim_world *world, sim_node *node, const kvf_lease *lease, const kvf_blocks *blocks,
                           const kvf_prompt *prompt, char *ticket, uint32_t *ticket_bytes)
{
  kvf_ticket content;
  size_t bytes = 0;
  (void)sim_node_enter(world, node);
  kvf_status status = kvf_core_ticket(&node->core, lease, blocks, prompt, &content);
  if (status == KVF_OK) {
    status = kvf_ticket_encode(&content, &world->mac, ticket, SIM_TICKET_BYTES, &bytes);
  }
  sim_node_leave(world, node);
  *ticket_bytes = (uint32_t)bytes;
  return status;
}

static kvf_status decode(const sim_world *world, sim_node *node, const sim_job *job, kvf_sources *out)
{
  kvf_status status = kvf_sources_decode(job->ticket, job->ticket_bytes, &world->mac, 1, out);
  if (status != KVF_OK) {
    kvf_core_ticket_refused(&node->core, world->now_ns, (kvf_log_request){0}, status);
  }
  return status;
}

kvf_status sim_request_open(sim_world *world, sim_node *node, sim_job *job)
{
  kvf_sources sources;
  const kvf_ticket *ticket = NULL;
  uint64_t id = 0;
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = decode(world, node, job, &sources);
  if (status == KVF_OK) {
    status = kvf_requests_open(&node->core.requests, now_ns, &sources, &sim_prompt_at(job->prompt)->identity,
                               &job->options, sim_job_index(world, job), &id, &ticket);
    ticket = status == KVF_OK ? ticket : sources.tickets[0];
    job->info = (kvf_request_info){.id = id, .tokens = ticket->prompt.tokens, .groups = ticket->groups};
    job->info.attachment = kvf_requests_attachment(&node->core.requests, id);
    for (uint32_t group = 0; group < ticket->groups && group < KVF_GROUPS_MAX; group++) {
      job->info.counts[group] = ticket->counts[group];
    }
    kvf_sources_free(&sources);
  }
  sim_node_leave(world, node);
  return status;
}

/* A load that begins late has less time. */
static uint32_t timeout_ms(const sim_job *job, uint64_t now_ns)
{
  const uint32_t all_ms = job->options.load_timeout_ms;
  const uint64_t gone_ms = job->waited ? (now_ns - job->waits_since_ns) / SIM_MS : 0;
  return gone_ms < all_ms ? all_ms - (uint32_t)gone_ms : 1;
}

kvf_status sim_load_start(sim_world *world, sim_node *node, sim_job *job, const kvf_blocks *destination, uint64_t point)
{
  kvf_sources sources;
  uint64_t now_ns = sim_node_enter(world, node);
  kvf_status status = decode(world, node, job, &sources);
  if (status == KVF_OK) {
    kvf_load_params load = {.request_id = job->info.id,
                            .prompt = sim_prompt_at(job->prompt)->identity,
                            .destination = *destination,
                            .timeout_ms = timeout_ms(job, now_ns),
                            .user = sim_job_index(world, job)};
    status = kvf_sources_digest(&sources);
    if (status == KVF_OK) {
      status = kvf_core_load_start(&node->core, now_ns, &sources, &load, point);
    }
    kvf_sources_free(&sources);
  }
  sim_node_leave(world, node);
  return status;
}
