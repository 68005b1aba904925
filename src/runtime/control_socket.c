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

void kvf_control_socket_free(kvf_control_socket *socket)
{
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

kvf_status kvf_control_socket_flush(kvf_control_socket *socket)
{
  while (socket->out_first < socket->out_bytes) {
    ssize_t sent =
        send(socket->fd, socket->out + socket->out_first, socket->out_bytes - socket->out_first, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      return errno == EAGAIN || errno == EWOULDBLOCK ? KVF_OK : KVF_PEER_DOWN;
    }
    socket->out_first += (size_t)sent;
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
    got = recv(socket->fd, socket->in + socket->in_bytes, socket->in_capacity - socket->in_bytes, 0);
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
