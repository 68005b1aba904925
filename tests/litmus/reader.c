/* The litmus reader: copies a lease's blocks in one of several ways, samples the fence, and sees whose bytes it has. */
#include <sched.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "litmus.h"
#include "transport/local/copy.h"

/* How often a reader that waits for its lease looks. */
#define LOOKS_MAX 2000

/* ---- the ways to copy ---- */

static void complain(const char *what, uint64_t lease_id, const kvf_fence_sample *found, uint64_t at, uint64_t owner)
{
  (void)printf("lease %llu: %s: word %llu digest %llx; byte %llu is of lease %llu\n", (unsigned long long)lease_id,
               what, (unsigned long long)found->entry.word, (unsigned long long)found->entry.digest,
               (unsigned long long)at, (unsigned long long)owner);
}

static kvf_status sample(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out)
{
  kvf_status status = KVF_OK;
  if (reader->producer != 0) {
    status = kvf_local_sample(reader->producer, (uint64_t)(uintptr_t)reader->world->table, litmus_slot(lease_id), out);
  } else {
    memcpy(&out->head, reader->world->table, sizeof(out->head));
    out->entry = kvf_fence_load(reader->world->table, litmus_slot(lease_id));
  }
  const kvf_fence_entry expected = litmus_entry(lease_id);
  if (status == KVF_OK && out->entry.word == expected.word && out->entry.digest != expected.digest) {
    if (reader->count.torn++ == 0) {
      complain("live, with another's digest", lease_id, out, 0, 0);
    }
  }
  return status;
}

/* As the transports do it: live before the first byte and after the last. */
static bool is_live(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out)
{
  (void)sample(reader, lease_id, out);
  return out->entry.word == kvf_fence_word_live(lease_id);
}

kvf_status litmus_copy_by_loads(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out)
{
  if (!is_live(reader, lease_id, out)) {
    return KVF_OK;
  }
  for (size_t i = 0; i < LITMUS_WORDS; i++) {
    reader->copy[i] = atomic_load_explicit(&reader->world->blocks[i], memory_order_relaxed);
  }
  (void)sample(reader, lease_id, out);
  return KVF_OK;
}

/* As the tcp transport's sender: the kernel copies, then the sender looks at the fence. */
kvf_status litmus_copy_by_socket(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out)
{
  const size_t bytes = sizeof(reader->copy);
  if (!is_live(reader, lease_id, out)) {
    return KVF_OK;
  }
  void *blocks = reader->world->blocks;
  struct iovec span = {blocks, bytes};
  const struct msghdr message = {.msg_iov = &span, .msg_iovlen = 1};
  ssize_t sent = sendmsg(reader->pipe[0], &message, MSG_NOSIGNAL);
  (void)sample(reader, lease_id, out);
  bool whole = sent == (ssize_t)bytes && recv(reader->pipe[1], reader->copy, bytes, MSG_WAITALL) == sent;
  return whole ? KVF_OK : KVF_TRANSFER_FAILED;
}

static void arrived(void *context)
{
  (void)context;
}

