#include "transport/tcp/link.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "transport/checksums.h"
#include "wire/data_message.h"
#include "wire/frame.h"

typedef enum kvf_tcp_link_state {
  KVF_TCP_LINK_CONNECTING,
  KVF_TCP_LINK_UP,
  KVF_TCP_LINK_DOWN /* link->failure says why */
} kvf_tcp_link_state;

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
  kvf_link base;
  kvf_command connect;
  kvf_command disconnect;
  kvf_list open;     /* reads that have not been reported; with the lock */
  bool disconnected; /* with the lock */

  /* The data thread's, from here. */
  kvf_list in_links;
  kvf_list in_connecting;
  kvf_tcp_link_state state;
  kvf_status failure;
  uint64_t deadline_ns; /* to come up */
  kvf_address peer;     /* its data port */
  kvf_incarnation incarnation;
  uint64_t session_id;
  kvf_key session_key; /* until it is up */
  kvf_tcp_memory *memory;
  kvf_paging *pages;  /* the peer's */
  bool has_checksums; /* likewise */
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
  kvf_posted_read posted;
  kvf_list in_link; /* `waiting` or `sent` */
  kvf_tcp_link *link;
  bool is_reported; /* nothing may be written any more, and items are gone: what still comes is thrown away */
  kvf_chunk chunk;
  uint64_t bytes;
  uint64_t arrived_bytes;
  uint64_t progress_ns; /* when progress was told last, or the read began */
} kvf_tcp_read;

/* An answer that its producer sends in one call comes in one. */
#define IN_BYTES (512 + KVF_TCP_COPIED_BYTES_MAX)
/* The longest READ, and some cancels. */
#define OUT_BYTES (KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX + 4096)
/* What a producer sends besides payload is short. */
#define BODY_BYTES_MAX 64

#define CANCEL_FRAME_BYTES (KVF_FRAME_HEADER_BYTES + KVF_DATA_CANCEL_BYTES_MAX)

/* ---- the end of a read ---- */

static void drop_if_ended(kvf_tcp_read *read)
{
  if (read->is_reported && !kvf_list_is_linked(&read->in_link)) {
    free(read);
  }
}

/* From here nothing writes to its blocks. Frees the read unless its answer is still to come. */
static void report(kvf_tcp *tcp, kvf_tcp_read *read, const kvf_read_result *result)
{
  kvf_commands_close_read(&tcp->commands, &read->posted);
  read->is_reported = true;
  kvf_driver_read_closed(&tcp->driver, read->posted.read.small);
  tcp->host.read_done(tcp->host.context, result);
  drop_if_ended(read);
}

