/* Streams, events, and what is put on streams. */
#include <stdlib.h>
#include <unistd.h>

#include "state.h"

static kvf_list streams = {&streams, &streams};
static kvf_list events = {&events, &events};

/* ---- moments ---- */

static moment *moment_hold(moment *held)
{
  held->refs++;
  return held;
}

void moment_drop(moment *dropped)
{
  if (dropped != NULL && --dropped->refs == 0) {
    free(dropped);
  }
}

/* ---- streams ---- */

kvf_list *streams_all(void)
{
  return &streams;
}

stream *stream_create(context *owner)
{
  stream *made = calloc(1, sizeof(*made));
  if (made == NULL) {
    give_up("no memory");
  }
  made->context = owner;
  kvf_list_init(&made->in_list);
  kvf_list_init(&made->works);
  kvf_list_push_back(&streams, &made->in_list);
  return made;
}

static void stream_free(stream *freed)
{
  kvf_list *link;
  while ((link = kvf_list_pop_front(&freed->works)) != NULL) {
    work_free(KVF_CONTAINER_OF(link, work, in_stream));
  }
  kvf_list_remove(&freed->in_list);
  free(freed);
}

bool stream_exists(const stream *asked)
{
  for (const kvf_list *link = streams.next; link != &streams; link = link->next) {
    if (KVF_CONTAINER_OF(link, stream, in_list) == asked) {
      return true;
    }
  }
  return false;
}

/* The calling thread's own, in its context. */
static stream *stream_of_thread(void)
{
  const pid_t thread = gettid();
  for (kvf_list *link = streams.next; link != &streams; link = link->next) {
    stream *found = KVF_CONTAINER_OF(link, stream, in_list);
    if (found->thread == thread && found->context == context_current()) {
      return found;
    }
  }
  stream *made = stream_create(context_current());
  made->thread = thread;
  made->is_blocking = true;
  return made;
}

static bool is_default(const stream *asked)
{
  return asked == asked->context->legacy || asked->thread != 0;
}

stream *stream_of(kvf_cu_stream handle, kvf_cu_result *error)
{
  stream *found = handle;
  if ((uintptr_t)handle <= KVF_CU_STREAM_LEGACY) {
    found = context_current()->legacy;
  } else if ((uintptr_t)handle == KVF_CU_STREAM_PER_THREAD) {
    found = stream_of_thread();
  }
  *error = KVF_CUDA_SUCCESS;
  if (!stream_exists(found) || found->is_destroyed) {
    *error = KVF_CUDA_ERROR_INVALID_HANDLE;
  } else if (found->context != context_current()) {
    *error = KVF_CUDA_ERROR_INVALID_CONTEXT;
  }
  return *error == KVF_CUDA_SUCCESS ? found : NULL;
}

/* Whether the legacy stream would wait for work that is being captured. */
static bool is_entangled(const stream *asked)
{
  for (const kvf_list *link = streams.next; asked == asked->context->legacy && link != &streams; link = link->next) {
    const stream *other = KVF_CONTAINER_OF(link, stream, in_list);
    if (other->context == asked->context && other->is_blocking && other->is_captured) {
      return true;
    }
  }
  return false;
}

stream *stream_for_work(kvf_cu_stream handle, kvf_cu_result *error)
{
  stream *found = stream_of(handle, error);
  if (found == NULL || !is_entangled(found)) {
    return found;
  }
  fake.violations++;
  *error = KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  return NULL;
}

