/* A transport that fails in every way it may. */
#include "faults.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/list.h"
#include "base/prng.h"
#include "side.h"

const kvf_status fault_statuses[] = {
    KVF_TRANSFER_FAILED, KVF_TRANSFER_STALLED, KVF_CANCELLED, KVF_BAD_TICKET,     KVF_LEASE_EXPIRED,
    KVF_LEASE_UNKNOWN,   KVF_NOT_PUBLISHED,    KVF_PEER_DOWN, KVF_PEER_RESTARTED, KVF_HANDSHAKE_TIMEOUT,
    KVF_TRANSFER_SETUP,  KVF_PROTOCOL,         KVF_NO_MEMORY, KVF_INVALID};
const size_t fault_statuses_count = sizeof(fault_statuses) / sizeof(fault_statuses[0]);

typedef struct fault_transport fault_transport;

typedef struct fault_link {
  kvf_link base;
  kvf_list in_links; /* until the transport closes: what is on its way may still name it */
  kvf_link *inner;
  bool is_up;
  bool is_down;
  bool disconnected;
  uint32_t events;
} fault_link;

/* A read that the host has begun and has not been told the end of. */
typedef struct fault_read {
  kvf_list in_reads;
  uint64_t id;
  fault_link *link;
  fault_kind kind;
  kvf_status status; /* of FAIL, REFUSE */
  bool passed;       /* the inner transport has it */
  bool told;         /* its completion waits in the queue */
} fault_read;

typedef enum news_kind { NEWS_DONE, NEWS_CANCEL, NEWS_UP, NEWS_DOWN } news_kind;

/* Something that the thread tells the host, or the inner transport, at its time. */
typedef struct news {
  kvf_list in_queue;
  news_kind kind;
  uint64_t at_ns;
  fault_link *link;
  kvf_status status;
  kvf_read_result result;
} news;

struct fault_transport {
  kvf_transport base;
  kvf_transport *inner;
  kvf_transport_host host;
  pthread_mutex_t lock; /* held during the inner transport's operations, never during a call of the host's */
  pthread_cond_t changed;
  kvf_list links;
  kvf_list reads;
  kvf_list queue;
  kvf_prng prng;
  bool closing;
  pthread_t thread;
};

static pthread_mutex_t plan_lock = PTHREAD_MUTEX_INITIALIZER;
static fault_plan the_plan;

void fault_plan_set(const fault_plan *plan)
{
  (void)pthread_mutex_lock(&plan_lock);
  the_plan = plan == NULL ? (fault_plan){0} : *plan;
  (void)pthread_mutex_unlock(&plan_lock);
}

static fault_plan plan_now(void)
{
  (void)pthread_mutex_lock(&plan_lock);
  fault_plan plan = the_plan;
  (void)pthread_mutex_unlock(&plan_lock);
  return plan;
}

static fault_transport *fault_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, fault_transport, base);
}

static fault_link *link_of(kvf_link *link)
{
  return KVF_CONTAINER_OF(link, fault_link, base);
}

/* ---- the queue; all with the lock ---- */

static news *push(fault_transport *fault, news_kind kind, fault_link *link, uint64_t late_us)
{
  news *item = allocate(sizeof(*item));
  item->kind = kind;
  item->link = link;
  item->at_ns = now_ns() + late_us * 1000;
  kvf_list_init(&item->in_queue);
  kvf_list_push_back(&fault->queue, &item->in_queue);
  (void)pthread_cond_broadcast(&fault->changed);
  return item;
}

static void push_done(fault_transport *fault, fault_read *read, const kvf_read_result *result, uint64_t late_us)
{
  read->told = true;
  push(fault, NEWS_DONE, read->link, late_us)->result = *result;
}

static void push_end(fault_transport *fault, fault_read *read, kvf_status status)
{
  const kvf_read_result result = {.id = read->id, .status = status};
  push_done(fault, read, &result, 0);
}

