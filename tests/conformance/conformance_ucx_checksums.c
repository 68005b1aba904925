/* UCX with checksums, where some answers wait before UCX sends them: their lease may have ended by then. */
#include "../sides/side.h"
#include "transport/ucx/libucp.h"
#include "wire/ucx_message.h"

#define SLOW_ONE_OF 64
#define SLOW_US 100

static kvf_ucx_api slowed;
static const kvf_ucx_api *real;

static kvf_ucs_pointer send_slowly(kvf_ucp_ep ep, unsigned id, const void *header, size_t header_bytes,
                                   const void *buffer, size_t count, const kvf_ucp_request_param *param)
{
  static unsigned sent; /* by the data threads, one at a time for each node */
  if (id == KVF_UCX_ANSWER_ID && __atomic_add_fetch(&sent, 1, __ATOMIC_RELAXED) % SLOW_ONE_OF == 0) {
    sleep_us(SLOW_US);
  }
  return real->am_send_nbx(ep, id, header, header_bytes, buffer, count, param);
}

kvf_status __real_kvf_ucx_load(const char *library, const kvf_ucx_api **out, char *message);
kvf_status __wrap_kvf_ucx_load(const char *library, const kvf_ucx_api **out, char *message);
kvf_status __wrap_kvf_ucx_load(const char *library, const kvf_ucx_api **out, char *message)
{
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  kvf_status status = __real_kvf_ucx_load(library, out, message);
  if (status != KVF_OK) {
    return status;
  }
  (void)pthread_mutex_lock(&lock);
  if (real == NULL) { /* a process has one UCX */
    real = *out;
    slowed = *real;
    slowed.am_send_nbx = send_slowly;
  }
  (void)pthread_mutex_unlock(&lock);
  *out = &slowed;
  return KVF_OK;
}