static void end(kvf_tcp *tcp, kvf_tcp_read *read, kvf_status status)
{
  kvf_read_result result = {.id = read->posted.read.id, .status = status, .bytes = read->arrived_bytes};
  report(tcp, read, &result);
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

static kvf_tcp_read *first_open(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_posted_read *posted = kvf_commands_open_read(&tcp->commands, &link->open);
  return posted == NULL ? NULL : KVF_CONTAINER_OF(posted, kvf_tcp_read, posted);
}

/* The socket is closed for good: reads are reported as `status` and freed. */
static void reads_end(kvf_tcp *tcp, kvf_tcp_link *link, kvf_status status)
{
  forget(&link->waiting);
  forget(&link->sent);
  link->sent_count = 0;
  kvf_tcp_read *read;
  while ((read = first_open(tcp, link)) != NULL) {
    end(tcp, read, status);
  }
}

/* ---- the end of a link ---- */

static bool is_wanted(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_commands_lock(&tcp->commands);
  bool wanted = !link->disconnected;
  kvf_commands_unlock(&tcp->commands);
  return wanted;
}

/* Brings the link down and reports its reads as `reads`. The line names the peer and what happened. */
__attribute__((format(printf, 5, 6))) static void link_fail(kvf_tcp *tcp, kvf_tcp_link *link, kvf_status status,
                                                            kvf_status reads, const char *format, ...)
{
  kvf_tcp_link_state before = link->state;
  char message[KVF_MESSAGE_BYTES_MAX];
  va_list arguments;
  va_start(arguments, format);
  (void)vsnprintf(message, sizeof(message), format, arguments); /* before what it speaks of is closed */
  va_end(arguments);
  link->state = KVF_TCP_LINK_DOWN;
  link->failure = status;
  kvf_list_remove(&link->in_connecting);
  kvf_tcp_close(tcp, &link->stream, &link->source);
  reads_end(tcp, link, reads);
  if (before == KVF_TCP_LINK_DOWN || !is_wanted(tcp, link)) {
    return;
  }
  kvf_tcp_log(tcp, KVF_LOG_WARN, status, &link->peer, "link failed: %s", message);
  if (before == KVF_TCP_LINK_UP) {
    tcp->host.link_down(tcp->host.context, &link->base, status);
  } else {
    tcp->host.link_up(tcp->host.context, &link->base, status);
  }
}

static void dial_failed(kvf_tcp *tcp, kvf_tcp_link *link, int error)
{
  kvf_status status = KVF_PEER_DOWN;
  if (error == ETIMEDOUT) {
    status = KVF_HANDSHAKE_TIMEOUT;
  } else if (error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM || error == EACCES) {
    status = KVF_TRANSFER_SETUP;
  }
  link_fail(tcp, link, status, status, "cannot connect: %s", strerror(error));
}

/* The kernel could not send or receive. */
static void link_broken(kvf_tcp *tcp, kvf_tcp_link *link)
{
  int error = link->stream.error;
  const char *why = kvf_tcp_stream_why(&link->stream);
  if (link->state == KVF_TCP_LINK_CONNECTING) {
    if (error == EPROTO) {
      link_fail(tcp, link, KVF_HANDSHAKE_REFUSED, KVF_HANDSHAKE_REFUSED, "%s", why);
    } else if (error == 0 && link->awaits == KVF_TCP_AWAITS_READY) {
      link_fail(tcp, link, KVF_HANDSHAKE_REFUSED, KVF_HANDSHAKE_REFUSED,
                "closed when the proof of the session's key was shown");
    } else {
      link_fail(tcp, link, KVF_PEER_DOWN, KVF_PEER_DOWN, "closed during the handshake: %s",
                error == 0 ? "end of stream" : why);
    }
    return;
  }
  bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
  link_fail(tcp, link, closed ? KVF_PEER_DOWN : KVF_TRANSFER_FAILED, KVF_TRANSFER_FAILED, "%s",
            error == 0 ? "closed by the producer" : why);
}

static bool protocol_error(kvf_tcp *tcp, kvf_tcp_link *link, const char *what)
{
  link_fail(tcp, link, KVF_PROTOCOL, KVF_PROTOCOL, "%s", what);
  return false;
}

/* Sends what is staged and tells epoll what to wait for. False: the link has failed; likewise all that return bool. */
static bool link_flush(kvf_tcp *tcp, kvf_tcp_link *link)
{
  bool greets =
      link->stream.tls != NULL && link->awaits == KVF_TCP_AWAITS_CHALLENGE; /* in TLS, the client speaks first */
  link->is_blocked = false;
  if (greets || kvf_tcp_unsent_bytes(&link->stream) > 0) {
    kvf_tcp_io io = kvf_tcp_send(&link->stream, NULL, 0);
    if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
      link_broken(tcp, link);
      return false;
    }
    link->is_blocked = io == KVF_TCP_IO_BLOCKED && !kvf_tcp_is_its_turn(&link->stream);
  }
  uint32_t events = (uint32_t)EPOLLIN | (link->is_blocked ? (uint32_t)EPOLLOUT : 0u);
  if (!kvf_tcp_watch(tcp, link->stream.fd, &link->source, events)) {
    link_fail(tcp, link, KVF_TRANSFER_FAILED, KVF_TRANSFER_FAILED, "%s", strerror(errno));
    return false;
  }
  return true;
}

/* ---- what goes out ---- */

