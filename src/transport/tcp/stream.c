/* Buffers, gathered segments and staged payload, each by one system call at a time or one call of TLS. */
#include "transport/tcp/stream.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "memory/memory.h"
#include "transport/socket.h"

#define SCRATCH_BYTES 65536

kvf_status kvf_tcp_stream_open(kvf_tcp_stream *stream, int fd, size_t in_bytes, size_t out_bytes,
                               const kvf_tls_context *tls, bool is_client)
{
  *stream = (kvf_tcp_stream){.fd = fd,
                             .tls = tls == NULL ? NULL : kvf_tls_new(tls, fd, is_client),
                             .in = {.data = malloc(in_bytes), .capacity = in_bytes},
                             .out = {.data = malloc(out_bytes), .capacity = out_bytes}};
  if (stream->in.data != NULL && stream->out.data != NULL && (tls == NULL || stream->tls != NULL)) {
    return KVF_OK;
  }
  kvf_tcp_stream_close(stream);
  kvf_tcp_stream_free(stream);
  return KVF_NO_MEMORY;
}

const char *kvf_tcp_stream_why(const kvf_tcp_stream *stream)
{
  bool is_tls = stream->error == EPROTO && stream->tls != NULL;
  return is_tls ? kvf_tls_why(stream->tls) : strerror(stream->error);
}

static ssize_t send_message(kvf_tcp_stream *stream, const struct msghdr *message)
{
  return stream->tls != NULL ? kvf_tls_sendmsg(stream->tls, message) : sendmsg(stream->fd, message, MSG_NOSIGNAL);
}

static ssize_t receive_message(kvf_tcp_stream *stream, struct msghdr *message)
{
  return stream->tls != NULL ? kvf_tls_recvmsg(stream->tls, message) : recvmsg(stream->fd, message, 0);
}

static ssize_t receive_into(kvf_tcp_stream *stream, void *data, size_t bytes)
{
  struct iovec iov = {.iov_base = data, .iov_len = bytes};
  struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  return receive_message(stream, &message);
}

void kvf_tcp_stream_close(kvf_tcp_stream *stream)
{
  kvf_tls_free(stream->tls);
  stream->tls = NULL;
  if (stream->fd >= 0) {
    kvf_socket_close(stream->fd);
    stream->fd = -1;
  }
}

void kvf_tcp_stream_free(kvf_tcp_stream *stream)
{
  assert(stream->fd < 0);
  free(stream->in.data);
  free(stream->out.data);
  stream->in = (kvf_tcp_buffer){0};
  stream->out = (kvf_tcp_buffer){0};
}

static kvf_status grow(kvf_tcp_buffer *buffer, size_t bytes)
{
  uint8_t *data = realloc(buffer->data, bytes);
  if (data == NULL) {
    return KVF_NO_MEMORY;
  }
  buffer->data = data;
  buffer->capacity = bytes;
  return KVF_OK;
}

kvf_status kvf_tcp_stream_grow(kvf_tcp_stream *stream, size_t in_bytes, size_t out_bytes)
{
  kvf_status status = grow(&stream->in, in_bytes);
  return status == KVF_OK ? grow(&stream->out, out_bytes) : status;
}

/* What it means that a call has received nothing (0: the end), or failed. */
static kvf_tcp_io moved_nothing(kvf_tcp_stream *stream, ssize_t result)
{
  if (result == 0) {
    stream->error = 0;
    return KVF_TCP_IO_CLOSED;
  }
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    return KVF_TCP_IO_BLOCKED;
  }
  stream->error = errno;
  return errno == ECONNRESET || errno == EPIPE ? KVF_TCP_IO_CLOSED : KVF_TCP_IO_FAILED;
}

/* Moves what waits to the start, so that all free room lies behind it. */
static void compact(kvf_tcp_buffer *buffer)
{
  if (buffer->head > 0) {
    memmove(buffer->data, buffer->data + buffer->head, buffer->tail - buffer->head);
    buffer->tail -= buffer->head;
    buffer->head = 0;
  }
}

/* ---- in ---- */

static void consume(kvf_tcp_buffer *buffer, size_t bytes)
{
  assert(bytes <= buffer->tail - buffer->head);
  buffer->head += bytes;
  if (buffer->head == buffer->tail) {
    buffer->head = 0;
    buffer->tail = 0;
  }
}

void kvf_tcp_consume(kvf_tcp_stream *stream, size_t bytes)
{
  consume(&stream->in, bytes);
}

