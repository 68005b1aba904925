/* Sources of a ticket: judged, kept, and put in order. */
#include "core/source.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "plan/rank_shares.h"

/* ---- which are for this engine and this prompt ---- */

/* Without a key anybody can make a ticket: it must not make this node connect to wherever he likes. */
static bool is_near(const kvf_context *context, const kvf_ticket *ticket)
{
  for (uint32_t i = 0; context->self.key.bytes == 0 && i < ticket->ranks; i++) {
    const kvf_rank_record *rank = &ticket->rank[i];
    if (!kvf_address_is_loopback(&rank->address) || (rank->other.port != 0 && !kvf_address_is_loopback(&rank->other))) {
      return false;
    }
  }
  return true;
}

/* *why may be what is written to `difference` (KVF_MESSAGE_BYTES_MAX). */
static kvf_status judge(const kvf_context *context, const kvf_ticket *ticket, const kvf_prompt *prompt,
                        char *difference, const char **why)
{
  if (memcmp(ticket->compat, context->self.compat, sizeof(ticket->compat)) != 0) {
    kvf_context_name_difference(context, ticket, difference);
    *why = difference;
    return KVF_INCOMPATIBLE;
  }
  if (memcmp(ticket->prompt.model, prompt->model, sizeof(prompt->model)) != 0) {
    *why = "computed with other weights, another LoRA adapter, or by an engine that names media otherwise";
    return KVF_INCOMPATIBLE;
  }
  if (!is_near(context, ticket)) {
    *why = "names another host, which needs a shared key (option key_file)";
    return KVF_BAD_TICKET;
  }
  if (ticket->prompt.tokens != prompt->tokens || memcmp(ticket->prompt.hash, prompt->hash, sizeof(prompt->hash)) != 0) {
    *why = "made for another prompt";
    return KVF_BAD_TICKET;
  }
  return KVF_OK;
}

/* Counts and says why a text is of no use here. */
static void refuse(kvf_context *context, uint64_t now_ns, kvf_log_request request, kvf_status status, uint64_t key,
                   const char *why)
{
  context->tickets.bad += status == KVF_BAD_TICKET;
  context->tickets.other_key += status == KVF_OTHER_KEY;
  context->tickets.incompatible += status == KVF_INCOMPATIBLE;
  kvf_context_log(context, now_ns, status, key, KVF_LOG_WARN, "%sticket refused: %s: %s",
                  kvf_log_request_prefix(request).text, kvf_status_name(status), why);
  (void)kvf_because(status, "ticket: %s", why);
}

void kvf_sources_refused(kvf_context *context, uint64_t now_ns, kvf_log_request request, kvf_status status)
{
  const char *why = "malformed or altered";
  if (status == KVF_OTHER_KEY) {
    why = context->self.key.bytes == 0 ? "signed with a key, and this engine has none: name it by the option key_file"
                                       : "signed with another key than those of this engine's key_file, or with none";
  } else if (status == KVF_INCOMPATIBLE) {
    why = "its version is of another release of kvferry, which this one does not read";
  } else if (status != KVF_BAD_TICKET) {
    return;
  }
  refuse(context, now_ns, request, status, 1, why);
}

static void leave_out(kvf_context *context, uint64_t now_ns, kvf_log_request request, const kvf_ticket *ticket,
                      kvf_status status, const char *why)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket->rank[0].address, address);
  context->tickets.sources_left_out++;
  kvf_context_log(context, now_ns, status, 0, KVF_LOG_WARN, "%sthe ticket's source %s is left out: %s: %s",
                  kvf_log_request_prefix(request).text, address, kvf_status_name(status), why);
}

