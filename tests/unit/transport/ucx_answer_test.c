/* What UCX is given for a message of answers, when it asks for it at once or in pieces; and what may be asked for. */

#include "test.h"
#include "transport/fence_memory.h"
#include "transport/ucx/message.h"

#define SLOTS 8
#define SLOT 3
#define LEASE_ID 7
#define FIRST_BYTES 40
#define SECOND_BYTES 9
#define WHOLE_BYTES (FIRST_BYTES + SECOND_BYTES + 4 * KVF_UCX_ANSWER_BYTES)

static const kvf_incarnation incarnation = {{4, 5, 6}};
static const uint8_t block[FIRST_BYTES] = "bytes of a block, which are the lease's";

static void *table;
static kvf_paging *memory;
static kvf_ucx *ucx;
static kvf_ucx_message message;

/* A refusal, bytes, a look, and bytes, of a live lease. */
static void set_up(void)
{
  const uint64_t word = kvf_fence_word_live(LEASE_ID);
  const kvf_fence_entry entry = {word, 99};
  ucx = allocate(sizeof(*ucx));
  memory = allocate(sizeof(*memory));
  assert_int_equal(kvf_fence_table_open(SLOTS, &incarnation, &table, NULL), KVF_OK);
  kvf_fence_store_live(table, SLOT, entry);
  memory->table = table;
  memory->table_slots = SLOTS;
  ucx->data_thread.memory = memory;
  message = (kvf_ucx_message){.ucx = ucx, .bytes = WHOLE_BYTES, .count = 4};
  const kvf_ucx_part parts[] = {
      {.token = 1, .slot = SLOT, .word = word, .kind = KVF_UCX_ANSWER_REFUSED},
      {.token = 2, .slot = SLOT, .word = word, .kind = KVF_UCX_ANSWER_DATA, .from = block, .bytes = FIRST_BYTES},
      {.token = 3, .slot = SLOT, .word = word, .kind = KVF_UCX_ANSWER_LOOK, .entry = entry},
      {.token = 4, .slot = SLOT, .word = word, .kind = KVF_UCX_ANSWER_DATA, .from = block + 2, .bytes = SECOND_BYTES},
  };
  memcpy(message.parts, parts, sizeof(parts));
}

static void tear_down(void)
{
  kvf_fence_table_close(table, SLOTS);
  free(memory);
  free(ucx);
}

#define SET_TEST(name) TEST_WITH(name, set_up, tear_down)

static void end_lease(void)
{
  kvf_fence_store_ended(table, SLOT, (kvf_fence_entry){kvf_fence_word_ended(LEASE_ID), 0});
}

/* From `offset` to `end`, in pieces. */
static void pack(size_t offset, size_t end, size_t piece_bytes, uint8_t *out)
{
  while (offset < end) {
    size_t wanted = end - offset < piece_bytes ? end - offset : piece_bytes;
    assert_int_equal(kvf_ucx_answers_pack(&message, offset, out + offset, wanted), wanted);
    offset += wanted;
  }
}

/* The answer with this token, of a whole message. */
static kvf_ucx_answer answer_of(const uint8_t *data, uint64_t token, const uint8_t **from)
{
  size_t bytes = WHOLE_BYTES;
  kvf_ucx_answer answer = {0};
  while (answer.token != token) {
    assert_int_equal(kvf_ucx_answers_take_last(data, &bytes, &answer), KVF_OK);
  }
  *from = data + bytes;
  return answer;
}

SET_TEST(a_message_holds_its_answers_behind_their_bytes)
{
  uint8_t data[WHOLE_BYTES + 1] = {0};
  const uint8_t *from;
  assert_int_equal(kvf_ucx_answers_pack(&message, 0, data, sizeof(data)), WHOLE_BYTES);
  kvf_ucx_answer refused = answer_of(data, 1, &from);
  assert_int_equal(refused.kind, KVF_UCX_ANSWER_REFUSED);
  assert_memory_equal(&refused.sample, &(kvf_fence_sample){0}, sizeof(refused.sample));
  kvf_ucx_answer look = answer_of(data, 3, &from);
  assert_int_equal(look.kind, KVF_UCX_ANSWER_LOOK);
  assert_memory_equal(&look.sample.head.incarnation, &incarnation, sizeof(incarnation));
  assert_int_equal(look.sample.entry.digest, 99);
  kvf_ucx_answer bytes = answer_of(data, 2, &from);
  assert_int_equal(bytes.bytes, FIRST_BYTES);
  assert_int_equal(bytes.sample.entry.word, kvf_fence_word_live(LEASE_ID));
  assert_memory_equal(from, block, FIRST_BYTES);
  bytes = answer_of(data, 4, &from);
  assert_int_equal(bytes.bytes, SECOND_BYTES);
  assert_memory_equal(from, block + 2, SECOND_BYTES);
}

