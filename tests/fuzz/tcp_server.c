/* The tcp transport's server: strangers and holders of the session's key, in the tape's order, with any bytes.
 *
 * Checked: who has not proved the key is never trusted and is sent a challenge and nothing else; what a connection may
 * hold is bounded; every READ of a proved consumer is answered, in order, once; what is sent is the bytes of the
 * lease's own blocks, whole, and the trailer is the fence's; at the end no connection, memory or descriptor is left. */
#include <string.h>
#include <sys/socket.h>

#include "tcp_world.h"
#include "transport/fence_memory.h"
#include "transport/tcp/server.h"

#define STRANGER_OUT_BYTES_MAX (KVF_FRAME_HEADER_BYTES + KVF_DATA_CHALLENGE_BYTES_MAX)
#define LEASES 3
#define POSITIONS 3
#define READS_MAX 512
#define SENT_BYTES_MAX 16384
#define HELD_BYTES_MAX 2048

typedef enum lease_state { NOT_PUBLISHED, LIVE, OVER } lease_state;

typedef struct lease_model {
  kvf_lease lease;
  lease_state state;
  uint32_t blocks[POSITIONS];
} lease_model;

/* A READ as it was sent: its frame's body, in the consumer's `sent`. */
typedef struct sent_read {
  size_t at;
  size_t bytes;
} sent_read;

typedef enum expects { CHALLENGE, READY, CHUNK, PAYLOAD, TRAILER } expects;

typedef struct consumer {
  bool has_key;
  bool proved;       /* with the right proof, as its first frame */
  bool broken;       /* has sent what is not to be answered, or could not send all: what comes is not to be foreseen */
  bool may_be_stuck; /* has taken nothing for so long that it is thrown out if answers wait */
  uint64_t deaf_ns;  /* for how long it takes nothing */
  expects state;
  uint64_t out_bytes; /* that the transport has sent */
  kvf_data_challenge challenge;
  uint8_t ready_proof[KVF_HASH_BYTES]; /* that the server must answer */

  uint8_t sent[SENT_BYTES_MAX]; /* since the proof */
  size_t sent_bytes;
  size_t parsed_bytes;
  uint8_t held[HELD_BYTES_MAX]; /* the rest of a frame that is sent in two pieces */
  size_t buffered_bytes;
  sent_read reads[READS_MAX];
  uint32_t reads_count;
  uint32_t answered;

  /* The payload that comes. */
  kvf_data_read read;
  uint32_t item;
  uint32_t region;
  uint32_t offset;
  uint64_t payload_left;
} consumer;

static fuzz_tape tape;
static unsigned closing_phase;
static unsigned proved_count; /* of the whole run */
static bool in_pieces;        /* what is sent in this step */
static consumer consumers[TCP_ENDS_MAX];
static lease_model leases[LEASES];
static kvf_transfer_item items[KVF_READ_ITEMS_MAX]; /* of the read whose payload comes, of one consumer at a time */
static const consumer *items_of;

static consumer *consumer_of(const tcp_end *end)
{
  return &consumers[end - tcp.ends];
}

/* ---- leases ---- */

static const lease_model *find_lease(const kvf_lease *lease)
{
  for (size_t i = 0; i < LEASES; i++) {
    if (memcmp(&leases[i].lease, lease, sizeof(*lease)) == 0) {
      return &leases[i];
    }
  }
  return NULL;
}

static kvf_status authorize(void *context, const kvf_lease *lease, kvf_transfer_item *wanted, uint32_t count)
{
  (void)context;
  const lease_model *model = find_lease(lease);
  if (model == NULL || model->state != LIVE) {
    return model == NULL ? KVF_LEASE_UNKNOWN : model->state == NOT_PUBLISHED ? KVF_NOT_PUBLISHED : KVF_LEASE_EXPIRED;
  }
  for (uint32_t i = 0; i < count; i++) {
    if (wanted[i].group > 1 || wanted[i].position >= POSITIONS) {
      return KVF_INVALID;
    }
    wanted[i].remote_block = model->blocks[wanted[i].position];
  }
  return KVF_OK;
}