static fault_read *find_read(fault_transport *fault, uint64_t id)
{
  for (kvf_list *node = fault->reads.next; node != &fault->reads; node = node->next) {
    fault_read *read = KVF_CONTAINER_OF(node, fault_read, in_reads);
    if (read->id == id) {
      return read;
    }
  }
  return NULL;
}

/* Those of the link (NULL: of all) that the inner transport does not know of. */
static void end_stalled(fault_transport *fault, const fault_link *link, kvf_status status)
{
  for (kvf_list *node = fault->reads.next; node != &fault->reads; node = node->next) {
    fault_read *read = KVF_CONTAINER_OF(node, fault_read, in_reads);
    if ((link == NULL || read->link == link) && !read->passed && !read->told) {
      push_end(fault, read, status);
    }
  }
}

static uint64_t late_us(fault_transport *fault, const fault_plan *plan)
{
  return plan->late_us_max == 0 ? 0 : kvf_prng_below(&fault->prng, plan->late_us_max);
}

/* One more event of the link's; its planned one takes it down. */
static void on_event(fault_transport *fault, fault_link *link)
{
  const fault_plan plan = plan_now();
  link->events++;
  if (link->events != plan.down_after || !link->is_up || link->is_down || link->disconnected) {
    return;
  }
  link->is_down = true;
  push(fault, NEWS_DOWN, link, 0)->status = KVF_PEER_DOWN;
  end_stalled(fault, link, KVF_PEER_DOWN);
  for (kvf_list *node = fault->reads.next; node != &fault->reads; node = node->next) {
    const fault_read *read = KVF_CONTAINER_OF(node, fault_read, in_reads);
    if (read->link == link && read->passed && !read->told) {
      fault->inner->ops->cancel(link->inner, read->id);
    }
  }
}

/* ---- the thread ---- */

/* The next that is due; when closing, everything is. */
static news *take_due(fault_transport *fault, uint64_t *next_ns)
{
  uint64_t now = now_ns();
  *next_ns = now + KVF_NS_PER_S;
  for (kvf_list *node = fault->queue.next; node != &fault->queue; node = node->next) {
    news *item = KVF_CONTAINER_OF(node, news, in_queue);
    if (item->at_ns <= now || fault->closing) {
      kvf_list_remove(node);
      return item;
    }
    *next_ns = kvf_time_min(*next_ns, item->at_ns);
  }
  return NULL;
}

/* With the lock, which is let go of during the host's calls. */
static void deliver(fault_transport *fault, news *item)
{
  fault_link *link = item->link;
  bool wanted = !link->disconnected;
  if (item->kind == NEWS_CANCEL) {
    if (wanted) {
      fault->inner->ops->cancel(link->inner, item->result.id);
    }
    free(item);
    return;
  }
  if (item->kind == NEWS_DONE) {
    fault_read *read = find_read(fault, item->result.id);
    kvf_list_remove(&read->in_reads);
    free(read);
  }
  (void)pthread_mutex_unlock(&fault->lock);
  if (item->kind == NEWS_DONE) {
    fault->host.read_done(fault->host.context, &item->result);
  } else if (item->kind == NEWS_UP && wanted) {
    fault->host.link_up(fault->host.context, &link->base, item->status);
  } else if (item->kind == NEWS_DOWN && wanted) {
    fault->host.link_down(fault->host.context, &link->base, item->status);
  }
  free(item);
  (void)pthread_mutex_lock(&fault->lock);
}

static void *thread_main(void *argument)
{
  fault_transport *fault = argument;
  (void)pthread_mutex_lock(&fault->lock);
  for (;;) {
    uint64_t next_ns;
    news *item = take_due(fault, &next_ns);
    if (item != NULL) {
      deliver(fault, item);
    } else if (fault->closing) {
      break;
    } else {
      const struct timespec until = {.tv_sec = (time_t)(next_ns / KVF_NS_PER_S),
                                     .tv_nsec = (long)(next_ns % KVF_NS_PER_S)};
      (void)pthread_cond_timedwait(&fault->changed, &fault->lock, &until);
    }
  }
  (void)pthread_mutex_unlock(&fault->lock);
  return NULL;
}