kvf_status kvf_sources_judge(kvf_context *context, uint64_t now_ns, kvf_log_request request, const kvf_sources *all,
                             const kvf_prompt *prompt, kvf_sources *good)
{
  kvf_status status[KVF_SOURCES_MAX] = {KVF_BAD_TICKET};
  const char *why[KVF_SOURCES_MAX] = {"names no source"};
  char differences[KVF_SOURCES_MAX][KVF_MESSAGE_BYTES_MAX];
  *good = (kvf_sources){.count = 0};
  for (uint32_t i = 0; i < all->count; i++) {
    status[i] = judge(context, all->tickets[i], prompt, differences[i], &why[i]);
    if (status[i] == KVF_OK && good->count > 0 && !kvf_source_can_replace(good->tickets[0], all->tickets[i])) {
      status[i] = KVF_INCOMPATIBLE;
      why[i] = "offers other blocks than the first one";
    }
    if (status[i] == KVF_OK) {
      good->tickets[good->count] = all->tickets[i];
      good->digests[good->count++] = all->digests[i];
    }
  }
  if (good->count == 0) {
    refuse(context, now_ns, request, status[0], 0, why[0]);
    return status[0];
  }
  for (uint32_t i = 0; i < all->count; i++) {
    if (status[i] != KVF_OK) {
      leave_out(context, now_ns, request, all->tickets[i], status[i], why[i]);
    }
  }
  if (all->unread > 0) {
    context->tickets.sources_left_out += all->unread;
    kvf_context_log(context, now_ns, all->unread_why, 0, KVF_LOG_WARN,
                    "%s%u of the ticket's sources are left out, since they cannot be read here: %s",
                    kvf_log_request_prefix(request).text, (unsigned)all->unread, kvf_status_name(all->unread_why));
  }
  return KVF_OK;
}

/* ---- in which order a load tries them ---- */

static void copy_ids(uint32_t *to, const uint32_t *from, size_t positions)
{
  if (positions > 0) {
    memcpy(to, from, positions * sizeof(to[0]));
  }
}

/* Whether it is read once more. */
static bool has_replicas(const kvf_pool *pool, const kvf_ticket *ticket)
{
  return kvf_ranks_have_replicas(pool->rank_layout.share.heads_total, ticket->rank, ticket->ranks);
}

kvf_status kvf_attempts_keep(const kvf_sources *sources, const kvf_pool *pool, const kvf_blocks *destination,
                             kvf_attempts **out)
{
  assert(sources->count > 0 && sources->count <= KVF_SOURCES_MAX);
  const uint32_t count = sources->count;
  const size_t positions = (size_t)kvf_ticket_all_positions(sources->tickets[0]); /* and so the destination's */
  if (count == 1 && !has_replicas(pool, sources->tickets[0])) {
    *out = NULL;
    return KVF_OK;
  }
  /* Behind the tickets the block ids of the destination and of each ticket. */
  kvf_attempts *kept = malloc(sizeof(*kept) + count * sizeof(kvf_ticket) + (count + 1) * positions * sizeof(uint32_t));
  if (kept == NULL) {
    return KVF_NO_MEMORY;
  }
  uint32_t *ids = (uint32_t *)(kept->tickets + count);
  kept->next = 1;
  kept->count = count;
  copy_ids(ids, destination->ids, positions);
  for (uint32_t i = 0; i < count; i++) {
    kvf_ticket *ticket = &kept->tickets[i];
    kvf_attempt attempt = {.ticket = ticket, .digest = sources->digests[i], .destination = ids};
    *ticket = *sources->tickets[i];
    ticket->ids = ids + (i + 1) * positions;
    copy_ids(ticket->ids, sources->tickets[i]->ids, positions);
    kept->all[i] = attempt;
    if (has_replicas(pool, ticket)) {
      attempt.is_again = true;
      kept->all[kept->count++] = attempt;
    }
  }
  *out = kept;
  return KVF_OK;
}

bool kvf_attempts_has_next(const kvf_attempts *attempts)
{
  return attempts != NULL && attempts->next < attempts->count;
}

kvf_attempt kvf_attempts_next(kvf_attempts *attempts)
{
  assert(kvf_attempts_has_next(attempts));
  return attempts->all[attempts->next++];
}