kvf_status litmus_copy_by_process(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out)
{
  static const atomic_bool never_stop;
  const size_t region_bytes = LITMUS_REGION_WORDS * sizeof(uint64_t);
  kvf_region regions[LITMUS_REGIONS];
  kvf_region_layout layouts[LITMUS_REGIONS];
  kvf_pair pairs[LITMUS_REGIONS];
  kvf_plan plan;
  kvf_memory_import imports[LITMUS_REGIONS];
  kvf_transfer_item items[LITMUS_BLOCKS];
  uint64_t bytes;
  for (size_t i = 0; i < LITMUS_REGIONS; i++) {
    regions[i] = (kvf_region){.base = &reader->copy[i * LITMUS_REGION_WORDS],
                              .stride_bytes = LITMUS_BLOCK_BYTES,
                              .block_bytes = LITMUS_BLOCK_BYTES,
                              .blocks = LITMUS_BLOCKS,
                              .heads = 1,
                              .heads_total = 1};
    layouts[i] = kvf_region_layout_of(&regions[i]);
    imports[i] = (kvf_memory_import){.ops = &kvf_memory_host,
                                     .base = (uint64_t)(uintptr_t)reader->world->blocks + i * region_bytes};
  }
  for (uint32_t i = 0; i < LITMUS_BLOCKS; i++) {
    items[i] = (kvf_transfer_item){0, i, i, i};
  }
  const kvf_transfer transfer = {.lease = {.id = lease_id, .slot = litmus_slot(lease_id)},
                                 .items_count = LITMUS_BLOCKS,
                                 .items = items,
                                 .heads = 1};
  kvf_plan_own(&plan, pairs, &(kvf_pages){.regions = layouts, .regions_count = LITMUS_REGIONS});
  const kvf_chunk chunk = {&transfer, &plan, &plan.selection, regions};
  atomic_ullong moved_ns;
  kvf_read_work work;
  const kvf_local_copy copy = {.pid = reader->producer,
                               .imports = imports,
                               .fence = reader->fence,
                               .stop = &never_stop,
                               .moved_ns = &moved_ns,
                               .work = &work,
                               .arrived = arrived};
  const uint64_t table = (uint64_t)(uintptr_t)reader->world->table;
  return kvf_local_copy_lease(&copy, &chunk, table, &bytes, out);
}

/* Plain loads, begun when the live word has been seen: for TSan a race, unless the fence orders them. */
kvf_status litmus_copy_by_handover(litmus_reader *reader, uint64_t lease_id, kvf_fence_sample *out)
{
  litmus_world *world = reader->world;
  (void)sample(reader, lease_id, out);
  if (out->entry.word < kvf_fence_word_live(lease_id)) {
    (void)sched_yield();
    return KVF_OK;
  }
  for (size_t i = 0; i < LITMUS_WORDS; i++) { /* not memcpy(): gcc may expand that past TSan */
    const void *word = &world->blocks[i];
    reader->copy[i] = *(const uint64_t *)word;
  }
  atomic_store_explicit(&world->taken, lease_id, memory_order_release);
  return KVF_OK;
}

/* ---- and what came of it ---- */

static void check_bytes(litmus_reader *reader, uint64_t lease_id, const kvf_fence_sample *found)
{
  for (size_t i = 0; i < LITMUS_WORDS; i++) {
    if (reader->copy[i] != lease_id) {
      reader->count.foreign++;
      complain("confirmed, but not all of it", lease_id, found, i * sizeof(uint64_t), reader->copy[i]);
      return;
    }
  }
  reader->count.live++;
}

static void judge(litmus_reader *reader, uint64_t lease_id, const kvf_fence_sample *found)
{
  const kvf_fence_claim claim = {litmus_incarnation, 0, lease_id, litmus_entry(lease_id).digest};
  switch (kvf_fence_check(found, &claim)) {
    case KVF_OK:
      check_bytes(reader, lease_id, found);
      break;
    case KVF_LEASE_EXPIRED:
      reader->count.over++;
      break;
    case KVF_NOT_PUBLISHED:
      reader->count.early++;
      break;
    default:
      reader->count.torn++; /* sample() has said so */
      break;
  }
}

/* Half of the readers begin at the very moment that their lease becomes live. */
static void await(litmus_reader *reader, uint64_t lease_id)
{
  kvf_fence_sample seen = {.entry = {0, 0}};
  for (int i = 0; i < LOOKS_MAX && seen.entry.word < kvf_fence_word_live(lease_id); i++) {
    if (sample(reader, lease_id, &seen) != KVF_OK) {
      return;
    }
  }
}

void litmus_read(litmus_reader *reader)
{
  kvf_fence_sample found;
  uint64_t lease_id = atomic_load_explicit(&reader->world->ticket, memory_order_relaxed);
  if (lease_id == 0) {
    return; /* it has yet to begin */
  }
  if (reader->world->handover && lease_id == atomic_load_explicit(&reader->world->taken, memory_order_relaxed)) {
    return;
  }
  if (kvf_prng_below(&reader->prng, 2) == 0) {
    await(reader, lease_id);
  }
  reader->count.rounds++;
  if (reader->copy_and_sample(reader, lease_id, &found) == KVF_OK) {
    judge(reader, lease_id, &found);
  }
}
