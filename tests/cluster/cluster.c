/* Cores joined by wires: see cluster.h. */
#include "cluster.h"

#define FIRST_PORT 80
#define OTHER_PORT 180

cluster c;
void (*cluster_invite)(cluster_node *node);

void cluster_say(const char *format, ...)
{
  const size_t used = strlen(c.trace);
  const char *separator = used == 0 ? "" : "; ";
  va_list args;
  va_start(args, format);
  const int head = snprintf(c.trace + used, sizeof(c.trace) - used, "%s", separator);
  const int body = vsnprintf(c.trace + used + head, sizeof(c.trace) - used - (size_t)head, format, args);
  va_end(args);
  assert_true(body >= 0 && used + (size_t)head + (size_t)body < sizeof(c.trace));
}

const char *cluster_said(void)
{
  static char said[sizeof(c.trace)];
  (void)snprintf(said, sizeof(said), "%s", c.trace);
  c.trace[0] = 0;
  return said;
}

const char *cluster_log(const cluster_node *node, const char *part)
{
  for (uint32_t i = 1; i <= CLUSTER_LOG_LINES && i <= node->log_lines; i++) {
    const char *line = node->log[(node->log_lines - i) % CLUSTER_LOG_LINES];
    if (strstr(line, part) != NULL) {
      return line;
    }
  }
  return "";
}

/* ---- options ---- */

static void keep_log(void *context, kvf_log_level level, const char *line)
{
  cluster_node *node = context;
  (void)snprintf(node->log[node->log_lines++ % CLUSTER_LOG_LINES], sizeof(node->log[0]), "%s%.400s",
                 level == KVF_LOG_DEBUG ? "debug: " : "", line);
}

static cluster_node *node_at(uint32_t i)
{
  return i == 0 ? &c.d : &c.p[i - 1];
}

static void set_key(kvf_key *key, const char *text)
{
  key->bytes = strlen(text);
  memcpy(key->data, text, key->bytes);
}

static void set_all(const char *name, const char *value)
{
  for (uint32_t i = 0; i <= CLUSTER_PRODUCERS; i++) {
    cluster_node *node = node_at(i);
    if (strcmp(name, "offers") == 0) {
      (void)snprintf(node->offers, sizeof(node->offers), "%s", value);
    } else if (strcmp(name, "key") == 0 || strcmp(name, i == 0 ? "d.key" : "p.key") == 0) {
      set_key(&node->config.key, value);
    } else if (strcmp(name, "p.other") == 0) {
      set_key(&node->config.other_key, value);
    } else if (strcmp(name, "d.key") != 0 && strcmp(name, "p.key") != 0) {
      char message[KVF_MESSAGE_BYTES_MAX];
      if (kvf_config_set(&node->config.options, name, value, message) != KVF_OK) {
        fail_msg("%s", message);
      }
    }
  }
}

static void set_option(const char *name, const char *value)
{
  static const char *const holds[] = {"dials", "links", "reads", "cancels", "events"};
  const struct {
    const char *name;
    uint32_t *number;
    bool *flag;
  } rows[] = {{"ranks", &c.producer.ranks, NULL},
              {"own", &c.consumer.ranks, NULL},
              {"rank", &c.consumer_rank, NULL},
              {"heads", &c.heads, NULL},
              {"groups", &c.groups, NULL},
              {"layers", &c.layers, NULL},
              {"stages", &c.producer.stage_ends, NULL},
              {"own_stages", &c.consumer.stage_ends, NULL},
              {"dealt", &c.producer.dealt, NULL},
              {"own_dealt", &c.consumer.dealt, NULL},
              {"rails", &c.rails, NULL},
              {"blocks", &c.blocks, NULL},
              {"start_ms", &c.start_ms, NULL},
              {"chunks_in_flight", &c.d.config.options.chunks_in_flight, NULL},
              {"backoff_min_ms", &c.d.config.options.backoff_min_ms, NULL},
              {"backoff_max_ms", &c.d.config.options.backoff_max_ms, NULL},
              {"published", NULL, &c.is_published},
              {"apart", NULL, &c.is_apart},
              {"control", NULL, &c.is_control},
              {"two", NULL, &c.has_two_addresses},
              {"nomemory", NULL, &c.has_no_memory}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    const bool is_meant = strcmp(name, rows[i].name) == 0;
    if (is_meant && rows[i].number != NULL) {
      *rows[i].number = (uint32_t)strtoul(value, NULL, 0);
    }
    if (is_meant && rows[i].flag != NULL) {
      *rows[i].flag = true;
    }
    if (is_meant) {
      return;
    }
  }
  if (strcmp(name, "hold") == 0) {
    for (size_t i = 0; i < sizeof(holds) / sizeof(holds[0]); i++) {
      c.held |= strstr(value, holds[i]) == NULL ? 0 : 1u << i;
    }
  } else if (strcmp(name, "single") == 0) {
    c.d.config.options.chunk_bytes = 1;
    c.d.config.options.chunks_in_flight = CLUSTER_BLOCKS * CLUSTER_GROUPS;
  } else if (strcmp(name, "exact_chunk_bytes") == 0) {
    c.d.config.options.chunk_bytes = (uint32_t)strtoul(value, NULL, 0);
  } else if (strcmp(name, "exact_inline_bytes") == 0) {
    c.d.config.options.inline_bytes = (uint32_t)strtoul(value, NULL, 0);
  } else if (strcmp(name, "p.model") == 0) {
    (void)snprintf(c.producer_model, sizeof(c.producer_model), "%s", value);
  } else {
    set_all(name, value);
  }
}