static void next_state(lease_model *model)
{
  kvf_fence_entry entry = {.word = kvf_fence_word_live(model->lease.id), .digest = model->lease.id ^ 5};
  if (model->state == NOT_PUBLISHED) {
    kvf_fence_store_live(tcp.table, model->lease.slot, entry);
    model->state = LIVE;
  } else if (model->state == LIVE) {
    entry.word = kvf_fence_word_ended(model->lease.id);
    kvf_fence_store_ended(tcp.table, model->lease.slot, entry);
    model->state = OVER;
  }
}

static void init_leases(void)
{
  items_of = NULL;
  for (uint32_t i = 0; i < LEASES; i++) {
    leases[i] = (lease_model){.lease = {.id = 100 + i, .slot = i, .token = {(uint8_t)(i + 1)}},
                              .blocks = {i, 7 - i, (3 + i) % TCP_BLOCKS}};
  }
}

/* ---- what the server sends ---- */

static bool is_wanted(const consumer *c, uint32_t region)
{
  return region >= c->read.selection.first_layer && region < c->read.selection.first_layer + c->read.selection.layers;
}

static bool is_piece(const consumer *c)
{
  return is_wanted(c, c->region) && tcp.layouts[c->region].group == items[c->item].group;
}

/* Moves on to the next item of the region's group, or to the next region's first. */
static void next_piece(consumer *c)
{
  c->offset = 0;
  do {
    c->item++;
    if (c->item == c->read.items_count) {
      c->item = 0;
      c->region++;
    }
  } while (c->region < TCP_REGIONS && !is_piece(c));
}

static void load_items(consumer *c)
{
  const sent_read *answered = &c->reads[c->answered];
  fuzz_check(kvf_data_read_decode(c->sent + answered->at, answered->bytes, &c->read) == KVF_OK);
  if (items_of != c || (c->region == 0 && c->item == 0)) {
    kvf_data_read_items(&c->read, items);
    items_of = c;
  }
}

static uint64_t payload_bytes(const consumer *c)
{
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < c->read.items_count; i++) {
    for (uint32_t region = 0; region < TCP_REGIONS; region++) {
      bool moves = is_wanted(c, region) && tcp.layouts[region].group == items[i].group;
      bytes += moves ? c->read.heads * (TCP_BLOCK_BYTES / TCP_HEADS) : 0;
    }
  }
  return bytes;
}

static void on_chunk(consumer *c, const uint8_t *body, size_t bytes)
{
  kvf_data_chunk chunk;
  fuzz_check(kvf_data_chunk_decode(body, bytes, &chunk) == KVF_OK);
  fuzz_check(c->proved && c->answered < c->reads_count);
  c->item = 0;
  c->region = 0;
  load_items(c);
  fuzz_check(chunk.read_id == c->read.read_id);
  if (chunk.status != KVF_OK) {
    fuzz_check(chunk.payload_bytes == 0);
    c->answered++;
    return;
  }
  const lease_model *model = find_lease(&c->read.lease);
  fuzz_check(model != NULL && model->state != NOT_PUBLISHED);
  fuzz_check(c->read.remote_head + c->read.heads <= TCP_HEADS && chunk.payload_bytes == payload_bytes(c));
  c->offset = 0;
  if (!is_piece(c)) {
    next_piece(c);
  }
  c->payload_left = chunk.payload_bytes;
  c->state = chunk.payload_bytes > 0 ? PAYLOAD : TRAILER;
}