/* ---- what the inner transport tells ---- */

static void on_read_done(void *context, const kvf_read_result *told)
{
  fault_transport *fault = context;
  kvf_read_result result = *told;
  (void)pthread_mutex_lock(&fault->lock);
  fault_read *read = find_read(fault, result.id);
  const fault_plan plan = plan_now();
  if (read->kind == FAULT_FAIL && result.status == KVF_OK) {
    result = (kvf_read_result){.id = result.id, .status = read->status, .bytes = result.bytes};
  }
  if (read->link->is_down && result.status == KVF_CANCELLED) {
    result.status = KVF_PEER_DOWN;
  }
  push_done(fault, read, &result, read->kind == FAULT_LATE ? late_us(fault, &plan) : 0);
  on_event(fault, read->link);
  (void)pthread_mutex_unlock(&fault->lock);
}

static void on_read_progress(void *context, uint64_t read_id)
{
  fault_transport *fault = context;
  fault->host.read_progress(fault->host.context, read_id);
}

static void on_link_up(void *context, kvf_link *inner, kvf_status status)
{
  fault_transport *fault = context;
  fault_link *link = (fault_link *)(uintptr_t)inner->user;
  const fault_plan plan = plan_now();
  (void)pthread_mutex_lock(&fault->lock);
  status = status == KVF_OK ? plan.link_up : status;
  link->is_up = status == KVF_OK;
  push(fault, NEWS_UP, link, plan.link_up_us)->status = status;
  (void)pthread_mutex_unlock(&fault->lock);
}

static void on_link_down(void *context, kvf_link *inner, kvf_status status)
{
  fault_transport *fault = context;
  fault_link *link = (fault_link *)(uintptr_t)inner->user;
  (void)pthread_mutex_lock(&fault->lock);
  if (link->is_up && !link->is_down) {
    link->is_down = true;
    end_stalled(fault, link, status);
    push(fault, NEWS_DOWN, link, plan_now().link_up_us)->status = status; /* never before it was said to be up */
  }
  (void)pthread_mutex_unlock(&fault->lock);
}

static bool on_session_key(void *context, uint64_t session_id, kvf_key *out)
{
  const fault_transport *fault = context;
  return fault->host.session_key(fault->host.context, session_id, out);
}

static kvf_status on_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  const fault_transport *fault = context;
  return fault->host.authorize(fault->host.context, lease, items, count);
}

static void on_connection(void *context, kvf_status why)
{
  const fault_transport *fault = context;
  fault->host.connection(fault->host.context, why);
}

static void on_log(void *context, kvf_log_level level, const char *line)
{
  const fault_transport *fault = context;
  fault->host.log(fault->host.context, level, line);
}

/* ---- operations ---- */

static kvf_status fault_open(const kvf_transport_ops *ops, const kvf_transport_ops *real,
                             const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                             char *message)
{
  const fault_plan plan = plan_now();
  *out = NULL;
  if (plan.open != KVF_OK) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "planned");
    return plan.open;
  }
  fault_transport *fault = allocate(sizeof(*fault));
  fault->base.ops = ops;
  fault->host = *host;
  fault->prng.state = plan.seed;
  kvf_list_init(&fault->links);
  kvf_list_init(&fault->reads);
  kvf_list_init(&fault->queue);
  pthread_condattr_t attributes;
  (void)pthread_mutex_init(&fault->lock, NULL);
  (void)pthread_condattr_init(&attributes);
  (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  (void)pthread_cond_init(&fault->changed, &attributes);
  (void)pthread_condattr_destroy(&attributes);
  const kvf_transport_host own = {.context = fault,
                                  .read_done = on_read_done,
                                  .read_progress = on_read_progress,
                                  .link_up = on_link_up,
                                  .link_down = on_link_down,
                                  .session_key = on_session_key,
                                  .authorize = on_authorize,
                                  .connection = on_connection,
                                  .log = on_log};
  kvf_status status = real->open(config, &own, &fault->inner, message);
  if (status != KVF_OK) {
    free(fault);
    return status;
  }
  if (pthread_create(&fault->thread, NULL, thread_main, fault) != 0) {
    abort();
  }
  *out = &fault->base;
  return KVF_OK;
}