static void set_defaults(void)
{
  c.producer.ranks = c.consumer.ranks = c.heads = c.groups = c.rails = 1;
  c.blocks = 4;
  c.start_ms = 1000;
  (void)snprintf(c.producer_model, sizeof(c.producer_model), "%s", "m");
  for (uint32_t i = 0; i <= CLUSTER_PRODUCERS; i++) {
    cluster_node *node = node_at(i);
    kvf_config *options = &node->config.options;
    kvf_config_init(options);
    options->lease_linger_ms = 0;
    options->block_tokens = CLUSTER_BLOCK_TOKENS;
    options->lease_slots = CLUSTER_SLOTS;
    (void)snprintf(node->offers, sizeof(node->offers), "%s", "local,tcp");
  }
}

static void take_options(const char *options)
{
  char text[512];
  char *rest = text;
  assert_true(strlen(options) < sizeof(text));
  (void)snprintf(text, sizeof(text), "%s", options);
  for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
    char *value = strchr(word, '=');
    if (value != NULL) {
      *value++ = 0;
    }
    set_option(word, value == NULL ? "" : value);
  }
}

/* ---- nodes ---- */

static uint32_t layers_in_all(void)
{
  return c.layers == 0 ? c.groups : c.layers;
}

static uint32_t group_of(uint32_t layer)
{
  return layer * c.groups / layers_in_all();
}

static void lay_out(cluster_node *node, uint32_t layers)
{
  const bool has_parts = c.layers > 0;
  const uint32_t row_bytes = node->heads * (uint32_t)sizeof(uint16_t);
  for (uint32_t i = 0; i < layers; i++) {
    const uint32_t group = group_of(node->first_layer + i);
    node->regions[i] = (kvf_region_layout){.stride_bytes = sizeof(node->pool[i][0]),
                                           .block_bytes = node->rows * row_bytes,
                                           .blocks = CLUSTER_BLOCKS,
                                           .heads = has_parts ? 1 : node->heads,
                                           .heads_total = has_parts ? 1 : c.heads,
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
                                .heads_total = c.heads};
  }
  node->pages = (kvf_pages){.regions = node->regions, .regions_count = layers};
  if (has_parts) {
    node->pages.layout = (kvf_layout){.parts = node->parts,
                                      .parts_count = layers,
                                      .share = {node->first_head, node->heads, c.heads},
                                      .deal = node->deal};
  }
}

static void *copy_of(const void *from, size_t bytes)
{
  void *copy = malloc(bytes + 1);
  assert_non_null(copy);
  return memcpy(copy, from, bytes);
}

void cluster_set_memory(cluster_node *node)
{
  const kvf_config *config = &node->config.options;
  kvf_welcome welcome = {.generation = ++node->memories,
                         .rank = config->rank,
                         .ranks = config->ranks,
                         .block_tokens = CLUSTER_BLOCK_TOKENS,
                         .regions_count = node->pages.regions_count,
                         .layout = node->pages.layout};
  welcome.regions = copy_of(node->regions, welcome.regions_count * sizeof(*welcome.regions));
  if (welcome.layout.parts != NULL) {
    welcome.layout.parts = copy_of(node->parts, welcome.layout.parts_count * sizeof(*welcome.layout.parts));
  }
  char offers[sizeof(node->offers)];
  char *rest = offers;
  (void)snprintf(offers, sizeof(offers), "%s", node->offers);
  for (const char *name; (name = strtok_r(rest, ",", &rest)) != NULL; welcome.transports_count++) {
    kvf_transport_offer *offer = &welcome.transports[welcome.transports_count];
    (void)snprintf(offer->name, sizeof(offer->name), "%s", name);
    offer->description = calloc(1, 1);
    offer->description_bytes = 1;
  }
  assert_int_equal(kvf_core_set_memory(node->core, &welcome), KVF_OK);
}

bool cluster_clear_memory(cluster_node *node)
{
  return kvf_core_clear_memory(node->core, c.now_ns);
}

/* The layer that a stage begins with. */
static uint32_t stage_begin(const cluster_split *split, uint32_t stage)
{
  uint32_t layer = 0;
  while (stage > 0 && layer < layers_in_all()) {
    stage -= split->stage_ends >> layer++ & 1;
  }
  return layer;
}

static uint16_t number_of(uint32_t layer, uint32_t block, uint32_t head, uint32_t token)
{
  return (uint16_t)(1 + block + CLUSTER_BLOCKS * (head + CLUSTER_HEADS * (layer + CLUSTER_LAYERS * token)));
}

