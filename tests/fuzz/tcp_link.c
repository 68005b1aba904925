/* The tcp transport's client: links to a producer who answers as the tape says, in any pieces, and may have gone mad,
 * or be a stranger.
 *
 * Checked: who cannot prove the session's key hears of no lease; a link is told up once, and down at most once after
 * that; each read is done once; the bytes that it was to fetch, and no others, change while it is open, and none after
 * it is done (P4); a read that is good had all its bytes, and its sample is what the producer's trailer said; at the
 * end no link, memory or descriptor is left. */
#include <string.h>
#include <sys/socket.h>

#include "tcp_world.h"
#include "wire/fields.h"

#define READS_MAX 48
#define ITEMS_MAX 2
#define GROUPS 2
#define HEAD_BYTES (TCP_BLOCK_BYTES / TCP_HEADS)
#define QUEUE_MAX 64

typedef struct read_model {
  kvf_transfer read;
  kvf_transfer_item items[ITEMS_MAX];
  uint64_t bytes;
  uint64_t word;       /* of the trailer that was sent for it; 0: none */
  bool has_other_size; /* says the chunk that was sent for it */
  bool is_started;
  bool is_done;
} read_model;

/* The producer's side of a link. */
typedef struct producer {
  bool has_key; /* of the session; else it cannot answer HELLO, and must never hear a lease's token */
  bool has_hello;
  kvf_data_hello hello;
  kvf_data_challenge challenge;
  bool has_challenged;
  bool is_clean;             /* it has sent only what belongs to the protocol, whole */
  uint64_t queue[QUEUE_MAX]; /* READs that came, in their order */
  uint32_t queue_first;
  uint32_t queue_count;
  uint64_t payload_left; /* of the first */
  uint64_t payload_sent;
} producer;

static fuzz_tape tape;
static producer producers[TCP_ENDS_MAX];
static read_model reads[READS_MAX]; /* id 1 + index */
static uint32_t reads_count;
static uint8_t shadow[TCP_REGIONS][TCP_BLOCKS * TCP_STRIDE_BYTES];
static kvf_link *link;
static uint64_t link_user; /* of the last link */
static bool told_up;       /* of it: whichever way */
static bool is_up;
static bool is_over;
static bool have_key; /* those who are connected to next */

/* ---- the host ---- */

/* Takes what is there now as what must stay. */
static void accept_bytes(const read_model *model)
{
  for (uint32_t i = 0; i < model->read.items_count; i++) {
    const kvf_transfer_item *item = &model->items[i];
    for (uint32_t region = 0; region < TCP_REGIONS; region++) {
      if (tcp.regions[region].group == item->group) {
        size_t at = (size_t)item->local_block * TCP_STRIDE_BYTES + (size_t)model->read.local_head * HEAD_BYTES;
        memcpy(shadow[region] + at, tcp.memory[region] + at, (size_t)model->read.heads * HEAD_BYTES);
      }
    }
  }
}

static void check_memory(void)
{
  for (uint32_t i = 0; i < reads_count; i++) {
    if (reads[i].is_started && !reads[i].is_done) {
      accept_bytes(&reads[i]);
    }
  }
  fuzz_check(memcmp(shadow, tcp.memory, sizeof(shadow)) == 0);
}

static uint8_t payload_byte(uint64_t read_id, uint64_t at)
{
  return (uint8_t)(read_id * 31 + at * 5 + 3);
}

static void check_payload(const read_model *model)
{
  uint64_t at = 0;
  for (uint32_t region = 0; region < TCP_REGIONS; region++) {
    for (uint32_t i = 0; i < model->read.items_count; i++) {
      const uint8_t *to = tcp.memory[region] + (size_t)model->items[i].local_block * TCP_STRIDE_BYTES;
      for (uint32_t k = 0; tcp.regions[region].group == model->items[i].group && k < model->read.heads * HEAD_BYTES;
           k++) {
        fuzz_check(to[model->read.local_head * HEAD_BYTES + k] == payload_byte(model->read.id, at++));
      }
    }
  }
}

