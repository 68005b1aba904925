#include "ranks_world.h"

#include "test.h"

#define FIRST_PORT 80

ranks_world world;

void ranks_options_init(ranks_options *options, uint32_t producer_ranks, uint32_t consumer_ranks, uint32_t heads_total)
{
  memset(options, 0, sizeof(*options));
  options->producer_ranks = producer_ranks;
  options->consumer_ranks = consumer_ranks;
  options->heads_total = heads_total;
  options->groups = 1;
  kvf_config_init(&options->config);
  options->config.lease_linger_ms = 0;
  options->config.block_tokens = RANKS_BLOCK_TOKENS;
  options->config.lease_slots = RANKS_SLOTS;
  options->config.chunk_bytes = 1; /* one block a read */
  options->config.chunks_in_flight = RANKS_BLOCKS * RANKS_GROUPS;
}

/* ---- nodes ---- */

static uint32_t group_of(uint32_t layer)
{
  return layer * world.groups / world.layers;
}

static void lay_out(ranks_node *node, uint32_t layers, bool has_parts, uint32_t heads_total)
{
  const uint32_t row_bytes = node->heads * (uint32_t)sizeof(uint16_t);
  for (uint32_t i = 0; i < layers; i++) {
    const uint32_t group = group_of(node->first_layer + i);
    node->regions[i] = (kvf_region_layout){.stride_bytes = sizeof(node->pool[i][0]),
                                           .block_bytes = node->rows * row_bytes,
                                           .blocks = RANKS_BLOCKS,
                                           .heads = has_parts ? 1 : node->heads,
                                           .heads_total = has_parts ? 1 : heads_total,
                                           .group = has_parts ? 0 : group};
    node->parts[i] = (kvf_part){.layer = node->first_layer + i,
                                .group = group,
                                .region = i,
                                .unit_bytes = sizeof(uint16_t),
                                .row_bytes = row_bytes,
                                .head_bytes = sizeof(uint16_t),
                                .rows = node->rows,
                                .block_tokens = node->rows,
                                .heads = node->heads,
                                .first_head = node->first_head,
                                .heads_total = heads_total};
  }
  node->pages = (kvf_pages){.regions = node->regions, .regions_count = layers};
  if (has_parts) {
    node->pages.layout = (kvf_layout){.parts = node->parts,
                                      .parts_count = layers,
                                      .share = {node->first_head, node->heads, heads_total},
                                      .deal = node->deal};
  }
}

static void *copy_of(const void *from, size_t bytes)
{
  void *copy = malloc(bytes + 1);
  assert_non_null(copy);
  return memcpy(copy, from, bytes);
}

static void set_memory(ranks_node *node)
{
  const kvf_config *config = &node->core.context.config;
  kvf_welcome welcome = {.rank = config->rank,
                         .ranks = config->ranks,
                         .block_tokens = RANKS_BLOCK_TOKENS,
                         .regions_count = node->pages.regions_count,
                         .layout = node->pages.layout,
                         .transports_count = 2};
  welcome.regions = copy_of(node->regions, welcome.regions_count * sizeof(*welcome.regions));
  if (welcome.layout.parts != NULL) {
    welcome.layout.parts = copy_of(node->parts, welcome.layout.parts_count * sizeof(*welcome.layout.parts));
  }
  for (uint32_t i = 0; i < welcome.transports_count; i++) {
    (void)snprintf(welcome.transports[i].name, sizeof(welcome.transports[i].name), "%s", i == 0 ? "local" : "tcp");
    welcome.transports[i].description = calloc(1, 1);
    welcome.transports[i].description_bytes = 1;
  }
  assert_int_equal(kvf_core_set_memory(&node->core, &welcome), KVF_OK);
}

/* The layer that a stage begins with. */
static uint32_t stage_begin(const ranks_split *split, uint32_t stage)
{
  uint32_t layer = 0;
  while (stage > 0 && layer < world.layers) {
    stage -= split->stage_ends >> layer++ & 1;
  }
  return layer;
}