/* What is at this place of the rank's `i`-th layer, where its block is `block` of a producer's. */
static uint16_t number_at(const cluster_node *node, uint32_t i, uint32_t block, uint32_t at)
{
  const uint32_t row = at / node->heads;
  const kvf_deal *deal = &node->deal;
  const uint32_t token = (row / deal->tokens * deal->ranks + deal->rank) * deal->tokens + row % deal->tokens;
  return number_of(node->first_layer + i, block, node->first_head + at % node->heads, token);
}

static void fill_pool(cluster_node *node)
{
  for (uint32_t i = 0; i < node->pages.regions_count; i++) {
    for (uint32_t block = 0; block < CLUSTER_BLOCKS; block++) {
      for (uint32_t at = 0; at < node->rows * node->heads; at++) {
        node->pool[i][block][at] = number_at(node, i, block, at);
      }
    }
  }
}

static void start_node(cluster_node *node, uint8_t name, bool has_memory)
{
  memset(&node->config.incarnation, name, sizeof(node->config.incarnation));
  memset(node->config.secret, name, sizeof(node->config.secret));
  assert_int_equal(kvf_core_create(&node->config, c.now_ns, &node->core), KVF_OK);
  for (uint32_t i = 0; kvf_core_transport(node->core, i) != NULL; i++) {
    kvf_core_set_rails(node->core, i, c.rails);
  }
  if (cluster_invite != NULL) {
    cluster_invite(node);
  }
  memset(node->table, 0, sizeof(node->table));
  node->memories = 0;
  if (has_memory) {
    cluster_set_memory(node);
  }
}

static void open_node(cluster_node *node, const cluster_split *split, uint32_t rank, uint8_t name, bool has_memory)
{
  const uint32_t in_stage = split->ranks / (1 + (uint32_t)__builtin_popcount(split->stage_ends));
  const uint32_t stage = rank / in_stage;
  const uint32_t dealt = split->dealt == 0 ? 1 : split->dealt;
  const uint32_t parts = in_stage / dealt;
  const bool is_producer = node != &c.d;
  node->config.options.rank = is_producer && c.is_apart ? 0 : rank;
  node->config.options.ranks = is_producer && c.is_apart ? 1 : split->ranks;
  node->config.is_control = !is_producer && c.is_control;
  node->config.logger = (kvf_logger){.fn = keep_log, .context = node, .level = KVF_LOG_DEBUG};
  assert_int_equal(kvf_config_identity(&node->config.options, "model", is_producer ? c.producer_model : "m"), KVF_OK);
  node->heads = c.heads > parts ? c.heads / parts : 1;
  node->first_head = rank % in_stage / dealt * c.heads / parts;
  node->deal = (kvf_deal){.ranks = dealt, .rank = rank % dealt, .tokens = 2};
  node->rows = c.layers == 0 ? 1 : CLUSTER_BLOCK_TOKENS / dealt;
  node->first_layer = stage_begin(split, stage);
  lay_out(node, stage_begin(split, stage + 1) - node->first_layer);
  start_node(node, name, has_memory);
}

static void name_ranks(void)
{
  kvf_rank_record records[CLUSTER_PRODUCERS];
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    records[i] = kvf_core_record(c.p[i].core, &c.p[i].address, &c.p[i].other);
  }
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    const kvf_status status = c.is_apart ? kvf_core_set_ranks(c.p[i].core, &records[i], 1)
                                         : kvf_core_set_ranks(c.p[i].core, records, c.producer.ranks);
    assert_int_equal(status, KVF_OK);
  }
}

static void open_producer(uint32_t i)
{
  cluster_node *node = &c.p[i];
  const cluster_split alone = {.ranks = 1};
  node->name[0] = 'P';
  node->name[1] = (char)('0' + i);
  node->address = (kvf_address){.ip = {[15] = 1}, .port = (uint16_t)(FIRST_PORT + i)};
  if (c.has_two_addresses) {
    node->other =
        (kvf_address){.ip = {[10] = 0xff, [11] = 0xff, [12] = 127, [15] = 1}, .port = (uint16_t)(OTHER_PORT + i)};
  }
  open_node(node, c.is_apart ? &alone : &c.producer, c.is_apart ? 0 : i, (uint8_t)('P' + i), !c.has_no_memory);
  fill_pool(node);
}

void cluster_open(const char *options)
{
  cluster_close();
  memset(&c, 0, sizeof(c));
  c.is_open = true;
  set_defaults();
  take_options(options);
  c.now_ns = c.start_ms * MS;
  c.d.name[0] = 'D';
  open_node(&c.d, &c.consumer, c.consumer_rank, 'c', !c.is_control);
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    open_producer(i);
  }
  name_ranks();
  for (uint32_t i = 0; i < (c.is_apart ? c.producer.ranks : 1) && c.blocks > 0; i++) {
    (void)cluster_ticket(i, c.blocks);
  }
  for (uint32_t i = 0; c.is_published && i < c.producer.ranks; i++) {
    assert_int_equal(cluster_publish(i, &c.tickets[c.is_apart ? i : 0]), KVF_OK);
  }
}