static size_t on_payload(tcp_end *from, const uint8_t *data, size_t bytes)
{
  consumer *c = consumer_of(from);
  size_t taken = 0;
  if (c->state != PAYLOAD) {
    return 0;
  }
  load_items(c);
  uint32_t head_bytes = TCP_BLOCK_BYTES / TCP_HEADS;
  const lease_model *model = find_lease(&c->read.lease);
  while (taken < bytes && c->payload_left > 0) {
    fuzz_check(c->region < TCP_REGIONS);
    uint32_t block = model->blocks[items[c->item].position];
    size_t at = block * TCP_STRIDE_BYTES + c->read.remote_head * head_bytes + c->offset;
    fuzz_check(data[taken] == tcp_pattern(c->region, at));
    taken++;
    c->payload_left--;
    c->offset++;
    if (c->offset == c->read.heads * head_bytes) {
      next_piece(c);
    }
  }
  if (c->payload_left == 0) {
    c->state = TRAILER;
  }
  return taken;
}

static void on_trailer(consumer *c, const uint8_t *body, size_t bytes)
{
  kvf_data_trailer trailer;
  fuzz_check(kvf_data_trailer_decode(body, bytes, &trailer) == KVF_OK);
  fuzz_check(trailer.read_id == c->read.read_id);
  kvf_fence_entry entry = kvf_fence_load(tcp.table, c->read.lease.slot);
  fuzz_check(trailer.word <= entry.word && trailer.word >= kvf_fence_word_live(c->read.lease.id));
  c->answered++;
  c->state = CHUNK;
}

static void on_frame(tcp_end *from, kvf_frame_type type, const uint8_t *body, size_t bytes)
{
  consumer *c = consumer_of(from);
  c->out_bytes += KVF_FRAME_HEADER_BYTES + bytes;
  if (c->state == CHALLENGE) {
    fuzz_check(type == KVF_FRAME_DATA_CHALLENGE);
    fuzz_check(kvf_data_challenge_decode(body, bytes, &c->challenge) == KVF_OK);
    c->state = READY;
  } else if (c->state == READY) {
    kvf_data_ready ready;
    fuzz_check(type == KVF_FRAME_DATA_READY && c->proved);
    fuzz_check(kvf_data_ready_decode(body, bytes, &ready) == KVF_OK);
    fuzz_check(memcmp(ready.proof, c->ready_proof, sizeof(ready.proof)) == 0);
    c->state = CHUNK;
  } else if (c->state == CHUNK) {
    fuzz_check(type == KVF_FRAME_CHUNK);
    on_chunk(c, body, bytes);
  } else {
    fuzz_check(c->state == TRAILER && type == KVF_FRAME_TRAILER);
    on_trailer(c, body, bytes);
  }
}

/* ---- what consumers send ---- */

/* Finds the READs in what has been sent since the proof. */
static void parse_sent(consumer *c)
{
  while (!c->broken && c->sent_bytes - c->parsed_bytes >= KVF_FRAME_HEADER_BYTES) {
    kvf_frame_header header;
    kvf_data_read read;
    kvf_data_cancel cancel;
    const uint8_t *frame = c->sent + c->parsed_bytes;
    if (kvf_frame_header_decode(frame, KVF_FRAME_BODY_BYTES_MAX, &header) != KVF_OK) {
      c->broken = true;
      return;
    }
    size_t whole = KVF_FRAME_HEADER_BYTES + header.body_bytes;
    if (c->sent_bytes - c->parsed_bytes < whole) {
      return;
    }
    const uint8_t *body = frame + KVF_FRAME_HEADER_BYTES;
    if (header.type == KVF_FRAME_READ && kvf_data_read_decode(body, header.body_bytes, &read) == KVF_OK) {
      fuzz_check(c->reads_count < READS_MAX);
      c->reads[c->reads_count++] = (sent_read){c->parsed_bytes + KVF_FRAME_HEADER_BYTES, header.body_bytes};
    } else if (header.type != KVF_FRAME_CANCEL || kvf_data_cancel_decode(body, header.body_bytes, &cancel) != KVF_OK) {
      c->broken = true;
    }
    c->parsed_bytes += whole;
  }
}