kvf_tcp_io kvf_tcp_fill(kvf_tcp_stream *stream)
{
  kvf_tcp_buffer *in = &stream->in;
  compact(in);
  assert(in->tail < in->capacity);
  ssize_t got = receive_into(stream, in->data + in->tail, in->capacity - in->tail);
  if (got <= 0) {
    return moved_nothing(stream, got);
  }
  in->tail += (size_t)got;
  return in->tail == in->capacity ? KVF_TCP_IO_MOVED : KVF_TCP_IO_BLOCKED;
}

/* Copies the cursor's next `bytes` bytes between their blocks and `staging`. False: a device has failed. */
static bool copy_segments(kvf_segment_cursor *cursor, uint8_t *staging, kvf_stage_way way, uint64_t bytes)
{
  kvf_stage_run runs[KVF_TCP_RUNS_MAX];
  bool copied = true;
  while (copied && bytes > 0) {
    size_t count = kvf_tcp_runs_next(cursor, &staging, &bytes, runs);
    copied = kvf_stage_copy_now(way, runs, count);
  }
  return copied;
}

static kvf_tcp_io device_failed(kvf_tcp_stream *stream)
{
  stream->error = EIO;
  return KVF_TCP_IO_FAILED;
}

static uint64_t smaller(uint64_t a, uint64_t b)
{
  return a < b ? a : b;
}

/* Turns the payload's next segments, or staging for them, into iovecs, and moves its `ahead` behind them. Returns their
 * bytes. Not with a ring. */
static uint64_t gather(const kvf_tcp_payload *payload, kvf_segment_cursor *ahead, struct iovec *iov, size_t *count,
                       uint64_t bytes_max)
{
  kvf_segment segments[KVF_TCP_CALL_SEGMENTS_MAX];
  uint64_t bytes = smaller(bytes_max, KVF_TCP_CALL_BYTES_MAX);
  if (payload->staging != NULL) {
    bytes = smaller(smaller(bytes, KVF_TCP_STAGING_BYTES), payload->left_bytes);
    iov[0] = (struct iovec){.iov_base = payload->staging, .iov_len = bytes};
    *count = 1;
    return bytes;
  }
  *count = kvf_segments_next(ahead, segments, KVF_TCP_CALL_SEGMENTS_MAX, bytes);
  bytes = 0;
  for (size_t i = 0; i < *count; i++) {
    iov[i] = (struct iovec){.iov_base = kvf_segment_local(ahead->chunk, &segments[i]), .iov_len = segments[i].bytes};
    bytes += segments[i].bytes;
  }
  return bytes;
}

/* `bytes` of the payload have moved; `ahead` is its cursor behind all `offered` bytes. */
static void advance(kvf_tcp_payload *payload, const kvf_segment_cursor *ahead, uint64_t offered, uint64_t bytes)
{
  payload->left_bytes -= bytes;
  if (bytes == offered) {
    payload->cursor = *ahead;
    return;
  }
  while (bytes > 0) {
    kvf_segment segment;
    (void)kvf_segments_next(&payload->cursor, &segment, 1, bytes);
    bytes -= segment.bytes;
  }
}

/* Payload that came along with a frame. */
static kvf_tcp_io take_waiting(kvf_tcp_stream *stream, kvf_tcp_payload *payload, bool discard)
{
  uint64_t bytes = smaller(kvf_tcp_waiting_bytes(stream), payload->left_bytes);
  if (!discard &&
      !copy_segments(&payload->cursor, (uint8_t *)(uintptr_t)kvf_tcp_waiting(stream), KVF_STAGE_INTO_BLOCKS, bytes)) {
    return device_failed(stream);
  }
  kvf_tcp_consume(stream, bytes);
  payload->left_bytes -= bytes;
  return KVF_TCP_IO_MOVED;
}

static kvf_tcp_io discard_payload(kvf_tcp_stream *stream, kvf_tcp_payload *payload)
{
  uint8_t scratch[SCRATCH_BYTES];
  uint64_t asked = smaller(sizeof(scratch), payload->left_bytes);
  ssize_t got = receive_into(stream, scratch, asked);
  if (got <= 0) {
    return moved_nothing(stream, got);
  }
  payload->left_bytes -= (uint64_t)got;
  return (uint64_t)got == asked ? KVF_TCP_IO_MOVED : KVF_TCP_IO_BLOCKED;
}