void cluster_close(void)
{
  for (uint32_t i = 0; c.is_open && i <= c.producer.ranks; i++) {
    kvf_core_destroy(node_at(i)->core);
  }
  c.is_open = false;
}

/* ---- reads ---- */

/* As a transport does. */
static kvf_status copy(const cluster_node *producer, const kvf_load_read *read, uint64_t *bytes)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_pair pairs[CLUSTER_LAYERS];
  kvf_plan plan;
  kvf_segment segment;
  assert_int_equal(kvf_plan_make(&plan, pairs, &c.d.pages, &producer->pages, message), KVF_OK);
  const kvf_chunk chunk = kvf_chunk_of(&plan, &read->transfer, NULL);
  if (kvf_chunk_check(&chunk, bytes) != KVF_OK) {
    return KVF_INVALID;
  }
  c.read_bytes += *bytes;
  kvf_segment_cursor cursor = kvf_segments_begin(&chunk);
  while (kvf_segments_next(&cursor, &segment, 1, UINT64_MAX) > 0) {
    memcpy((uint8_t *)c.d.pool[segment.local_region] + segment.local_offset,
           (const uint8_t *)producer->pool[segment.remote_region] + segment.remote_offset, segment.bytes);
  }
  return KVF_OK;
}

static void end_read(const kvf_load_read *read, kvf_status status)
{
  const cluster_node *producer = &c.p[c.link_producers[read->link_id]];
  kvf_fence_sample sample = {.head = {.magic = KVF_FENCE_MAGIC, .slots = CLUSTER_SLOTS}};
  uint64_t bytes = 0;
  if (status == KVF_OK) {
    status = copy(producer, read, &bytes);
  }
  if (status == KVF_OK || status == KVF_CHECKSUM) {
    sample.head.incarnation = producer->config.incarnation;
    sample.head.generation = producer->memories;
    sample.entry = producer->table[read->transfer.lease.slot];
  }
  kvf_core_on_read_done(c.d.core, c.now_ns, read->transfer.id, status, c.verified, &sample, bytes, &(kvf_read_work){0});
}

void cluster_end_read(uint32_t i, kvf_status status)
{
  const kvf_load_read read = c.reads[i];
  c.reads_count--;
  memmove(&c.reads[i], &c.reads[i + 1], (c.reads_count - i) * sizeof(c.reads[0]));
  end_read(&read, status);
}

uint32_t cluster_end_reads(uint32_t producer, uint32_t count, kvf_status status)
{
  uint32_t done = 0;
  for (uint32_t i = 0; i < c.reads_count && done < count;) {
    if (c.link_producers[c.reads[i].link_id] == producer) {
      cluster_end_read(i, status);
      done++;
    } else {
      i++;
    }
  }
  cluster_settle();
  return done;
}

uint32_t cluster_reads_of(uint32_t producer)
{
  uint32_t count = 0;
  for (uint32_t i = 0; i < c.reads_count; i++) {
    count += c.link_producers[c.reads[i].link_id] == producer;
  }
  return count;
}

/* Reads of one link that follow each other are one entry: "read 1 of P0: 0,1 | 2,3". */
static void say_read(const kvf_load_read *read)
{
  char items[2048] = "";
  size_t used = 0;
  const kvf_layers *layers = &read->transfer.layers;
  for (uint32_t i = 0; i < read->transfer.items_count && i < CLUSTER_GROUPS * CLUSTER_BLOCKS; i++) {
    const kvf_transfer_item *item = &read->transfer.items[i];
    char group[16] = "";
    (void)snprintf(group, sizeof(group), "%u.", item->group);
    used += (size_t)snprintf(items + used, sizeof(items) - used, "%s%s%u", i == 0 ? "" : ",", c.groups > 1 ? group : "",
                             item->position);
    assert_true(used < sizeof(items));
  }
  const size_t before = strlen(c.trace);
  if (before > 0 && before == c.read_said_at && read->transfer.id == c.last_read.transfer.id + 1 &&
      read->link_id == c.last_read.link_id && read->rail == c.last_read.rail &&
      layers->first == c.last_read.transfer.layers.first) {
    assert_true(before + used + 4 < sizeof(c.trace));
    (void)snprintf(c.trace + before, sizeof(c.trace) - before, " | %s", items);
  } else {
    char over[16] = "";
    char of_layers[32] = "";
    char on_rail[16] = "";
    (void)snprintf(over, sizeof(over), " over %u", read->link_id);
    (void)snprintf(of_layers, sizeof(of_layers), " [%u-%u]", layers->first, layers->first + layers->count - 1);
    (void)snprintf(on_rail, sizeof(on_rail), " rail %u", read->rail);
    cluster_say("read %u of P%u%s%s%s:%s %s", (uint32_t)read->transfer.id, c.link_producers[read->link_id],
                (c.held & CLUSTER_LINKS_OPENED) != 0 ? over : "", c.rails > 1 ? on_rail : "",
                c.layers > 0 ? of_layers : "", read->transfer.small ? " small" : "", items);
  }
  c.last_read = *read;
  c.read_said_at = strlen(c.trace);
}

