/* Leases, tickets, requests and loads: the public calls. Hashing and coding are done outside the lock. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/fence.h"
#include "base/status.h"
#include "runtime/ordering.h"
#include "runtime/pump.h"

_Static_assert(KVF_ADDRESS_TEXT_BYTES <= KVF_HOST_BYTES_MAX, "kvf_request_info.peer");

static kvf_status check_list(const kvf_blocks *blocks)
{
  kvf_status status = KVF_NOT_NULL(blocks);
  return status == KVF_OK ? KVF_NOT_NULL(blocks->ids, blocks->counts) : status;
}

/* ---- producer ---- */

static kvf_status reserve(kvf_node *node, const kvf_blocks *blocks, uint32_t count, uint64_t pool_blocks,
                          kvf_lease *out)
{
  uint64_t now_ns;
  if (!kvf_node_enter_fresh(node, &now_ns)) {
    return kvf_because(KVF_SYSTEM, "the system gives no random numbers: %s", strerror(errno));
  }
  kvf_status status = kvf_core_lease_reserve(node->core, blocks, count, pool_blocks, out);
  kvf_node_leave(node, now_ns);
  return status;
}

kvf_status kvf_lease_reserve_blocks(kvf_node *node, const kvf_blocks *blocks, uint64_t pool_blocks, kvf_lease *out)
{
  kvf_status status = KVF_NOT_NULL(out);
  status = status == KVF_OK ? check_list(blocks) : status;
  return kvf_answer(status == KVF_OK ? reserve(node, blocks, 0, pool_blocks, out) : status);
}

kvf_status kvf_lease_reserve(kvf_node *node, uint32_t blocks, uint64_t pool_blocks, kvf_lease *out)
{
  kvf_status status = KVF_NOT_NULL(out);
  return kvf_answer(status == KVF_OK ? reserve(node, NULL, blocks, pool_blocks, out) : status);
}

kvf_status kvf_lease_release(kvf_node *node, uint64_t lease_id)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_lease_release(node->core, lease_id);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_lease_ended(kvf_node *node, uint64_t lease_id, uint64_t ranks_mask)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_lease_ended(node->core, lease_id, ranks_mask);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_ticket_make(kvf_node *node, const kvf_lease *lease, const kvf_blocks *blocks, const kvf_prompt *prompt,
                           char *ticket, size_t capacity, size_t *ticket_bytes)
{
  kvf_status status = KVF_NOT_NULL(lease, prompt, ticket, ticket_bytes);
  status = status == KVF_OK ? check_list(blocks) : status;
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  kvf_ticket *content = malloc(sizeof(*content));
  if (content == NULL) {
    return kvf_answer(KVF_NO_MEMORY);
  }
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_core_ticket(node->core, lease, blocks, prompt, content);
  kvf_node_leave(node, now_ns);
  if (status == KVF_OK) {
    size_t macs_count = 0;
    status = kvf_ticket_encode(content, kvf_core_macs(node->core, &macs_count), ticket, capacity, ticket_bytes);
  }
  free(content); /* its block ids are borrowed */
  return kvf_answer(status);
}

/* Under the lock, when nothing can fail any more: what is not complete yet, the bytes, the checksums or both, is
 * submitted. */
static void submit(kvf_node *node, kvf_ordered *ordered, kvf_checksummer_job *job)
{
  if (ordered != NULL) {
    ordered->job = job;
    kvf_ordering_submit(node->memory.ordering, ordered);
  } else if (job != NULL) {
    kvf_checksummer_submit(node->memory.checksummer, job);
  }
}

/* Under the lock: whether the memory, if there is any, knows points such as this one. */
static kvf_status check_point(const kvf_node *node, const kvf_ordered *ordered)
{
  return ordered == NULL || node->memory.ordering != NULL
             ? KVF_OK
             : kvf_because(KVF_INVALID, "after: the registered memory knows no ordering points");
}

kvf_status kvf_lease_publish(kvf_node *node, const kvf_lease *lease, const kvf_blocks *blocks, const kvf_prompt *prompt,
                             const kvf_ordering_point *after, uint64_t user)
{
  uint64_t digest;
  kvf_status status = KVF_NOT_NULL(lease, prompt);
  status = status == KVF_OK ? check_list(blocks) : status;
  status = status == KVF_OK ? kvf_blocks_check(blocks) : status;
  status = status == KVF_OK ? kvf_fence_digest(lease, blocks, prompt, &digest) : status;
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  kvf_ordered *ordered;
  kvf_checksummer_job *job = NULL;
  status = kvf_ordered_make(after, &ordered);
  if (status == KVF_OK && node->config.checksum) {
    job = kvf_checksummer_prepare(lease, blocks);
    status = job == NULL ? KVF_NO_MEMORY : KVF_OK;
  }
  if (status == KVF_OK) {
    uint64_t now_ns = kvf_node_enter(node);
    const bool incomplete = ordered != NULL || job != NULL;
    status = check_point(node, ordered);
    status = status == KVF_OK ? kvf_core_publish(node->core, now_ns, lease, blocks, digest, user, incomplete) : status;
    if (status == KVF_OK) {
      if (ordered != NULL) {
        ordered->lease = *lease;
      }
      submit(node, ordered, job);
      ordered = NULL;
      job = NULL;
    }
    kvf_node_leave(node, now_ns);
  }
  kvf_ordered_free(ordered);
  free(job);
  return kvf_answer(status);
}