static bool all_are_clean(void)
{
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    if (tcp.ends[i].fd >= 0 && !producers[i].is_clean) {
      return false;
    }
  }
  return true;
}

static void read_done(void *context, const kvf_read_result *result)
{
  (void)context;
  fuzz_check(result->id > 0 && result->id <= reads_count);
  read_model *model = &reads[result->id - 1];
  fuzz_check(model->is_started && !model->is_done && result->bytes <= model->bytes);
  check_memory();
  model->is_done = true;
  if (result->status == KVF_OK) {
    fuzz_check(result->bytes == model->bytes && is_up);
    fuzz_check(result->sample.head.magic == KVF_FENCE_MAGIC);
    if (all_are_clean()) {
      fuzz_check(result->sample.entry.word == model->word && !model->has_other_size);
      check_payload(model);
    }
  }
}

static void read_progress(void *context, uint64_t read_id)
{
  (void)context;
  fuzz_check(read_id > 0 && read_id <= reads_count && !reads[read_id - 1].is_done);
}

static void link_up(void *context, kvf_link *which, kvf_status status)
{
  (void)context;
  fuzz_check(which->user == link_user && !told_up);
  told_up = true;
  is_up = status == KVF_OK;
}

static void link_down(void *context, kvf_link *which, kvf_status status)
{
  (void)context;
  fuzz_check(which->user == link_user && is_up && status != KVF_OK);
  is_up = false;
}

/* ---- what the transport sends ---- */

static void on_hello(producer *p, const uint8_t *body, size_t bytes)
{
  uint8_t proof[KVF_HASH_BYTES];
  fuzz_check(!p->has_hello && kvf_data_hello_decode(body, bytes, &p->hello) == KVF_OK);
  fuzz_check(p->hello.session_id == TCP_SESSION_ID);
  p->has_hello = true;
  if (p->has_challenged && p->is_clean) {
    fuzz_check(kvf_data_hello_proof(&tcp.session_key, &p->challenge, &p->hello, proof) == KVF_OK);
    fuzz_check(memcmp(proof, p->hello.proof, sizeof(proof)) == 0);
  }
}

static void on_read(producer *p, const uint8_t *body, size_t bytes)
{
  kvf_data_read read;
  kvf_transfer_item items[ITEMS_MAX];
  fuzz_check(kvf_data_read_decode(body, bytes, &read) == KVF_OK);
  fuzz_check(read.read_id > 0 && read.read_id <= reads_count && p->queue_count < QUEUE_MAX);
  const read_model *model = &reads[read.read_id - 1];
  fuzz_check(read.items_count == model->read.items_count);
  fuzz_check(read.remote_head == model->read.remote_head && read.heads == model->read.heads);
  fuzz_check(read.local_head == model->read.local_head && read.want.first_layer == 0);
  fuzz_check(read.want.layers == TCP_REGIONS && read.want.splits[0] == 1 && read.want.deal.ranks == 1);
  kvf_data_read_items(&read, items);
  for (uint32_t i = 0; i < read.items_count; i++) {
    fuzz_check(items[i].group == model->items[i].group && items[i].position == model->items[i].position);
  }
  p->queue[p->queue_count++] = read.read_id;
}

static void on_frame(tcp_end *from, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  producer *p = &producers[from - tcp.ends];
  kvf_data_cancel cancel;
  switch (type) {
    case KVF_FRAME_DATA_HELLO:
      on_hello(p, body, bytes);
      break;
    case KVF_FRAME_READ:
      fuzz_check(p->has_key); /* the link may have failed since */
      on_read(p, body, bytes);
      break;
    case KVF_FRAME_CANCEL:
      fuzz_check(kvf_data_cancel_decode(body, bytes, &cancel) == KVF_OK);
      break;
    default:
      fuzz_fail(__FILE__, __LINE__, "not a frame of a consumer's");
  }
}

static void on_connect(tcp_end *end)
{
  producers[end - tcp.ends] = (producer){.is_clean = true, .has_key = have_key};
}

/* ---- what the node does ---- */

