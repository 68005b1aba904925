/* Rails whose links come up, fail and are read over as the test says. */
#include "rails_fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/list.h"

fake_world fakes;
side told;

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
  memset(rail, 0, sizeof(*rail));
  rail->base.ops = &fake_ops;
  rail->host = *its_host;
  rail->is_open = true;
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

static void *come_up(void *part)
{
  part_tell(part, true, KVF_OK);
  return NULL;
}

static pthread_t start_up(fake_part *part)
{
  pthread_t thread;
  if (pthread_create(&thread, NULL, come_up, part) != 0) {
    abort();
  }
  return thread;
}

static kvf_status fake_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  fake_rail *rail = fake_of(transport);
  *out = NULL;
  if (index_of(rail) == fakes.connect_fails) {
    return fakes.status;
  }
  fake_part *part = allocate(sizeof(*part));
  if (spec->description_bytes > sizeof(part->description)) {
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
    part->has_thread = true;
    part->thread = start_up(part);
    sleep_us(5000); /* so that it is there before the others are */
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
  expect(rail->reads < FAKE_READS_MAX);
  rail->read_ids[rail->reads] = read->id;
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

static void tell(const fake_part *part, bool up, kvf_status status)
{
  const kvf_transport_host *host = &fake_of(part->base.transport)->host;
  (up ? host->link_up : host->link_down)(host->context, (kvf_link *)&part->base, status);
}

void part_tell(fake_part *part, bool up, kvf_status status)
{
  (void)pthread_mutex_lock(&fakes.lock);
  bool may = !part->is_given_back && (int)part->state == (int)(up ? PART_CONNECTING : PART_UP);
  if (may) {
    part->state = up && status == KVF_OK ? PART_UP : PART_OVER;
  }
  (void)pthread_mutex_unlock(&fakes.lock);
  if (may) {
    tell(part, up, status);
  }
}

void part_up(uint32_t rail, kvf_status status)
{
  part_tell(part_of(rail), true, status);
}

void part_down(uint32_t rail, kvf_status status)
{
  part_tell(part_of(rail), false, status);
}

void part_up_late(uint32_t rail)
{
  tell(part_of(rail), true, KVF_OK);
}

void part_down_late(uint32_t rail)
{
  tell(part_of(rail), false, KVF_TRANSFER_FAILED);
}

pthread_t part_up_elsewhere(uint32_t rail)
{
  return start_up(part_of(rail));
}

bool read_end(uint32_t rail)
{
  fake_rail *of = &fakes.rails[rail];
  (void)pthread_mutex_lock(&fakes.lock);
  const bool any = of->reads > 0;
  of->reads -= any;
  const uint64_t id = of->read_ids[of->reads];
  (void)pthread_mutex_unlock(&fakes.lock);
  if (any) {
    of->host.read_done(of->host.context, &(kvf_read_result){.id = id, .status = KVF_PEER_DOWN, .bytes = 11});
  }
  return any;
}

/* ---- what is made of them ---- */

kvf_status made_open(uint32_t count, kvf_transport **out, char *message)
{
  const kvf_transport_config config = {.connections_max = 5, .tcp_streams = count};
  side_free(&told);
  const kvf_transport_host host = side_host(&told, &kvf_transport_tcp);
  return kvf_rails_open(&fake_ops, count, &config, &host, out, message);
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
  (void)side_host(&told, &kvf_transport_tcp);
  (void)pthread_mutex_init(&fakes.lock, NULL);
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
  side_free(&told);
  (void)pthread_mutex_destroy(&fakes.lock);
}