static void fault_close(kvf_transport *transport)
{
  fault_transport *fault = fault_of(transport);
  fault->inner->ops->close(fault->inner);
  (void)pthread_mutex_lock(&fault->lock);
  fault->closing = true;
  (void)pthread_cond_broadcast(&fault->changed);
  (void)pthread_mutex_unlock(&fault->lock);
  (void)pthread_join(fault->thread, NULL);
  kvf_list *node;
  while ((node = kvf_list_pop_front(&fault->links)) != NULL) {
    free(KVF_CONTAINER_OF(node, fault_link, in_links));
  }
  (void)pthread_cond_destroy(&fault->changed);
  (void)pthread_mutex_destroy(&fault->lock);
  free(fault);
}

static kvf_status fault_set_memory(kvf_transport *transport, const kvf_transport_memory *memory)
{
  const fault_plan plan = plan_now();
  kvf_transport *inner = fault_of(transport)->inner;
  return plan.set_memory == KVF_OK ? inner->ops->set_memory(inner, memory) : plan.set_memory;
}

static void fault_clear_memory(kvf_transport *transport)
{
  fault_transport *fault = fault_of(transport);
  (void)pthread_mutex_lock(&fault->lock);
  end_stalled(fault, NULL, KVF_CANCELLED);
  (void)pthread_mutex_unlock(&fault->lock);
  fault->inner->ops->clear_memory(fault->inner);
}

static kvf_status fault_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  const fault_plan plan = plan_now();
  fault_transport *fault = fault_of(transport);
  if (plan.describe != KVF_OK) {
    return plan.describe;
  }
  kvf_status status = fault->inner->ops->describe(fault->inner, out, capacity, out_bytes);
  if (status == KVF_OK && plan.describes_garbage) {
    (void)pthread_mutex_lock(&fault->lock);
    ((uint8_t *)out)[kvf_prng_below(&fault->prng, *out_bytes)] ^= 0x10;
    (void)pthread_mutex_unlock(&fault->lock);
  }
  return status;
}

static kvf_status fault_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  const fault_plan plan = plan_now();
  fault_transport *fault = fault_of(transport);
  *out = NULL;
  if (plan.connect != KVF_OK) {
    return plan.connect;
  }
  fault_link *link = allocate(sizeof(*link));
  link->base = (kvf_link){.transport = transport, .user = spec->user};
  kvf_list_init(&link->in_links);
  kvf_link_spec own = *spec;
  own.user = (uintptr_t)link;
  (void)pthread_mutex_lock(&fault->lock);
  kvf_status status = fault->inner->ops->connect(fault->inner, &own, &link->inner);
  if (status == KVF_OK) {
    kvf_list_push_back(&fault->links, &link->in_links);
  }
  (void)pthread_mutex_unlock(&fault->lock);
  if (status != KVF_OK) {
    free(link);
    return status;
  }
  *out = &link->base;
  return KVF_OK;
}

static void fault_disconnect(kvf_link *base)
{
  fault_transport *fault = fault_of(base->transport);
  fault_link *link = link_of(base);
  (void)pthread_mutex_lock(&fault->lock);
  link->disconnected = true;
  end_stalled(fault, link, KVF_CANCELLED);
  fault->inner->ops->disconnect(link->inner);
  (void)pthread_mutex_unlock(&fault->lock);
}