static void start_read(const kvf_load_read *read)
{
  if ((c.held & CLUSTER_READS_ENDED) == 0) {
    end_read(read, KVF_OK);
    return;
  }
  assert_true(c.reads_count < CLUSTER_READS);
  c.reads[c.reads_count++] = *read;
  say_read(read);
}

static void cancel_read(const kvf_load_read *cancel)
{
  const uint64_t read_id = cancel->transfer.id;
  const size_t before = strlen(c.trace);
  if (before > 0 && before == c.cancel_said_at) {
    (void)snprintf(c.trace + before, sizeof(c.trace) - before, ",%u", (uint32_t)read_id);
  } else {
    cluster_say("cancel %u", (uint32_t)read_id);
  }
  c.cancel_said_at = strlen(c.trace);
  for (uint32_t i = 0; i < c.reads_count; i++) {
    if (c.reads[i].transfer.id == read_id) {
      assert_true(c.reads[i].link_id == cancel->link_id && c.reads[i].rail == cancel->rail);
      if ((c.held & CLUSTER_CANCELS) == 0) {
        cluster_end_read(i, KVF_CANCELLED);
      }
      return;
    }
  }
}

/* ---- connections ---- */

void cluster_dial(uint32_t producer, kvf_status status)
{
  cluster_wire *wire = &c.wires[producer];
  const kvf_address from = {.port = 9};
  uint64_t dial_id = 0;
  while (dial_id == 0) {
    assert_true(wire->dials_waiting > 0);
    dial_id = kvf_core_has_conn(c.d.core, wire->dial_ids[0]) ? wire->dial_ids[0] : 0; /* else it has been given up */
    wire->dials_waiting--;
    memmove(&wire->dial_ids[0], &wire->dial_ids[1], wire->dials_waiting * sizeof(wire->dial_ids[0]));
  }
  if (status == KVF_OK) {
    status =
        kvf_core_on_accepted(c.p[producer].core, c.now_ns, from, &wire->producer_id) == KVF_OK ? KVF_OK : KVF_PEER_DOWN;
    wire->consumer_id = status == KVF_OK ? dial_id : 0;
  }
  kvf_core_on_dialed(c.d.core, c.now_ns, dial_id, status);
}

static void dial(const kvf_peer_action *action)
{
  const bool is_other = action->address.port >= OTHER_PORT;
  const uint32_t producer = (uint32_t)action->address.port - (is_other ? OTHER_PORT : FIRST_PORT);
  if (action->address.ip[0] != 0 || producer >= c.producer.ranks) {
    return; /* nobody is there, and nobody says so */
  }
  assert_true(c.wires[producer].dials_waiting < CLUSTER_DIALS_WAITING);
  c.wires[producer].dials++;
  c.wires[producer].dial_ids[c.wires[producer].dials_waiting++] = action->conn_id;
  if ((c.held & CLUSTER_DIALS) == 0) {
    cluster_dial(producer, c.wires[producer].is_down ? KVF_PEER_DOWN : KVF_OK);
  } else {
    cluster_say("dial P%u%s", producer, is_other ? " at v4" : "");
  }
}

static void open_link(const kvf_peer_action *action)
{
  const uint32_t producer = (uint32_t)action->address.port % (OTHER_PORT - FIRST_PORT) - FIRST_PORT;
  kvf_key key;
  assert_true(action->link_id < CLUSTER_LINKS);
  c.link_producers[action->link_id] = producer;
  /* Both sides have one key for the data connections. */
  if (kvf_core_session_key(c.p[producer].core, action->welcome->session_id, &key)) {
    assert_int_equal(key.bytes, action->session_key->bytes);
    assert_memory_equal(key.data, action->session_key->data, key.bytes);
  }
  if ((c.held & CLUSTER_LINKS_OPENED) == 0) {
    for (uint32_t i = 0; i < c.rails; i++) {
      kvf_core_on_link(c.d.core, c.now_ns, action->link_id, KVF_OK);
    }
  } else {
    cluster_say("open %u P%u%s %s", action->link_id, producer, action->address.port >= OTHER_PORT ? " at v4" : "",
                kvf_core_transport(c.d.core, action->transport));
  }
}

void cluster_carry_out(cluster_node *node, const kvf_effect *effect)
{
  switch (effect->kind) {
    case KVF_EFFECT_DIAL:
      dial(&effect->link);
      break;
    case KVF_EFFECT_OPEN_LINK:
      open_link(&effect->link);
      break;
    case KVF_EFFECT_CLOSE_LINK:
      cluster_say("close %u", effect->link.link_id);
      break;
    case KVF_EFFECT_READ:
      start_read(&effect->read);
      break;
    case KVF_EFFECT_CANCEL:
      cancel_read(&effect->read);
      break;
    case KVF_EFFECT_STORE:
      node->table[effect->store.slot] = effect->store.entry;
      kvf_core_on_stored(node->core, &effect->store);
      break;
  }
}

