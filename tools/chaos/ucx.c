/* The calls of UCX that NIXL makes. UCX is not linked, and its headers are not needed: every argument is handed on.
 * NIXL loads UCX for itself alone, so that RTLD_NEXT does not find it.
 */
#include <stddef.h>
#include <stdint.h>

#include "draw.h"
#include "real.h"

#define LIBRARY "libucp"
#define UCS_INPROGRESS 1
#define UCS_ERR_UNSUPPORTED (-22)

/* In UCX an enum of one byte. */
typedef int8_t ucs_status;

/* UCX hands a status out in place of a pointer. */
static void *status_pointer(int status)
{
  return (void *)(intptr_t)status;
}

/* True: the call fails, with this status. */
static bool goes_wrong(chaos_call call, int *status)
{
  chaos_fault fault;
  if (!chaos_is_on() || !chaos_goes_wrong(call, &fault)) {
    return false;
  }
  *status = -(int)fault.value;
  return true;
}

void *ucp_get_nbx(void *, void *, size_t, uint64_t, void *, const void *);
ucs_status ucp_request_check_status(void *);
void *ucp_am_send_nbx(void *, unsigned, const void *, size_t, const void *, size_t, const void *);

CHAOS_INTERPOSED void *ucp_get_nbx(void *endpoint, void *buffer, size_t count, uint64_t address, void *key,
                                   const void *options)
{
  CHAOS_REAL(ucp_get_nbx, LIBRARY);
  int status;
  if (real == NULL) {
    return status_pointer(UCS_ERR_UNSUPPORTED);
  }
  if (goes_wrong(CHAOS_UCP_GET_NBX, &status)) {
    return status_pointer(status);
  }
  return real(endpoint, buffer, count, address, key, options);
}

CHAOS_INTERPOSED ucs_status ucp_request_check_status(void *request)
{
  CHAOS_REAL(ucp_request_check_status, LIBRARY);
  int status;
  if (real == NULL) {
    return UCS_ERR_UNSUPPORTED;
  }
  ucs_status done = real(request);
  if (done == UCS_INPROGRESS) { /* bytes may still land: a failure now would be one that UCX never reports */
    return done;
  }
  return goes_wrong(CHAOS_UCP_REQUEST_CHECK_STATUS, &status) ? (ucs_status)status : done;
}

CHAOS_INTERPOSED void *ucp_am_send_nbx(void *endpoint, unsigned id, const void *header, size_t header_bytes,
                                       const void *buffer, size_t count, const void *options)
{
  CHAOS_REAL(ucp_am_send_nbx, LIBRARY);
  int status;
  if (real == NULL) {
    return status_pointer(UCS_ERR_UNSUPPORTED);
  }
  if (goes_wrong(CHAOS_UCP_AM_SEND_NBX, &status)) {
    return status_pointer(status);
  }
  return real(endpoint, id, header, header_bytes, buffer, count, options);
}
