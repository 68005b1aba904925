/* Stands for UCX: every call goes well, and says that it was made. Of the arguments only the first matters. */
#include <stdint.h>

void *ucp_get_nbx(void *endpoint);
int8_t ucp_request_check_status(const void *request);
void *ucp_am_send_nbx(void *endpoint);

void *ucp_get_nbx(void *endpoint)
{
  return endpoint;
}

int8_t ucp_request_check_status(const void *request)
{
  return request != 0;
}

void *ucp_am_send_nbx(void *endpoint)
{
  return endpoint;
}
