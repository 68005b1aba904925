/* Opens several transports as one, makes a link of their parts, gives each read to one, and hands their reports on. */
#include "transport/tcp/rails.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "base/list.h"
#include "transport/tcp/tcp_common.h"

#define NONE UINT32_MAX

typedef struct rails rails;

typedef struct rail {
  rails *of;
  kvf_transport *transport;
  atomic_uint reads; /* open */
} rail;

struct rails {
  kvf_transport base;
  const kvf_transport_ops *ops; /* of each */
  kvf_transport_host host;
  uint32_t count;
  rail each[KVF_RAILS_MAX];
  pthread_mutex_t lock; /* guards what follows; never held during a call of the host's */
  kvf_list links;
  uint64_t last_link;
};

typedef enum link_state { LINK_CONNECTING, LINK_UP, LINK_DOWN } link_state;

typedef struct rails_link {
  kvf_link base;
  kvf_list in_links; /* unlinked: given back */
  uint64_t id;       /* what its parts have as `user` */
  link_state state;
  uint32_t first;     /* the part that reads go to if it has no more than others; sessions take turns */
  uint32_t turn;      /* the peer's rail that part 0 goes to, if the peer has more or fewer rails than this node */
  uint32_t waiting;   /* parts that are not up yet */
  atomic_uint failed; /* the part that has ended the link, and says so to reads; NONE */
  uint32_t telling;   /* calls of the host's that are under way */
  kvf_status failure; /* that the host is to be told of when it has been told that the link is up */
  kvf_link *parts[KVF_RAILS_MAX];
} rails_link;

static rails *rails_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, rails, base);
}

static rails_link *link_of(kvf_link *base)
{
  return KVF_CONTAINER_OF(base, rails_link, base);
}

/* ---- what rails tell the host ---- */

static rails_link *find(const rails *all, uint64_t id)
{
  for (kvf_list *node = all->links.next; node != &all->links; node = node->next) {
    rails_link *link = KVF_CONTAINER_OF(node, rails_link, in_links);
    if (link->id == id) {
      return link;
    }
  }
  return NULL;
}

/* With the lock, which it gives up meanwhile; the link may be gone afterwards. */
static void tell(rails *all, rails_link *link, void (*what)(void *, kvf_link *, kvf_status), kvf_status status)
{
  link->telling++;
  (void)pthread_mutex_unlock(&all->lock);
  what(all->host.context, &link->base, status);
  (void)pthread_mutex_lock(&all->lock);
  link->telling--;
  if (link->telling == 0 && !kvf_list_is_linked(&link->in_links)) {
    free(link);
  } else if (link->telling == 0 && link->failure != KVF_OK) {
    kvf_status failure = link->failure;
    link->failure = KVF_OK;
    tell(all, link, all->host.link_down, failure);
  }
}

/* It has come up, or failed: then or later. */
static void on_link(void *context, kvf_link *part, kvf_status status)
{
  const rail *one = context;
  rails *all = one->of;
  (void)pthread_mutex_lock(&all->lock);
  rails_link *link = find(all, part->user);
  if (link != NULL && link->state != LINK_DOWN) {
    const bool was_up = link->state == LINK_UP;
    link->waiting -= status == KVF_OK;
    if (status != KVF_OK) {
      link->state = LINK_DOWN;
      atomic_store_explicit(&link->failed, (uint32_t)(one - all->each), memory_order_relaxed);
    } else if (link->waiting == 0) {
      link->state = LINK_UP;
    }
    if (!was_up && link->state != LINK_CONNECTING) {
      tell(all, link, all->host.link_up, status);
    } else if (was_up && link->telling > 0) {
      link->failure = status;
    } else if (was_up) {
      tell(all, link, all->host.link_down, status);
    }
  }
  (void)pthread_mutex_unlock(&all->lock);
}

static void on_read_done(void *context, const kvf_read_result *result)
{
  rail *one = context;
  (void)atomic_fetch_sub_explicit(&one->reads, 1, memory_order_relaxed);
  one->of->host.read_done(one->of->host.context, result);
}

static void on_read_progress(void *context, uint64_t read_id)
{
  const rails *all = ((const rail *)context)->of;
  all->host.read_progress(all->host.context, read_id);
}

static bool on_session_key(void *context, uint64_t session_id, kvf_key *out)
{
  const rails *all = ((const rail *)context)->of;
  return all->host.session_key(all->host.context, session_id, out);
}

static kvf_status on_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  const rails *all = ((const rail *)context)->of;
  return all->host.authorize(all->host.context, lease, items, count);
}

static void on_connection(void *context, kvf_status why)
{
  const rails *all = ((const rail *)context)->of;
  all->host.connection(all->host.context, why);
}

