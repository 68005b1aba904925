/* Reads and writes frames on one control connection. */
#include "runtime/control_socket.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport/socket.h"

#define IN_BYTES_MIN 4096u

kvf_control_socket *kvf_control_socket_new(uint64_t conn_id, int fd, bool connecting)
{
  kvf_control_socket *socket = calloc(1, sizeof(*socket));
  if (socket != NULL) {
    socket->conn_id = conn_id;
    socket->fd = fd;
    socket->connecting = connecting;
  }
  return socket;
}

kvf_status kvf_control_socket_secure(kvf_control_socket *socket, const kvf_tls_context *context)
{
  socket->tls = kvf_tls_new(context, socket->fd, socket->connecting);
  return socket->tls == NULL ? KVF_NO_MEMORY : KVF_OK;
}

void kvf_control_socket_free(kvf_control_socket *socket)
{
  kvf_tls_free(socket->tls);
  if (socket->fd >= 0) {
    kvf_socket_close(socket->fd);
  }
  free(socket->in);
  free(socket->out);
  free(socket);
}

static bool grow(uint8_t **data, size_t *capacity, size_t needed)
{
  if (needed <= *capacity) {
    return true;
  }
  uint8_t *larger = realloc(*data, needed);
  if (larger == NULL) {
    return false;
  }
  *data = larger;
  *capacity = needed;
  return true;
}

kvf_status kvf_control_socket_queue(kvf_control_socket *socket, const void *data, size_t bytes)
{
  size_t unsent = socket->out_bytes - socket->out_first;
  if (bytes == 0) {
    return KVF_OK;
  }
  if (unsent + bytes > KVF_CONTROL_UNSENT_BYTES_MAX) {
    return KVF_LIMIT;
  }
  if (socket->out_first > 0) {
    memmove(socket->out, socket->out + socket->out_first, unsent);
    socket->out_first = 0;
    socket->out_bytes = unsent;
  }
  if (!grow(&socket->out, &socket->out_capacity, unsent + bytes)) {
    return KVF_NO_MEMORY;
  }
  memcpy(socket->out + unsent, data, bytes);
  socket->out_bytes = unsent + bytes;
  return KVF_OK;
}

static size_t unsent_bytes(const kvf_control_socket *socket)
{
  return socket->out_bytes - socket->out_first;
}

static size_t encrypted_bytes(const kvf_control_socket *socket)
{
  return socket->tls == NULL ? 0 : kvf_tls_unsent_bytes(socket->tls);
}

bool kvf_control_socket_has_unsent(const kvf_control_socket *socket)
{
  return unsent_bytes(socket) + encrypted_bytes(socket) > 0;
}

bool kvf_control_socket_waits_to_send(const kvf_control_socket *socket)
{
  return (socket->tls == NULL ? unsent_bytes(socket) : encrypted_bytes(socket)) > 0;
}

bool kvf_control_socket_holds_more(const kvf_control_socket *socket)
{
  return socket->tls != NULL && kvf_tls_buffered_bytes(socket->tls) > 0;
}

/* RFC 8446, 5.1: a record's type and version; the message's type, or the alert's level, where a frame has a zero. */
static bool is_tls(const uint8_t *data, size_t bytes)
{
  enum { ALERT = 21, HANDSHAKE = 22 };
  return bytes >= 6 && (data[0] == ALERT || data[0] == HANDSHAKE) && data[1] == 3 && data[5] != 0;
}

const char *kvf_control_socket_why(const kvf_control_socket *socket)
{
  if (socket->tls != NULL) {
    return kvf_tls_why(socket->tls);
  }
  return is_tls(socket->in, socket->in_bytes) ? "it speaks TLS, which this node does not (option tls)" : "";
}

static ssize_t send_some(kvf_control_socket *socket)
{
  struct iovec iov = {.iov_base = socket->out + socket->out_first, .iov_len = unsent_bytes(socket)};
  const struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  return socket->tls != NULL ? kvf_tls_sendmsg(socket->tls, &message)
                             : send(socket->fd, iov.iov_base, iov.iov_len, MSG_NOSIGNAL);
}

static ssize_t receive_some(kvf_control_socket *socket)
{
  struct iovec iov = {.iov_base = socket->in + socket->in_bytes, .iov_len = socket->in_capacity - socket->in_bytes};
  const struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  return socket->tls != NULL ? kvf_tls_recvmsg(socket->tls, &message) : recv(socket->fd, iov.iov_base, iov.iov_len, 0);
}

kvf_status kvf_control_socket_flush(kvf_control_socket *socket)
{
  while (kvf_control_socket_has_unsent(socket)) {
    bool encrypts = unsent_bytes(socket) > 0;
    ssize_t sent = send_some(socket);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      return errno == EAGAIN || errno == EWOULDBLOCK ? KVF_OK : KVF_PEER_DOWN;
    }
    socket->out_first += (size_t)sent;
    if (!encrypts && encrypted_bytes(socket) > 0) {
      return KVF_OK; /* the kernel takes no more now */
    }
  }
  free(socket->out);
  socket->out = NULL;
  socket->out_first = 0;
  socket->out_bytes = 0;
  socket->out_capacity = 0;
  return KVF_OK;
}

kvf_status kvf_control_socket_fill(kvf_control_socket *socket)
{
  if (socket->in_bytes == socket->in_capacity &&
      !grow(&socket->in, &socket->in_capacity, socket->in_capacity + IN_BYTES_MIN)) {
    return KVF_NO_MEMORY;
  }
  ssize_t got;
  do {
    got = receive_some(socket);
  } while (got < 0 && errno == EINTR);
  if (got > 0) {
    socket->in_bytes += (size_t)got;
    return KVF_OK;
  }
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? KVF_NOT_FOUND : KVF_PEER_DOWN;
}

kvf_status kvf_control_socket_frame(kvf_control_socket *socket, size_t limit, kvf_frame_type *type,
                                    const uint8_t **body, size_t *body_bytes)
{
  kvf_frame_header header;
  if (socket->in_bytes < KVF_FRAME_HEADER_BYTES) {
    return KVF_NOT_FOUND;
  }
  kvf_status status = kvf_frame_header_decode(socket->in, (uint32_t)limit, &header);
  if (status != KVF_OK) {
    return status;
  }
  size_t whole = KVF_FRAME_HEADER_BYTES + header.body_bytes;
  if (socket->in_bytes < whole) {
    /* The header's word is within the limit, so this is the most that the peer can make us hold. */
    return grow(&socket->in, &socket->in_capacity, whole) ? KVF_NOT_FOUND : KVF_NO_MEMORY;
  }
  *type = header.type;
  *body = socket->in + KVF_FRAME_HEADER_BYTES;
  *body_bytes = header.body_bytes;
  return KVF_OK;
}

void kvf_control_socket_drop_frame(kvf_control_socket *socket, size_t body_bytes)
{
  size_t whole = KVF_FRAME_HEADER_BYTES + body_bytes;
  socket->in_bytes -= whole;
  memmove(socket->in, socket->in + whole, socket->in_bytes);
  if (socket->in_bytes == 0 && socket->in_capacity > IN_BYTES_MIN) {
    free(socket->in);
    socket->in = NULL;
    socket->in_capacity = 0;
  }
}
