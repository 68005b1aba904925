/* A link dials, answers the challenge, sends its reads, and takes chunks and trailers in that order. */
#include "transport/tcp/tcp_link.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "transport/checksums.h"
#include "wire/data_message.h"

/* What comes next on its socket. */
typedef enum kvf_tcp_awaits {
  KVF_TCP_AWAITS_CONNECT,
  KVF_TCP_AWAITS_CHALLENGE,
  KVF_TCP_AWAITS_READY,
  KVF_TCP_AWAITS_CHUNK,
  KVF_TCP_AWAITS_PAYLOAD,
  KVF_TCP_AWAITS_TRAILER
} kvf_tcp_awaits;

typedef struct kvf_tcp_link {
  kvf_data_thread_link common; /* its peer is the data port */
  uint64_t session_id;
  kvf_key session_key; /* until it is up */
  bool has_checksums;  /* the peer */
  kvf_tcp_source source;
  kvf_tcp_awaits awaits;
  kvf_tcp_stream stream;
  uint8_t ready_proof[KVF_HASH_BYTES]; /* what the producer must answer */
  bool is_blocked;                     /* the kernel takes nothing more now */
  kvf_list waiting;                    /* reads whose READ has not been staged */
  kvf_list sent;                       /* reads in the order of their READs: the first is answered next */
  uint32_t sent_count;
  kvf_tcp_payload payload; /* of the first in `sent`, when it awaits PAYLOAD */
} kvf_tcp_link;

/* A read from read() until it has been reported and its answer, if it was sent, has been received. */
typedef struct kvf_tcp_read {
  kvf_data_thread_read common;
  kvf_list in_link; /* `waiting` or `sent` */
  bool is_sent;
  bool is_reported; /* nothing may be written any more, and items are gone: what still comes is thrown away */
} kvf_tcp_read;

static kvf_tcp_link *link_of(kvf_data_thread_link *link)
{
  return KVF_CONTAINER_OF(link, kvf_tcp_link, common);
}

/* An answer that its producer sends in one call comes in one. */
#define IN_BYTES (512 + KVF_TCP_COPIED_BYTES_MAX)
/* The longest READ, and some cancels. */
#define OUT_BYTES (KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX + 4096)
/* What a producer sends besides payload is short. */
#define BODY_BYTES_MAX 64

/* ---- the end of a read ---- */

static void drop_if_ended(kvf_tcp_read *read)
{
  if (read->is_reported && !kvf_list_is_linked(&read->in_link)) {
    free(read);
  }
}

/* From here nothing writes to its blocks. Frees the read unless its answer is still to come. */
static void report(kvf_tcp_read *read, const kvf_read_result *result)
{
  read->is_reported = true;
  kvf_data_thread_read_done(&read->common, result);
  drop_if_ended(read);
}

static void end(kvf_tcp_read *read, kvf_status status)
{
  kvf_read_result result = {.id = read->common.transfer.id, .status = status, .bytes = read->common.arrived_bytes};
  report(read, &result);
}

/* Their answers will never come. */
static void forget(kvf_list *reads)
{
  while (!kvf_list_is_empty(reads)) {
    kvf_tcp_read *read = KVF_CONTAINER_OF(reads->next, kvf_tcp_read, in_link);
    kvf_list_remove(&read->in_link);
    drop_if_ended(read);
  }
}

static kvf_tcp_read *first_open(kvf_tcp_link *link)
{
  kvf_data_thread_read *read = kvf_data_thread_open_read(&link->common);
  return read == NULL ? NULL : KVF_CONTAINER_OF(read, kvf_tcp_read, common);
}

/* ---- the end of a link ---- */

/* For good: the reads' answers will never come. */
void kvf_tcp_link_close(kvf_data_thread *data_thread, kvf_data_thread_link *base, kvf_status status)
{
  kvf_tcp *tcp = KVF_CONTAINER_OF(data_thread, kvf_tcp, data_thread);
  kvf_tcp_link *link = link_of(base);
  kvf_tcp_read *read;
  kvf_tcp_close(tcp, &link->stream, &link->source);
  kvf_tcp_payload_end(tcp, &link->payload);
  forget(&link->waiting);
  forget(&link->sent);
  link->sent_count = 0;
  while ((read = first_open(link)) != NULL) {
    end(read, status);
  }
}