static void connect_link(void)
{
  uint8_t description[64];
  kvf_region_layout remote[TCP_REGIONS];
  kvf_link_spec spec = {.user = link_user + 1,
                        .peer = {.ip = {[15] = 1}, .port = 9},
                        .incarnation = {{'x'}},
                        .session_id = TCP_SESSION_ID,
                        .session_key = tcp.session_key,
                        .description = description,
                        .remote = remote,
                        .remote_count = TCP_REGIONS};
  uint8_t choice = fuzz_u8(&tape);
  if (link != NULL) {
    return;
  }
  kvf_tcp_description told = {KVF_TCP_DESCRIPTION_MAGIC, 4000, spec.incarnation, 0};
  kvf_codec codec = kvf_writer_of(description, sizeof(description));
  kvf_tcp_description_code(&codec, &told);
  fuzz_check(kvf_writer_end(&codec, true, &spec.description_bytes) == KVF_OK);
  memcpy(remote, tcp.layouts, sizeof(remote));
  if (choice >= 0xf0) {
    description[choice & 15] ^= 0x40;
  } else if (choice >= 0xe0) {
    ((uint8_t *)remote)[fuzz_u8(&tape) % sizeof(remote)] ^= (uint8_t)(1u << (choice & 7));
  } else if (choice >= 0xd0) {
    spec.remote_count = choice & 1;
  }
  told_up = false;
  is_up = false;
  link_user++;
  kvf_status status = kvf_transport_tcp.connect(tcp.transport, &spec, &link);
  fuzz_check(status == KVF_OK || (status == KVF_PROTOCOL && choice >= 0xd0));
}

static void disconnect(void)
{
  if (link != NULL) {
    kvf_transport_tcp.disconnect(link);
    link = NULL;
  }
}

/* Whether an open read will write there. */
static bool is_taken(uint32_t group, uint32_t block)
{
  for (uint32_t i = 0; i < reads_count; i++) {
    for (uint32_t k = 0; !reads[i].is_done && k < reads[i].read.items_count; k++) {
      if (reads[i].items[k].group == group && reads[i].items[k].local_block == block) {
        return true;
      }
    }
  }
  return false;
}

static void start_read(void)
{
  uint8_t choice = fuzz_u8(&tape);
  if (link == NULL || reads_count == READS_MAX) {
    return;
  }
  read_model *model = &reads[reads_count];
  *model = (read_model){.read = {.id = reads_count + 1, .lease = {.id = 7, .slot = 1}, .items = model->items}};
  model->read.local_head = choice & 1;
  model->read.remote_head = (choice >> 1) & 1;
  model->read.heads = (choice & 3) == 0 ? 1 + ((choice >> 2) & 1) : 1;
  uint32_t wanted = 1 + ((choice >> 3) & 1);
  for (uint32_t block = 0; block < TCP_BLOCKS && model->read.items_count < wanted; block++) {
    uint32_t group = (choice >> (4 + model->read.items_count)) & 1;
    if (!is_taken(group, block)) {
      model->items[model->read.items_count++] = (kvf_transfer_item){
          .group = group, .position = block * 3, .remote_block = TCP_BLOCKS - 1 - block, .local_block = block};
      model->bytes += (uint64_t)(group == 0 ? 2 : 1) * model->read.heads * HEAD_BYTES;
    }
  }
  if (model->read.items_count > 0) {
    model->is_started = true;
    reads_count++;
    kvf_transport_tcp.read(link, &model->read);
  }
}

/* ---- what the producer does ---- */

static void send_frame(tcp_end *end, kvf_frame_type type, const void *body, size_t bytes)
{
  if (tcp_send_frame(end, type, body, bytes) != KVF_FRAME_HEADER_BYTES + bytes) {
    producers[end - tcp.ends].is_clean = false;
  }
}

static void send_challenge(tcp_end *end, producer *p)
{
  p->challenge = (kvf_data_challenge){.nonce = {fuzz_u8(&tape)}};
  p->is_clean = p->is_clean && !p->has_challenged;
  p->has_challenged = true;
  TCP_SEND(send_frame, end, KVF_FRAME_DATA_CHALLENGE, challenge, &p->challenge);
}

