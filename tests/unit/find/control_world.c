/* A consumer's core and a producer's core on a wire: see control_world.h. */
#include "control_world.h"

#include "test.h"

control_world world;

static void keep_log(void *context, kvf_log_level level, const char *line)
{
  control_side *side = context;
  (void)level;
  (void)snprintf(side->last_log, sizeof(side->last_log), "%s", line);
}

void control_options_init(control_options *options)
{
  memset(options, 0, sizeof(*options));
  kvf_config_init(&options->config);
  options->config.lease_linger_ms = 0;
  options->config.block_tokens = 16;
}

static void set_key(kvf_key *key, const char *text)
{
  if (text != NULL) {
    key->bytes = strlen(text);
    memcpy(key->data, text, key->bytes);
  }
}

static void open_side(control_side *side, const control_options *options, const char *key, const char *other_key,
                      uint8_t name, bool is_control)
{
  kvf_core_config config = {.options = options->config, .is_control = is_control};
  memset(side, 0, sizeof(*side));
  assert_int_equal(kvf_config_identity(&config.options, "model", "m"), KVF_OK);
  memset(&config.incarnation, name, sizeof(config.incarnation));
  memset(config.secret, name, sizeof(config.secret));
  set_key(&config.key, key);
  set_key(&config.other_key, other_key);
  config.logger = (kvf_logger){.fn = keep_log, .context = side, .level = KVF_LOG_DEBUG};
  assert_int_equal(kvf_core_init(&side->core, &config, 1000 * MS), KVF_OK);
}

static void set_memory(control_side *side)
{
  kvf_welcome welcome = {.generation = 1, .ranks = 1, .block_tokens = 16, .regions_count = 1, .transports_count = 1};
  welcome.regions = calloc(1, sizeof(*welcome.regions));
  welcome.regions[0] =
      (kvf_region_layout){.stride_bytes = 64, .block_bytes = 64, .blocks = 16, .heads = 1, .heads_total = 1};
  (void)snprintf(welcome.transports[0].name, sizeof(welcome.transports[0].name), "local");
  welcome.transports[0].description = calloc(1, 1);
  welcome.transports[0].description_bytes = 1;
  assert_int_equal(kvf_core_set_memory(&side->core, &welcome), KVF_OK);
}

void control_world_open(const control_options *options)
{
  (void)control_world_close(NULL);
  memset(&world, 0, sizeof(world));
  world.is_open = true;
  world.now_ns = 1000 * MS;
  open_side(&world.consumer, options, options->consumer_key, NULL, 'c', options->control);
  open_side(&world.producer, options, options->producer_key, options->producer_other_key, 'p', false);
  if (!options->control) {
    set_memory(&world.consumer);
  }
  set_memory(&world.producer);
  kvf_rank_record context = {.incarnation = world.producer.core.context.self.incarnation, .dealt = 1};
  context.address.ip[15] = 1;
  context.address.port = 80;
  assert_int_equal(kvf_core_set_ranks(&world.producer.core, &context, 1), KVF_OK);
}

int control_world_close(void **state)
{
  (void)state;
  if (world.is_open) {
    kvf_core_free(&world.consumer.core);
    kvf_core_free(&world.producer.core);
  }
  world.is_open = false;
  return 0;
}

static void carry_effects(control_side *side)
{
  kvf_effect effect;
  while (kvf_core_next_effect(&side->core, world.now_ns, &effect)) {
    switch (effect.kind) {
      case KVF_EFFECT_DIAL:
        side->dial_wanted = true;
        side->dial_conn_id = effect.link.conn_id;
        break;
      case KVF_EFFECT_STORE:
        kvf_core_on_stored(&side->core, &effect.store);
        break;
      default: /* nobody loads */
        fail_msg("an effect of a load: %d", (int)effect.kind);
    }
  }
}

typedef struct carrier {
  control_side *from;
  control_side *to;
} carrier;

static void take_output(void *context, const kvf_core_output *output)
{
  carrier *c = context;
  if (output->conn_id == c->from->conn_id) {
    c->from->hung_up = c->from->hung_up || output->hang_up;
  }
  if (output->conn_id == c->from->conn_id && output->bytes > 0) {
    memcpy(c->to->inbox + c->to->inbox_bytes, output->data, output->bytes);
    c->to->inbox_bytes += output->bytes;
  }
}

