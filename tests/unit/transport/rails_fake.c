#include "rails_fake.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/list.h"

fake_world fakes;
host told;

static fake_rail *fake_of(kvf_transport *transport)
{
  return KVF_CONTAINER_OF(transport, fake_rail, base);
}

static uint32_t index_of(const fake_rail *rail)
{
  return (uint32_t)(rail - fakes.rails);
}

static void expect(bool right)
{
  fakes.wrong += !right;
}

/* ---- the fake's operations ---- */

static const kvf_transport_ops fake_ops;

static kvf_status fake_open(const kvf_transport_config *config, const kvf_transport_host *its_host, kvf_transport **out,
                            char *message)
{
  fake_rail *rail = &fakes.rails[fakes.opened];
  *out = NULL;
  expect(config->connections_max == 5);
  if (fakes.opened == fakes.open_fails) {
    (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "no rail %u", fakes.opened);
    return fakes.status;
  }
  *rail = (fake_rail){.base = {&fake_ops}, .host = *its_host, .is_open = true};
  fakes.opened++;
  *out = &rail->base;
  return KVF_OK;
}

/* Waits for its threads. */
static void fake_close(kvf_transport *transport)
{
  fake_rail *rail = fake_of(transport);
  expect(rail->is_open);
  rail->is_open = false;
  for (fake_part *part = rail->parts; part != NULL; part = part->next) {
    expect(part->is_given_back);
    if (part->has_thread) {
      (void)pthread_join(part->thread, NULL);
    }
  }
}

static kvf_status fake_set_memory(kvf_transport *transport, const kvf_transport_memory *memory)
{
  fake_rail *rail = fake_of(transport);
  expect(memory->table_slots == 7 && !rail->has_memory);
  rail->has_memory = index_of(rail) != fakes.memory_fails;
  return rail->has_memory ? KVF_OK : fakes.status;
}

static void fake_clear_memory(kvf_transport *transport)
{
  fake_rail *rail = fake_of(transport);
  expect(rail->has_memory);
  rail->has_memory = false;
  fakes.clears++;
}

static kvf_status fake_describe(kvf_transport *transport, void *out, size_t capacity, size_t *out_bytes)
{
  const uint32_t i = index_of(fake_of(transport));
  expect(capacity >= i + 1);
  memset(out, 'A' + (int)i, i + 1);
  *out_bytes = i + 1;
  return i == fakes.describe_fails ? fakes.status : KVF_OK;
}

static void *come_up(void *context)
{
  fake_part *part = context;
  part_tell(index_of(fake_of(part->base.transport)), part, true, KVF_OK);
  return NULL;
}

static void start(pthread_t *thread, void *(*main)(void *), void *context)
{
  if (pthread_create(thread, NULL, main, context) != 0) {
    abort();
  }
}

static kvf_status fake_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  fake_rail *rail = fake_of(transport);
  *out = NULL;
  if (index_of(rail) == fakes.connect_fails) {
    return fakes.status;
  }
  fake_part *part = calloc(1, sizeof(*part));
  if (part == NULL || spec->description_bytes > sizeof(part->description)) {
    abort();
  }
  part->base = (kvf_link){.transport = transport, .user = spec->user};
  part->session_id = spec->session_id;
  part->peer = spec->peer;
  part->remote = spec->remote;
  part->description_bytes = spec->description_bytes;
  memcpy(part->description, spec->description, spec->description_bytes);
  (void)pthread_mutex_lock(&fakes.lock);
  part->next = rail->parts;
  rail->parts = part;
  (void)pthread_mutex_unlock(&fakes.lock);
  if (fakes.comes_up_at_once) {
    const struct timespec a_while = {.tv_nsec = 5000000};
    part->has_thread = true;
    start(&part->thread, come_up, part);
    (void)nanosleep(&a_while, NULL); /* so that it is there before the others are */
  }
  *out = &part->base;
  return KVF_OK;
}

static void fake_disconnect(kvf_link *link)
{
  fake_part *part = KVF_CONTAINER_OF(link, fake_part, base);
  (void)pthread_mutex_lock(&fakes.lock);
  expect(!part->is_given_back);
  part->is_given_back = true;
  fakes.given_back++;
  (void)pthread_mutex_unlock(&fakes.lock);
}

static kvf_status fake_read(kvf_link *link, const kvf_transfer *read)
{
  fake_rail *rail = fake_of(link->transport);
  (void)pthread_mutex_lock(&fakes.lock);
  expect(read->id != 0 && !KVF_CONTAINER_OF(link, fake_part, base)->is_given_back);
  rail->reads += !fakes.has_no_memory;
  rail->read_link = link;
  (void)pthread_mutex_unlock(&fakes.lock);
  return fakes.has_no_memory ? KVF_NO_MEMORY : KVF_OK;
}