static void open_node(ranks_node *node, const ranks_options *options, uint32_t rank, uint32_t ranks,
                      const ranks_split *split, uint8_t name, bool has_memory)
{
  kvf_core_config config = {.options = options->config, .is_control = !has_memory};
  const uint32_t in_stage = ranks / (1 + (uint32_t)__builtin_popcount(split->stage_ends));
  const uint32_t stage = rank / in_stage;
  const uint32_t dealt = split->dealt == 0 ? 1 : split->dealt;
  const uint32_t parts = in_stage / dealt;
  config.options.rank = rank;
  config.options.ranks = ranks;
  memset(node, 0, sizeof(*node));
  memset(&config.incarnation, name, sizeof(config.incarnation));
  memset(config.secret, name, sizeof(config.secret));
  assert_int_equal(kvf_core_init(&node->core, &config, 1000 * MS), KVF_OK);
  node->heads = options->heads_total > parts ? options->heads_total / parts : 1;
  node->first_head = rank % in_stage / dealt * options->heads_total / parts;
  node->deal = (kvf_deal){.ranks = dealt, .rank = rank % dealt, .tokens = 2};
  node->rows = options->layers == 0 ? 1 : RANKS_BLOCK_TOKENS / dealt;
  node->first_layer = stage_begin(split, stage);
  lay_out(node, stage_begin(split, stage + 1) - node->first_layer, options->layers > 0, options->heads_total);
  if (has_memory) {
    set_memory(node);
  }
}

/* The token of a row of a block. */
static uint32_t token_of(const ranks_node *node, uint32_t row)
{
  return (row / node->deal.tokens * node->deal.ranks + node->deal.rank) * node->deal.tokens + row % node->deal.tokens;
}

static uint16_t number_of(uint32_t layer, uint32_t block, uint32_t head, uint32_t token)
{
  return (uint16_t)(1 + block + RANKS_BLOCKS * (head + RANKS_HEADS * (layer + RANKS_LAYERS * token)));
}

static void fill_pool(ranks_node *node)
{
  for (uint32_t i = 0; i < node->pages.regions_count; i++) {
    for (uint32_t block = 0; block < RANKS_BLOCKS; block++) {
      for (uint32_t at = 0; at < node->rows * node->heads; at++) {
        node->pool[i][block][at] = number_of(node->first_layer + i, block, node->first_head + at % node->heads,
                                             token_of(node, at / node->heads));
      }
    }
  }
}

void ranks_open(const ranks_options *options)
{
  kvf_rank_record records[RANKS_PRODUCERS];
  (void)ranks_close(NULL);
  memset(&world, 0, sizeof(world));
  world.is_open = true;
  world.now_ns = 1000 * MS;
  world.ranks = options->producer_ranks;
  world.groups = options->groups;
  world.layers = options->layers == 0 ? options->groups : options->layers;
  open_node(&world.consumer, options, options->consumer_rank, options->consumer_ranks, &options->consumer, 'c',
            !options->control);
  for (uint32_t i = 0; i < world.ranks; i++) {
    ranks_node *producer = &world.producers[i];
    const kvf_address address = {.ip = {[15] = 1}, .port = (uint16_t)(FIRST_PORT + i)};
    open_node(producer, options, i, world.ranks, &options->producer, (uint8_t)('P' + i), true);
    fill_pool(producer);
    records[i] = kvf_core_record(&producer->core, &address, &(kvf_address){.port = 0});
  }
  assert_int_equal(kvf_core_set_ranks(&world.producers[0].core, records, world.ranks), KVF_OK);
}

int ranks_close(void **state)
{
  (void)state;
  if (world.is_open) {
    kvf_core_free(&world.consumer.core);
  }
  for (uint32_t i = 0; world.is_open && i < world.ranks; i++) {
    kvf_core_free(&world.producers[i].core);
  }
  world.is_open = false;
  return 0;
}