kvf_tcp_io kvf_tcp_receive(kvf_tcp_stream *stream, kvf_tcp_payload *payload, bool discard, uint64_t bytes_max)
{
  if (kvf_tcp_waiting_bytes(stream) > 0) {
    return take_waiting(stream, payload, discard);
  }
  if (discard) {
    return discard_payload(stream, payload);
  }
  struct iovec iov[KVF_TCP_CALL_SEGMENTS_MAX + 1];
  struct msghdr message = {.msg_iov = iov};
  kvf_segment_cursor ahead = payload->cursor;
  uint64_t offered;
  if (payload->ring == NULL) {
    offered = gather(payload, &ahead, iov, &message.msg_iovlen, bytes_max);
  } else if (kvf_tcp_ring_room(payload->ring, smaller(payload->left_bytes, bytes_max), iov)) {
    offered = iov[0].iov_len;
    message.msg_iovlen = 1;
  } else {
    return device_failed(stream);
  }
  uint64_t asked = offered;
  if (offered == payload->left_bytes) {
    asked += stream->in.capacity;
    iov[message.msg_iovlen++] = (struct iovec){.iov_base = stream->in.data, .iov_len = stream->in.capacity};
  }
  ssize_t got = receive_message(stream, &message);
  if (got <= 0) {
    return moved_nothing(stream, got);
  }
  uint64_t arrived = smaller((uint64_t)got, offered);
  if (payload->ring != NULL) {
    payload->left_bytes -= arrived;
    if (!kvf_tcp_ring_received(payload->ring, &payload->cursor, arrived, payload->left_bytes)) {
      return device_failed(stream);
    }
  } else if (payload->staging == NULL) {
    advance(payload, &ahead, offered, arrived);
  } else if (copy_segments(&payload->cursor, payload->staging, KVF_STAGE_INTO_BLOCKS, arrived)) {
    payload->left_bytes -= arrived;
  } else {
    return device_failed(stream);
  }
  stream->in.tail = (size_t)((uint64_t)got - arrived); /* it was empty */
  return (uint64_t)got == asked ? KVF_TCP_IO_MOVED : KVF_TCP_IO_BLOCKED;
}

/* ---- out ---- */

bool kvf_tcp_copy(kvf_tcp_payload *payload, uint8_t *out)
{
  kvf_segment_cursor cursor = payload->cursor;
  if (!copy_segments(&cursor, out, KVF_STAGE_OUT_OF_BLOCKS, payload->left_bytes)) {
    return false;
  }
  payload->left_bytes = 0;
  return true;
}

uint8_t *kvf_tcp_stage(kvf_tcp_stream *stream, size_t bytes)
{
  kvf_tcp_buffer *out = &stream->out;
  if (out->capacity - out->tail < bytes) {
    compact(out);
  }
  return out->capacity - out->tail < bytes ? NULL : out->data + out->tail;
}

void kvf_tcp_staged(kvf_tcp_stream *stream, size_t bytes)
{
  stream->out.tail += bytes;
  assert(stream->out.tail <= stream->out.capacity);
}

kvf_tcp_io kvf_tcp_send(kvf_tcp_stream *stream, kvf_tcp_payload *payload, uint64_t bytes_max)
{
  kvf_tcp_buffer *out = &stream->out;
  size_t unsent = out->tail - out->head;
  struct iovec iov[KVF_TCP_CALL_SEGMENTS_MAX + 1];
  size_t count = 0;
  uint64_t offered = 0;
  kvf_segment_cursor ahead;
  iov[0] = (struct iovec){.iov_base = out->data + out->head, .iov_len = unsent};
  if (payload != NULL && payload->ring != NULL) {
    if (!kvf_tcp_ring_offer(payload->ring, &payload->cursor, payload->left_bytes, iov + 1)) {
      return device_failed(stream);
    }
    iov[1].iov_len = smaller(iov[1].iov_len, bytes_max);
    offered = iov[1].iov_len;
    count = 1;
  } else if (payload != NULL) {
    ahead = payload->cursor;
    offered = gather(payload, &ahead, iov + 1, &count, bytes_max);
    if (payload->staging != NULL && !copy_segments(&ahead, payload->staging, KVF_STAGE_OUT_OF_BLOCKS, offered)) {
      return device_failed(stream);
    }
  }
  struct msghdr message = {.msg_iov = iov, .msg_iovlen = count + 1};
  ssize_t sent = send_message(stream, &message);
  if (sent < 0) {
    return moved_nothing(stream, sent);
  }
  size_t framed = (size_t)smaller((uint64_t)sent, unsent);
  consume(out, framed);
  if (payload != NULL && payload->ring != NULL) {
    payload->left_bytes -= (uint64_t)sent - framed;
    kvf_tcp_ring_sent(payload->ring, (uint64_t)sent - framed);
  } else if (payload != NULL) {
    advance(payload, &ahead, offered, (uint64_t)sent - framed);
  }
  bool encrypted_waits = stream->tls != NULL && kvf_tls_unsent_bytes(stream->tls) > 0;
  return (uint64_t)sent == unsent + offered && !encrypted_waits ? KVF_TCP_IO_MOVED : KVF_TCP_IO_BLOCKED;
}
