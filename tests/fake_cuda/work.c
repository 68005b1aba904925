/* What is on streams is done: by a thread, or step by step by a test; in either case in an order that the seed decides.
 */
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#include "state.h"

#define SLICE_BYTES_MAX ((uint64_t)256 * 1024)

#define LATE_STEPS_MAX 64 /* by hand, some work is left lying for so long */

static bool has_thread;
static uint64_t steps; /* which are the time by hand */

static uint64_t now_ns(void)
{
  struct timespec now;
  if (fake.settings.by_hand) {
    return steps;
  }
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

/* ---- works ---- */

work *work_create(work_kind kind)
{
  work *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    give_up("no memory");
  }
  made->kind = kind;
  kvf_list_init(&made->in_stream);
  if (kind == WORK_RECORD) {
    made->moment = calloc(1, sizeof(*made->moment));
    if (made->moment == NULL) {
      give_up("no memory");
    }
    made->moment->refs = 1;
  }
  return made;
}

/* A record's moment is past then, done or not. */
void work_free(work *done)
{
  for (size_t i = 0; i < done->pieces_left; i++) {
    free(done->pieces[i].early);
  }
  if (done->kind == WORK_RECORD) {
    done->moment->is_past = true;
  }
  moment_drop(done->moment);
  free(done->pieces);
  free(done);
}

static uint64_t draw_delay(void)
{
  if (!fake.settings.by_hand) {
    return kvf_prng_below(&fake.prng, fake.settings.delay_ns + 1);
  }
  return kvf_prng_below(&fake.prng, 4) != 0 ? 0 : kvf_prng_below(&fake.prng, LATE_STEPS_MAX);
}

void work_add(stream *to, work *added)
{
  if (to->is_captured) {
    work_free(added);
    return;
  }
  added->due_ns = now_ns() + draw_delay();
  kvf_list_push_back(&to->works, &added->in_stream);
  if (!fake.settings.by_hand) {
    work_begin_thread();
  }
  (void)pthread_cond_broadcast(&fake.changed);
}

/* ---- one step ---- */

/* The stream's work is done; a stream that was destroyed ends with its last. */
static void finish(stream *done_on, work *done)
{
  kvf_list_remove(&done->in_stream);
  work_free(done);
  if (done_on->is_destroyed && kvf_list_is_empty(&done_on->works)) {
    kvf_list_remove(&done_on->in_list);
    free(done_on);
  }
}

/* Most of the time all of it, else a part. */
static size_t slice_of(size_t bytes)
{
  size_t most = bytes < SLICE_BYTES_MAX ? bytes : SLICE_BYTES_MAX;
  return kvf_prng_below(&fake.prng, 4) != 0 ? most : 1 + kvf_prng_below(&fake.prng, most);
}

static size_t smallest(size_t a, size_t b, size_t c)
{
  size_t least = a < b ? a : b;
  return least < c ? least : c;
}

/* Some bytes of some piece; the lock is not held meanwhile. False: there is no such memory, for this device. */
static bool copy_some(work *copying, int device)
{
  piece *chosen = &copying->pieces[kvf_prng_below(&fake.prng, copying->pieces_left)];
  place to = {.bytes = 0};
  place from = {.bytes = SIZE_MAX};
  if (!place_find(chosen->to, device, true, &to)) {
    return false;
  }
  if (chosen->early != NULL) {
    from.host = chosen->early + chosen->early_offset;
  } else if (!place_find(chosen->from, device, false, &from)) {
    place_drop(&to);
    return false;
  }
  const size_t bytes = smallest(slice_of(chosen->bytes), to.bytes, from.bytes);
  (void)pthread_mutex_unlock(&fake.lock);
  const bool good = place_copy(&to, &from, bytes);
  (void)pthread_mutex_lock(&fake.lock);
  place_drop(&to);
  place_drop(&from);
  chosen->to += bytes;
  chosen->from += bytes;
  chosen->early_offset += bytes;
  chosen->bytes -= bytes;
  if (chosen->bytes == 0) {
    free(chosen->early);
    *chosen = copying->pieces[--copying->pieces_left];
  }
  return good;
}

static bool launch_once(work *launching)
{
  (void)pthread_mutex_unlock(&fake.lock);
  const bool ended = launching->run(&launching->launch);
  (void)pthread_mutex_lock(&fake.lock);
  launching->launch.step++;
  return ended;
}