/* The right proof, if it has the key. */
static void send_ready(tcp_end *end, producer *p)
{
  kvf_data_ready ready = {.proof = {0}};
  kvf_key key = tcp.session_key;
  key.data[0] ^= p->has_key ? 0 : 1;
  if (p->has_hello) {
    fuzz_check(kvf_data_ready_proof(&key, &p->challenge, &p->hello, ready.proof) == KVF_OK);
  }
  TCP_SEND(send_frame, end, KVF_FRAME_DATA_READY, ready, &ready);
}

static void send_chunk(tcp_end *end, producer *p)
{
  static const int32_t statuses[] = {KVF_LEASE_EXPIRED, KVF_LEASE_UNKNOWN, KVF_INVALID, -9999};
  uint8_t choice = fuzz_u8(&tape);
  if (p->queue_first == p->queue_count || p->payload_left > 0) {
    return;
  }
  read_model *model = &reads[p->queue[p->queue_first] - 1];
  kvf_data_chunk chunk = {.read_id = model->read.id, .payload_bytes = model->bytes};
  if (choice >= 0xf8) { /* another read's */
    chunk.read_id++;
    p->is_clean = false;
  } else if (choice >= 0xf0) {
    chunk.payload_bytes += 1 + (choice & 7);
    model->has_other_size = true;
  } else if (choice >= 0xe0) {
    chunk.status = statuses[choice & 3];
    chunk.payload_bytes = 0;
  }
  TCP_SEND(send_frame, end, KVF_FRAME_CHUNK, chunk, &chunk);
  p->payload_left = chunk.payload_bytes;
  p->payload_sent = 0;
  p->queue_first += chunk.status != KVF_OK;
}

static void send_payload(tcp_end *end, producer *p, uint64_t wanted)
{
  uint8_t data[1024];
  if (p->payload_left == 0) {
    return;
  }
  uint64_t asked_left = reads[p->queue[p->queue_first] - 1].bytes - p->payload_sent;
  uint64_t bytes = wanted < asked_left ? wanted : asked_left;
  bytes = bytes < sizeof(data) ? bytes : sizeof(data);
  for (uint64_t i = 0; i < bytes; i++) {
    data[i] = payload_byte(p->queue[p->queue_first], p->payload_sent + i);
  }
  size_t sent = tcp_send_bytes(end, data, bytes);
  p->payload_sent += sent;
  p->payload_left -= sent;
}

static void send_trailer(tcp_end *end, producer *p)
{
  uint8_t choice = fuzz_u8(&tape);
  if (p->queue_first == p->queue_count) {
    return;
  }
  uint64_t read_id = p->queue[p->queue_first];
  p->is_clean = p->is_clean && p->payload_sent == reads[read_id - 1].bytes && choice < 0xf0;
  kvf_data_trailer trailer = {.read_id = read_id + (choice >= 0xf0), .word = 15u + (choice & 1), .digest = 4};
  reads[read_id - 1].word = trailer.word;
  TCP_SEND(send_frame, end, KVF_FRAME_TRAILER, trailer, &trailer);
  p->queue_first++;
  p->payload_sent = 0;
  p->payload_left = 0;
}

static void send_any(tcp_end *end, producer *p, bool is_frame)
{
  size_t got;
  kvf_frame_type type = (kvf_frame_type)(KVF_FRAME_DATA_CHALLENGE + (is_frame ? fuzz_choose(&tape, 7) : 0));
  const uint8_t *bytes = fuzz_bytes(&tape, fuzz_u16(&tape) % 1024, &got);
  p->is_clean = false;
  if (is_frame) {
    (void)tcp_send_frame(end, type, bytes, got);
  } else {
    (void)tcp_send_bytes(end, bytes, got);
  }
}