SET_TEST(pieces_of_any_size_are_the_whole)
{
  uint8_t whole[WHOLE_BYTES];
  uint8_t data[WHOLE_BYTES];
  pack(0, WHOLE_BYTES, WHOLE_BYTES, whole);
  for (size_t piece_bytes = 1; piece_bytes < WHOLE_BYTES; piece_bytes++) {
    memset(data, 0, sizeof(data));
    pack(0, WHOLE_BYTES, piece_bytes, data);
    assert_memory_equal(data, whole, WHOLE_BYTES);
  }
}

/* Between any two bytes: an answer that says live is behind bytes that were all copied before. */
SET_TEST(bytes_copied_by_then_are_covered_by_a_look)
{
  const size_t first = KVF_UCX_ANSWER_BYTES;
  for (size_t at = first; at <= first + FIRST_BYTES; at++) {
    const uint8_t none[FIRST_BYTES] = {0};
    uint8_t data[WHOLE_BYTES];
    const uint8_t *from;
    pack(0, at, WHOLE_BYTES, data);
    end_lease();
    pack(at, WHOLE_BYTES, WHOLE_BYTES, data);
    kvf_ucx_answer answer = answer_of(data, 2, &from);
    assert_int_equal(answer.sample.entry.word, kvf_fence_word_ended(LEASE_ID));
    assert_memory_equal(from, block, at - first);
    assert_memory_equal(from + (at - first), none, FIRST_BYTES - (at - first)); /* not the asker's any more */
    answer = answer_of(data, 4, &from);
    assert_int_equal(answer.sample.entry.word, kvf_fence_word_ended(LEASE_ID));
    assert_memory_equal(from, none, SECOND_BYTES);
    tear_down();
    set_up();
  }
}

/* What was decided when it was asked for stays, or it would say "live, and no bytes". */
SET_TEST(an_answer_without_bytes_says_what_was_seen_when_it_was_asked_for)
{
  uint8_t data[WHOLE_BYTES];
  const uint8_t *from;
  end_lease();
  pack(0, WHOLE_BYTES, WHOLE_BYTES, data);
  assert_int_equal(answer_of(data, 3, &from).sample.entry.word, kvf_fence_word_live(LEASE_ID));
}

/* ---- asked ---- */

static kvf_ucp_am_handler_param handler;
static kvf_ucx_answer_kind answered;

static kvf_ucs_status note_handler(kvf_ucp_worker worker, const kvf_ucp_am_handler_param *param)
{
  (void)worker;
  handler = *param;
  return KVF_UCS_OK;
}

static kvf_ucs_pointer note_answer(kvf_ucp_ep ep, unsigned id, const void *header, size_t header_bytes,
                                   const void *buffer, size_t count, const kvf_ucp_request_param *param)
{
  const kvf_ucx_message *sent = buffer;
  (void)ep;
  (void)id;
  (void)header;
  (void)header_bytes;
  (void)count;
  (void)param;
  answered = sent->parts[0].kind;
  return NULL;
}

/* By somebody who asks all the same: its address is not one that may be read. */
SET_TEST(memory_of_devices_is_not_given_to_who_asks_by_message)
{
  const kvf_ucx_api api = {.worker_set_am_recv_handler = note_handler, .am_send_nbx = note_answer};
  kvf_region region = {.base = (void *)(uintptr_t)block, .stride_bytes = 8, .block_bytes = 8, .blocks = 5};
  kvf_region_layout layout = kvf_region_layout_of(&region);
  const kvf_ucp_am_recv_param param = {.recv_attr = KVF_UCP_AM_RECV_ATTR_FIELD_REPLY_EP};
  char text[KVF_MESSAGE_BYTES_MAX];
  ucx->api = &api;
  memory->served = &region;
  memory->regions = &layout;
  memory->regions_count = 1;
  kvf_ucx_messages_init(&ucx->answers);
  assert_int_equal(kvf_ucx_messages_serve_server(ucx, text), KVF_OK);
  for (int kind = KVF_MEMORY_HOST; kind <= KVF_MEMORY_CUDA; kind++) {
    const kvf_ucx_ask ask = {.token = 1, .slot = SLOT, .word = kvf_fence_word_live(LEASE_ID), .bytes = 8};
    uint8_t asked[KVF_UCX_ASK_BYTES];
    region.memory = (kvf_memory_kind)kind;
    kvf_ucx_ask_write(&ask, asked);
    assert_int_equal(handler.cb(handler.arg, NULL, 0, asked, sizeof(asked), &param), KVF_UCS_OK);
    assert_int_equal(answered, kind == KVF_MEMORY_HOST ? KVF_UCX_ANSWER_DATA : KVF_UCX_ANSWER_REFUSED);
  }
  kvf_ucx_messages_free(&ucx->answers);
}