static void fake_cancel(kvf_link *link, uint64_t read_id)
{
  fake_rail *rail = fake_of(link->transport);
  expect(!KVF_CONTAINER_OF(link, fake_part, base)->is_given_back);
  rail->cancelled = read_id;
  rail->cancelled_link = link;
}

static bool fake_assist(kvf_transport *transport)
{
  fake_rail *rail = fake_of(transport);
  rail->assists++;
  return rail->has_more;
}

static const kvf_transport_ops fake_ops = {.name = "fake",
                                           .open = fake_open,
                                           .close = fake_close,
                                           .set_memory = fake_set_memory,
                                           .clear_memory = fake_clear_memory,
                                           .describe = fake_describe,
                                           .connect = fake_connect,
                                           .disconnect = fake_disconnect,
                                           .read = fake_read,
                                           .cancel = fake_cancel,
                                           .assist = fake_assist};

/* ---- what the test has the fake tell ---- */

fake_part *part_of(uint32_t rail)
{
  return fakes.rails[rail].parts;
}

void part_tell(uint32_t rail, fake_part *part, bool up, kvf_status status)
{
  const kvf_transport_host *its_host = &fakes.rails[rail].host;
  (void)pthread_mutex_lock(&fakes.lock);
  bool may = !part->is_given_back && (int)part->state == (int)(up ? PART_CONNECTING : PART_UP);
  if (may) {
    part->state = up && status == KVF_OK ? PART_UP : PART_OVER;
  }
  (void)pthread_mutex_unlock(&fakes.lock);
  if (may) {
    (up ? its_host->link_up : its_host->link_down)(its_host->context, &part->base, status);
  }
}

void part_up(uint32_t rail, kvf_status status)
{
  part_tell(rail, part_of(rail), true, status);
}

void part_down(uint32_t rail, kvf_status status)
{
  part_tell(rail, part_of(rail), false, status);
}

void part_up_late(uint32_t rail)
{
  const kvf_transport_host *its_host = &fakes.rails[rail].host;
  its_host->link_up(its_host->context, &part_of(rail)->base, KVF_OK);
}

void part_down_late(uint32_t rail)
{
  const kvf_transport_host *its_host = &fakes.rails[rail].host;
  its_host->link_down(its_host->context, &part_of(rail)->base, KVF_TRANSFER_FAILED);
}

typedef struct telling {
  uint32_t rail;
  kvf_status status;
} telling;

static void *tell_elsewhere(void *context)
{
  telling what = *(telling *)context;
  free(context);
  part_tell(what.rail, part_of(what.rail), true, what.status);
  return NULL;
}

pthread_t part_up_elsewhere(uint32_t rail, kvf_status status)
{
  telling *what = malloc(sizeof(*what));
  pthread_t thread;
  if (what == NULL) {
    abort();
  }
  *what = (telling){rail, status};
  start(&thread, tell_elsewhere, what);
  return thread;
}

bool read_end(uint32_t rail, uint64_t id)
{
  const kvf_transport_host *its_host = &fakes.rails[rail].host;
  (void)pthread_mutex_lock(&fakes.lock);
  bool any = fakes.rails[rail].reads > 0;
  fakes.rails[rail].reads -= any;
  (void)pthread_mutex_unlock(&fakes.lock);
  if (any) {
    its_host->read_done(its_host->context, &(kvf_read_result){.id = id, .status = KVF_PEER_DOWN, .bytes = 11});
  }
  return any;
}

/* ---- the host ---- */

static void note(host_link *link, char event)
{
  if (link->events_count + 1 < sizeof(link->events)) {
    link->events[link->events_count++] = event;
  } else {
    link->is_wrong = true;
  }
  (void)pthread_cond_broadcast(&told.changed);
}

static void on_event(kvf_link *base, char event, kvf_status status)
{
  (void)pthread_mutex_lock(&told.lock);
  host_link *link = &told.links[base->user % HOST_LINKS_MAX];
  link->is_wrong |= link->link != NULL && link->link != base;
  link->link = base;
  *(event == 'U' ? &link->up : &link->down) = status;
  note(link, event);
  bool disconnects = told.disconnects == event;
  (void)pthread_mutex_unlock(&told.lock);
  if (disconnects) {
    kvf_transport_tcp.disconnect(base);
  }
  (void)sched_yield(); /* so that others come between */
  (void)pthread_mutex_lock(&told.lock);
  while (told.holds == event) {
    (void)pthread_cond_wait(&told.changed, &told.lock);
  }
  /* The link is there until this returns, given back or not. */
  note(&told.links[base->user % HOST_LINKS_MAX], event == 'U' ? 'u' : 'd');
  (void)pthread_mutex_unlock(&told.lock);
}

static void on_link_up(void *context, kvf_link *link, kvf_status status)
{
  expect(context == &told);
  on_event(link, 'U', status);
}

