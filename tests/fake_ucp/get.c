/* Gets: what a worker's thread does of them, as a network's adapter would. */
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "fake_cuda.h"
#include "state.h"

#define KEEPALIVE_NS 3000000 /* how soon a peer that is gone is missed, where nobody asks it for anything */
#define PAUSE_ONE_OF 8

static bool read_of(pid_t pid, const void *from, void *to, size_t bytes)
{
  const struct iovec into = {to, bytes};
  const struct iovec out_of = {(void *)(uintptr_t)from, bytes};
  return process_vm_readv(pid, &into, 1, &out_of, 1, 0) == (ssize_t)bytes;
}

bool sign_stands(const sign *looked_at)
{
  uint64_t nonce = 0;
  return read_of(looked_at->pid, looked_at->at, &nonce, sizeof(nonce)) && nonce == looked_at->nonce;
}

/* ---- bytes ---- */

static bool write_local(const request *into, const uint8_t *from, size_t bytes)
{
  uint8_t *to = into->to + into->done;
  if (into->into->type == KVF_UCS_MEMORY_TYPE_CUDA) {
    return fake_cuda_write_by_network((uintptr_t)to, from, bytes);
  }
  memcpy(to, from, bytes);
  return true;
}

/* The key is good behind the bytes, too: else they may be another memory's. */
static kvf_ucs_status move(const request *get, size_t bytes)
{
  static uint8_t piece[PIECE_BYTES]; /* under the lock */
  const uint8_t *from = get->from.bytes_at + (get->remote - get->from.base) + get->done;
  if (!read_of(get->from.of.pid, from, piece, bytes) || !sign_stands(&get->from.of) ||
      !sign_stands(&get->endpoint->peer)) {
    return KVF_UCS_ERR_UNREACHABLE;
  }
  return write_local(get, piece, bytes) ? KVF_UCS_OK : KVF_UCS_ERR_NO_MEMORY;
}

void request_end(request *ended, kvf_ucs_status status)
{
  ended->status = status;
  if (!ended->is_close) {
    ended->into->written_by--;
    trace(FAKE_UCP_ENDED, ended->into->type, (uintptr_t)ended->to, ended->remote, ended->done);
  }
}

bool request_step(request *stepped, size_t bytes_max)
{
  const size_t left = stepped->bytes - stepped->done;
  const size_t bytes = left < bytes_max ? left : bytes_max;
  kvf_ucs_status status = move(stepped, bytes);
  stepped->done += status == KVF_UCS_OK ? bytes : 0;
  if (status == KVF_UCS_OK && stepped->done < stepped->bytes) {
    return true;
  }
  stepped->endpoint->has_failed = stepped->endpoint->has_failed || status != KVF_UCS_OK;
  request_end(stepped, status);
  return false;
}

/* ---- the thread ---- */

static request *any_of(worker *of)
{
  size_t count = 0;
  for (kvf_list *node = of->asked.next; node != &of->asked; node = node->next) {
    count++;
  }
  kvf_list *chosen = of->asked.next;
  for (size_t i = count == 0 ? 0 : kvf_prng_below(&of->prng, count); i > 0; i--) {
    chosen = chosen->next;
  }
  return count == 0 ? NULL : KVF_CONTAINER_OF(chosen, request, in_worker);
}

static void wake(const worker *waked)
{
  const uint64_t one = 1;
  (void)!write(waked->event_fd, &one, sizeof(one));
}

static void step_any(worker *of, request *chosen)
{
  if (!request_step(chosen, 1 + kvf_prng_below(&of->prng, PIECE_BYTES))) {
    kvf_list_remove(&chosen->in_worker);
    kvf_list_push_back(&of->ended, &chosen->in_worker);
    wake(of);
  }
}

static void keep_alive(worker *of)
{
  for (kvf_list *node = of->endpoints.next; node != &of->endpoints; node = node->next) {
    endpoint *one = KVF_CONTAINER_OF(node, endpoint, in_worker);
    if (!one->has_failed && !sign_stands(&one->peer)) {
      one->has_failed = true;
      wake(of);
    }
  }
}

static void rest(worker *of)
{
  struct timespec until;
  (void)clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += KEEPALIVE_NS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  if (kvf_list_is_empty(&of->endpoints)) {
    (void)pthread_cond_wait(&of->changed, &fake_ucp_lock);
  } else if (pthread_cond_timedwait(&of->changed, &fake_ucp_lock, &until) != 0) {
    keep_alive(of);
  }
}

/* Others may have their turn, also where it does not wait. */
static void pause_for_a_while(worker *of)
{
  const bool waits = of->delay_ns > 0 && kvf_prng_below(&of->prng, PAUSE_ONE_OF) == 0;
  const struct timespec pause = {.tv_nsec = waits ? (long)kvf_prng_below(&of->prng, of->delay_ns) : 0};
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  if (waits) {
    (void)nanosleep(&pause, NULL);
  }
  (void)pthread_mutex_lock(&fake_ucp_lock);
}

void *worker_main(void *argument)
{
  worker *of = argument;
  (void)pthread_mutex_lock(&fake_ucp_lock);
  while (!of->is_closing) {
    request *chosen = any_of(of);
    if (chosen == NULL) {
      rest(of);
    } else {
      step_any(of, chosen);
      pause_for_a_while(of);
    }
  }
  (void)pthread_mutex_unlock(&fake_ucp_lock);
  return NULL;
}