static void on_log(void *context, kvf_log_level level, const char *line)
{
  const rails *all = ((const rail *)context)->of;
  all->host.log(all->host.context, level, line);
}

/* ---- open and close ---- */

static void rails_close(kvf_transport *transport)
{
  rails *all = rails_of(transport);
  for (uint32_t i = 0; i < all->count; i++) {
    all->ops->close(all->each[i].transport);
  }
  (void)pthread_mutex_destroy(&all->lock);
  free(all);
}

static kvf_status open_one(rails *all, const kvf_transport_config *config, char *message)
{
  rail *one = &all->each[all->count];
  one->of = all;
  const kvf_transport_host host = {.context = one,
                                   .read_done = on_read_done,
                                   .read_progress = on_read_progress,
                                   .link_up = on_link,
                                   .link_down = on_link,
                                   .session_key = on_session_key,
                                   .authorize = on_authorize,
                                   .connection = on_connection,
                                   .log = on_log};
  kvf_status status = all->ops->open(config, &host, &one->transport, message);
  all->count += status == KVF_OK;
  return status;
}

kvf_status kvf_rails_open(const kvf_transport_ops *each, uint32_t count, const kvf_transport_config *config,
                          const kvf_transport_host *host, kvf_transport **out, char *message)
{
  rails *all = calloc(1, sizeof(*all));
  kvf_status status = KVF_OK;
  *out = NULL;
  if (all == NULL) {
    return kvf_fail(KVF_NO_MEMORY, message, "tcp: no memory");
  }
  assert(count > 0 && count <= KVF_RAILS_MAX);
  all->base.ops = &kvf_transport_tcp;
  all->ops = each;
  all->host = *host;
  kvf_list_init(&all->links);
  (void)pthread_mutex_init(&all->lock, NULL);
  while (status == KVF_OK && all->count < count) {
    status = open_one(all, config, message);
  }
  if (status != KVF_OK) {
    rails_close(&all->base);
    return status;
  }
  *out = &all->base;
  return KVF_OK;
}

/* ---- memory ---- */

static kvf_status rails_set_memory(kvf_transport *transport, const kvf_transport_memory *memory)
{
  rails *all = rails_of(transport);
  kvf_status status = KVF_OK;
  uint32_t set = 0;
  for (; set < all->count && status == KVF_OK; set++) {
    status = all->ops->set_memory(all->each[set].transport, memory);
  }
  for (uint32_t i = 0; status != KVF_OK && i + 1 < set; i++) {
    all->ops->clear_memory(all->each[i].transport);
  }
  return status;
}

static void rails_clear_memory(kvf_transport *transport)
{
  rails *all = rails_of(transport);
  for (uint32_t i = 0; i < all->count; i++) {
    all->ops->clear_memory(all->each[i].transport);
  }
}

static kvf_status rails_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  rails *all = rails_of(transport);
  kvf_rails_description description = {.count = all->count};
  uint8_t *room = malloc(KVF_TRANSPORT_DESCRIPTION_BYTES_MAX);
  kvf_status status = room == NULL ? KVF_NO_MEMORY : KVF_OK;
  size_t used = 0;
  for (uint32_t i = 0; i < all->count && status == KVF_OK; i++) {
    size_t bytes = 0;
    status =
        all->ops->describe(all->each[i].transport, room + used, KVF_TRANSPORT_DESCRIPTION_BYTES_MAX - used, &bytes);
    description.each[i].data = room + used;
    description.each[i].bytes = (uint16_t)bytes;
    used += bytes;
  }
  if (status == KVF_OK) {
    status = kvf_rails_description_write(&description, out, capacity, out_bytes);
  }
  free(room);
  return status;
}

/* ---- links ---- */

/* Which of the peer's rails our i-th is to be connected to. Where some are not, or more than others, sessions take
 * turns. */
static uint32_t theirs_of(const rails *all, const rails_link *link, uint32_t i, uint32_t theirs)
{
  return (i + (all->count != theirs ? link->turn % theirs : 0)) % theirs;
}

/* With the lock, so that no part tells of itself before all are there. */
static kvf_status connect_parts(rails *all, rails_link *link, const kvf_link_spec *spec,
                                const kvf_rails_description *theirs)
{
  kvf_status status = KVF_OK;
  for (uint32_t i = 0; i < all->count && status == KVF_OK; i++) {
    kvf_link_spec part = *spec;
    part.user = link->id;
    part.description = theirs->each[theirs_of(all, link, i, theirs->count)].data;
    part.description_bytes = theirs->each[theirs_of(all, link, i, theirs->count)].bytes;
    status = all->ops->connect(all->each[i].transport, &part, &link->parts[i]);
    kvf_forget(&part.session_key, sizeof(part.session_key));
    link->waiting += status == KVF_OK;
  }
  if (status != KVF_OK) {
    for (uint32_t i = 0; i < link->waiting; i++) {
      all->ops->disconnect(link->parts[i]);
    }
  }
  return status;
}