static void dial_failed(kvf_tcp_link *link, int error)
{
  kvf_status status = KVF_PEER_DOWN;
  if (error == ETIMEDOUT) {
    status = KVF_HANDSHAKE_TIMEOUT;
  } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM || error == EACCES) {
    status = KVF_TRANSFER_SETUP;
  }
  (void)kvf_data_thread_link_fail(&link->common, status, "cannot connect: %s", strerror(error));
}

/* The kernel could not send or receive. */
static bool link_broken(kvf_tcp_link *link)
{
  int error = link->stream.error;
  const char *why = kvf_tcp_stream_why(&link->stream);
  if (link->common.state == KVF_DATA_THREAD_LINK_UP) {
    bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
    return kvf_data_thread_link_fail(&link->common, closed ? KVF_PEER_DOWN : KVF_TRANSFER_FAILED, "%s",
                                     error == 0 ? "closed by the producer" : why);
  }
  if (error == EPROTO) {
    return kvf_data_thread_link_fail(&link->common, KVF_HANDSHAKE_REFUSED, "%s", why);
  }
  if (error == 0 && link->awaits == KVF_TCP_AWAITS_READY) {
    return kvf_data_thread_link_fail(&link->common, KVF_HANDSHAKE_REFUSED,
                                     "closed when the proof of the session's key was shown");
  }
  return kvf_data_thread_link_fail(&link->common, KVF_PEER_DOWN, "closed during the handshake: %s",
                                   error == 0 ? "end of stream" : why);
}

/* Sends what is staged and tells epoll what to wait for. False, as from every function here: the link has failed. */
static bool link_flush(kvf_tcp *tcp, kvf_tcp_link *link)
{
  bool greets =
      link->stream.tls != NULL && link->awaits == KVF_TCP_AWAITS_CHALLENGE; /* in TLS, the client speaks first */
  link->is_blocked = false;
  if (greets || kvf_tcp_unsent_bytes(&link->stream) > 0) {
    kvf_tcp_io io = kvf_tcp_send(&link->stream, NULL, 0);
    if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
      return link_broken(link);
    }
    link->is_blocked = io == KVF_TCP_IO_BLOCKED && !kvf_tcp_is_its_turn(&link->stream);
  }
  uint32_t events = (uint32_t)EPOLLIN | (link->is_blocked ? (uint32_t)EPOLLOUT : 0u);
  if (!kvf_tcp_watch(tcp, link->stream.fd, &link->source, events)) {
    return kvf_data_thread_link_fail(&link->common, KVF_TRANSFER_FAILED, "%s", strerror(errno));
  }
  return true;
}

/* ---- what goes out ---- */

/* Stages the READ of the first that waits. False: there is no room for it now. */
static bool stage_read(kvf_tcp_link *link)
{
  kvf_tcp_read *read = KVF_CONTAINER_OF(link->waiting.next, kvf_tcp_read, in_link);
  const kvf_transfer *wanted = &read->common.transfer;
  uint64_t room = KVF_DATA_READ_HEAD_BYTES + (uint64_t)wanted->items_count * KVF_DATA_READ_RUN_BYTES;
  if (room > KVF_FRAME_BODY_BYTES_MAX) {
    room = KVF_FRAME_BODY_BYTES_MAX;
  }
  uint8_t *out = kvf_tcp_stage(&link->stream, KVF_FRAME_HEADER_BYTES + room);
  if (out == NULL) {
    return false;
  }
  kvf_data_read message = {.read_id = wanted->id,
                           .lease = wanted->lease,
                           .remote_head = wanted->remote_head,
                           .local_head = wanted->local_head,
                           .heads = wanted->heads,
                           .selection = kvf_chunk_selection(&read->common.chunk),
                           .items_count = wanted->items_count};
  size_t bytes = 0;
  kvf_status status = kvf_data_read_encode(&message, wanted->items, out + KVF_FRAME_HEADER_BYTES, room, &bytes);
  if (status != KVF_OK) {
    kvf_list_remove(&read->in_link);
    end(read, status);
    return true;
  }
  kvf_frame_header_encode(KVF_FRAME_READ, (uint32_t)bytes, out);
  kvf_tcp_staged(&link->stream, KVF_FRAME_HEADER_BYTES + bytes);
  kvf_list_remove(&read->in_link);
  kvf_list_push_back(&link->sent, &read->in_link);
  link->sent_count++;
  read->is_sent = true;
  return true;
}