/* One piece of a stream's first work, which is done then or not. */
static void do_some(stream *chosen)
{
  work *first = KVF_CONTAINER_OF(chosen->works.next, work, in_stream);
  bool is_done = true;
  chosen->is_busy = true;
  if (first->kind == WORK_COPY && first->pieces_left > 0) {
    if (!copy_some(first, chosen->context->device)) {
      context_break(chosen->context, KVF_CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    is_done = first->pieces_left == 0;
  } else if (first->kind == WORK_KERNEL) {
    is_done = launch_once(first);
  }
  chosen->is_busy = false;
  if (is_done && chosen->context->error == KVF_CUDA_SUCCESS) {
    finish(chosen, first);
  }
  (void)pthread_cond_broadcast(&fake.changed);
}

static bool can_go_on(const stream *asked, uint64_t now, uint64_t *next_ns)
{
  if (asked->is_busy || asked->is_stalled || asked->context->is_stalled || asked->context->error != KVF_CUDA_SUCCESS ||
      kvf_list_is_empty(&asked->works)) {
    return false;
  }
  const work *first = KVF_CONTAINER_OF(asked->works.next, work, in_stream);
  if (first->kind == WORK_WAIT && !first->moment->is_past) {
    return false;
  }
  if (first->due_ns > now) {
    *next_ns = first->due_ns < *next_ns ? first->due_ns : *next_ns;
    return false;
  }
  return true;
}

/* With the lock. False: nothing can be done before *next_ns. */
static bool step(uint64_t *next_ns)
{
  const uint64_t now = now_ns();
  stream *chosen = NULL;
  uint64_t seen = 0;
  *next_ns = UINT64_MAX;
  for (kvf_list *link = streams_all()->next; link != streams_all(); link = link->next) {
    stream *one = KVF_CONTAINER_OF(link, stream, in_list);
    if (can_go_on(one, now, next_ns) && kvf_prng_below(&fake.prng, ++seen) == 0) {
      chosen = one;
    }
  }
  if (chosen != NULL) {
    do_some(chosen);
  }
  return chosen != NULL;
}

/* If nothing is done, time goes by. */
static bool step_by_hand(void)
{
  uint64_t next_ns;
  steps++;
  return step(&next_ns) || next_ns != UINT64_MAX;
}

bool fake_cuda_step(void)
{
  (void)pthread_mutex_lock(&fake.lock);
  const bool done = step_by_hand();
  (void)pthread_mutex_unlock(&fake.lock);
  return done;
}

/* ---- the thread, and who waits for it ---- */

static void wait_until(uint64_t until_ns)
{
  const struct timespec until = {(time_t)(until_ns / 1000000000), (long)(until_ns % 1000000000)};
  if (until_ns == UINT64_MAX) {
    (void)pthread_cond_wait(&fake.changed, &fake.lock);
  } else {
    (void)pthread_cond_timedwait(&fake.changed, &fake.lock, &until);
  }
}

static void *run(void *unused)
{
  (void)unused;
  (void)pthread_mutex_lock(&fake.lock);
  for (;;) {
    uint64_t next_ns = UINT64_MAX;
    if (fake.settings.by_hand || !step(&next_ns)) {
      wait_until(next_ns);
    }
  }
  return NULL;
}

void work_begin_thread(void)
{
  pthread_t thread;
  sigset_t all;
  sigset_t was;
  if (has_thread) {
    return;
  }
  has_thread = true;
  (void)sigfillset(&all);
  (void)pthread_sigmask(SIG_SETMASK, &all, &was); /* signals are the test's */
  if (pthread_create(&thread, NULL, run, NULL) != 0 || pthread_detach(thread) != 0) {
    give_up("no thread");
  }
  (void)pthread_sigmask(SIG_SETMASK, &was, NULL);
}

kvf_cu_result work_wait(const moment *awaited, const context *owner)
{
  while (!awaited->is_past && owner->error == KVF_CUDA_SUCCESS) {
    if (!fake.settings.by_hand) {
      (void)pthread_cond_wait(&fake.changed, &fake.lock);
    } else if (!step_by_hand()) {
      give_up("waits for work that stands still");
    }
  }
  return owner->error;
}

/* ---- copies ---- */

/* False: nothing is there. */
static bool read_early(piece *early, int device)
{
  early->early = malloc(early->bytes);
  if (early->early == NULL) {
    give_up("no memory");
  }
  for (size_t done = 0; done < early->bytes;) {
    place from;
    if (!place_find(early->from + done, device, false, &from)) {
      return false;
    }
    const size_t some = early->bytes - done < from.bytes ? early->bytes - done : from.bytes;
    const bool good = place_read(&from, 0, early->early + done, some);
    place_drop(&from);
    if (!good) {
      return false;
    }
    done += some;
  }
  return true;
}

/* Memory that is not pinned is read at once, as drivers do, which wait for it. */
static bool add_piece(work *copying, kvf_cu_memory to, kvf_cu_memory from, size_t bytes, unsigned order)
{
  bool to_is_pinned;
  bool from_is_pinned;
  piece *added = &copying->pieces[copying->pieces_left];
  if (!memory_is_known(to, bytes, &to_is_pinned) || !memory_is_known(from, bytes, &from_is_pinned)) {
    return false;
  }
  if (!to_is_pinned || !from_is_pinned) {
    wait_is_seen();
  }
  *added = (piece){.to = to, .from = from, .bytes = bytes};
  copying->pieces_left++;
  const bool is_early = order == KVF_CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL || !from_is_pinned ||
                        (order == KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY && kvf_prng_below(&fake.prng, 2) == 0);
  return !is_early || read_early(added, context_current()->device);
}

static work *copy_create(size_t pieces_max)
{
  work *made = work_create(WORK_COPY);
  made->pieces = calloc(pieces_max, sizeof(*made->pieces));
  if (made->pieces == NULL) {
    give_up("no memory");
  }
  return made;
}

kvf_cu_result cuMemcpyAsync(kvf_cu_memory to, kvf_cu_memory from, size_t bytes, kvf_cu_stream at)
{
  kvf_cu_result error;
  BEGIN(cuMemcpyAsync, NEEDS_CONTEXT);
  stream *copied_on = stream_for_work(at, &error);
  if (copied_on == NULL || bytes == 0) {
    return call_end(error);
  }
  work *added = copy_create(1);
  if (!add_piece(added, to, from, bytes, KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)) {
    work_free(added);
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  work_add(copied_on, added);
  return call_end(KVF_CUDA_SUCCESS);
}

static bool attributes_are_valid(const kvf_cu_memcpy_attributes *attributes, const size_t *first, size_t count,
                                 size_t copies)
{
  for (size_t i = 0; i < count; i++) {
    const bool in_order = i == 0 ? first[0] == 0 : first[i] > first[i - 1] && first[i] < copies;
    if (!in_order || attributes[i].src_access_order < KVF_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM ||
        attributes[i].src_access_order > KVF_CU_MEMCPY_SRC_ACCESS_ORDER_ANY) {
      return false;
    }
  }
  return count > 0 && count <= copies;
}

kvf_cu_result fake_batch(kvf_cu_memory *to, kvf_cu_memory *from, size_t *bytes, size_t count,
                         kvf_cu_memcpy_attributes *attributes, size_t *first, size_t attributes_count,
                         size_t *fail_index, kvf_cu_stream at)
{
  kvf_cu_result error;
  BEGIN(cuMemcpyBatchAsync, NEEDS_CONTEXT);
  stream *copied_on = stream_for_work(at, &error);
  *fail_index = SIZE_MAX;
  if (copied_on == NULL || copied_on == context_current()->legacy ||
      !attributes_are_valid(attributes, first, attributes_count, count)) {
    return call_end(copied_on == NULL ? error : KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (copied_on->is_captured) {
    fake.violations++;
    return call_end(KVF_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  if (count > fake.settings.batch_max) {
    context_break(context_current(), KVF_CUDA_ERROR_LAUNCH_FAILED);
    return call_end(KVF_CUDA_ERROR_LAUNCH_FAILED);
  }
  work *added = copy_create(count);
  size_t attribute = 0;
  for (size_t i = 0; i < count; i++) {
    attribute += attribute + 1 < attributes_count && first[attribute + 1] == i ? 1 : 0;
    if (bytes[i] == 0 || !add_piece(added, to[i], from[i], bytes[i], attributes[attribute].src_access_order)) {
      *fail_index = i;
      work_free(added);
      return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
    }
  }
  work_add(copied_on, added);
  return call_end(KVF_CUDA_SUCCESS);
}