kvf_cu_result cuStreamIsCapturing(kvf_cu_stream handle, unsigned *status)
{
  kvf_cu_result error;
  BEGIN(cuStreamIsCapturing, NEEDS_CONTEXT);
  const stream *asked = stream_of(handle, &error);
  if (asked == NULL || is_entangled(asked)) {
    return call_end(asked == NULL ? error : (unsigned)KVF_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  }
  *status = asked->is_captured ? KVF_CU_STREAM_CAPTURE_STATUS_ACTIVE : KVF_CU_STREAM_CAPTURE_STATUS_NONE;
  return call_end(KVF_CUDA_SUCCESS);
}

void fake_cuda_capture_stream(kvf_cu_stream captured, bool captures)
{
  (void)pthread_mutex_lock(&fake.lock);
  if (!stream_exists(captured)) {
    give_up("captures no stream");
  }
  captured->is_captured = captures;
  (void)pthread_mutex_unlock(&fake.lock);
}

kvf_cu_result cuStreamCreateWithPriority(kvf_cu_stream *out, unsigned flags, int priority)
{
  (void)priority; /* an order that nobody may count on */
  BEGIN(cuStreamCreateWithPriority, NEEDS_CONTEXT);
  if (flags > KVF_CU_STREAM_NON_BLOCKING) {
    return call_end(KVF_CUDA_ERROR_INVALID_VALUE);
  }
  *out = stream_create(context_current());
  (*out)->is_blocking = flags == KVF_CU_STREAM_DEFAULT;
  return call_end(KVF_CUDA_SUCCESS);
}

/* What is on it will be done. */
kvf_cu_result cuStreamDestroy_v2(kvf_cu_stream handle)
{
  kvf_cu_result error;
  BEGIN(cuStreamDestroy_v2, NEEDS_CONTEXT);
  stream *destroyed = stream_of(handle, &error);
  if (destroyed == NULL || is_default(destroyed)) {
    return call_end(destroyed == NULL ? error : KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  destroyed->is_destroyed = true;
  if (kvf_list_is_empty(&destroyed->works)) {
    stream_free(destroyed);
  }
  return call_end(KVF_CUDA_SUCCESS);
}

void fake_cuda_stall(kvf_cu_stream stalled, bool still)
{
  (void)pthread_mutex_lock(&fake.lock);
  if (!stream_exists(stalled)) {
    give_up("stalls no stream");
  }
  stalled->is_stalled = still;
  (void)pthread_cond_broadcast(&fake.changed);
  (void)pthread_mutex_unlock(&fake.lock);
}

void streams_count(fake_cuda_open *out)
{
  for (const kvf_list *link = streams.next; link != &streams; link = link->next) {
    const stream *counted = KVF_CONTAINER_OF(link, stream, in_list);
    out->streams += counted->is_destroyed || is_default(counted) ? 0 : 1;
    for (const kvf_list *each = counted->works.next; each != &counted->works; each = each->next) {
      out->works++;
    }
  }
  for (const kvf_list *link = events.next; link != &events; link = link->next) {
    out->events++;
  }
}

/* ---- events ---- */

static event *event_of(kvf_cu_event handle)
{
  for (const kvf_list *link = events.next; link != &events; link = link->next) {
    if (KVF_CONTAINER_OF(link, event, in_list) == handle) {
      return handle;
    }
  }
  return NULL;
}

static void event_free(event *freed)
{
  moment_drop(freed->latest);
  kvf_list_remove(&freed->in_list);
  free(freed);
}

kvf_cu_result cuEventCreate(kvf_cu_event *out, unsigned flags)
{
  BEGIN(cuEventCreate, NEEDS_CONTEXT);
  event *made = flags > 7 ? NULL : calloc(1, sizeof(*made));
  if (made == NULL) {
    return call_end(flags > 7 ? KVF_CUDA_ERROR_INVALID_VALUE : KVF_CUDA_ERROR_OUT_OF_MEMORY);
  }
  made->context = context_current();
  kvf_list_init(&made->in_list);
  kvf_list_push_back(&events, &made->in_list);
  *out = made;
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuEventDestroy_v2(kvf_cu_event handle)
{
  BEGIN(cuEventDestroy_v2, NEEDS_CONTEXT);
  event *destroyed = event_of(handle);
  if (destroyed == NULL) {
    return call_end(KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  event_free(destroyed);
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuEventRecord(kvf_cu_event handle, kvf_cu_stream at)
{
  kvf_cu_result error;
  BEGIN(cuEventRecord, NEEDS_CONTEXT);
  stream *recorded = stream_for_work(at, &error);
  event *recording = event_of(handle);
  if (recorded == NULL || recording == NULL || recording->context != recorded->context) {
    return call_end(recorded == NULL ? error : KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  work *added = work_create(WORK_RECORD);
  moment_drop(recording->latest);
  recording->latest = moment_hold(added->moment);
  recording->is_captured = recorded->is_captured;
  work_add(recorded, added);
  return call_end(KVF_CUDA_SUCCESS);
}

/* An event that was never recorded is complete, and nothing waits for it. */
kvf_cu_result cuStreamWaitEvent(kvf_cu_stream at, kvf_cu_event handle, unsigned flags)
{
  kvf_cu_result error;
  BEGIN(cuStreamWaitEvent, NEEDS_CONTEXT);
  stream *waiting = stream_for_work(at, &error);
  const event *awaited = event_of(handle);
  if (waiting == NULL || awaited == NULL || flags != 0) {
    return call_end(waiting == NULL   ? error
                    : awaited == NULL ? KVF_CUDA_ERROR_INVALID_HANDLE
                                      : (unsigned)KVF_CUDA_ERROR_INVALID_VALUE);
  }
  if (awaited->latest != NULL) {
    work *added = work_create(WORK_WAIT);
    added->moment = moment_hold(awaited->latest);
    work_add(waiting, added);
  }
  return call_end(KVF_CUDA_SUCCESS);
}

kvf_cu_result cuEventQuery(kvf_cu_event handle)
{
  BEGIN(cuEventQuery, NEEDS_INIT);
  unsafe_is_seen();
  const event *asked = event_of(handle);
  if (asked == NULL) {
    return call_end(KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  if (asked->context->error != KVF_CUDA_SUCCESS || asked->is_captured) {
    return call_end(asked->is_captured ? (unsigned)KVF_CUDA_ERROR_CAPTURED_EVENT : asked->context->error);
  }
  return call_end(asked->latest == NULL || asked->latest->is_past ? KVF_CUDA_SUCCESS : KVF_CUDA_ERROR_NOT_READY);
}

kvf_cu_result cuEventSynchronize(kvf_cu_event handle)
{
  BEGIN(cuEventSynchronize, NEEDS_INIT);
  const event *awaited = event_of(handle);
  if (awaited == NULL) {
    return call_end(KVF_CUDA_ERROR_INVALID_HANDLE);
  }
  const context *owner = awaited->context;
  if (awaited->latest == NULL) {
    return call_end(owner->error);
  }
  moment *past = moment_hold(awaited->latest); /* the event may be recorded anew, or destroyed */
  kvf_cu_result result = work_wait(past, owner);
  moment_drop(past);
  return call_end(result);
}

static kvf_cu_result stream_wait(stream *awaited)
{
  work *last = work_create(WORK_RECORD);
  moment *past = moment_hold(last->moment);
  const context *owner = awaited->context;
  work_add(awaited, last);
  kvf_cu_result result = work_wait(past, owner);
  moment_drop(past);
  return result;
}

kvf_cu_result cuStreamSynchronize(kvf_cu_stream handle)
{
  kvf_cu_result error;
  BEGIN(cuStreamSynchronize, NEEDS_CONTEXT);
  wait_is_seen();
  stream *awaited = stream_of(handle, &error);
  return call_end(awaited == NULL ? error : stream_wait(awaited));
}

/* What a context waits for: a stream of its own that is not done. NULL: there is none. */
static stream *stream_not_done(const context *owner)
{
  for (const kvf_list *link = streams.next; link != &streams; link = link->next) {
    stream *found = KVF_CONTAINER_OF(link, stream, in_list);
    if (found->context == owner && !kvf_list_is_empty(&found->works)) {
      return found;
    }
  }
  return NULL;
}

kvf_cu_result cuCtxSynchronize(void)
{
  kvf_cu_result result = KVF_CUDA_SUCCESS;
  stream *awaited;
  BEGIN(cuCtxSynchronize, NEEDS_CONTEXT);
  wait_is_seen();
  while (result == KVF_CUDA_SUCCESS && (awaited = stream_not_done(context_current())) != NULL) {
    result = stream_wait(awaited);
  }
  return call_end(result);
}

/* ---- the end of a context, or of all ---- */

static stream *stream_in(const context *owner)
{
  for (kvf_list *link = streams.next; link != &streams; link = link->next) {
    if (KVF_CONTAINER_OF(link, stream, in_list)->context == owner) {
      return KVF_CONTAINER_OF(link, stream, in_list);
    }
  }
  return NULL;
}

/* Whoever waits for work that will never be done goes on. */
void streams_end(const context *ended)
{
  stream *ending;
  kvf_list *next;
  while ((ending = stream_in(ended)) != NULL) {
    if (ending->is_busy) {
      (void)pthread_cond_wait(&fake.changed, &fake.lock);
    } else {
      stream_free(ending);
    }
  }
  for (kvf_list *link = events.next; link != &events; link = next) {
    next = link->next;
    if (KVF_CONTAINER_OF(link, event, in_list)->context == ended) {
      event_free(KVF_CONTAINER_OF(link, event, in_list));
    }
  }
  (void)pthread_cond_broadcast(&fake.changed);
}

void streams_reset(void)
{
  for (int i = 0; i < FAKE_CUDA_DEVICES_MAX; i++) {
    streams_end(context_of(i));
  }
}
