#include "volley.h"
#include "test.h"

#define NEXT_OWNER 0x5A

read_volley volley_start(side *consumer, kvf_link *link, const node_lease *lease)
{
  read_volley volley = {.consumer = consumer};
  uint32_t count;
  volley.items = node_items(consumer, lease, 0, &count);
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley.reads[i] = node_read(consumer);
    volley.reads[i].lease = lease->lease;
    volley.reads[i].items = &volley.items[(size_t)i * (VOLLEY_BLOCKS / VOLLEY_READS)];
    volley.reads[i].items_count = VOLLEY_BLOCKS / VOLLEY_READS;
    consumer->ops->read(link, &volley.reads[i]);
  }
  return volley;
}

void volley_cancel(const read_volley *volley, kvf_link *link)
{
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    volley->consumer->ops->cancel(link, volley->reads[i].id);
  }
}

void next_owner(const side *consumer)
{
  memset(node_block(consumer, 0, 0), NEXT_OWNER, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES);
}

void volley_end(read_volley *volley, const node_shape *producer)
{
  uint64_t begun_ns = now_ns();
  for (uint32_t i = 0; i < VOLLEY_READS; i++) {
    kvf_read_result result = node_wait(volley->consumer, volley->reads[i].id);
    assert_true(result.status != KVF_OK || pair_bytes_match(volley->consumer, producer, &volley->reads[i]));
  }
  assert_true(now_ns() - begun_ns < VOLLEY_CANCEL_NS);
  free(volley->items);
  next_owner(volley->consumer);
}

bool next_owner_is_alone(const side *consumer)
{
  const uint8_t *bytes = node_block(consumer, 0, 0);
  return bytes[0] == NEXT_OWNER && memcmp(bytes, bytes + 1, (size_t)VOLLEY_BLOCKS * VOLLEY_BLOCK_BYTES - 1) == 0;
}

void volley_probe(side *consumer, kvf_link **link, const node_introduction *introduction, const node_lease *lease)
{
  for (int tries = 0;; tries++) {
    const kvf_read_item item = {0, 1, lease->blocks[1], VOLLEY_BLOCKS};
    kvf_read read = node_read(consumer);
    read.lease = lease->lease;
    read.items = &item;
    read.items_count = 1;
    if (node_read_now(consumer, *link, &read).status == KVF_OK) {
      assert_true(pair_bytes_match(consumer, &introduction->shape, &read));
      return;
    }
    assert_true(tries == 0);
    consumer->ops->disconnect(*link);
    *link = node_connect_ok(consumer, introduction);
  }
}