static void send_now(tcp_end *end, const void *data, size_t bytes)
{
  consumer *c = consumer_of(end);
  if (bytes > SENT_BYTES_MAX - c->sent_bytes) {
    c->broken = true;
    return;
  }
  size_t sent = tcp_send_bytes(end, data, bytes);
  if (c->proved) {
    memcpy(c->sent + c->sent_bytes, data, sent);
    c->sent_bytes += sent;
    parse_sent(c);
  } else if (sent > 0) {
    c->broken = true; /* whatever it was, a proof comes too late */
  }
  c->broken = c->broken || sent < bytes;
}

static void send_held(tcp_end *end)
{
  consumer *c = consumer_of(end);
  size_t bytes = c->buffered_bytes;
  c->buffered_bytes = 0;
  if (bytes > 0) {
    send_now(end, c->held, bytes);
  }
}

static void send_bytes(tcp_end *end, const uint8_t *data, size_t bytes)
{
  consumer *c = consumer_of(end);
  send_held(end);
  size_t now = in_pieces && c->proved ? fuzz_u8(&tape) : bytes;
  if (now < bytes && bytes - now <= HELD_BYTES_MAX) {
    c->buffered_bytes = bytes - now;
    memcpy(c->held, data + now, bytes - now);
    bytes = now;
  }
  send_now(end, data, bytes);
}

static void send_frame(tcp_end *end, kvf_frame_type type, const void *body, size_t bytes)
{
  static uint8_t frame[SENT_BYTES_MAX];
  if (KVF_FRAME_HEADER_BYTES + bytes <= sizeof(frame)) {
    kvf_frame_header_encode(type, (uint32_t)bytes, frame);
    memcpy(frame + KVF_FRAME_HEADER_BYTES, body, bytes);
    send_bytes(end, frame, KVF_FRAME_HEADER_BYTES + bytes);
  }
}

/* The right one if the consumer has the key, else one that it could make. */
static void send_hello(tcp_end *end)
{
  consumer *c = consumer_of(end);
  uint8_t choice = fuzz_u8(&tape);
  kvf_key key = tcp.session_key;
  kvf_data_hello hello = {.session_id = TCP_SESSION_ID};
  key.data[0] ^= c->has_key ? 0 : 1;
  hello.session_id += (choice & 0xf0) == 0xf0 ? 1 : 0;
  fuzz_check(kvf_data_hello_proof(&key, &c->challenge, &hello, hello.proof) == KVF_OK);
  bool good = c->has_key && c->state == READY && !c->broken && !c->proved && hello.session_id == TCP_SESSION_ID;
  TCP_SEND(send_frame, end, KVF_FRAME_DATA_HELLO, hello, &hello);
  if (good) {
    fuzz_check(kvf_data_ready_proof(&key, &c->challenge, &hello, c->ready_proof) == KVF_OK);
    c->proved = true;
    c->broken = false;
    proved_count++;
  }
}

static kvf_lease name_lease(void)
{
  uint8_t choice = fuzz_u8(&tape);
  kvf_lease lease = leases[choice % LEASES].lease;
  if (choice >> 5 == 5) {
    lease.token[choice & 15] ^= 1;
  } else if (choice >> 5 == 6) {
    lease.slot = fuzz_u32(&tape);
  } else if (choice >> 5 == 7) {
    lease.id += fuzz_u8(&tape);
  }
  return lease;
}

static void send_read(tcp_end *end)
{
  static kvf_transfer_item wanted[64];
  uint8_t body[KVF_DATA_READ_HEAD_BYTES + 64 * KVF_DATA_READ_RUN_BYTES];
  size_t bytes = 0;
  uint8_t id = fuzz_u8(&tape);
  kvf_data_read read = {
      .read_id = 1 + (id & 7), .lease = name_lease(), .selection = kvf_read_selection_whole(TCP_REGIONS)};
  if (id >= 0xe0) { /* some of them, or more than there are */
    read.selection.first_layer = fuzz_u8(&tape) & 3;
    read.selection.layers = 1 + (fuzz_u8(&tape) & 3);
  }
  uint8_t choice = fuzz_u8(&tape);
  read.remote_head = choice & 1;
  read.heads = 1 + ((choice >> 1) & 1);
  read.items_count = 1 + (choice >> 2);
  for (uint32_t i = 0; i < read.items_count; i++) {
    uint8_t which = fuzz_u8(&tape);
    wanted[i] = (kvf_transfer_item){.group = (which >> 2) & 1, .position = which & 3};
    wanted[i].position = wanted[i].position == POSITIONS && which < 0xe0 ? 0 : wanted[i].position;
  }
  fuzz_check(kvf_data_read_encode(&read, wanted, body, sizeof(body), &bytes) == KVF_OK);
  send_frame(end, KVF_FRAME_READ, body, bytes);
}