/* Stages the READ of the first that waits. False: there is no room for it now. */
static bool stage_read(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read = KVF_CONTAINER_OF(link->waiting.next, kvf_tcp_read, in_link);
  uint64_t room = KVF_DATA_READ_HEAD_BYTES + (uint64_t)read->posted.read.items_count * KVF_DATA_READ_RUN_BYTES;
  if (room > KVF_FRAME_BODY_BYTES_MAX) {
    room = KVF_FRAME_BODY_BYTES_MAX;
  }
  uint8_t *out = kvf_tcp_stage(&link->stream, KVF_FRAME_HEADER_BYTES + room);
  if (out == NULL) {
    return false;
  }
  kvf_data_read message = {.read_id = read->posted.read.id,
                           .lease = read->posted.read.lease,
                           .remote_head = read->posted.read.remote_head,
                           .local_head = read->posted.read.local_head,
                           .heads = read->posted.read.heads,
                           .want = link->pages->plan.want,
                           .items_count = read->posted.read.items_count};
  size_t bytes = 0;
  kvf_status status =
      kvf_data_read_encode(&message, read->posted.read.items, out + KVF_FRAME_HEADER_BYTES, room, &bytes);
  if (status != KVF_OK) {
    kvf_list_remove(&read->in_link);
    end(tcp, read, status);
    return true;
  }
  kvf_frame_header_encode(KVF_FRAME_READ, (uint32_t)bytes, out);
  kvf_tcp_staged(&link->stream, KVF_FRAME_HEADER_BYTES + bytes);
  kvf_list_remove(&read->in_link);
  kvf_list_push_back(&link->sent, &read->in_link);
  link->sent_count++;
  return true;
}

/* Sends READs for what waits, as many as may be open. The link may have failed then. */
static void send_reads(kvf_tcp *tcp, kvf_tcp_link *link)
{
  do {
    bool room = true;
    while (room && link->sent_count < KVF_TCP_REQUESTS_MAX && !kvf_list_is_empty(&link->waiting)) {
      room = stage_read(tcp, link);
    }
    if (!link_flush(tcp, link)) {
      return;
    }
  } while (!link->is_blocked && link->sent_count < KVF_TCP_REQUESTS_MAX && !kvf_list_is_empty(&link->waiting));
}

/* ---- start and cancel ---- */

/* Whether the read can be sent, else why not. */
static kvf_status prepare(const kvf_tcp *tcp, kvf_tcp_read *read)
{
  kvf_tcp_link *link = read->link;
  if (link->state != KVF_TCP_LINK_UP) {
    return link->state == KVF_TCP_LINK_DOWN ? link->failure : KVF_TRANSFER_SETUP;
  }
  if (link->memory != tcp->memory) {
    return KVF_TRANSFER_SETUP; /* made for memory that is not registered any more */
  }
  read->chunk = kvf_chunk_of(&link->pages->plan, &read->posted.read, link->memory->regions);
  return kvf_chunk_check(&read->chunk, &read->bytes);
}

static void run_start(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_read *read = KVF_CONTAINER_OF(command, kvf_tcp_read, posted.start);
  kvf_status status = prepare(tcp, read);
  if (status != KVF_OK) {
    end(tcp, read, status);
    return;
  }
  kvf_tcp_link *link = read->link;
  read->progress_ns = tcp->now_ns;
  kvf_list_push_back(&link->waiting, &read->in_link);
  send_reads(tcp, link);
}

/* The producer need not begin with it. There is no room only while it takes nothing anyway. */
static bool send_cancel(kvf_tcp *tcp, kvf_tcp_read *read)
{
  kvf_tcp_stream *stream = &read->link->stream;
  kvf_data_cancel cancel = {.read_id = read->posted.read.id};
  size_t bytes = 0;
  uint8_t *out = kvf_tcp_stage(stream, CANCEL_FRAME_BYTES);
  if (out == NULL ||
      kvf_data_cancel_encode(&cancel, out + KVF_FRAME_HEADER_BYTES, KVF_DATA_CANCEL_BYTES_MAX, &bytes) != KVF_OK) {
    return true;
  }
  kvf_frame_header_encode(KVF_FRAME_CANCEL, (uint32_t)bytes, out);
  kvf_tcp_staged(stream, KVF_FRAME_HEADER_BYTES + bytes);
  return link_flush(tcp, read->link);
}