kvf_status kvf_lease_end(kvf_node *node, const kvf_lease *lease)
{
  kvf_status status = KVF_NOT_NULL(lease);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_core_lease_end(node->core, now_ns, lease);
  kvf_node_leave(node, now_ns); /* carries the store out before it returns */
  return kvf_answer(status);
}

void kvf_leases_end_lingering(kvf_node *node)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_end_lingering(node->core);
  kvf_node_leave(node, now_ns); /* carries the stores out before it returns */
}

kvf_status kvf_ticket_offer(kvf_node *node, const char *ticket, size_t ticket_bytes)
{
  kvf_status status = KVF_NOT_NULL(ticket);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  kvf_ticket *content = malloc(sizeof(*content));
  if (content == NULL) {
    return kvf_answer(KVF_NO_MEMORY);
  }
  size_t macs_count = 0;
  const kvf_mac *macs = kvf_core_macs(node->core, &macs_count);
  status = kvf_ticket_decode(ticket, ticket_bytes, macs, macs_count, content);
  if (status == KVF_OK) {
    const kvf_find_key key = kvf_find_key_of_prompt(&content->prompt);
    uint64_t now_ns = kvf_node_enter(node);
    status = kvf_offers_add(&node->finder.offers, now_ns, &content->lease, &key, ticket, ticket_bytes);
    kvf_node_leave(node, now_ns);
    kvf_ticket_free(content);
  }
  free(content);
  return kvf_answer(status);
}

/* ---- consumer ---- */

