/* Every decoder of messages and records. The first byte names the decoder, the rest is the body.
 *
 * What a decoder takes, the encoder writes again: the same bytes, or, where a message has several forms, bytes that
 * decode to the same message. */
#include <stdlib.h>
#include <string.h>

#include "../unit/wire/described.h"
#include "fuzz.h"
#include "wire/data_message.h"
#include "wire/find_message.h"
#include "wire/frame.h"
#include "wire/handshake_message.h"
#include "wire/lease_message.h"
#include "wire/ping_message.h"
#include "wire/rails_description.h"
#include "wire/rank_record.h"
#include "wire/ucx_message.h"

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

static uint8_t again[KVF_READ_ITEMS_MAX * KVF_DATA_READ_RUN_BYTES + KVF_DATA_READ_HEAD_BYTES];

#define SAME_AGAIN(name)                                                                       \
  static void take_##name(const uint8_t *body, size_t bytes)                                   \
  {                                                                                            \
    static kvf_##name message;                                                                 \
    size_t again_bytes = 0;                                                                    \
    kvf_status status = kvf_##name##_decode(body, bytes, &message);                            \
    fuzz_check(status == KVF_OK || status == KVF_PROTOCOL);                                    \
    if (status == KVF_OK) {                                                                    \
      fuzz_check(kvf_##name##_encode(&message, again, sizeof(again), &again_bytes) == KVF_OK); \
      fuzz_check(again_bytes == bytes && memcmp(again, body, bytes) == 0);                     \
    }                                                                                          \
  }

SAME_AGAIN(hello)
SAME_AGAIN(challenge)
SAME_AGAIN(proof)
SAME_AGAIN(refused)
SAME_AGAIN(leases)
SAME_AGAIN(lease_states)
SAME_AGAIN(find_question)
SAME_AGAIN(found)
SAME_AGAIN(data_challenge)
SAME_AGAIN(data_hello)
SAME_AGAIN(data_ready)
SAME_AGAIN(data_chunk)
SAME_AGAIN(data_trailer)
SAME_AGAIN(data_cancel)

static void check_same_welcome(const kvf_welcome *a, const kvf_welcome *b)
{
  fuzz_check(a->session_id == b->session_id && a->generation == b->generation && a->rank == b->rank &&
             a->ranks == b->ranks);
  fuzz_check(a->block_tokens == b->block_tokens && a->regions_count == b->regions_count);
  fuzz_check(a->version_min == b->version_min && a->version_max == b->version_max);
  fuzz_check(strcmp(a->library, b->library) == 0);
  for (uint32_t i = 0; i < a->regions_count; i++) {
    const kvf_region_layout *x = &a->regions[i];
    const kvf_region_layout *y = &b->regions[i];
    fuzz_check(x->stride_bytes == y->stride_bytes && x->block_bytes == y->block_bytes && x->blocks == y->blocks);
    fuzz_check(x->heads == y->heads && x->heads_total == y->heads_total && x->group == y->group);
  }
  fuzz_check(a->layout.parts_count == b->layout.parts_count);
  fuzz_check(memcmp(&a->layout.share, &b->layout.share, sizeof(a->layout.share)) == 0);
  fuzz_check(memcmp(&a->layout.deal, &b->layout.deal, sizeof(a->layout.deal)) == 0);
  fuzz_check(a->layout.parts_count == 0 ||
             memcmp(a->layout.parts, b->layout.parts, a->layout.parts_count * sizeof(kvf_part)) == 0);
  fuzz_check(a->transports_count == b->transports_count);
  for (uint32_t i = 0; i < a->transports_count; i++) {
    const kvf_transport_offer *x = &a->transports[i];
    const kvf_transport_offer *y = &b->transports[i];
    fuzz_check(strcmp(x->name, y->name) == 0 && x->description_bytes == y->description_bytes);
    fuzz_check(x->description_bytes == 0 || memcmp(x->description, y->description, x->description_bytes) == 0);
  }
}

/* Its runs of equal regions may be split in several ways. */
static void take_welcome(const uint8_t *body, size_t bytes)
{
  kvf_welcome welcome;
  kvf_welcome second;
  size_t again_bytes = 0;
  if (kvf_welcome_decode(body, bytes, &welcome) != KVF_OK) {
    return;
  }
  fuzz_check(welcome.regions_count <= KVF_REGIONS_MAX && welcome.transports_count <= KVF_TRANSPORTS_MAX);
  fuzz_check(kvf_pages_are_valid(&(kvf_pages){welcome.regions, welcome.regions_count, welcome.layout}));
  size_t room = kvf_welcome_bytes_max(&welcome);
  fuzz_check(room <= KVF_FRAME_BODY_BYTES_MAX);
  fuzz_check(kvf_welcome_encode(&welcome, again, room, &again_bytes) == KVF_OK && again_bytes <= bytes);
  fuzz_check(kvf_welcome_decode(again, again_bytes, &second) == KVF_OK);
  check_same_welcome(&welcome, &second);
  kvf_welcome_free(&second);
  kvf_welcome_free(&welcome);
}

/* So may a read's runs of positions. */
static void take_read(const uint8_t *body, size_t bytes)
{
  static kvf_transfer_item items[2][KVF_READ_ITEMS_MAX];
  kvf_data_read reads[2];
  size_t again_bytes = 0;
  if (kvf_data_read_decode(body, bytes, &reads[0]) != KVF_OK) {
    return;
  }
  uint32_t count = reads[0].items_count;
  fuzz_check(count > 0 && count <= KVF_READ_ITEMS_MAX);
  kvf_data_read_items(&reads[0], items[0]);
  fuzz_check(kvf_data_read_encode(&reads[0], items[0], again, sizeof(again), &again_bytes) == KVF_OK);
  fuzz_check(again_bytes <= bytes && kvf_data_read_decode(again, again_bytes, &reads[1]) == KVF_OK);
  fuzz_check(reads[1].items_count == count && reads[1].read_id == reads[0].read_id);
  fuzz_check(reads[1].remote_head == reads[0].remote_head && reads[1].heads == reads[0].heads);
  fuzz_check(memcmp(&reads[1].selection, &reads[0].selection, sizeof(reads[0].selection)) == 0);
  fuzz_check(memcmp(&reads[1].lease, &reads[0].lease, sizeof(reads[0].lease)) == 0);
  kvf_data_read_items(&reads[1], items[1]);
  fuzz_check(memcmp(items[0], items[1], count * sizeof(items[0][0])) == 0);
}

/* The bytes that follow are anything. */
static void take_ping(const uint8_t *body, size_t bytes)
{
  kvf_ping ping;
  size_t again_bytes = 0;
  if (kvf_ping_decode(body, bytes, &ping) == KVF_OK) {
    fuzz_check(kvf_ping_encode(&ping, again, sizeof(again), &again_bytes) == KVF_OK);
    fuzz_check(again_bytes == bytes && memcmp(again, body, KVF_PING_BYTES_MAX) == 0);
  }
}

static void take_frame(const uint8_t *body, size_t bytes)
{
  const uint32_t limits[] = {KVF_FRAME_BODY_BYTES_MAX, KVF_FRAME_BODY_UNTRUSTED_BYTES_MAX};
  for (size_t i = 0; bytes == KVF_FRAME_HEADER_BYTES && i < COUNT_OF(limits); i++) {
    kvf_frame_header header;
    if (kvf_frame_header_decode(body, limits[i], &header) == KVF_OK) {
      fuzz_check(header.body_bytes <= limits[i]);
      fuzz_check(strcmp(kvf_frame_type_name(header.type), "unknown") != 0);
      kvf_frame_header_encode(header.type, header.body_bytes, again);
      fuzz_check(memcmp(again, body, bytes) == 0);
    }
  }
}

static void take_record(const uint8_t *body, size_t bytes)
{
  kvf_rank_record record;
  size_t again_bytes = 0;
  if (kvf_rank_record_decode(body, bytes, &record) == KVF_OK) {
    fuzz_check(kvf_rank_record_encode(&record, again, sizeof(again), &again_bytes) == KVF_OK);
    fuzz_check(again_bytes == bytes && memcmp(again, body, bytes) == 0);
  }
}

/* A record around any fields: its checksum is the last of it. */
static void take_record_fields(const uint8_t *body, size_t bytes)
{
  static const size_t sizes[] = {KVF_RANK_RECORD_BYTES, KVF_RANK_RECORD_BYTES_MAX};
  for (size_t i = 0; i < COUNT_OF(sizes); i++) {
    uint8_t record[KVF_RANK_RECORD_BYTES_MAX] = {0};
    uint8_t checksum[KVF_HASH_BYTES];
    const size_t fields_bytes = sizes[i] - 8;
    kvf_span fields = {record, fields_bytes};
    memcpy(record, body, bytes < fields_bytes ? bytes : fields_bytes);
    fuzz_check(kvf_sha256(&fields, 1, checksum) == KVF_OK);
    memcpy(record + fields_bytes, checksum, 8);
    take_record(record, sizes[i]);
  }
}

/* What an address prints, it reads again. */
static void take_address(const uint8_t *body, size_t bytes)
{
  char text[512];
  char printed[KVF_ADDRESS_TEXT_BYTES];
  kvf_address address;
  kvf_address second;
  size_t length = bytes < sizeof(text) - 1 ? bytes : sizeof(text) - 1;
  memcpy(text, body, length);
  text[length] = '\0';
  if (kvf_address_parse(text, 7, &address) == KVF_OK) {
    kvf_address_format(&address, printed);
    fuzz_check(kvf_address_parse(printed, 0, &second) == KVF_OK);
    fuzz_check(memcmp(address.ip, second.ip, sizeof(address.ip)) == 0 && address.port == second.port);
  }
}

static void take_ucx_ask(const uint8_t *body, size_t bytes)
{
  kvf_ucx_ask ask;
  if (kvf_ucx_ask_read(body, bytes, &ask) == KVF_OK) {
    fuzz_check(ask.bytes <= KVF_UCX_ANSWER_DATA_BYTES_MAX);
    fuzz_check((ask.memory == KVF_UCX_MEMORY_TABLE) == (ask.bytes == 0));
    kvf_ucx_ask_write(&ask, again);
    fuzz_check(bytes == KVF_UCX_ASK_BYTES && memcmp(again, body, bytes) == 0);
  }
}

static void take_ucx_answer(const uint8_t *body, size_t bytes)
{
  kvf_ucx_answer answer;
  if (kvf_ucx_answer_read(body, bytes, &answer) == KVF_OK) {
    fuzz_check(answer.kind <= KVF_UCX_ANSWER_DATA);
    fuzz_check((answer.kind == KVF_UCX_ANSWER_DATA) == (answer.bytes > 0));
    fuzz_check(answer.bytes <= KVF_UCX_ANSWER_DATA_BYTES_MAX);
    kvf_ucx_answer_write(&answer, again);
    fuzz_check(bytes == KVF_UCX_ANSWER_BYTES && memcmp(again, body, bytes) == 0);
  }
  for (size_t before = bytes; bytes > 0 && kvf_ucx_answers_take_last(body, &bytes, &answer) == KVF_OK; before = bytes) {
    fuzz_check(bytes + answer.bytes + KVF_UCX_ANSWER_BYTES == before);
  }
}

static void take_rails(const uint8_t *body, size_t bytes)
{
  kvf_rails_description description;
  size_t again_bytes = 0;
  if (kvf_rails_description_read(body, bytes, &description) != KVF_OK) {
    return;
  }
  fuzz_check(description.count > 0 && description.count <= KVF_RAILS_MAX);
  for (uint32_t i = 0; i < description.count; i++) {
    fuzz_check(description.each[i].bytes > 0 && description.each[i].data > body);
    fuzz_check(description.each[i].data + description.each[i].bytes <= body + bytes);
  }
  fuzz_check(kvf_rails_description_write(&description, again, sizeof(again), &again_bytes) == KVF_OK);
  fuzz_check(again_bytes == bytes && memcmp(again, body, bytes) == 0);
}

/* ---- seeds ---- */

static size_t seed_hello(uint8_t *out)
{
  kvf_hello hello = {.version_min = 1, .version_max = 3, .role = KVF_ROLE_RANK, .rank = 5};
  size_t bytes = 0;
  fuzz_check(kvf_hello_encode(&hello, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_challenge(uint8_t *out)
{
  kvf_challenge challenge = {.version = 1, .nonce = {1, 2, 3}};
  size_t bytes = 0;
  fuzz_check(kvf_challenge_encode(&challenge, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_proof(uint8_t *out)
{
  static kvf_proof proof = {.identity_count = 2, .identity = {{"dtype", "float32"}, {"model", "small"}}};
  size_t bytes = 0;
  fuzz_check(kvf_proof_encode(&proof, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_refused(uint8_t *out)
{
  kvf_refused refused = {.status = KVF_DRAINING, .message = "not now"};
  size_t bytes = 0;
  fuzz_check(kvf_refused_encode(&refused, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_welcome(uint8_t *out)
{
  kvf_region_layout regions[3];
  for (uint32_t i = 0; i < COUNT_OF(regions); i++) {
    regions[i] = (kvf_region_layout){
        .stride_bytes = 64, .block_bytes = 64, .blocks = 9, .heads = 2, .heads_total = 2, .group = i / 2};
  }
  uint8_t description[] = {1, 2, 3};
  kvf_welcome welcome = {.session_id = 77,
                         .generation = 2,
                         .rank = 1,
                         .ranks = 2,
                         .block_tokens = 16,
                         .regions_count = COUNT_OF(regions),
                         .regions = regions,
                         .transports_count = 2,
                         .transports = {{.name = "local", .description = description, .description_bytes = 3},
                                        {.name = "tcp", .description = description, .description_bytes = 2}}};
  size_t bytes = 0;
  fuzz_check(kvf_welcome_encode(&welcome, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_parts(uint8_t *out)
{
  described d;
  describe(&d);
  d.pages.layout.deal = (kvf_deal){.ranks = 2, .tokens = 2};
  kvf_welcome welcome = {.ranks = 1,
                         .block_tokens = 4,
                         .regions_count = d.pages.regions_count,
                         .regions = d.regions,
                         .layout = d.pages.layout};
  size_t bytes = 0;
  fuzz_check(kvf_welcome_encode(&welcome, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_leases(uint8_t *out)
{
  static kvf_leases leases = {.seq = 1, .count = 2, .items = {{.lease = {.id = 1}}, {.kind = 2}}};
  size_t bytes = 0;
  fuzz_check(kvf_leases_encode(&leases, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_states(uint8_t *out)
{
  static kvf_lease_states states = {
      .seq = 1, .count = 2, .items = {{.lease_id = 1, .state = 1}, {.lease_id = 2, .state = 4}}};
  size_t bytes = 0;
  fuzz_check(kvf_lease_states_encode(&states, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_ones(uint8_t *out, size_t bytes)
{
  memset(out, 1, bytes);
  return bytes;
}

static size_t seed_8(uint8_t *out)
{
  return seed_ones(out, 8);
}

static size_t seed_ping(uint8_t *out)
{
  const kvf_ping ping = {.seq = 1, .wanted_bytes = 3, .fill_bytes = 3};
  size_t bytes = 0;
  fuzz_check(kvf_ping_encode(&ping, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_find(uint8_t *out)
{
  const kvf_find_question question = {.id = 1, .key = {1, 2, 3}};
  size_t bytes = 0;
  fuzz_check(kvf_find_question_encode(&question, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_found(uint8_t *out)
{
  const kvf_found found = {.id = 1, .status = KVF_FOUND_TICKET, .text = "kvf4.a.b", .text_bytes = 8};
  size_t bytes = 0;
  fuzz_check(kvf_found_encode(&found, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_24(uint8_t *out)
{
  return seed_ones(out, KVF_DATA_TRAILER_BYTES_MAX);
}

static size_t seed_32(uint8_t *out)
{
  return seed_ones(out, 32);
}

static size_t seed_data_hello(uint8_t *out)
{
  kvf_data_hello hello = {.session_id = 1, .generation = 2};
  size_t bytes = 0;
  fuzz_check(kvf_data_hello_encode(&hello, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_read(uint8_t *out)
{
  kvf_data_read read = {.read_id = 1, .heads = 1, .selection = kvf_read_selection_whole(3), .items_count = 4};
  kvf_transfer_item items[] = {{.group = 0, .position = 5},
                               {.group = 0, .position = 6},
                               {.group = 1, .position = 7},
                               {.group = 1, .position = 9}};
  size_t bytes = 0;
  fuzz_check(kvf_data_read_encode(&read, items, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_chunk(uint8_t *out)
{
  kvf_data_chunk chunk = {.read_id = 1, .status = KVF_OK, .payload_bytes = 9};
  size_t bytes = 0;
  fuzz_check(kvf_data_chunk_encode(&chunk, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_frame(uint8_t *out)
{
  kvf_frame_header_encode(KVF_FRAME_READ, 100, out);
  return KVF_FRAME_HEADER_BYTES;
}

static size_t seed_record(uint8_t *out)
{
  const kvf_address v4 = {.ip = {[10] = 0xff, [11] = 0xff}, .port = 2};
  kvf_rank_record record = {.address = {.port = 1}, .other = v4, .rank = 3, .layers = {2, 5}, .dealt = 1};
  size_t bytes = 0;
  fuzz_check(kvf_rank_record_encode(&record, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

static size_t seed_address(uint8_t *out)
{
  static const char text[] = "[::ffff:127.0.0.1]:65535";
  memcpy(out, text, sizeof(text) - 1);
  return sizeof(text) - 1;
}

static size_t seed_ucx_ask(uint8_t *out)
{
  const kvf_ucx_ask ask = {.token = 1, .memory = 2, .slot = 3, .offset = 4096, .word = 5, .bytes = 64};
  kvf_ucx_ask_write(&ask, out);
  return KVF_UCX_ASK_BYTES;
}

static size_t seed_ucx_answer(uint8_t *out)
{
  const kvf_ucx_answer answer = {.token = 1, .kind = KVF_UCX_ANSWER_DATA, .bytes = 64};
  kvf_ucx_answer_write(&answer, out);
  return KVF_UCX_ANSWER_BYTES;
}

static size_t seed_rails(uint8_t *out)
{
  static const uint8_t text[] = "ten bytes!and the other";
  const kvf_rails_description description = {.count = 2, .each = {{text, 10}, {text + 10, 13}}};
  size_t bytes = 0;
  fuzz_check(kvf_rails_description_write(&description, out, sizeof(again), &bytes) == KVF_OK);
  return bytes;
}

/* The order is the corpus': new ones go to the end. */
static const struct {
  void (*take)(const uint8_t *body, size_t bytes);
  size_t (*seed)(uint8_t *out);
} decoders[] = {
    {take_hello, seed_hello},           {take_challenge, seed_challenge},   {take_proof, seed_proof},
    {take_refused, seed_refused},       {take_welcome, seed_welcome},       {take_leases, seed_leases},
    {take_rails, seed_rails},           {take_lease_states, seed_states},   {take_ping, seed_ping},
    {take_data_challenge, seed_32},     {take_data_hello, seed_data_hello}, {take_read, seed_read},
    {take_data_chunk, seed_chunk},      {take_data_trailer, seed_24},       {take_data_cancel, seed_8},
    {take_frame, seed_frame},           {take_record, seed_record},         {take_record_fields, seed_record},
    {take_address, seed_address},       {take_data_ready, seed_32},         {take_ucx_ask, seed_ucx_ask},
    {take_ucx_answer, seed_ucx_answer}, {take_welcome, seed_parts},         {take_find_question, seed_find},
    {take_found, seed_found},
};

bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  if (i >= COUNT_OF(decoders)) {
    return false;
  }
  fuzz_put_u8(out, i);
  fuzz_put(out, again, decoders[i].seed(again));
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  if (bytes > 0) {
    decoders[data[0] % COUNT_OF(decoders)].take(data + 1, bytes - 1);
  }
  return 0;
}