static bool has_begun(const kvf_tcp_read *read)
{
  const kvf_tcp_link *link = read->link;
  bool chunk_has_come = link->awaits == KVF_TCP_AWAITS_PAYLOAD || link->awaits == KVF_TCP_AWAITS_TRAILER;
  return chunk_has_come && link->sent.next == &read->in_link;
}

static bool was_sent(const kvf_tcp_read *read)
{
  const kvf_tcp_link *link = read->link;
  for (const kvf_list *node = link->sent.next; node != &link->sent; node = node->next) {
    if (node == &read->in_link) {
      return true;
    }
  }
  return false;
}

static void cancel_read(kvf_tcp *tcp, kvf_tcp_read *read)
{
  if (!was_sent(read)) {
    kvf_list_remove(&read->in_link); /* where it waits, if it has been started */
  } else if (!has_begun(read) && !send_cancel(tcp, read)) {
    return; /* the link has failed, and reported it */
  }
  end(tcp, read, KVF_CANCELLED);
}

static void run_cancel(void *owner, kvf_command *command)
{
  cancel_read(owner, KVF_CONTAINER_OF(command, kvf_tcp_read, posted.cancel));
}

/* The link lives on: reads are cancelled. */
static void reads_cancel(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read;
  while ((read = first_open(tcp, link)) != NULL) {
    cancel_read(tcp, read);
  }
}

void kvf_tcp_read_start(kvf_link *base, const kvf_transfer *request)
{
  kvf_tcp_link *link = KVF_CONTAINER_OF(base, kvf_tcp_link, base);
  kvf_tcp *tcp = kvf_tcp_of(base->transport);
  kvf_tcp_read *read = malloc(sizeof(*read));
  bool caller_starts = false;
  if (read != NULL) {
    *read = (kvf_tcp_read){.link = link};
    kvf_posted_read_init(&read->posted, request, run_start, run_cancel);
    kvf_list_init(&read->in_link);
    caller_starts = kvf_driver_read_opened(&tcp->driver, request->small);
  }
  kvf_commands_start_read(&tcp->commands, &link->open, read == NULL ? NULL : &read->posted, request->id,
                          !caller_starts);
}

void kvf_tcp_read_cancel(kvf_link *base, uint64_t read_id)
{
  kvf_tcp_link *link = KVF_CONTAINER_OF(base, kvf_tcp_link, base);
  kvf_commands_cancel_read(&kvf_tcp_of(base->transport)->commands, &link->open, read_id);
}

/* ---- what comes in ---- */

static kvf_tcp_read *answered(const kvf_tcp_link *link)
{
  return kvf_list_is_empty(&link->sent) ? NULL : KVF_CONTAINER_OF(link->sent.next, kvf_tcp_read, in_link);
}

static void note_bulk(kvf_tcp *tcp, const kvf_tcp_read *read)
{
  tcp->is_bulk = tcp->is_bulk || read->bytes > KVF_TCP_COPIED_BYTES_MAX;
}

static kvf_tcp_read *take_answered(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_tcp_read *read = answered(link);
  note_bulk(tcp, read);
  kvf_list_remove(&read->in_link);
  link->sent_count--;
  link->awaits = KVF_TCP_AWAITS_CHUNK;
  return read;
}