kvf_status kvf_ticket_find(kvf_node *node, const kvf_prompt *prompt, const char *at, uint32_t timeout_ms, uint64_t user,
                           uint64_t *find_id)
{
  kvf_status status = KVF_NOT_NULL(prompt, find_id);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  const kvf_find_key key = kvf_find_key_of_prompt(prompt);
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_finds_start(&node->finder.finds, now_ns, &key, at, timeout_ms, user, find_id);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_ticket_take(kvf_node *node, uint64_t find_id, char *ticket, size_t capacity, size_t *ticket_bytes)
{
  kvf_status status = KVF_NOT_NULL(ticket, ticket_bytes);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_finds_take(&node->finder.finds, now_ns, find_id, ticket, capacity, ticket_bytes);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

static kvf_status decode_sources(const kvf_node *node, const char *text, size_t text_bytes, kvf_sources *out)
{
  size_t macs_count = 0;
  const kvf_mac *macs = kvf_core_macs(node->core, &macs_count);
  return kvf_sources_decode(text, text_bytes, macs, macs_count, out);
}

kvf_status kvf_ticket_prompt(const kvf_node *node, const char *ticket, size_t ticket_bytes, kvf_prompt *out)
{
  kvf_sources sources;
  kvf_status status = KVF_NOT_NULL(ticket, out);
  status = status == KVF_OK ? decode_sources(node, ticket, ticket_bytes, &sources) : status;
  if (status == KVF_OK) {
    *out = sources.tickets[0]->prompt;
    kvf_sources_free(&sources);
  }
  return kvf_answer(status);
}

/* Decodes a ticket; one that is refused is counted and logged here, and goes no further. */
static kvf_status read_ticket(kvf_node *node, kvf_log_request request, const char *text, size_t text_bytes,
                              kvf_sources *out)
{
  kvf_status status = decode_sources(node, text, text_bytes, out);
  if (status != KVF_OK) {
    uint64_t now_ns = kvf_node_enter(node);
    kvf_core_ticket_refused(node->core, now_ns, request, status);
    kvf_node_leave(node, now_ns);
  }
  return status;
}

void kvf_request_options_init(const kvf_node *node, kvf_request_options *options)
{
  *options = kvf_core_request_options(node->core, NULL); /* never changes */
}

static kvf_status check_request(const char *ticket, const kvf_prompt *prompt, const kvf_request_info *info,
                                const kvf_request_options *options)
{
  static const uint64_t zeros[sizeof(options->reserved) / sizeof(options->reserved[0])] = {0};
  kvf_status status = KVF_NOT_NULL(ticket, prompt, info);
  return status == KVF_OK && options != NULL && memcmp(options->reserved, zeros, sizeof(zeros)) != 0
             ? kvf_because(KVF_INVALID, "options->reserved must be zero")
             : status;
}

kvf_status kvf_request_open(kvf_node *node, const char *ticket, size_t ticket_bytes, const kvf_prompt *prompt,
                            const kvf_request_options *options, uint64_t user, kvf_request_info *info)
{
  kvf_sources sources;
  const kvf_ticket *content = NULL;
  uint64_t id = 0;
  kvf_status status = check_request(ticket, prompt, info, options);
  const kvf_log_request asked = {.name = options == NULL ? NULL : options->name};
  status = status == KVF_OK ? read_ticket(node, asked, ticket, ticket_bytes, &sources) : status;
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_core_request_open(node->core, now_ns, &sources, prompt, options, user, &id, &content);
  const uint64_t attachment = status == KVF_OK ? kvf_core_request_attachment(node->core, id) : 0;
  kvf_node_leave(node, now_ns);
  if (status == KVF_OK) {
    *info = (kvf_request_info){
        .id = id, .tokens = content->prompt.tokens, .groups = content->groups, .attachment = attachment};
    info->load_timeout_ms = kvf_core_request_options(node->core, options).load_timeout_ms;
    for (uint32_t group = 0; group < content->groups; group++) {
      info->counts[group] = content->counts[group];
    }
    kvf_address_format(&content->rank[0].address, info->peer);
  }
  kvf_sources_free(&sources);
  return kvf_answer(status);
}

kvf_status kvf_request_refused(kvf_node *node, kvf_status status, uint32_t tokens, const kvf_request_options *options,
                               kvf_verdict *out)
{
  if (out == NULL) {
    return kvf_answer(KVF_NOT_NULL(out));
  }
  uint64_t now_ns = kvf_node_enter(node);
  *out = kvf_core_request_refused(node->core, now_ns, status, tokens, options);
  kvf_node_leave(node, now_ns);
  return KVF_OK;
}

kvf_status kvf_request_wait(kvf_node *node, uint64_t request_id, bool waits)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_request_wait(node->core, now_ns, request_id, waits);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_request_begin(kvf_node *node, uint64_t request_id)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_request_begin(node->core, now_ns, request_id);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_request_report(kvf_node *node, const kvf_report *report)
{
  kvf_status status = KVF_NOT_NULL(report);
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  uint64_t now_ns = kvf_node_enter(node);
  status = kvf_core_request_report(node->core, now_ns, report);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_request_released(kvf_node *node, uint64_t request_id, uint64_t ranks_mask)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_request_released(node->core, now_ns, request_id, ranks_mask);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

kvf_status kvf_request_stuck(kvf_node *node, uint64_t request_id)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_request_stuck(node->core, request_id);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

static kvf_status cancel_request(kvf_node *node, uint64_t request_id, kvf_finish_kind kind)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_request_cancel(node->core, now_ns, request_id, kind);
  kvf_node_leave(node, now_ns);
  return status;
}

kvf_status kvf_request_cancel(kvf_node *node, uint64_t request_id)
{
  return kvf_answer(cancel_request(node, request_id, KVF_FINISH_ABORTED));
}

kvf_status kvf_request_detach(kvf_node *node, uint64_t request_id)
{
  return kvf_answer(cancel_request(node, request_id, KVF_FINISH_DETACHED));
}

static kvf_status check_params(const kvf_load_params *load)
{
  static const uint64_t zeros[sizeof(load->reserved_too) / sizeof(load->reserved_too[0])] = {0};
  kvf_status status = KVF_NOT_NULL(load);
  if (status == KVF_OK) {
    status = KVF_NOT_NULL(load->ticket, load->destination.ids, load->destination.counts);
  }
  return status == KVF_OK && (load->reserved != 0 || memcmp(load->reserved_too, zeros, sizeof(zeros)) != 0)
             ? kvf_because(KVF_INVALID, "load->reserved and load->reserved_too must be zero")
             : status;
}

kvf_status kvf_load_start(kvf_node *node, const kvf_load_params *load)
{
  kvf_sources sources;
  kvf_status status = check_params(load);
  if (status == KVF_OK) {
    const kvf_log_request asked = {.id = load->request_id, .name = load->name};
    status = read_ticket(node, asked, load->ticket, load->ticket_bytes, &sources);
  }
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  kvf_ordered *ordered = NULL;
  status = kvf_sources_digest(&sources);
  if (status == KVF_OK && load->after != NULL) {
    status = kvf_ordered_make(load->after, &ordered);
  }
  if (status == KVF_OK) {
    uint64_t now_ns = kvf_node_enter_to_help(node);
    const uint64_t point = ordered == NULL ? 0 : ++node->memory.last_point;
    status = check_point(node, ordered);
    status = status == KVF_OK ? kvf_core_load_start(node->core, now_ns, &sources, load, point) : status;
    if (status == KVF_OK && ordered != NULL) {
      ordered->number = point;
      ordered->request_id = load->request_id;
      kvf_ordering_submit(node->memory.ordering, ordered);
      ordered = NULL;
    }
    kvf_node_leave(node, now_ns);
  }
  if (ordered != NULL) {
    kvf_ordered_free(ordered);
  }
  kvf_sources_free(&sources);
  return kvf_answer(status);
}

kvf_status kvf_load_abort(kvf_node *node, uint64_t request_id)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_status status = kvf_core_load_abort(node->core, now_ns, request_id);
  kvf_node_leave(node, now_ns);
  return kvf_answer(status);
}

bool kvf_load_is_stuck(kvf_node *node, uint64_t request_id)
{
  uint64_t now_ns = kvf_node_enter(node);
  bool stuck = kvf_core_load_is_stuck(node->core, request_id);
  kvf_node_leave(node, now_ns);
  return stuck;
}