/* Sends READs for what waits, as many as may be open. The link may have failed then. */
static void send_reads(kvf_tcp *tcp, kvf_tcp_link *link)
{
  do {
    bool room = true;
    while (room && link->sent_count < KVF_TCP_REQUESTS_MAX && !kvf_list_is_empty(&link->waiting)) {
      room = stage_read(link);
    }
    if (!link_flush(tcp, link)) {
      return;
    }
  } while (!link->is_blocked && link->sent_count < KVF_TCP_REQUESTS_MAX && !kvf_list_is_empty(&link->waiting));
}

/* ---- start and cancel ---- */

static void run_start(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_read *read = KVF_CONTAINER_OF(command, kvf_tcp_read, common.start);
  kvf_tcp_link *link = link_of(read->common.link);
  kvf_status status = kvf_data_thread_read_prepare(&read->common);
  if (status != KVF_OK) {
    end(read, status);
    return;
  }
  kvf_list_push_back(&link->waiting, &read->in_link);
  send_reads(tcp, link);
}

/* The producer need not begin with it. There is no room only while it takes nothing anyway. */
static bool send_cancel(kvf_tcp *tcp, kvf_tcp_read *read)
{
  kvf_tcp_link *link = link_of(read->common.link);
  kvf_data_cancel cancel = {.read_id = read->common.transfer.id};
  uint8_t body[KVF_DATA_CANCEL_BYTES_MAX];
  size_t bytes = 0;
  bool staged = kvf_data_cancel_encode(&cancel, body, sizeof(body), &bytes) == KVF_OK &&
                kvf_tcp_stage_frame(&link->stream, KVF_FRAME_CANCEL, body, bytes);
  return !staged || link_flush(tcp, link);
}

static bool has_begun(const kvf_tcp_read *read)
{
  const kvf_tcp_link *link = link_of(read->common.link);
  bool chunk_has_come = link->awaits == KVF_TCP_AWAITS_PAYLOAD || link->awaits == KVF_TCP_AWAITS_TRAILER;
  return chunk_has_come && link->sent.next == &read->in_link;
}

static void cancel_read(kvf_tcp *tcp, kvf_tcp_read *read)
{
  if (!read->is_sent) {
    kvf_list_remove(&read->in_link); /* where it waits, if it has been started */
  } else if (has_begun(read)) {
    kvf_tcp_payload_end(tcp, &link_of(read->common.link)->payload);
  } else if (!send_cancel(tcp, read)) {
    return; /* the link has failed, and reported it */
  }
  end(read, KVF_CANCELLED);
}

static void run_cancel(void *owner, kvf_command *command)
{
  cancel_read(owner, KVF_CONTAINER_OF(command, kvf_tcp_read, common.cancel));
}

/* The link lives on: reads are cancelled. */
static void reads_cancel(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read;
  while ((read = first_open(link)) != NULL) {
    cancel_read(tcp, read);
  }
}