static void carry_effects(cluster_node *node)
{
  kvf_effect effect;
  while (kvf_core_next_effect(node->core, c.now_ns, &effect)) {
    cluster_carry_out(node, &effect);
  }
}

typedef struct carrier {
  cluster_node *from;
  bool moved;
} carrier;

static void keep_stray(const kvf_core_output *output)
{
  c.stray.hang_ups += output->hang_up;
  for (size_t at = 0; at < output->bytes;) {
    assert_int_equal(kvf_frame_header_decode(output->data + at, KVF_FRAME_BODY_BYTES_MAX, &c.stray.last), KVF_OK);
    at += KVF_FRAME_HEADER_BYTES;
    memcpy(c.stray.body, output->data + at, c.stray.last.body_bytes);
    at += c.stray.last.body_bytes;
    c.stray.frames++;
  }
}

static void deliver(kvf_core *to, uint64_t conn_id, const kvf_core_output *output)
{
  for (size_t at = 0; at < output->bytes;) {
    kvf_frame_header header;
    assert_int_equal(kvf_frame_header_decode(output->data + at, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_OK);
    at += KVF_FRAME_HEADER_BYTES;
    kvf_core_on_frame(to, c.now_ns, conn_id, header.type, output->data + at, header.body_bytes);
    at += header.body_bytes;
  }
  if (output->hang_up) {
    kvf_core_on_closed(to, c.now_ns, conn_id);
  }
}

static void say_pings(const kvf_core_output *output, const cluster_node *to)
{
  kvf_frame_header header;
  for (size_t at = 0; at < output->bytes; at += KVF_FRAME_HEADER_BYTES + header.body_bytes) {
    assert_int_equal(kvf_frame_header_decode(output->data + at, KVF_FRAME_BODY_BYTES_MAX, &header), KVF_OK);
    if (header.type == KVF_FRAME_PING) {
      cluster_say("ping %s", to->name);
    }
  }
}

static void take_output(void *context, const kvf_core_output *output)
{
  carrier *carried = context;
  const cluster_node *from = carried->from;
  carried->moved = true;
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    cluster_wire *wire = &c.wires[i];
    const uint64_t id = from == &c.d ? wire->consumer_id : wire->producer_id;
    if (id != output->conn_id || (from != &c.d && from != &c.p[i])) {
      continue;
    }
    const uint64_t to_id = from == &c.d ? wire->producer_id : wire->consumer_id;
    if (output->hang_up) {
      cluster_say("%s hangs up on %s", from->name, from == &c.d ? c.p[i].name : c.d.name);
      wire->consumer_id = 0;
      wire->producer_id = 0;
    }
    if (from == &c.d && (c.held & CLUSTER_LINKS_OPENED) != 0) { /* else they are of no interest */
      say_pings(output, &c.p[i]);
    }
    deliver(from == &c.d ? c.p[i].core : c.d.core, to_id, output);
    return;
  }
  keep_stray(output);
}

static bool settle_node(cluster_node *node)
{
  carrier carried = {.from = node};
  carry_effects(node);
  if (!node->is_held) {
    kvf_core_take_output(node->core, take_output, &carried);
  }
  return carried.moved;
}

static void carry_all(void)
{
  for (bool moved = true; moved;) {
    moved = false;
    for (uint32_t i = 0; i <= c.producer.ranks; i++) {
      moved = settle_node(node_at(i)) || moved;
    }
  }
}

void cluster_advance(uint64_t ms)
{
  c.now_ns += ms * MS;
  for (uint32_t i = 0; i <= c.producer.ranks; i++) {
    kvf_core_tick(node_at(i)->core, c.now_ns);
  }
  cluster_settle();
}

void cluster_cut(uint32_t producer, bool at_producer)
{
  const cluster_wire was = c.wires[producer];
  c.wires[producer].consumer_id = 0;
  c.wires[producer].producer_id = 0;
  kvf_core_on_closed(c.d.core, c.now_ns, was.consumer_id);
  if (at_producer) {
    kvf_core_on_closed(c.p[producer].core, c.now_ns, was.producer_id);
  }
  cluster_settle();
}

void cluster_restart(uint32_t producer)
{
  cluster_node *node = &c.p[producer];
  cluster_cut(producer, true);
  kvf_core_destroy(node->core);
  start_node(node, (uint8_t)(node->config.incarnation.bytes[0] + CLUSTER_PRODUCERS), !c.has_no_memory);
  name_ranks();
  cluster_settle();
}

uint64_t cluster_accept(cluster_node *node, uint8_t host)
{
  uint64_t conn_id = 0;
  const kvf_address from = {.ip = {[0] = host}, .port = 7};
  assert_int_equal(kvf_core_on_accepted(node->core, c.now_ns, from, &conn_id), KVF_OK);
  return conn_id;
}