/* ---- reads ---- */

/* As a transport does. */
static kvf_status copy(const ranks_node *producer, const kvf_load_read *read)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_pair pairs[RANKS_LAYERS];
  kvf_plan plan;
  kvf_segment segment;
  uint64_t bytes;
  assert_int_equal(kvf_plan_make(&plan, pairs, &world.consumer.pages, &producer->pages, message), KVF_OK);
  const kvf_chunk chunk = kvf_chunk_of(&plan, &read->transfer, NULL);
  if (kvf_chunk_check(&chunk, &bytes) != KVF_OK) {
    return KVF_INVALID;
  }
  world.read_bytes += bytes;
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  while (kvf_segments_next(&cursor, &segment, 1, UINT64_MAX) > 0) {
    memcpy((uint8_t *)world.consumer.pool[segment.local_region] + segment.local_offset,
           (const uint8_t *)producer->pool[segment.remote_region] + segment.remote_offset, segment.bytes);
  }
  return KVF_OK;
}

static void end_read(const kvf_load_read *read, kvf_status status)
{
  uint32_t producer = world.path_producer[read->link_id];
  kvf_fence_sample sample = {.head = {.magic = KVF_FENCE_MAGIC, .slots = RANKS_SLOTS}};
  if (status == KVF_OK) {
    status = copy(&world.producers[producer], read);
    sample.head.incarnation = world.producers[producer].core.context.self.incarnation;
    sample.entry = world.producers[producer].table[read->transfer.lease.slot];
  }
  kvf_loads_on_read_done(&world.consumer.core.loads, world.now_ns, read->transfer.id, status, world.verified, &sample,
                         0);
}

static kvf_load_read take_read(uint32_t index)
{
  kvf_load_read read = world.reads[index];
  world.reads_count--;
  memmove(&world.reads[index], &world.reads[index + 1], (world.reads_count - index) * sizeof(world.reads[0]));
  return read;
}

static void cancel_read(uint64_t read_id)
{
  for (uint32_t i = 0; i < world.reads_count && !world.hold_cancels; i++) {
    if (world.reads[i].transfer.id == read_id) {
      kvf_load_read read = take_read(i);
      end_read(&read, KVF_CANCELLED);
      return;
    }
  }
}

uint32_t ranks_complete(uint32_t producer, uint32_t count, kvf_status status)
{
  uint32_t done = 0;
  uint32_t next = 0;
  while (next < world.reads_count && done < count) {
    if (world.path_producer[world.reads[next].link_id] != producer) {
      next++;
      continue;
    }
    kvf_load_read read = take_read(next);
    end_read(&read, status);
    done++;
  }
  ranks_settle();
  return done;
}

/* ---- effects and frames ---- */

static void dial(const kvf_peer_action *action)
{
  uint32_t producer = (uint32_t)action->address.port - FIRST_PORT;
  assert_true(producer < world.ranks);
  ranks_wire *wire = &world.wires[producer];
  kvf_address from = {.port = 9};
  wire->dials++;
  bool accepted = !wire->down && kvf_core_on_accepted(&world.producers[producer].core, world.now_ns, from,
                                                      &wire->producer_id) == KVF_OK;
  wire->consumer_id = accepted ? action->conn_id : 0;
  kvf_core_on_dialed(&world.consumer.core, world.now_ns, action->conn_id, accepted ? KVF_OK : KVF_PEER_DOWN);
}

static void open_link(const kvf_peer_action *action)
{
  assert_true(action->link_id < RANKS_PATHS);
  world.path_producer[action->link_id] = (uint32_t)action->address.port - FIRST_PORT;
  world.path_transport[action->link_id] = action->transport;
  bool is_down = (world.transports_down >> action->transport & 1) != 0;
  kvf_peers_on_link(&world.consumer.core.peers, world.now_ns, action->link_id, is_down ? KVF_TRANSFER_SETUP : KVF_OK);
}