/* What a producer's refusal means to the load. */
static kvf_status refusal(int32_t status)
{
  switch (status) {
    case KVF_LEASE_EXPIRED:
    case KVF_LEASE_UNKNOWN:
    case KVF_NOT_PUBLISHED:
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
  } else if (read == NULL || chunk.read_id != read->posted.read.id) {
    wrong = "a chunk that is not the next one";
  } else if (chunk.status == KVF_OK && chunk.payload_bytes != read->bytes) {
    wrong = "a chunk of another size than was asked for";
  }
  if (wrong != NULL) {
    link_fail(tcp, link, KVF_PROTOCOL, KVF_PROTOCOL, "%s", wrong);
    return false;
  }
  if (chunk.status == KVF_OK) {
    link->payload = (kvf_tcp_payload){
        .cursor = kvf_segments_begin(&read->chunk), .left_bytes = read->bytes, .staging = link->memory->staging};
    link->awaits = read->bytes > 0 ? KVF_TCP_AWAITS_PAYLOAD : KVF_TCP_AWAITS_TRAILER;
    return true;
  }
  (void)take_answered(tcp, link);
  if (read->is_reported) {
    drop_if_ended(read);
  } else {
    end(tcp, read, refusal(chunk.status));
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
    link->awaits = KVF_TCP_AWAITS_TRAILER;
  }
  if (!read->is_reported && arrived > 0) {
    read->arrived_bytes += arrived;
    if (tcp->now_ns >= kvf_time_add(read->progress_ns, KVF_PROGRESS_NS)) {
      read->progress_ns = tcp->now_ns;
      tcp->host.read_progress(tcp->host.context, read->posted.read.id);
    }
  }
  return io;
}

static bool on_trailer(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_trailer trailer;
  kvf_tcp_read *read = answered(link);
  if (kvf_data_trailer_decode(body, body_bytes, &trailer) != KVF_OK || trailer.read_id != read->posted.read.id) {
    link_fail(tcp, link, KVF_PROTOCOL, KVF_PROTOCOL, "a trailer that is not the chunk's");
    return false;
  }
  (void)take_answered(tcp, link);
  if (read->is_reported) {
    drop_if_ended(read);
    return true;
  }
  /* The session is with this incarnation, and nobody else has its key: the table can be no other's. */
  kvf_read_result result = {.id = read->posted.read.id,
                            .status = KVF_OK,
                            .sample = {.head = {.magic = KVF_FENCE_MAGIC, .incarnation = link->incarnation},
                                       .entry = {.word = trailer.word, .digest = trailer.digest}},
                            .bytes = read->arrived_bytes,
                            .pieces = link->payload.cursor.segments};
  kvf_checksums_judge(&read->chunk, link->pages->checksums_count, &result);
  report(tcp, read, &result);
  return true;
}

/* ---- failing ---- */

/* ---- handshake ---- */

static bool on_challenge(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_challenge challenge;
  if (kvf_data_challenge_decode(body, body_bytes, &challenge) != KVF_OK) {
    return protocol_error(tcp, link, "malformed data_challenge");
  }
  kvf_data_hello hello = {.session_id = link->session_id};
  size_t bytes = 0;
  uint8_t *out = kvf_tcp_stage(&link->stream, KVF_FRAME_HEADER_BYTES + KVF_DATA_HELLO_BYTES_MAX);
  if (out == NULL || getentropy(hello.nonce, sizeof(hello.nonce)) != 0 ||
      kvf_data_hello_proof(&link->session_key, &challenge, &hello, hello.proof) != KVF_OK ||
      kvf_data_ready_proof(&link->session_key, &challenge, &hello, link->ready_proof) != KVF_OK ||
      kvf_data_hello_encode(&hello, out + KVF_FRAME_HEADER_BYTES, KVF_DATA_HELLO_BYTES_MAX, &bytes) != KVF_OK) {
    link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "no proof could be made");
    return false;
  }
  kvf_frame_header_encode(KVF_FRAME_DATA_HELLO, (uint32_t)bytes, out);
  kvf_tcp_staged(&link->stream, KVF_FRAME_HEADER_BYTES + bytes);
  link->awaits = KVF_TCP_AWAITS_READY;
  return link_flush(tcp, link);
}