static kvf_status rails_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  rails *all = rails_of(transport);
  kvf_rails_description theirs;
  *out = NULL;
  if (kvf_rails_description_read(spec->description, spec->description_bytes, &theirs) != KVF_OK) {
    return KVF_PROTOCOL;
  }
  rails_link *link = calloc(1, sizeof(*link));
  if (link == NULL) {
    return KVF_NO_MEMORY;
  }
  link->base = (kvf_link){.transport = transport, .user = spec->user};
  link->first = (uint32_t)(spec->session_id % all->count);
  link->turn = (uint32_t)(spec->session_id / all->count);
  atomic_init(&link->failed, NONE);
  kvf_list_init(&link->in_links);
  (void)pthread_mutex_lock(&all->lock);
  link->id = ++all->last_link;
  kvf_status status = connect_parts(all, link, spec, &theirs);
  if (status == KVF_OK) {
    kvf_list_push_back(&all->links, &link->in_links);
    *out = &link->base;
  }
  (void)pthread_mutex_unlock(&all->lock);
  if (status != KVF_OK) {
    free(link);
  }
  return status;
}

static void rails_disconnect(kvf_link *base)
{
  rails_link *link = link_of(base);
  rails *all = rails_of(base->transport);
  for (uint32_t i = 0; i < all->count; i++) {
    all->ops->disconnect(link->parts[i]);
  }
  (void)pthread_mutex_lock(&all->lock);
  kvf_list_remove(&link->in_links);
  bool is_free = link->telling == 0;
  (void)pthread_mutex_unlock(&all->lock);
  if (is_free) {
    free(link);
  }
}

/* ---- reads ---- */

/* The rail with the fewest reads; of a link that has failed, the one that knows why. */
static uint32_t choose(const rails *all, const rails_link *link)
{
  uint32_t best = atomic_load_explicit(&link->failed, memory_order_relaxed);
  bool is_up = best == NONE;
  unsigned fewest = UINT32_MAX;
  for (uint32_t n = 0; is_up && n < all->count; n++) {
    uint32_t i = (link->first + n) % all->count;
    unsigned reads = atomic_load_explicit(&all->each[i].reads, memory_order_relaxed);
    if (reads < fewest) {
      best = i;
      fewest = reads;
    }
  }
  return best;
}

static kvf_status rails_read(kvf_link *base, const kvf_transfer *read)
{
  const rails_link *link = link_of(base);
  rails *all = rails_of(base->transport);
  uint32_t i = choose(all, link);
  (void)atomic_fetch_add_explicit(&all->each[i].reads, 1, memory_order_relaxed);
  kvf_status status = all->ops->read(link->parts[i], read);
  if (status != KVF_OK) {
    (void)atomic_fetch_sub_explicit(&all->each[i].reads, 1, memory_order_relaxed);
  }
  return status;
}

static void rails_cancel(kvf_link *base, uint64_t read_id)
{
  const rails_link *link = link_of(base);
  const rails *all = rails_of(base->transport);
  for (uint32_t i = 0; i < all->count; i++) {
    all->ops->cancel(link->parts[i], read_id);
  }
}

static bool rails_assist(kvf_transport *transport)
{
  rails *all = rails_of(transport);
  bool more = false;
  for (uint32_t i = 0; i < all->count; i++) {
    more = all->ops->assist(all->each[i].transport) || more;
  }
  return more;
}

/* ---- of tcp ---- */

static kvf_status rails_open(const kvf_transport_config *config, const kvf_transport_host *host, kvf_transport **out,
                             char *message)
{
  *out = NULL;
  uint32_t count = config->tcp_streams;
  if (count == 0 || count > KVF_RAILS_MAX) {
    return kvf_fail(KVF_INVALID, message, "tcp_streams is %u: tcp needs 1 to %d", (unsigned)count, KVF_RAILS_MAX);
  }
  kvf_transport_config each = *config;
  each.connections_max = (config->connections_max + count - 1) / count;
  return kvf_rails_open(&kvf_transport_tcp_rail, count, &each, host, out, message);
}

const kvf_transport_ops kvf_transport_tcp = {
    .name = "tcp",
    .serves = kvf_tcp_serves,
    .open = rails_open,
    .close = rails_close,
    .set_memory = rails_set_memory,
    .clear_memory = rails_clear_memory,
    .describe = rails_describe,
    .connect = rails_connect,
    .disconnect = rails_disconnect,
    .read = rails_read,
    .cancel = rails_cancel,
    .assist = rails_assist,
};