static void send_cancel(tcp_end *end)
{
  kvf_data_cancel cancel = {.read_id = 1 + (fuzz_u8(&tape) & 7)};
  TCP_SEND(send_frame, end, KVF_FRAME_CANCEL, cancel, &cancel);
}

static void connect_one(bool has_key)
{
  tcp_end *end = tcp_dial();
  if (end != NULL) {
    memset(consumer_of(end), 0, sizeof(consumer));
    consumer_of(end)->has_key = has_key;
  }
}

static tcp_end *some_end(void)
{
  tcp_end *end = &tcp.ends[fuzz_choose(&tape, TCP_ENDS_MAX)];
  return end->fd < 0 ? NULL : end;
}

static void send_something(unsigned what)
{
  size_t got;
  tcp_end *end = some_end();
  if (end == NULL) {
    return;
  }
  switch (what) {
    case 0: {
      const uint8_t *bytes = fuzz_bytes(&tape, fuzz_u16(&tape) % 1024, &got);
      send_bytes(end, bytes, got);
      break;
    }
    case 1: {
      kvf_frame_type type = (kvf_frame_type)(KVF_FRAME_DATA_CHALLENGE + fuzz_choose(&tape, 7));
      const uint8_t *bytes = fuzz_bytes(&tape, fuzz_u16(&tape) % 1024, &got);
      send_frame(end, type, bytes, got);
      break;
    }
    case 2:
      send_hello(end);
      break;
    case 3:
      send_cancel(end);
      break;
    case 4:
      end->is_deaf = !end->is_deaf;
      consumer_of(end)->deaf_ns = 0;
      break;
    case 5:
      tcp_hang_up(end);
      break;
    case 6:
      (void)shutdown(end->fd, SHUT_WR);
      consumer_of(end)->broken = true;
      break;
    default:
      send_read(end);
      break;
  }
}

static void pass_time(uint64_t time_ns)
{
  tcp.now_ns += time_ns;
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    consumer *c = &consumers[i];
    c->deaf_ns = tcp.ends[i].is_deaf ? c->deaf_ns + time_ns : 0;
    c->may_be_stuck = c->may_be_stuck || c->deaf_ns >= kvf_tcp_stuck_ns(tcp.tcp);
  }
}

static void step(void)
{
  uint8_t op = fuzz_u8(&tape);
  in_pieces = op >= 0x80;
  op %= 16;
  switch (op) {
    case 0: /* the transport does what it can */
      break;
    case 1:
      pass_time(fuzz_u8(&tape) * KVF_NS_PER_MS);
      break;
    case 2:
      connect_one(false);
      break;
    case 3:
      connect_one(true);
      break;
    case 4:
      next_state(&leases[fuzz_choose(&tape, LEASES)]);
      break;
    default:
      send_something(op - 5u);
      break;
  }
}

/* ---- checks ---- */

static void check_conn(const kvf_tcp_conn *conn)
{
  const tcp_end *end = tcp_end_of(conn->stream.fd);
  if (end != NULL) {
    const consumer *c = &consumers[end - tcp.ends];
    fuzz_check(!conn->is_trusted || c->proved);
    fuzz_check(c->proved || c->out_bytes + end->received_bytes <= STRANGER_OUT_BYTES_MAX);
  }
  fuzz_check(conn->stream.out.capacity <= 512 + (conn->is_trusted ? KVF_TCP_COPIED_BYTES_MAX : 0u));
  fuzz_check(conn->stream.in.capacity <= (conn->is_trusted ? KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX : 128));
  fuzz_check(conn->requests_count <= KVF_TCP_REQUESTS_MAX);
  fuzz_check(conn->items_count < KVF_TCP_ITEMS_MAX + KVF_READ_ITEMS_MAX);
}