static void start_read(const kvf_load_read *read)
{
  if (world.hold_reads) {
    assert_true(world.reads_count < RANKS_READS);
    world.reads[world.reads_count++] = *read;
  } else {
    end_read(read, KVF_OK);
  }
}

static void carry_effects(ranks_node *node)
{
  kvf_effect effect;
  while (kvf_core_next_effect(&node->core, world.now_ns, &effect)) {
    switch (effect.kind) {
      case KVF_EFFECT_DIAL:
        dial(&effect.link);
        break;
      case KVF_EFFECT_OPEN_LINK:
        open_link(&effect.link);
        break;
      case KVF_EFFECT_CLOSE_LINK:
        break;
      case KVF_EFFECT_READ:
        start_read(&effect.read);
        break;
      case KVF_EFFECT_CANCEL:
        cancel_read(effect.read.transfer.id);
        break;
      case KVF_EFFECT_STORE:
        node->table[effect.store.slot] = effect.store.entry;
        kvf_core_on_stored(&node->core, &effect.store);
        break;
    }
  }
}

typedef struct carrier {
  ranks_node *from;
  bool moved;
} carrier;

static void deliver(kvf_core *to, uint64_t conn_id, const kvf_core_output *output)
{
  for (size_t at = 0; at < output->bytes;) {
    kvf_frame_header header;
    assert_int_equal(kvf_frame_header_decode(output->data + at, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_OK);
    at += KVF_FRAME_HEADER_BYTES;
    kvf_core_on_frame(to, world.now_ns, conn_id, header.type, output->data + at, header.body_bytes);
    at += header.body_bytes;
  }
  if (output->hang_up) {
    kvf_core_on_closed(to, world.now_ns, conn_id);
  }
}

static void take_output(void *context, const kvf_core_output *output)
{
  carrier *c = context;
  c->moved = true;
  for (uint32_t i = 0; i < world.ranks; i++) {
    ranks_wire *wire = &world.wires[i];
    bool from_consumer = c->from == &world.consumer;
    uint64_t id = from_consumer ? wire->consumer_id : wire->producer_id;
    if (id != output->conn_id || (!from_consumer && c->from != &world.producers[i])) {
      continue;
    }
    kvf_core *to = from_consumer ? &world.producers[i].core : &world.consumer.core;
    deliver(to, from_consumer ? wire->producer_id : wire->consumer_id, output);
    if (output->hang_up) {
      wire->consumer_id = 0;
      wire->producer_id = 0;
    }
    return;
  }
}

static bool settle_node(ranks_node *node)
{
  carrier c = {.from = node};
  carry_effects(node);
  kvf_core_take_output(&node->core, take_output, &c);
  return c.moved;
}

void ranks_settle(void)
{
  bool moved = true;
  while (moved) {
    moved = settle_node(&world.consumer);
    for (uint32_t i = 0; i < world.ranks; i++) {
      moved = settle_node(&world.producers[i]) || moved;
    }
  }
}

void ranks_advance(uint64_t ms)
{
  world.now_ns += ms * MS;
  kvf_core_tick(&world.consumer.core, world.now_ns);
  for (uint32_t i = 0; i < world.ranks; i++) {
    kvf_core_tick(&world.producers[i].core, world.now_ns);
  }
  ranks_settle();
}

void ranks_cut(uint32_t producer)
{
  ranks_wire *wire = &world.wires[producer];
  if (wire->consumer_id != 0) {
    kvf_core_on_closed(&world.consumer.core, world.now_ns, wire->consumer_id);
    kvf_core_on_closed(&world.producers[producer].core, world.now_ns, wire->producer_id);
  }
  wire->consumer_id = 0;
  wire->producer_id = 0;
  ranks_settle();
}

/* ---- leases and loads ---- */

void ranks_ticket(kvf_ticket *ticket, uint32_t *ids, uint32_t positions)
{
  kvf_lease lease;
  kvf_prompt prompt = {.tokens = positions * RANKS_BLOCK_TOKENS};
  uint32_t counts[RANKS_GROUPS];
  kvf_blocks blocks = {.ids = ids, .counts = counts, .groups = world.groups};
  kvf_core *control = &world.producers[0].core;
  for (uint32_t group = 0; group < world.groups; group++) {
    counts[group] = kvf_ticket_positions(prompt.tokens, control->context.self.group_tokens[group]);
    for (uint32_t i = 0; i < counts[group]; i++) {
      *ids++ = (2 * i + 2 * i / RANKS_BLOCKS + group) % RANKS_BLOCKS;
    }
  }
  assert_int_equal(kvf_core_lease_reserve(control, positions * world.groups, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_ticket(control, &lease, &blocks, &prompt, ticket), KVF_OK);
}

static kvf_blocks blocks_of(const kvf_ticket *ticket)
{
  return (kvf_blocks){.ids = ticket->ids, .counts = ticket->counts, .groups = ticket->groups};
}

static uint64_t digest_of(const kvf_ticket *ticket)
{
  kvf_blocks blocks = blocks_of(ticket);
  uint64_t digest = 0;
  assert_int_equal(kvf_fence_digest(&ticket->lease, &blocks, &ticket->prompt, &digest), KVF_OK);
  return digest;
}

void ranks_publish(uint32_t producer, const kvf_ticket *ticket)
{
  kvf_blocks blocks = blocks_of(ticket);
  assert_int_equal(kvf_core_publish(&world.producers[producer].core, world.now_ns, &ticket->lease, &blocks,
                                    digest_of(ticket), 2, false),
                   KVF_OK);
  ranks_settle();
}

uint32_t ranks_destination(uint32_t position)
{
  return RANKS_BLOCKS - 1 - position;
}

kvf_status ranks_load(const kvf_ticket *ticket, uint64_t request_id)
{
  uint32_t ids[RANKS_GROUPS * RANKS_BLOCKS];
  uint32_t count = 0;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    for (uint32_t i = 0; i < ticket->counts[group]; i++) {
      ids[count++] = ranks_destination(i);
    }
  }
  kvf_load_params load = {.request_id = request_id,
                          .prompt = ticket->prompt,
                          .destination = {.ids = ids, .counts = ticket->counts, .groups = ticket->groups},
                          .user = 5};
  kvf_ticket copy = *ticket;
  const kvf_sources sources = {.count = 1, .tickets = {&copy}, .digests = {digest_of(ticket)}};
  kvf_status status = kvf_core_load_start(&world.consumer.core, world.now_ns, &sources, &load, 0);
  ranks_settle();
  return status;
}

bool ranks_holds(const kvf_ticket *ticket, uint32_t group, uint32_t position)
{
  const ranks_node *consumer = &world.consumer;
  uint32_t first = 0;
  for (uint32_t i = 0; i < group; i++) {
    first += ticket->counts[i];
  }
  const uint32_t block = ticket->ids[first + position];
  for (uint32_t i = 0; i < consumer->pages.regions_count; i++) {
    const uint32_t layer = consumer->first_layer + i;
    for (uint32_t at = 0; group_of(layer) == group && at < consumer->rows * consumer->heads; at++) {
      if (consumer->pool[i][ranks_destination(position)][at] != number_of(layer, block,
                                                                          consumer->first_head + at % consumer->heads,
                                                                          token_of(consumer, at / consumer->heads))) {
        return false;
      }
    }
  }
  return true;
}

bool ranks_event(kvf_event_kind kind, kvf_event *out)
{
  while (kvf_core_next_event(&world.consumer.core, world.now_ns, out)) {
    ranks_settle();
    if (out->kind == kind) {
      return true;
    }
  }
  return false;
}

uint32_t ranks_peers_held(void)
{
  uint32_t held = 0;
  for (const kvf_peer *peer = world.consumer.core.peers.by_key; peer != NULL; peer = peer->by_key.next) {
    held += peer->users;
  }
  return held;
}