static void on_link_down(void *context, kvf_link *link, kvf_status status)
{
  expect(context == &told);
  on_event(link, 'D', status);
}

static void on_read_done(void *context, const kvf_read_result *result)
{
  host *it = context;
  (void)pthread_mutex_lock(&it->lock);
  it->reads_done++;
  it->last = *result;
  (void)pthread_mutex_unlock(&it->lock);
}

static void on_read_progress(void *context, uint64_t read_id)
{
  ((host *)context)->progressed = read_id;
}

static bool on_session_key(void *context, uint64_t session_id, kvf_key *out)
{
  ((host *)context)->session_asked = session_id;
  *out = (kvf_key){.data = {3}, .bytes = 1};
  return session_id % 2 == 1;
}

static kvf_status on_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *items, uint32_t count)
{
  ((host *)context)->lease_asked = lease->id;
  items[count - 1].remote_block = 13;
  return KVF_LEASE_EXPIRED;
}

static void on_connection(void *context, kvf_status why)
{
  ((host *)context)->connection_why = why;
}

static void on_log(void *context, kvf_log_level level, const char *line)
{
  ((host *)context)->level = level;
  (void)snprintf(((host *)context)->line, sizeof(((host *)context)->line), "%s", line);
}

bool host_has(uint64_t user, const char *events)
{
  struct timespec end;
  int error = 0;
  (void)clock_gettime(CLOCK_REALTIME, &end);
  end.tv_sec += 5;
  (void)pthread_mutex_lock(&told.lock);
  const host_link *link = &told.links[user];
  while (strcmp(link->events, events) != 0 && strlen(link->events) < strlen(events) && error == 0) {
    error = pthread_cond_timedwait(&told.changed, &told.lock, &end);
  }
  bool same = strcmp(link->events, events) == 0;
  (void)pthread_mutex_unlock(&told.lock);
  return same;
}

void host_release(void)
{
  (void)pthread_mutex_lock(&told.lock);
  told.holds = 0;
  (void)pthread_cond_broadcast(&told.changed);
  (void)pthread_mutex_unlock(&told.lock);
}

/* ---- what is made of them ---- */

kvf_status made_open(uint32_t count, kvf_transport **out, char *message)
{
  const kvf_transport_config config = {.connections_max = 5, .tcp_streams = count};
  const kvf_transport_host its_host = {.context = &told,
                                       .read_done = on_read_done,
                                       .read_progress = on_read_progress,
                                       .link_up = on_link_up,
                                       .link_down = on_link_down,
                                       .session_key = on_session_key,
                                       .authorize = on_authorize,
                                       .connection = on_connection,
                                       .log = on_log};
  return kvf_rails_open(&fake_ops, count, &config, &its_host, out, message);
}

kvf_status made_connect(kvf_transport *made, uint64_t user, uint64_t session_id, uint32_t theirs, kvf_link **out)
{
  static const kvf_region_layout remote = {64, 64, 9, 1, 1, 0, 0};
  uint8_t text[KVF_RAILS_MAX];
  uint8_t described[1024];
  kvf_rails_description description = {.count = theirs};
  kvf_link_spec spec = {.user = user, .peer = {.port = 99}, .session_id = session_id, .description = described};
  size_t used = 0;
  for (uint32_t i = 0; i < theirs; i++) {
    text[i] = (uint8_t)('a' + i);
    description.each[i].data = &text[i];
    description.each[i].bytes = 1;
  }
  if (kvf_rails_description_write(&description, described, sizeof(described), &used) != KVF_OK) {
    abort();
  }
  spec.description_bytes = used;
  spec.remote = &remote;
  spec.remote_count = 1;
  return kvf_transport_tcp.connect(made, &spec, out);
}

void fakes_begin(void)
{
  memset(&fakes, 0, sizeof(fakes));
  fakes.open_fails = FAKE_NEVER;
  fakes.memory_fails = FAKE_NEVER;
  fakes.describe_fails = FAKE_NEVER;
  fakes.connect_fails = FAKE_NEVER;
  fakes.status = KVF_NO_MEMORY;
  memset(&told, 0, sizeof(told));
  (void)pthread_mutex_init(&fakes.lock, NULL);
  (void)pthread_mutex_init(&told.lock, NULL);
  (void)pthread_cond_init(&told.changed, NULL);
}

void fakes_end(void)
{
  for (uint32_t i = 0; i < KVF_RAILS_MAX; i++) {
    while (fakes.rails[i].parts != NULL) {
      fake_part *part = fakes.rails[i].parts;
      fakes.rails[i].parts = part->next;
      free(part);
    }
  }
  (void)pthread_cond_destroy(&told.changed);
  (void)pthread_mutex_destroy(&told.lock);
  (void)pthread_mutex_destroy(&fakes.lock);
}