static bool on_ready(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_ready ready;
  if (kvf_data_ready_decode(body, body_bytes, &ready) != KVF_OK) {
    return protocol_error(tcp, link, "malformed data_ready");
  }
  if (!kvf_equal_secret(ready.proof, link->ready_proof, sizeof(ready.proof))) {
    link_fail(tcp, link, KVF_HANDSHAKE_REFUSED, KVF_HANDSHAKE_REFUSED,
              "whoever listens there has not proved the session's key");
    return false;
  }
  link->awaits = KVF_TCP_AWAITS_CHUNK;
  OPENSSL_cleanse(&link->session_key, sizeof(link->session_key));
  kvf_list_remove(&link->in_connecting);
  link->state = KVF_TCP_LINK_UP;
  if (is_wanted(tcp, link)) {
    tcp->host.link_up(tcp->host.context, &link->base, KVF_OK);
  }
  return true;
}

/* ---- what comes in ---- */

static bool on_frame(kvf_tcp *tcp, kvf_tcp_link *link, kvf_frame_type type, const uint8_t *body, size_t body_bytes)
{
  if (link->awaits == KVF_TCP_AWAITS_CHALLENGE && type == KVF_FRAME_DATA_CHALLENGE) {
    return on_challenge(tcp, link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_READY && type == KVF_FRAME_DATA_READY) {
    return on_ready(tcp, link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_CHUNK && type == KVF_FRAME_CHUNK) {
    return on_chunk(tcp, link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_TRAILER && type == KVF_FRAME_TRAILER) {
    return on_trailer(tcp, link, body, body_bytes);
  }
  char message[KVF_MESSAGE_BYTES_MAX];
  (void)snprintf(message, sizeof(message), "unexpected frame %s", kvf_frame_type_name(type));
  return protocol_error(tcp, link, message);
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
    return protocol_error(tcp, link, "not a frame, or one that is too long");
  }
  if (waiting < KVF_FRAME_HEADER_BYTES + (size_t)header.body_bytes) {
    return true;
  }
  uint8_t body[BODY_BYTES_MAX];
  memcpy(body, kvf_tcp_waiting(&link->stream) + KVF_FRAME_HEADER_BYTES, header.body_bytes);
  kvf_tcp_consume(&link->stream, KVF_FRAME_HEADER_BYTES + (size_t)header.body_bytes);
  *took = true;
  return on_frame(tcp, link, header.type, body, header.body_bytes);
}

/* Receives until nothing more is there, or the others should have their turn; what is in the buffer by then is looked
 * at in any case, since epoll knows nothing of it. False: the link has failed. */
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
      link_broken(tcp, link);
      return false;
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
      dial_failed(tcp, link, error);
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
  int fd = kvf_socket_connect(&link->peer, tcp->config.handshake_timeout_ms, tcp->config.tcp_buffer_bytes);
  if (fd < 0) {
    dial_failed(tcp, link, errno);
    return;
  }
  bool secure = kvf_tls_is_due(&tcp->config.tls, &link->peer);
  if (kvf_tcp_stream_open(&link->stream, fd, IN_BYTES, OUT_BYTES) != KVF_OK ||
      (secure && kvf_tcp_stream_secure(&link->stream, tcp->config.tls.context, true) != KVF_OK)) {
    link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "no memory for its buffers");
  } else if (!kvf_tcp_watch(tcp, fd, &link->source, EPOLLOUT)) {
    link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "%s", strerror(errno));
  }
}

/* Blocks are verified if both sides have checksums. */
static void agree_on_checksums(kvf_tcp *tcp, kvf_tcp_link *link)
{
  if (link->memory->checksums_count == 0) {
    return;
  }
  if (link->has_checksums) {
    kvf_paging_use_checksums(link->pages, link->memory->pages);
  }
  if (link->pages->checksums_count == 0) {
    kvf_tcp_log(tcp, KVF_LOG_WARN, KVF_OK, &link->peer, KVF_NO_CHECKSUMS_LINE);
  }
}

static void run_connect(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_link *link = KVF_CONTAINER_OF(command, kvf_tcp_link, connect);
  kvf_list_push_back(&tcp->links, &link->in_links);
  kvf_list_push_back(&tcp->connecting, &link->in_connecting);
  link->deadline_ns = kvf_time_add(tcp->now_ns, kvf_ms_to_ns(tcp->config.handshake_timeout_ms));
  link->memory = tcp->memory;
  if (link->memory == NULL) {
    link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "no memory is registered here");
    return;
  }
  link->memory->refs++;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = kvf_paging_pair(link->pages, link->memory->pages, message);
  if (status != KVF_OK) {
    link_fail(tcp, link, status, status, "%s", message);
    return;
  }
  agree_on_checksums(tcp, link);
  link_open(tcp, link);
}