static fault_kind choose(fault_transport *fault, const fault_plan *plan)
{
  uint64_t drawn = kvf_prng_below(&fault->prng, 1000);
  for (fault_kind kind = FAULT_LATE; kind < FAULT_KINDS; kind++) {
    if (drawn < plan->permille[kind]) {
      return kind;
    }
    drawn -= plan->permille[kind];
  }
  return FAULT_NONE;
}

static kvf_status fault_start(kvf_link *base, const kvf_transfer *request)
{
  fault_transport *fault = fault_of(base->transport);
  fault_link *link = link_of(base);
  const fault_plan plan = plan_now();
  (void)pthread_mutex_lock(&fault->lock);
  fault_read *read = allocate(sizeof(*read));
  read->id = request->id;
  read->link = link;
  read->kind = choose(fault, &plan);
  read->status = plan.status;
  if (plan.status == KVF_OK) {
    read->status = fault_statuses[kvf_prng_below(&fault->prng, fault_statuses_count)];
  }
  kvf_list_init(&read->in_reads);
  kvf_list_push_back(&fault->reads, &read->in_reads);
  if (link->is_down) {
    push_end(fault, read, KVF_PEER_DOWN);
  } else if (read->kind == FAULT_REFUSE) {
    push_end(fault, read, read->status);
  } else if (read->kind != FAULT_STALL) {
    read->passed = true;
    kvf_status status = fault->inner->ops->read(link->inner, request);
    if (status != KVF_OK) {
      read->passed = false;
      push_end(fault, read, status);
    }
  }
  on_event(fault, link);
  (void)pthread_mutex_unlock(&fault->lock);
  return KVF_OK;
}

static void fault_cancel(kvf_link *base, uint64_t read_id)
{
  fault_transport *fault = fault_of(base->transport);
  fault_link *link = link_of(base);
  const fault_plan plan = plan_now();
  (void)pthread_mutex_lock(&fault->lock);
  fault_read *read = find_read(fault, read_id);
  if (read != NULL && !read->passed && !read->told) {
    push_end(fault, read, KVF_CANCELLED);
  } else if (read != NULL && read->passed && read->kind == FAULT_NO_STOP) {
    push(fault, NEWS_CANCEL, link, late_us(fault, &plan))->result.id = read_id;
  } else if (read == NULL || read->passed) {
    fault->inner->ops->cancel(link->inner, read_id);
  }
  on_event(fault, link);
  (void)pthread_mutex_unlock(&fault->lock);
}

static bool fault_assist(kvf_transport *transport)
{
  kvf_transport *inner = fault_of(transport)->inner;
  return inner->ops->assist != NULL && inner->ops->assist(inner);
}

/* As the real ones, for all that a test has. */
static bool fault_serves(uint32_t theirs, uint32_t ours)
{
  (void)theirs;
  (void)ours;
  return true;
}

#define FAULT_TRANSPORT(kind, rails)                                                                \
  const kvf_transport_ops *fault_inner_##kind = &kvf_transport_##kind;                              \
  static kvf_status kind##_open(const kvf_transport_config *config, const kvf_transport_host *host, \
                                kvf_transport **out, char *message)                                 \
  {                                                                                                 \
    return fault_open(&fault_transport_##kind, fault_inner_##kind, config, host, out, message);     \
  }                                                                                                 \
  const kvf_transport_ops __wrap_kvf_transport_##kind = {.name = #kind,                             \
                                                         .has_rails = (rails),                      \
                                                         .serves = fault_serves,                    \
                                                         .open = kind##_open,                       \
                                                         .close = fault_close,                      \
                                                         .set_memory = fault_set_memory,            \
                                                         .clear_memory = fault_clear_memory,        \
                                                         .describe = fault_describe,                \
                                                         .connect = fault_connect,                  \
                                                         .disconnect = fault_disconnect,            \
                                                         .read = fault_start,                       \
                                                         .cancel = fault_cancel,                    \
                                                         .assist = fault_assist};

FAULT_TRANSPORT(local, false)
FAULT_TRANSPORT(tcp, true)
FAULT_TRANSPORT(ucx, false)
