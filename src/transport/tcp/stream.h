/* The bytes of one non-blocking TCP socket, in both directions, plain or inside TLS. Small frames go through buffers,
 * payload goes straight from and into the blocks. The stream does not know the meaning of the bytes.
 *
 * One thread at a time. Everything is bounded: the buffers by what open was given, a system call by the constants
 * below.
 */
#ifndef KVF_TRANSPORT_TCP_STREAM_H
#define KVF_TRANSPORT_TCP_STREAM_H

#include "transport/paging.h"
#include "transport/tcp/ring.h"
#include "transport/tls.h"

/* Blocks and bytes that one system call takes at most. */
#define KVF_TCP_CALL_SEGMENTS_MAX 512
#define KVF_TCP_CALL_BYTES_MAX (2u << 20)
#define KVF_TCP_STAGING_BYTES (256u << 10)

typedef enum kvf_tcp_io {
  KVF_TCP_IO_MOVED,   /* all that was offered or asked for has moved; there may be more */
  KVF_TCP_IO_BLOCKED, /* the kernel takes, or has, nothing more now; some bytes may have moved */
  KVF_TCP_IO_CLOSED,  /* the peer has closed the connection, or reset it */
  KVF_TCP_IO_FAILED   /* any other error; it is in stream->error */
} kvf_tcp_io;

/* Bytes [head, tail) wait: to be looked at, or to be sent. */
typedef struct kvf_tcp_buffer {
  uint8_t *data;
  size_t capacity;
  size_t head;
  size_t tail;
} kvf_tcp_buffer;

typedef struct kvf_tcp_stream {
  int fd;
  int error;    /* errno of the last CLOSED or FAILED; 0: an orderly end */
  kvf_tls *tls; /* NULL: bytes go by as they are */
  kvf_tcp_buffer in;
  kvf_tcp_buffer out;
} kvf_tcp_stream;

/* Takes the socket over, also when it fails. `tls` NULL: without. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_tcp_stream_open(kvf_tcp_stream *stream, int fd, size_t in_bytes, size_t out_bytes,
                                            const kvf_tls_context *tls, bool is_client);
/* What the last CLOSED or FAILED came from, for a log line; until close. */
const char *kvf_tcp_stream_why(const kvf_tcp_stream *stream);
/* Closes the socket; buffers stay until free. May be called again. */
void kvf_tcp_stream_close(kvf_tcp_stream *stream);
void kvf_tcp_stream_free(kvf_tcp_stream *stream);
/* Larger buffers, once the peer is trusted. KVF_NO_MEMORY: at least one stays as it was. */
KVF_MUST_USE kvf_status kvf_tcp_stream_grow(kvf_tcp_stream *stream, size_t in_bytes, size_t out_bytes);

/* What has come and not been consumed. */
static inline size_t kvf_tcp_waiting_bytes(const kvf_tcp_stream *stream)
{
  return stream->in.tail - stream->in.head;
}

static inline const uint8_t *kvf_tcp_waiting(const kvf_tcp_stream *stream)
{
  return stream->in.data + stream->in.head;
}

void kvf_tcp_consume(kvf_tcp_stream *stream, size_t bytes);
/* Receives into the buffer, which must not be full of unconsumed bytes. */
KVF_MUST_USE kvf_tcp_io kvf_tcp_fill(kvf_tcp_stream *stream);

/* Room for at least `bytes` to be written at the returned place and then added; NULL: that many must be sent first. */
uint8_t *kvf_tcp_stage(kvf_tcp_stream *stream, size_t bytes);
void kvf_tcp_staged(kvf_tcp_stream *stream, size_t bytes);
/* What is still to be sent. */
static inline size_t kvf_tcp_unsent_bytes(const kvf_tcp_stream *stream)
{
  size_t encrypted = stream->tls == NULL ? 0 : kvf_tls_unsent_bytes(stream->tls);
  return encrypted + stream->out.tail - stream->out.head;
}

/* What has come and the socket does not tell of any more: receive again, which takes of this alone. */
static inline size_t kvf_tcp_buffered_bytes(const kvf_tcp_stream *stream)
{
  return stream->tls == NULL ? 0 : kvf_tls_buffered_bytes(stream->tls);
}

/* Of a send that was BLOCKED: the other side has to go on with the handshake, not the kernel to take more. */
static inline bool kvf_tcp_is_its_turn(const kvf_tcp_stream *stream)
{
  return stream->tls != NULL && kvf_tls_unsent_bytes(stream->tls) == 0;
}

/* Payload of a chunk: where the walk over it stands, and what is left of it. */
typedef struct kvf_tcp_payload {
  kvf_segment_cursor cursor;
  uint64_t left_bytes;
  /* KVF_TCP_STAGING_BYTES of host memory, through which all payload goes. NULL: straight from and into the blocks, all
   * in memory that the kernel can read and write by its address. */
  uint8_t *staging;
  kvf_tcp_ring *ring; /* in place of the staging; NULL: there is none */
} kvf_tcp_payload;

/* Copies all that is left of the payload, from its local blocks. False: their device has failed, and nothing has
 * changed. */
KVF_MUST_USE bool kvf_tcp_copy(kvf_tcp_payload *payload, uint8_t *out);

/* One system call: sends what is staged and, behind it, of the payload (NULL: none) at most bytes_max bytes from its
 * local blocks. KVF_TCP_IO_FAILED also if their device has failed. */
KVF_MUST_USE kvf_tcp_io kvf_tcp_send(kvf_tcp_stream *stream, kvf_tcp_payload *payload, uint64_t bytes_max);

/* Moves payload into its local blocks: first the bytes in the buffer, else by one system call at most bytes_max bytes.
 * If that reaches the payload's end, further bytes go to the buffer. With `discard` no bytes are written to the blocks.
 * KVF_TCP_IO_FAILED also if their device has failed. */
KVF_MUST_USE kvf_tcp_io kvf_tcp_receive(kvf_tcp_stream *stream, kvf_tcp_payload *payload, bool discard,
                                        uint64_t bytes_max);

#endif