static bool deliver(control_side *side)
{
  bool moved = false;
  while (side->inbox_bytes > 0 && side->conn_id != 0) {
    kvf_frame_header header;
    assert_int_equal(kvf_frame_header_decode(side->inbox, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_OK);
    size_t whole = KVF_FRAME_HEADER_BYTES + header.body_bytes;
    assert_true(side->inbox_bytes >= whole);
    if (!world.deaf || header.type != KVF_FRAME_FIND) {
      kvf_core_on_frame(&side->core, world.now_ns, side->conn_id, header.type, side->inbox + KVF_FRAME_HEADER_BYTES,
                        header.body_bytes);
    }
    side->inbox_bytes -= whole;
    memmove(side->inbox, side->inbox + whole, side->inbox_bytes);
    carry_effects(side);
    moved = true;
  }
  return moved;
}

static bool close_after_hang_up(control_side *from, control_side *to)
{
  if (!from->hung_up || from->conn_id == 0) {
    return false;
  }
  from->conn_id = 0;
  from->hung_up = false;
  uint64_t conn_id = to->conn_id;
  to->conn_id = 0;
  if (conn_id != 0) {
    kvf_core_on_closed(&to->core, world.now_ns, conn_id);
    carry_effects(to);
  }
  return true;
}

void control_settle(void)
{
  control_side *consumer = &world.consumer;
  control_side *producer = &world.producer;
  bool moved = true;
  while (moved) {
    carry_effects(consumer);
    carry_effects(producer);
    kvf_core_take_output(&consumer->core, take_output, &(carrier){consumer, producer});
    if (!world.held) {
      kvf_core_take_output(&producer->core, take_output, &(carrier){producer, consumer});
    }
    moved = deliver(producer);
    moved = deliver(consumer) || moved;
    moved = close_after_hang_up(consumer, producer) || moved;
    moved = (!world.held && close_after_hang_up(producer, consumer)) || moved;
  }
}

void control_dial(kvf_status status)
{
  assert_true(world.consumer.dial_wanted);
  world.consumer.dial_wanted = false;
  if (status == KVF_OK) {
    kvf_address from = {.port = 9};
    world.consumer.conn_id = world.consumer.dial_conn_id;
    assert_int_equal(kvf_core_on_accepted(&world.producer.core, world.now_ns, from, &world.producer.conn_id), KVF_OK);
  }
  kvf_core_on_dialed(&world.consumer.core, world.now_ns, world.consumer.dial_conn_id, status);
  control_settle();
}

void control_cut(void)
{
  control_side *sides[] = {&world.consumer, &world.producer};
  for (size_t i = 0; i < 2; i++) {
    uint64_t conn_id = sides[i]->conn_id;
    sides[i]->conn_id = 0;
    sides[i]->inbox_bytes = 0;
    kvf_core_on_closed(&sides[i]->core, world.now_ns, conn_id);
  }
  control_settle();
}

void control_advance(uint64_t ms)
{
  world.now_ns += ms * MS;
  kvf_core_tick(&world.consumer.core, world.now_ns);
  kvf_core_tick(&world.producer.core, world.now_ns);
  control_settle();
}

void control_ticket(kvf_ticket *ticket, uint32_t *ids, uint32_t blocks)
{
  kvf_lease lease;
  kvf_prompt prompt = {.tokens = blocks * 16};
  kvf_blocks list = {.ids = ids, .counts = &blocks, .groups = 1};
  for (uint32_t i = 0; i < blocks; i++) {
    ids[i] = i;
  }
  assert_int_equal(kvf_core_lease_reserve(&world.producer.core, blocks, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_ticket(&world.producer.core, &lease, &list, &prompt, ticket), KVF_OK);
}

void control_publish(const kvf_ticket *ticket)
{
  kvf_blocks list = {.ids = ticket->ids, .counts = ticket->counts, .groups = 1};
  assert_int_equal(kvf_core_publish(&world.producer.core, world.now_ns, &ticket->lease, &list, 1, 2, false), KVF_OK);
  control_settle();
}