kvf_status kvf_tcp_read_start(kvf_link *base, const kvf_transfer *request)
{
  kvf_tcp_read *read = calloc(1, sizeof(*read));
  if (read == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_list_init(&read->in_link);
  kvf_data_thread_read_start(base, request, &read->common, run_start, run_cancel);
  return KVF_OK;
}

/* ---- what comes in ---- */

static kvf_tcp_read *answered(const kvf_tcp_link *link)
{
  return kvf_list_is_empty(&link->sent) ? NULL : KVF_CONTAINER_OF(link->sent.next, kvf_tcp_read, in_link);
}

static void note_bulk(kvf_tcp *tcp, const kvf_tcp_read *read)
{
  tcp->is_bulk = tcp->is_bulk || read->common.bytes > KVF_TCP_COPIED_BYTES_MAX;
}

static void take_answered(kvf_tcp *tcp, kvf_tcp_link *link, kvf_tcp_read *read)
{
  note_bulk(tcp, read);
  kvf_list_remove(&read->in_link);
  link->sent_count--;
  link->awaits = KVF_TCP_AWAITS_CHUNK;
}

/* What a producer's refusal means to the load. */
static kvf_status refusal(int32_t status)
{
  switch (status) {
    case KVF_LEASE_EXPIRED:
    case KVF_LEASE_UNKNOWN:
    case KVF_NOT_PUBLISHED:
    case KVF_AGAIN:
      return (kvf_status)status;
    case KVF_INVALID: /* it has no such block: the ticket is not of this lease */
      return KVF_BAD_TICKET;
    default:
      return KVF_TRANSFER_FAILED;
  }
}

static bool on_chunk(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_chunk chunk;
  kvf_tcp_read *read = answered(link);
  const char *wrong = NULL;
  if (kvf_data_chunk_decode(body, body_bytes, &chunk) != KVF_OK) {
    wrong = "malformed chunk";
  } else if (read == NULL || chunk.read_id != read->common.transfer.id) {
    wrong = "a chunk that is not the next one";
  } else if (chunk.status == KVF_OK && chunk.payload_bytes != read->common.bytes) {
    wrong = "a chunk of another size than was asked for";
  }
  if (wrong != NULL) {
    return kvf_data_thread_link_fail(&link->common, KVF_PROTOCOL, "%s", wrong);
  }
  if (chunk.status == KVF_OK) {
    link->payload = kvf_tcp_payload_of(read->is_reported ? NULL : tcp->memory, &read->common.chunk, read->common.bytes);
    link->awaits = read->common.bytes > 0 ? KVF_TCP_AWAITS_PAYLOAD : KVF_TCP_AWAITS_TRAILER;
    return true;
  }
  take_answered(tcp, link, read);
  if (read->is_reported) {
    drop_if_ended(read);
  } else {
    end(read, refusal(chunk.status));
  }
  return true;
}

/* One system call's worth of payload. */
static kvf_tcp_io take_payload(kvf_tcp *tcp, kvf_tcp_link *link, uint64_t *budget_bytes)
{
  kvf_tcp_read *read = answered(link);
  uint64_t before = link->payload.left_bytes;
  kvf_tcp_io io = kvf_tcp_receive(&link->stream, &link->payload, read->is_reported, *budget_bytes);
  uint64_t arrived = before - link->payload.left_bytes;
  note_bulk(tcp, read);
  *budget_bytes -= arrived < *budget_bytes ? arrived : *budget_bytes;
  if (link->payload.left_bytes == 0) {
    kvf_tcp_payload_end(tcp, &link->payload);
    link->awaits = KVF_TCP_AWAITS_TRAILER;
  }
  if (!read->is_reported && arrived > 0) {
    read->common.arrived_bytes += arrived;
    kvf_data_thread_read_progress(&read->common);
  }
  return io;
}

static bool on_trailer(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_trailer trailer;
  kvf_tcp_read *read = answered(link);
  if (kvf_data_trailer_decode(body, body_bytes, &trailer) != KVF_OK || trailer.read_id != read->common.transfer.id) {
    return kvf_data_thread_link_fail(&link->common, KVF_PROTOCOL, "a trailer that is not the chunk's");
  }
  take_answered(tcp, link, read);
  if (read->is_reported) {
    drop_if_ended(read);
    return true;
  }
  /* The session is with this incarnation, and nobody else has its key: the table can be no other's. And the connection
   * is served from this memory alone. */
  kvf_read_result result = {.id = read->common.transfer.id,
                            .status = KVF_OK,
                            .sample = {.head = {.magic = KVF_FENCE_MAGIC,
                                                .incarnation = link->common.incarnation,
                                                .generation = link->common.peer_generation},
                                       .entry = {.word = trailer.word, .digest = trailer.digest}},
                            .bytes = read->common.arrived_bytes,
                            .work = {.pieces = link->payload.cursor.segments}};
  kvf_checksums_judge(&read->common.chunk, &result);
  report(read, &result);
  return true;
}

/* ---- handshake ---- */

static bool on_challenge(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_challenge challenge;
  if (kvf_data_challenge_decode(body, body_bytes, &challenge) != KVF_OK) {
    return kvf_data_thread_link_fail(&link->common, KVF_PROTOCOL, "malformed data_challenge");
  }
  kvf_data_hello hello = {.session_id = link->session_id, .generation = link->common.peer_generation};
  uint8_t out[KVF_DATA_HELLO_BYTES_MAX];
  size_t bytes = 0;
  if (getentropy(hello.nonce, sizeof(hello.nonce)) != 0 ||
      kvf_data_hello_proof(&link->session_key, &challenge, &hello, hello.proof) != KVF_OK ||
      kvf_data_ready_proof(&link->session_key, &challenge, &hello, link->ready_proof) != KVF_OK ||
      kvf_data_hello_encode(&hello, out, sizeof(out), &bytes) != KVF_OK ||
      !kvf_tcp_stage_frame(&link->stream, KVF_FRAME_DATA_HELLO, out, bytes)) {
    return kvf_data_thread_link_fail(&link->common, KVF_TRANSFER_SETUP, "no proof could be made");
  }
  link->awaits = KVF_TCP_AWAITS_READY;
  return link_flush(tcp, link);
}

static bool on_ready(kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_ready ready;
  if (kvf_data_ready_decode(body, body_bytes, &ready) != KVF_OK) {
    return kvf_data_thread_link_fail(&link->common, KVF_PROTOCOL, "malformed data_ready");
  }
  if (!kvf_equal_secret(ready.proof, link->ready_proof, sizeof(ready.proof))) {
    return kvf_data_thread_link_fail(&link->common, KVF_HANDSHAKE_REFUSED,
                                     "the listener there has not proved the session's key");
  }
  link->awaits = KVF_TCP_AWAITS_CHUNK;
  OPENSSL_cleanse(&link->session_key, sizeof(link->session_key));
  kvf_data_thread_link_up(&link->common);
  return true;
}

/* ---- what comes in ---- */

static bool on_frame(kvf_tcp *tcp, kvf_tcp_link *link, kvf_frame_type type, const uint8_t *body, size_t body_bytes)
{
  if (link->awaits == KVF_TCP_AWAITS_CHALLENGE && type == KVF_FRAME_DATA_CHALLENGE) {
    return on_challenge(tcp, link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_READY && type == KVF_FRAME_DATA_READY) {
    return on_ready(link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_CHUNK && type == KVF_FRAME_CHUNK) {
    return on_chunk(tcp, link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_TRAILER && type == KVF_FRAME_TRAILER) {
    return on_trailer(tcp, link, body, body_bytes);
  }
  return kvf_data_thread_link_fail(&link->common, KVF_PROTOCOL, "unexpected frame %s", kvf_frame_type_name(type));
}

/* Takes one frame. False: the link has failed. *took is false if no frame has come whole. */
static bool take_frame(kvf_tcp *tcp, kvf_tcp_link *link, bool *took)
{
  *took = false;
  size_t waiting = kvf_tcp_waiting_bytes(&link->stream);
  if (waiting < KVF_FRAME_HEADER_BYTES) {
    return true;
  }
  kvf_frame_header header;
  if (kvf_frame_header_decode(kvf_tcp_waiting(&link->stream), BODY_BYTES_MAX, &header) != KVF_OK) {
    return kvf_data_thread_link_fail(&link->common, KVF_PROTOCOL, "not a frame, or one that is too long");
  }
  if (waiting < KVF_FRAME_HEADER_BYTES + (size_t)header.body_bytes) {
    return true;
  }
  const uint8_t *body = kvf_tcp_waiting(&link->stream) + KVF_FRAME_HEADER_BYTES;
  kvf_tcp_consume(&link->stream, KVF_FRAME_HEADER_BYTES + (size_t)header.body_bytes); /* but is still there */
  *took = true;
  return on_frame(tcp, link, header.type, body, header.body_bytes);
}

/* Receives until no byte is left, or until it is the turn of other links. The bytes in the buffer are processed in any
 * case, because epoll does not know of them. False: the link has failed. */
static bool receive(kvf_tcp *tcp, kvf_tcp_link *link)
{
  uint64_t budget_bytes = KVF_TCP_TURN_BYTES;
  bool over = false;
  for (;;) {
    bool in_payload = link->awaits == KVF_TCP_AWAITS_PAYLOAD;
    bool took = false;
    if (!in_payload && !take_frame(tcp, link, &took)) {
      return false;
    }
    if (took) {
      continue;
    }
    size_t buffered_bytes = kvf_tcp_buffered_bytes(&link->stream);
    if (over && buffered_bytes == 0 && (!in_payload || kvf_tcp_waiting_bytes(&link->stream) == 0)) {
      return true;
    }
    budget_bytes = budget_bytes < buffered_bytes ? buffered_bytes : budget_bytes;
    kvf_tcp_io io = in_payload ? take_payload(tcp, link, &budget_bytes) : kvf_tcp_fill(&link->stream);
    if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
      return link_broken(link);
    }
    over = over || io == KVF_TCP_IO_BLOCKED || budget_bytes == 0;
  }
}

static void link_ready(kvf_tcp *tcp, kvf_tcp_source *source, uint32_t events)
{
  kvf_tcp_link *link = KVF_CONTAINER_OF(source, kvf_tcp_link, source);
  assert(link->stream.fd >= 0); /* nothing but its own events closes it while events are served */
  if (link->awaits == KVF_TCP_AWAITS_CONNECT) {
    int error = kvf_socket_error(link->stream.fd);
    if (error != 0) {
      dial_failed(link, error);
      return;
    }
    link->awaits = KVF_TCP_AWAITS_CHALLENGE;
  } else if ((events & (uint32_t)(EPOLLIN | EPOLLERR | EPOLLHUP)) != 0 && !receive(tcp, link)) {
    return;
  }
  send_reads(tcp, link);
}

/* ---- connect and disconnect ---- */

static void link_open(kvf_tcp *tcp, kvf_tcp_link *link)
{
  const kvf_transport_config *config = &tcp->data_thread.config;
  const kvf_address *peer = &link->common.peer;
  int fd = kvf_socket_connect(peer, config->handshake_timeout_ms, config->tcp_buffer_bytes);
  if (fd < 0) {
    dial_failed(link, errno);
    return;
  }
  if (kvf_tcp_stream_open(&link->stream, fd, IN_BYTES, OUT_BYTES,
                          kvf_tls_is_due(&config->tls, peer) ? config->tls.context : NULL, true) != KVF_OK) {
    (void)kvf_data_thread_link_fail(&link->common, KVF_TRANSFER_SETUP, "no memory for its buffers");
  } else if (!kvf_tcp_watch(tcp, fd, &link->source, EPOLLOUT)) {
    (void)kvf_data_thread_link_fail(&link->common, KVF_TRANSFER_SETUP, "%s", strerror(errno));
  }
}

static void run_connect(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_link *link = KVF_CONTAINER_OF(command, kvf_tcp_link, common.connect);
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = kvf_data_thread_link_begin(&link->common, message);
  if (status != KVF_OK) {
    (void)kvf_data_thread_link_fail(&link->common, status, "%s", message);
    return;
  }
  kvf_data_thread_agree_on_checksums(&link->common, link->has_checksums);
  link_open(tcp, link);
}

static void run_disconnect(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_link *link = KVF_CONTAINER_OF(command, kvf_tcp_link, common.disconnect);
  kvf_tcp_link_close(&tcp->data_thread, &link->common, KVF_CANCELLED);
  kvf_list_remove(&link->common.in_connecting);
  kvf_list_remove(&link->common.in_links);
  kvf_tcp_stream_free(&link->stream);
  OPENSSL_cleanse(&link->session_key, sizeof(link->session_key));
  free(link->common.pages);
  free(link);
}

kvf_status kvf_tcp_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_tcp_description found;
  kvf_status status = kvf_tcp_description_read(spec->description, spec->description_bytes, &spec->incarnation, &found);
  if (status != KVF_OK || spec->remote_count > KVF_REGIONS_MAX || spec->layout.parts_count > KVF_PARTS_MAX) {
    return KVF_PROTOCOL;
  }
  kvf_tcp_link *link = calloc(1, sizeof(*link));
  if (link == NULL || !kvf_data_thread_link_init(&link->common, transport, spec, run_connect, run_disconnect)) {
    return KVF_NO_MEMORY;
  }
  kvf_list_init(&link->waiting);
  kvf_list_init(&link->sent);
  link->common.peer.port = found.port;
  link->has_checksums = found.has_checksums;
  link->session_id = spec->session_id;
  link->session_key = spec->session_key;
  link->source = (kvf_tcp_source){.ready = link_ready, .is_for_callers = true};
  link->stream.fd = -1;
  *out = &link->common.base;
  kvf_data_thread_connect(&link->common);
  return KVF_OK;
}

void kvf_tcp_links_clear(kvf_tcp *tcp)
{
  for (kvf_list *node = tcp->data_thread.links.next; node != &tcp->data_thread.links; node = node->next) {
    kvf_tcp_link *link = KVF_CONTAINER_OF(node, kvf_tcp_link, common.in_links);
    reads_cancel(tcp, link);
    kvf_tcp_payload_end(tcp, &link->payload);
  }
}
