/* The order in which a block's bytes on a device are written, published, read and given back, in miniature. As it
 * should be, no course of the fake's makes a block good that is not; with any one part of it left out, some course
 * does. So what the fake allows is enough to find these mistakes in the library. */
#include "base/prng.h"
#include "gpu.h"

#define SEEDS 400
#define BYTES ((size_t)16 * 1024)
#define TICKS_MAX 100000

enum { PROMPT = 1, NEXT_OWNER = 2, ZEROED = 3 }; /* what the blocks' bytes are */

typedef enum mistake {
  NO_MISTAKE,
  LIVE_AT_ONCE,   /* the producer stores live when the kernel is launched, not when its event is complete */
  OVER_TOO_LATE,  /* it launches the next owner's kernel, and then stores over */
  NO_LOAD_EVENT,  /* the consumer's copies do not wait for what its engine has launched before */
  SAMPLED_EARLY,  /* it samples the fence when the copies have been asked for, not when their event is complete */
  LOOKED_TOO_LATE /* it looks whether the lease is live when it has asked for the copies, with order ANY */
} mistake;

typedef struct world {
  mistake mistake;
  kvf_prng prng;
  kvf_cu_memory from;
  kvf_cu_memory to;
  kvf_cu_stream writes; /* the producer's engine's */
  kvf_cu_stream engine; /* the consumer's engine's */
  kvf_cu_stream copies;
  bool is_live;
  bool is_over;
  int produced; /* which of the sides' steps comes next */
  int consumed;
  kvf_cu_event written;
  kvf_cu_event copied;
  bool is_good;
} world;

static bool is_complete(kvf_cu_event event)
{
  return gpu->event_query(event) == KVF_CUDA_SUCCESS;
}

static void produce(world *w)
{
  const bool is_late = w->mistake == OVER_TOO_LATE;
  switch (w->produced) {
    case 0:
      gpu_fill(w->writes, w->from, BYTES, PROMPT);
      w->written = gpu_record(w->writes);
      w->produced++;
      break;
    case 1:
      w->is_live = w->mistake == LIVE_AT_ONCE || is_complete(w->written);
      w->produced += w->is_live ? 1 : 0;
      break;
    case 2:
      if (kvf_prng_below(&w->prng, 8) != 0) { /* a lease lasts */
        break;
      }
      /* fall through */
    case 3:
      if ((w->produced == 2) != is_late) {
        w->is_over = true;
      } else {
        gpu_fill(w->writes, w->from, BYTES, NEXT_OWNER);
      }
      w->produced++;
      break;
    default:
      break;
  }
}

static void copy(world *w, unsigned order)
{
  gpu_batch(w->copies, w->to, w->from, BYTES / 4, 4, order);
  w->copied = gpu_record(w->copies);
}

static void consume(world *w)
{
  const bool is_late = w->mistake == LOOKED_TOO_LATE;
  switch (w->consumed) {
    case 0:
      gpu_fill(w->engine, w->to, BYTES, ZEROED);
      if (w->mistake != NO_LOAD_EVENT) {
        assert_int_equal(gpu->stream_wait_event(w->copies, gpu_record(w->engine), 0), KVF_CUDA_SUCCESS);
      }
      w->consumed++;
      break;
    case 1:
    case 2:
      if ((w->consumed == 1) == is_late) {
        copy(w, is_late ? KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY : KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
        w->consumed++;
      } else {
        w->consumed += w->is_live ? 1 : 0;
      }
      break;
    case 3:
      if (w->mistake == SAMPLED_EARLY || is_complete(w->copied)) {
        w->is_good = !w->is_over;
        w->consumed++;
      }
      break;
    default:
      break;
  }
}

/* Whether a block was taken for good that is not. */
static bool goes_wrong(mistake made, uint64_t seed, bool *is_good)
{
  gpu_begin(seed, true);
  world w = {.mistake = made,
             .prng = {seed ^ UINT64_C(0x5bd1e995)},
             .from = gpu_allocate(BYTES),
             .to = gpu_allocate(BYTES),
             .writes = gpu_stream(),
             .engine = gpu_stream(),
             .copies = gpu_stream()};
  for (int i = 0; w.produced < 4 || w.consumed < 4; i++) {
    assert_true(i < TICKS_MAX);
    switch (kvf_prng_below(&w.prng, 8)) {
      case 0:
        produce(&w);
        break;
      case 1:
        consume(&w);
        break;
      default:
        (void)fake_cuda_step();
        break;
    }
  }
  gpu_finish();
  *is_good = w.is_good;
  return w.is_good && !gpu_all_are(w.to, BYTES, PROMPT);
}

static unsigned wrongs(mistake made)
{
  uint64_t seed;
  unsigned wrong = 0;
  unsigned good = 0;
  while (test_next_seed(SEEDS, &seed)) {
    bool is_good;
    wrong += goes_wrong(made, seed, &is_good) ? 1 : 0;
    good += is_good ? 1 : 0;
  }
  assert_true(!gpu_had_all_seeds() || (good > SEEDS / 20 && good < SEEDS)); /* leases end before and after the sample */
  return wrong;
}

SEEDS_TEST(in_the_right_order_no_block_is_wrong)
{
  assert_int_equal(wrongs(NO_MISTAKE), 0);
}

SEEDS_TEST(each_mistake_is_found)
{
  for (int made = LIVE_AT_ONCE; made <= LOOKED_TOO_LATE; made++) {
    const unsigned found = wrongs((mistake)made);
    print_message("mistake %d: %u of %d seeds\n", made, found, SEEDS);
    assert_true(!gpu_had_all_seeds() || found > 0);
  }
}
