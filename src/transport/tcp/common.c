#include "transport/tcp/common.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>

#include "transport/peer_log.h"
#include "wire/fields.h"

void kvf_tcp_log(kvf_tcp *tcp, kvf_log_level level, kvf_status why, const kvf_address *peer, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  kvf_peer_log(&tcp->host, "tcp", &tcp->log_limit, tcp->now_ns, level, why, peer, format, arguments);
  va_end(arguments);
}

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
  if (epoll_ctl(tcp->epoll_fd, operation, fd, &event) != 0) {
    return false;
  }
  source->events = events;
  return true;
}

void kvf_tcp_close(kvf_tcp *tcp, kvf_tcp_stream *stream, kvf_tcp_source *source)
{
  if (stream->fd >= 0 && source->events != 0) {
    (void)epoll_ctl(tcp->epoll_fd, EPOLL_CTL_DEL, stream->fd, NULL);
    source->events = 0;
  }
  kvf_tcp_stream_close(stream);
}

void kvf_tcp_memory_drop(kvf_tcp_memory *memory)
{
  memory->refs--;
  if (memory->refs == 0) {
    free(memory->staging);
    free(memory->pages);
    free(memory);
  }
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
