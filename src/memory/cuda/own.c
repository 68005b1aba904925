/* A list of exports with a lock that readers hold while they copy, so that taking one back waits for them. */
#include "memory/cuda/own.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/list.h"

struct kvf_cuda_own {
  kvf_list in_list; /* while it is exported */
  uint64_t number;
  uint64_t address;
  uint64_t bytes;
  unsigned refs;
};

/* Read-locked while exports are read: a writer is not to wait for readers that come after it. */
static pthread_rwlock_t lock = PTHREAD_RWLOCK_WRITER_NONRECURSIVE_INITIALIZER_NP;
/* By this thread, which must not lock it again while a writer waits. */
static _Thread_local unsigned entered;
static kvf_list exports = {&exports, &exports}; /* of few regions */
static uint64_t last_number;

/* With the lock. */
static kvf_cuda_own *find(uint64_t number)
{
  for (kvf_list *link = exports.next; link != &exports; link = link->next) {
    kvf_cuda_own *own = KVF_CONTAINER_OF(link, kvf_cuda_own, in_list);
    if (own->number == number) {
      return own;
    }
  }
  return NULL;
}

static void drop(kvf_cuda_own *own)
{
  if (--own->refs == 0) {
    free(own);
  }
}

uint64_t kvf_cuda_own_add(uint64_t address, uint64_t bytes)
{
  kvf_cuda_own *own = calloc(1, sizeof(*own));
  if (own == NULL) {
    return 0;
  }
  own->refs = 1;
  own->address = address;
  own->bytes = bytes;
  kvf_list_init(&own->in_list);
  (void)pthread_rwlock_wrlock(&lock);
  own->number = ++last_number;
  kvf_list_push_back(&exports, &own->in_list);
  const uint64_t number = own->number;
  (void)pthread_rwlock_unlock(&lock);
  return number;
}

void kvf_cuda_own_remove(uint64_t number)
{
  (void)pthread_rwlock_wrlock(&lock);
  kvf_cuda_own *own = find(number);
  if (own != NULL) {
    kvf_list_remove(&own->in_list);
    drop(own);
  }
  (void)pthread_rwlock_unlock(&lock);
}

kvf_cuda_own *kvf_cuda_own_hold(uint64_t number, uint64_t address, uint64_t bytes)
{
  (void)pthread_rwlock_wrlock(&lock);
  kvf_cuda_own *own = find(number);
  if (own != NULL && (own->address != address || own->bytes < bytes)) {
    own = NULL;
  }
  if (own != NULL) {
    own->refs++;
  }
  (void)pthread_rwlock_unlock(&lock);
  return own;
}

void kvf_cuda_own_drop(kvf_cuda_own *own)
{
  (void)pthread_rwlock_wrlock(&lock);
  drop(own);
  (void)pthread_rwlock_unlock(&lock);
}

static void enter(void)
{
  if (entered++ == 0) {
    (void)pthread_rwlock_rdlock(&lock);
  }
}

bool kvf_cuda_own_enter(const kvf_cuda_own *own)
{
  enter();
  const bool is_exported = kvf_list_is_linked(&own->in_list);
  if (!is_exported) {
    kvf_cuda_own_leave();
  }
  return is_exported;
}

void kvf_cuda_own_leave(void)
{
  if (--entered == 0) {
    (void)pthread_rwlock_unlock(&lock);
  }
}