static void act_on_end(unsigned what)
{
  tcp_end *end = &tcp.ends[fuzz_choose(&tape, TCP_ENDS_MAX)];
  producer *p = &producers[end - tcp.ends];
  if (end->fd < 0) {
    return;
  }
  switch (what) {
    case 0:
      send_challenge(end, p);
      break;
    case 1:
      send_ready(end, p);
      break;
    case 2: /* the whole answer */
      send_chunk(end, p);
      send_payload(end, p, UINT64_MAX);
      send_trailer(end, p);
      break;
    case 3:
      send_chunk(end, p);
      break;
    case 4:
      send_payload(end, p, fuzz_u8(&tape));
      break;
    case 5:
      send_trailer(end, p);
      break;
    case 6:
      send_any(end, p, false);
      break;
    case 7:
      send_any(end, p, true);
      break;
    case 8:
      end->is_deaf = !end->is_deaf;
      break;
    default:
      tcp_hang_up(end);
      break;
  }
}

/* ---- */

static void step(void)
{
  uint8_t op = fuzz_u8(&tape) % 16;
  switch (op) {
    case 0:
      break;
    case 1:
      tcp.now_ns += fuzz_u8(&tape) * KVF_NS_PER_MS;
      break;
    case 2:
      op = fuzz_u8(&tape);
      tcp.refuse_connects = (op & 0x80) != 0;
      have_key = (op & 1) == 0;
      connect_link();
      break;
    case 3:
      disconnect();
      break;
    case 4:
      start_read();
      break;
    case 5:
      if (link != NULL) {
        kvf_transport_tcp.cancel(link, fuzz_u8(&tape) % (READS_MAX + 1));
      }
      break;
    default:
      act_on_end(op - 6u);
      break;
  }
}

static bool turn(bool idle)
{
  check_memory();
  if (!fuzz_is_over(&tape)) {
    step();
    return true;
  }
  if (!is_over) {
    disconnect();
    is_over = true;
    return true;
  }
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    tcp_hang_up(&tcp.ends[i]);
  }
  for (uint32_t i = 0; idle && i < reads_count; i++) {
    fuzz_check(reads[i].is_done);
  }
  return !idle;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static const kvf_transport_host host = {
      .read_done = read_done, .read_progress = read_progress, .link_up = link_up, .link_down = link_down};
  tape = (fuzz_tape){.data = data, .bytes = bytes};
  reads_count = 0;
  link = NULL;
  link_user = 0;
  is_over = false;
  for (uint32_t i = 0; i < TCP_REGIONS; i++) {
    for (size_t at = 0; at < sizeof(shadow[i]); at++) {
      shadow[i][at] = tcp_pattern(i, at);
    }
  }
  tcp.refuse_connects = false;
  tcp.turn = turn;
  tcp.on_frame = on_frame;
  tcp.on_connect = on_connect;
  tcp_world_run(false, &host);
  return 0;
}

/* Reads that are served whole, and in pieces; one that is cancelled half-way and whose link is given back; refusals; a
 * producer that speaks nonsense. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
#define UP "\x02\x00\x00\x06\x00\x01\x00\x07\x00\x00"
  static const fuzz_tape_seed seeds[] = {
      {UP "\x04\x00\x04\x08\x00\x00\x08\x00\x00\x00\x08\x00\x00\x00\x00", 25},
      {UP "\x04\x04\x00\x09\x00\x00\x0a\x00\x40\x00\x0a\x00\xff\x00\x0a\x00\xff\x0b\x00\x00\x04\x00", 32},
      {UP "\x04\x0c\x00\x09\x00\x00\x0a\x00\x40\x00\x05\x01\x00\x0a\x00\xff\x0b\x00\x00\x03\x02\x00\x00", 33},
      {UP "\x04\x00\x00\x09\x00\xe1\x04\x00\x00\x09\x00\xf1\x00", 23},
      {UP "\x04\x00\x00\x08\x00\xf1\x00\x00", 18},
      {UP "\x04\x00\x00\x0c\x00\x04\x00garb\x00", 22},
      {"\x02\x80\x00\x02\x00\xe0\x05\x00\x03\x02\x00\x00\x01\xff\x00", 15},
  };
#undef UP
  return fuzz_put_nth(out, i, seeds, sizeof(seeds) / sizeof(seeds[0]));
}