uint32_t cluster_hang_ups(cluster_node *node)
{
  carrier carried = {.from = node};
  const uint32_t before = c.stray.hang_ups;
  kvf_core_take_output(node->core, take_output, &carried);
  return c.stray.hang_ups - before;
}

/* ---- events and numbers ---- */

static char letter_of(uint64_t lease_id)
{
  for (uint32_t i = 0; i < c.tickets_count; i++) {
    if (c.tickets[i].lease.id == lease_id) {
      return (char)('A' + i);
    }
  }
  return '?';
}

static void say_verdict(uint64_t user, const kvf_verdict *verdict)
{
  static const char *const actions[] = {"", "use", "recompute", "fail"};
  char more[64] = "";
  if (verdict->action == KVF_ACTION_RECOMPUTE) {
    (void)snprintf(more, sizeof(more), " %u+%u", verdict->keep_tokens, verdict->recompute_tokens);
  } else if (verdict->retry_after_ms > 0) {
    const bool is_usual = verdict->retry_after_ms >= 500 && verdict->retry_after_ms <= 1500;
    (void)snprintf(more, sizeof(more), is_usual ? " retry" : " retry in %u ms", verdict->retry_after_ms);
  }
  cluster_say("request %u: %s%s%s%s", (uint32_t)user, actions[verdict->action], verdict->status == KVF_OK ? "" : " ",
              verdict->status == KVF_OK ? "" : kvf_status_name(verdict->status), more);
}

/* What several ranks say one after the other is said of all of them. */
static void say_ended(const cluster_node *node, const kvf_event *event)
{
  static const char *const causes[] = {"", "completed", "abandoned", "expired", "revoked"};
  char what[64];
  const int bytes = snprintf(what, sizeof(what), " ends %c: %s", letter_of(event->id), causes[event->u.lease_end]);
  const size_t used = strlen(c.trace);
  if (used > (size_t)bytes && strcmp(c.trace + used - bytes, what) == 0) {
    (void)snprintf(c.trace + used - bytes, sizeof(c.trace) - used + (size_t)bytes, ",%s%s", node->name, what);
  } else {
    cluster_say("%s%s", node->name, what);
  }
}

static void say_event(const cluster_node *node, const kvf_event *event)
{
  const uint32_t user = (uint32_t)event->user;
  const kvf_report *report = &event->u.report;
  switch (event->kind) {
    case KVF_EVENT_LEASE_ENDED:
      say_ended(node, event);
      break;
    case KVF_EVENT_LOAD:
      assert_true(event->id == event->user && report->request_id == event->id);
      assert_int_equal(report->ranks_mask, UINT64_C(1) << c.consumer_rank);
      cluster_say("load %u: %s %u/%u", user, kvf_status_name(report->status), report->prefix, report->blocks);
      break;
    case KVF_EVENT_RELEASED:
      assert_true(event->id == event->user);
      cluster_say("load %u released", user);
      break;
    case KVF_EVENT_VERDICT:
      say_verdict(event->user, &event->u.verdict);
      break;
    case KVF_EVENT_REQUEST_RELEASED:
      cluster_say("request %u released", user);
      break;
    case KVF_EVENT_REQUEST_STUCK:
      cluster_say("request %u stuck", user);
      break;
    case KVF_EVENT_TICKET:
      cluster_say("find %u: %s", user, kvf_status_name(event->u.found));
      break;
  }
}

static bool take_events(void)
{
  bool any = false;
  for (uint32_t i = 0; i <= c.producer.ranks; i++) {
    const cluster_node *node = node_at(i);
    for (kvf_event event; kvf_core_next_event(node->core, c.now_ns, &event); any = true) {
      say_event(node, &event);
    }
    assert_false(kvf_core_has_event(node->core));
  }
  return any;
}

void cluster_settle(void)
{
  do {
    carry_all();
  } while ((c.held & CLUSTER_EVENTS) == 0 && take_events());
}

bool cluster_event(kvf_event_kind kind)
{
  while (kvf_core_next_event(c.d.core, c.now_ns, &c.event)) {
    cluster_settle();
    if (c.event.kind == kind) {
      return true;
    }
  }
  return false;
}

uint64_t cluster_stat(const cluster_node *node, const char *name, const char *reason)
{
  kvf_stat stats[KVF_STATS_MAX];
  const size_t count = kvf_core_stats(node->core, stats, KVF_STATS_MAX);
  for (size_t i = 0; i < count; i++) {
    if (strcmp(stats[i].name, name) == 0 && strcmp(stats[i].reason, reason) == 0) {
      return stats[i].value;
    }
  }
  fail_msg("no statistic %s %s", name, reason);
  return 0;
}

uint32_t cluster_users(void)
{
  static kvf_peer_stat peers[KVF_PEERS_LISTED_MAX];
  const size_t count = kvf_core_peers(c.d.core, c.now_ns, peers, KVF_PEERS_LISTED_MAX);
  uint32_t users = 0;
  for (size_t i = 0; i < count; i++) {
    users += peers[i].users;
  }
  return users;
}