static void check_world(void)
{
  const kvf_tcp *server = tcp.tcp;
  uint32_t limit = server->data_thread.config.connections_max;
  fuzz_check(server->strangers.count <= limit / KVF_TCP_GREETING_SHARE + 1 && server->proved.count <= limit);
  const kvf_list *lists[] = {&server->greeting, &server->serving};
  for (size_t i = 0; i < 2; i++) {
    for (const kvf_list *node = lists[i]->next; node != lists[i]; node = node->next) {
      const kvf_tcp_conn *conn = KVF_CONTAINER_OF(node, kvf_tcp_conn, in_conns);
      fuzz_check(conn->is_trusted == (i == 1));
      check_conn(conn);
    }
  }
}

/* Nothing moves any more: whoever has asked properly has been answered. */
static void check_answered(void)
{
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    const consumer *c = &consumers[i];
    if (tcp.ends[i].fd >= 0 && !tcp.ends[i].is_closed && c->proved && !c->broken) {
      fuzz_check(c->answered == c->reads_count && c->state == CHUNK);
    }
    /* Nobody who behaves, and takes what he asked for, is thrown out, unless there are too many. */
    bool is_behaved = tcp.ends[i].fd >= 0 && c->state > READY && !c->broken && !c->may_be_stuck;
    fuzz_check(!is_behaved || !tcp.ends[i].is_closed || proved_count > tcp.tcp->data_thread.config.connections_max);
  }
}

static bool turn(bool idle)
{
  check_world();
  if (!fuzz_is_over(&tape)) {
    step();
    return true;
  }
  for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
    idle = idle && !tcp.ends[i].is_deaf && consumers[i].buffered_bytes == 0;
    tcp.ends[i].is_deaf = false;
    if (tcp.ends[i].fd >= 0) {
      send_held(&tcp.ends[i]);
    }
    consumers[i].buffered_bytes = 0;
  }
  if (!idle) {
    return true;
  }
  if (closing_phase == 0) {
    check_answered();
    for (size_t i = 0; i < TCP_ENDS_MAX; i++) {
      tcp_hang_up(&tcp.ends[i]);
    }
  }
  closing_phase++;
  if (closing_phase < 3) {
    return true;
  }
  fuzz_check(tcp.tcp->strangers.count == 0 && tcp.tcp->proved.count == 0);
  return false;
}

/* ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static const kvf_transport_host host = {.authorize = authorize};
  tape = (fuzz_tape){.data = data, .bytes = bytes};
  closing_phase = 0;
  proved_count = 0;
  init_leases();
  tcp.turn = turn;
  tcp.on_frame = on_frame;
  tcp.on_payload = on_payload;
  tcp_world_run(true, &host);
  return 0;
}

/* A consumer that is served; one whose lease ends, who is slow, cancels and leaves; strangers. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  static const fuzz_tape_seed seeds[] = {
      {"\x04\x00\x03\x00\x00\x07\x00\x00\x0c\x00\x00\x00\x0e\x00\x01\x02\x00\x00", 18},
      {"\x04\x01\x03\x00\x07\x00\x01\x09\x00\x0c\x00\x00\x01\xf2\x00\x04\x01\x0c\x00\x01\x01\x00\x02\x04\x01\x08\x00"
       "\x00\x0c\x00\x00\x09\x00\x00\x0a\x00",
       36},
      {"\x02\x02\x02\x00\x07\x00\x00\x07\x01\x00\x05\x02\x10\x00GET / HTTP/1.1\r\n\x01\x65", 32},
      {"\x03\x00\x07\x00\x00\x06\x00\x03\x09\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0b\x00", 21},
  };
  return fuzz_put_nth(out, i, seeds, sizeof(seeds) / sizeof(seeds[0]));
}
