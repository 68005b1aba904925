/* Which sources of a ticket's text are for this engine and this prompt. */
#include <string.h>

#include "base/status.h"
#include "core/request_internal.h"

/* Without a key anybody can make a ticket: it must not make this node connect to wherever he likes. */
static bool is_near(const kvf_self *self, const kvf_ticket *ticket)
{
  for (uint32_t i = 0; self->key.bytes == 0 && i < ticket->ranks; i++) {
    if (!kvf_address_is_loopback(&ticket->rank[i].address)) {
      return false;
    }
  }
  return true;
}

static kvf_status judge(const kvf_self *self, const kvf_ticket *ticket, const kvf_prompt *prompt, const char **why)
{
  if (memcmp(ticket->compat, self->compat, sizeof(ticket->compat)) != 0) {
    *why = "made for another model or layout";
    return KVF_INCOMPATIBLE;
  }
  if (!is_near(self, ticket)) {
    *why = "names another host, which needs a shared key (option key_file)";
    return KVF_BAD_TICKET;
  }
  if (ticket->prompt.tokens != prompt->tokens || memcmp(ticket->prompt.hash, prompt->hash, sizeof(prompt->hash)) != 0) {
    *why = "made for another prompt";
    return KVF_BAD_TICKET;
  }
  return KVF_OK;
}

static void log_left_out(kvf_requests *requests, uint64_t now_ns, kvf_status status, const kvf_ticket *ticket,
                         const char *why)
{
  char address[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&ticket->rank[0].address, address);
  requests->counters.sources_left_out++;
  kvf_self_log(requests->self, now_ns, status, 0, KVF_LOG_WARN, "a ticket's source %s is left out: %s: %s", address,
               kvf_status_name(status), why);
}

kvf_status kvf_requests_check_sources(kvf_requests *requests, uint64_t now_ns, const kvf_sources *all,
                                      const kvf_prompt *prompt, kvf_sources *good)
{
  kvf_status status[KVF_SOURCES_MAX] = {KVF_BAD_TICKET};
  const char *why[KVF_SOURCES_MAX] = {"names no source"};
  *good = (kvf_sources){.count = 0};
  for (uint32_t i = 0; i < all->count; i++) {
    status[i] = judge(requests->self, all->tickets[i], prompt, &why[i]);
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
    requests->counters.incompatible += status[0] == KVF_INCOMPATIBLE;
    requests->counters.bad_tickets += status[0] == KVF_BAD_TICKET;
    kvf_self_log(requests->self, now_ns, status[0], 0, KVF_LOG_WARN, "ticket refused: %s: %s",
                 kvf_status_name(status[0]), why[0]);
    return status[0];
  }
  for (uint32_t i = 0; i < all->count; i++) {
    if (status[i] != KVF_OK) {
      log_left_out(requests, now_ns, status[i], all->tickets[i], why[i]);
    }
  }
  return KVF_OK;
}