/* ---- leases and loads ---- */

kvf_ticket *cluster_ticket(uint32_t producer, uint32_t positions)
{
  kvf_core *control = c.p[c.is_apart ? producer : 0].core;
  kvf_lease lease;
  const kvf_prompt prompt = {.tokens = positions * CLUSTER_BLOCK_TOKENS};
  uint32_t counts[CLUSTER_GROUPS];
  assert_true(c.tickets_count < CLUSTER_TICKETS && c.groups <= CLUSTER_GROUPS);
  kvf_ticket *ticket = &c.tickets[c.tickets_count];
  uint32_t *ids = c.ids[c.tickets_count++];
  const kvf_blocks blocks = {.ids = ids, .counts = counts, .groups = c.groups};
  const kvf_config *options = &c.p[0].config.options;
  uint32_t tokens[CLUSTER_GROUPS];
  for (uint32_t group = 0; group < CLUSTER_GROUPS; group++) {
    tokens[group] = options->block_tokens;
  }
  if (options->group_block_tokens[0] != 0) {
    (void)sscanf(options->group_block_tokens, "%u,%u,%u", &tokens[0], &tokens[1], &tokens[2]);
  }
  for (uint32_t group = 0; group < c.groups && group < CLUSTER_GROUPS; group++) {
    counts[group] = kvf_ticket_positions(prompt.tokens, tokens[group]);
    for (uint32_t i = 0; i < counts[group]; i++) {
      *ids++ = (2 * i + 2 * i / CLUSTER_BLOCKS + group + (c.is_apart ? producer : 0)) % CLUSTER_BLOCKS;
    }
  }
  assert_int_equal(kvf_core_lease_reserve(control, NULL, positions * c.groups, 0, &lease), KVF_OK);
  assert_int_equal(kvf_core_ticket(control, &lease, &blocks, &prompt, ticket), KVF_OK);
  return ticket;
}

kvf_sources cluster_sources(const char *letters)
{
  kvf_sources sources = {.count = 0};
  for (; *letters != 0; letters++) {
    if (*letters != ',') {
      sources.tickets[sources.count++] = &c.tickets[*letters - 'A'];
    }
  }
  assert_int_equal(kvf_sources_digest(&sources), KVF_OK);
  return sources;
}

kvf_status cluster_publish(uint32_t producer, const kvf_ticket *ticket)
{
  const kvf_blocks blocks = {.ids = ticket->ids, .counts = ticket->counts, .groups = ticket->groups};
  uint64_t digest = 0;
  assert_int_equal(kvf_fence_digest(&ticket->lease, &blocks, &ticket->prompt, &digest), KVF_OK);
  const kvf_status status = kvf_core_publish(c.p[producer].core, c.now_ns, &ticket->lease, &blocks, digest, 2, false);
  cluster_settle();
  return status;
}

uint32_t cluster_destination(uint32_t position)
{
  return CLUSTER_BLOCKS - 1 - position;
}

kvf_load_params cluster_load_params(const kvf_ticket *ticket, uint64_t request_id)
{
  static uint32_t ids[CLUSTER_GROUPS * CLUSTER_BLOCKS];
  uint32_t count = 0;

  for (uint32_t group = 0; group < ticket->groups; group++) {
    for (uint32_t i = 0; i < ticket->counts[group]; i++) {
      ids[count++] = cluster_destination(i);
    }
  }
  return (kvf_load_params){.request_id = request_id,
                           .prompt = {.tokens = ticket->prompt.tokens},
                           .destination = {.ids = ids, .counts = ticket->counts, .groups = ticket->groups},
                           .user = request_id};
}

kvf_status cluster_load(const char *letters, uint64_t request_id)
{
  const kvf_sources sources = cluster_sources(letters);
  const kvf_load_params load = cluster_load_params(&c.tickets[letters[0] - 'A'], request_id);
  const kvf_status status = kvf_core_load_start(c.d.core, c.now_ns, &sources, &load, 0);
  cluster_settle();
  return status;
}

bool cluster_holds(const kvf_ticket *ticket, uint32_t group, uint32_t position)
{
  uint32_t first = 0;
  for (uint32_t i = 0; i < group; i++) {
    first += ticket->counts[i];
  }
  const uint32_t block = ticket->ids[first + position];
  for (uint32_t i = 0; i < c.d.pages.regions_count; i++) {
    for (uint32_t at = 0; group_of(c.d.first_layer + i) == group && at < c.d.rows * c.d.heads; at++) {
      if (c.d.pool[i][cluster_destination(position)][at] != number_at(&c.d, i, block, at)) {
        return false;
      }
    }
  }
  return true;
}

bool cluster_holds_all(const kvf_ticket *ticket)
{
  bool all = true;
  for (uint32_t group = 0; group < ticket->groups; group++) {
    for (uint32_t position = 0; position < ticket->counts[group]; position++) {
      all = all && cluster_holds(ticket, group, position);
    }
  }
  return all;
}
