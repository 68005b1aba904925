/* Descriptors that epoll watches, frames that are staged, what a rank says of itself, and where payload goes. */
#include "transport/tcp/tcp_common.h"

#include <string.h>
#include <sys/epoll.h>

#include "wire/fields.h"

bool kvf_tcp_watch(kvf_tcp *tcp, int fd, kvf_tcp_source *source, uint32_t events)
{
  if (source->events == events) {
    return true;
  }
  int operation = EPOLL_CTL_MOD;
  if (source->events == 0) {
    operation = EPOLL_CTL_ADD;
  } else if (events == 0) {
    operation = EPOLL_CTL_DEL;
  }
  struct epoll_event event = {.events = events, .data = {.ptr = source}};
  if (epoll_ctl(tcp->data_thread.epoll_fd, operation, fd, &event) != 0) {
    return false;
  }
  source->events = events;
  return true;
}

void kvf_tcp_close(kvf_tcp *tcp, kvf_tcp_stream *stream, kvf_tcp_source *source)
{
  if (stream->fd >= 0 && source->events != 0) {
    (void)epoll_ctl(tcp->data_thread.epoll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
    source->events = 0;
  }
  kvf_tcp_stream_close(stream);
}

bool kvf_tcp_stage_frame(kvf_tcp_stream *stream, kvf_frame_type type, const void *body, size_t body_bytes)
{
  uint8_t *out = kvf_tcp_stage(stream, KVF_FRAME_HEADER_BYTES + body_bytes);
  if (out == NULL) {
    return false;
  }
  kvf_frame_header_encode(type, (uint32_t)body_bytes, out);
  memcpy(out + KVF_FRAME_HEADER_BYTES, body, body_bytes);
  kvf_tcp_staged(stream, KVF_FRAME_HEADER_BYTES + body_bytes);
  return true;
}

void kvf_tcp_description_code(kvf_codec *codec, kvf_tcp_description *description)
{
  kvf_code_u32(codec, &description->magic);
  kvf_code_u16(codec, &description->port);
  kvf_code_incarnation(codec, &description->incarnation);
  kvf_code_u8(codec, &description->has_checksums);
}

kvf_status kvf_tcp_description_read(const void *data, size_t bytes, const kvf_incarnation *expected,
                                    kvf_tcp_description *out)
{
  kvf_codec codec = kvf_reader_of(data, bytes);
  kvf_tcp_description_code(&codec, out);
  return kvf_reader_end(&codec, out->magic == KVF_TCP_DESCRIPTION_MAGIC && out->port != 0 && out->has_checksums <= 1 &&
                                    memcmp(&out->incarnation, expected, sizeof(*expected)) == 0);
}

kvf_tcp_payload kvf_tcp_payload_of(kvf_tcp_memory *memory, const kvf_chunk *chunk, uint64_t bytes)
{
  kvf_tcp_payload payload = {.cursor = kvf_segments_begin(chunk), .left_bytes = bytes};
  if (memory != NULL) {
    payload.staging = memory->staging;
    payload.ring = bytes <= KVF_TCP_STAGING_BYTES ? NULL : kvf_tcp_ring_take(&memory->rings);
  }
  return payload;
}

void kvf_tcp_payload_end(kvf_tcp *tcp, kvf_tcp_payload *payload)
{
  if (payload->ring != NULL) {
    kvf_tcp_ring_give(&tcp->memory->rings, payload->ring);
    payload->ring = NULL;
  }
}