static void link_free(kvf_tcp_link *link)
{
  kvf_tcp_stream_free(&link->stream);
  if (link->memory != NULL) {
    kvf_tcp_memory_drop(link->memory);
  }
  OPENSSL_cleanse(&link->session_key, sizeof(link->session_key));
  free(link->pages);
  free(link);
}

static void run_disconnect(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_link *link = KVF_CONTAINER_OF(command, kvf_tcp_link, disconnect);
  kvf_tcp_close(tcp, &link->stream, &link->source);
  reads_end(tcp, link, KVF_CANCELLED);
  kvf_list_remove(&link->in_connecting);
  kvf_list_remove(&link->in_links);
  link_free(link);
}

kvf_status kvf_tcp_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  kvf_tcp_description found;
  kvf_status status = kvf_tcp_description_read(spec->description, spec->description_bytes, &spec->incarnation, &found);
  if (status != KVF_OK || spec->remote_count > KVF_REGIONS_MAX || spec->layout.parts_count > KVF_PARTS_MAX) {
    return KVF_PROTOCOL;
  }
  kvf_tcp_link *link = calloc(1, sizeof(*link));
  kvf_paging *pages = link == NULL ? NULL : kvf_paging_of_link(spec);
  if (pages == NULL) {
    free(link);
    return KVF_NO_MEMORY;
  }
  link->base = (kvf_link){.transport = transport, .user = spec->user};
  kvf_command_init(&link->connect, run_connect);
  kvf_command_init(&link->disconnect, run_disconnect);
  kvf_list_init(&link->open);
  kvf_list_init(&link->in_links);
  kvf_list_init(&link->in_connecting);
  kvf_list_init(&link->waiting);
  kvf_list_init(&link->sent);
  link->peer = spec->peer;
  link->peer.port = found.port;
  link->has_checksums = found.has_checksums;
  link->incarnation = spec->incarnation;
  link->session_id = spec->session_id;
  link->session_key = spec->session_key;
  link->source = (kvf_tcp_source){.ready = link_ready, .is_for_callers = true};
  link->stream.fd = -1;
  link->pages = pages;
  *out = &link->base;
  kvf_commands_lock(&tcp->commands);
  kvf_commands_post(&tcp->commands, &link->connect);
  kvf_commands_unlock(&tcp->commands);
  return KVF_OK;
}

void kvf_tcp_disconnect(kvf_link *base)
{
  kvf_tcp_link *link = KVF_CONTAINER_OF(base, kvf_tcp_link, base);
  kvf_tcp *tcp = kvf_tcp_of(base->transport);
  kvf_commands_lock(&tcp->commands);
  link->disconnected = true;
  kvf_commands_post(&tcp->commands, &link->disconnect);
  kvf_commands_unlock(&tcp->commands);
}

uint64_t kvf_tcp_links_tick(kvf_tcp *tcp)
{
  while (!kvf_list_is_empty(&tcp->connecting)) {
    kvf_tcp_link *link = KVF_CONTAINER_OF(tcp->connecting.next, kvf_tcp_link, in_connecting);
    if (link->deadline_ns > tcp->now_ns) {
      return link->deadline_ns;
    }
    link_fail(tcp, link, KVF_HANDSHAKE_TIMEOUT, KVF_HANDSHAKE_TIMEOUT, "no handshake in %u ms",
              (unsigned)tcp->config.handshake_timeout_ms);
  }
  return KVF_TIME_NEVER;
}

void kvf_tcp_links_clear(kvf_tcp *tcp)
{
  for (kvf_list *node = tcp->links.next; node != &tcp->links; node = node->next) {
    reads_cancel(tcp, KVF_CONTAINER_OF(node, kvf_tcp_link, in_links));
  }
}
