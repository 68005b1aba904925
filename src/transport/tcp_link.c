/* Links: dialed, proved, failed, given back. */
#include "transport/tcp_link.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <openssl/crypto.h>

#include "transport/sums.h"

/* An answer that its producer sends in one call comes in one. */
#define IN_BYTES (512 + KVF_TCP_COPIED_BYTES_MAX)
/* The longest READ, and some cancels. */
#define OUT_BYTES (KVF_FRAME_HEADER_BYTES + KVF_FRAME_BODY_BYTES_MAX + 4096)
/* What a producer sends besides payload is short. */
#define BODY_BYTES_MAX 64

/* ---- failing ---- */

static bool is_wanted(kvf_tcp *tcp, kvf_tcp_link *link)
{
  kvf_commands_lock(&tcp->commands);
  bool wanted = !link->disconnected;
  kvf_commands_unlock(&tcp->commands);
  return wanted;
}

void kvf_tcp_link_fail(kvf_tcp *tcp, kvf_tcp_link *link, kvf_status status, kvf_status reads, const char *format, ...)
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
  kvf_tcp_reads_end(tcp, link, reads);
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
  kvf_tcp_link_fail(tcp, link, status, status, "cannot connect: %s", strerror(error));
}

void kvf_tcp_link_broken(kvf_tcp *tcp, kvf_tcp_link *link)
{
  int error = link->stream.error;
  const char *why = kvf_tcp_stream_why(&link->stream);
  if (link->state == KVF_TCP_LINK_CONNECTING) {
    if (error == EPROTO) {
      kvf_tcp_link_fail(tcp, link, KVF_HANDSHAKE_REFUSED, KVF_HANDSHAKE_REFUSED, "%s", why);
    } else if (error == 0 && link->awaits == KVF_TCP_AWAITS_READY) {
      kvf_tcp_link_fail(tcp, link, KVF_HANDSHAKE_REFUSED, KVF_HANDSHAKE_REFUSED,
                        "closed when the proof of the session's key was shown");
    } else {
      kvf_tcp_link_fail(tcp, link, KVF_PEER_DOWN, KVF_PEER_DOWN, "closed during the handshake: %s",
                        error == 0 ? "end of stream" : why);
    }
    return;
  }
  bool closed = error == 0 || error == ECONNRESET || error == EPIPE;
  kvf_tcp_link_fail(tcp, link, closed ? KVF_PEER_DOWN : KVF_TRANSFER_FAILED, KVF_TRANSFER_FAILED, "%s",
                    error == 0 ? "closed by the producer" : why);
}

static bool protocol_error(kvf_tcp *tcp, kvf_tcp_link *link, const char *what)
{
  kvf_tcp_link_fail(tcp, link, KVF_PROTOCOL, KVF_PROTOCOL, "%s", what);
  return false;
}

/* ---- handshake ---- */

bool kvf_tcp_link_flush(kvf_tcp *tcp, kvf_tcp_link *link)
{
  bool greets =
      link->stream.tls != NULL && link->awaits == KVF_TCP_AWAITS_CHALLENGE; /* in TLS, the client speaks first */
  link->is_blocked = false;
  if (greets || kvf_tcp_unsent_bytes(&link->stream) > 0) {
    kvf_tcp_io io = kvf_tcp_send(&link->stream, NULL, 0);
    if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
      kvf_tcp_link_broken(tcp, link);
      return false;
    }
    link->is_blocked = io == KVF_TCP_IO_BLOCKED && !kvf_tcp_is_its_turn(&link->stream);
  }
  uint32_t events = (uint32_t)EPOLLIN | (link->is_blocked ? (uint32_t)EPOLLOUT : 0u);
  if (!kvf_tcp_watch(tcp, link->stream.fd, &link->source, events)) {
    kvf_tcp_link_fail(tcp, link, KVF_TRANSFER_FAILED, KVF_TRANSFER_FAILED, "%s", strerror(errno));
    return false;
  }
  return true;
}

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
    kvf_tcp_link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "no proof could be made");
    return false;
  }
  kvf_frame_header_encode(KVF_FRAME_DATA_HELLO, (uint32_t)bytes, out);
  kvf_tcp_staged(&link->stream, KVF_FRAME_HEADER_BYTES + bytes);
  link->awaits = KVF_TCP_AWAITS_READY;
  return kvf_tcp_link_flush(tcp, link);
}

static bool on_ready(kvf_tcp *tcp, kvf_tcp_link *link, const uint8_t *body, size_t body_bytes)
{
  kvf_data_ready ready;
  if (kvf_data_ready_decode(body, body_bytes, &ready) != KVF_OK) {
    return protocol_error(tcp, link, "malformed data_ready");
  }
  if (!kvf_equal_secret(ready.proof, link->ready_proof, sizeof(ready.proof))) {
    kvf_tcp_link_fail(tcp, link, KVF_HANDSHAKE_REFUSED, KVF_HANDSHAKE_REFUSED,
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
    return kvf_tcp_link_on_chunk(tcp, link, body, body_bytes);
  }
  if (link->awaits == KVF_TCP_AWAITS_TRAILER && type == KVF_FRAME_TRAILER) {
    return kvf_tcp_link_on_trailer(tcp, link, body, body_bytes);
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
    size_t held_bytes = kvf_tcp_held_bytes(&link->stream);
    if (over && held_bytes == 0 && (!in_payload || kvf_tcp_waiting_bytes(&link->stream) == 0)) {
      return true;
    }
    budget_bytes = budget_bytes < held_bytes ? held_bytes : budget_bytes;
    kvf_tcp_io io = in_payload ? kvf_tcp_link_take_payload(tcp, link, &budget_bytes) : kvf_tcp_fill(&link->stream);
    if (io == KVF_TCP_IO_CLOSED || io == KVF_TCP_IO_FAILED) {
      kvf_tcp_link_broken(tcp, link);
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
  kvf_tcp_link_send_reads(tcp, link);
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
    kvf_tcp_link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "no memory for its buffers");
  } else if (!kvf_tcp_watch(tcp, fd, &link->source, EPOLLOUT)) {
    kvf_tcp_link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "%s", strerror(errno));
  }
}

/* Blocks are verified if both sides have checksums. */
static void agree_on_sums(kvf_tcp *tcp, kvf_tcp_link *link)
{
  if (link->memory->sums_count == 0) {
    return;
  }
  if (link->has_sums) {
    link->sums_count = kvf_sums_layouts(link->remote, link->remote_count, link->remote + link->remote_count);
  } else {
    kvf_tcp_log(tcp, KVF_LOG_WARN, KVF_OK, &link->peer, KVF_NO_SUMS_LINE);
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
    kvf_tcp_link_fail(tcp, link, KVF_TRANSFER_SETUP, KVF_TRANSFER_SETUP, "no memory is registered here");
    return;
  }
  link->memory->refs++;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status =
      kvf_layouts_check(link->memory->regions, link->memory->regions_count, link->remote, link->remote_count, message);
  if (status != KVF_OK) {
    kvf_tcp_link_fail(tcp, link, status, status, "%s", message);
    return;
  }
  agree_on_sums(tcp, link);
  link_open(tcp, link);
}

static void link_free(kvf_tcp_link *link)
{
  kvf_tcp_stream_free(&link->stream);
  if (link->memory != NULL) {
    kvf_tcp_memory_drop(link->memory);
  }
  OPENSSL_cleanse(&link->session_key, sizeof(link->session_key));
  free(link);
}

static void run_disconnect(void *owner, kvf_command *command)
{
  kvf_tcp *tcp = owner;
  kvf_tcp_link *link = KVF_CONTAINER_OF(command, kvf_tcp_link, disconnect);
  kvf_tcp_close(tcp, &link->stream, &link->source);
  kvf_tcp_reads_end(tcp, link, KVF_CANCELLED);
  kvf_list_remove(&link->in_connecting);
  kvf_list_remove(&link->in_links);
  link_free(link);
}

kvf_status kvf_tcp_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_tcp *tcp = kvf_tcp_of(transport);
  kvf_tcp_description found;
  kvf_status status = kvf_tcp_description_read(spec->description, spec->description_bytes, &spec->incarnation, &found);
  if (status != KVF_OK || spec->remote_count > KVF_REGIONS_MAX) {
    return KVF_PROTOCOL;
  }
  size_t remote_bytes = spec->remote_count * sizeof(kvf_region_layout);
  size_t sums_bytes = KVF_GROUPS_MAX * sizeof(kvf_region_layout);
  kvf_tcp_link *link = calloc(1, sizeof(*link) + remote_bytes + sums_bytes);
  if (link == NULL) {
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
  link->has_sums = found.has_sums;
  link->incarnation = spec->incarnation;
  link->session_id = spec->session_id;
  link->session_key = spec->session_key;
  link->source = (kvf_tcp_source){.ready = link_ready, .is_for_callers = true};
  link->stream.fd = -1;
  link->remote_count = spec->remote_count;
  if (remote_bytes > 0) {
    memcpy(link->remote, spec->remote, remote_bytes);
  }
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
    kvf_tcp_link_fail(tcp, link, KVF_HANDSHAKE_TIMEOUT, KVF_HANDSHAKE_TIMEOUT, "no handshake in %u ms",
                      (unsigned)tcp->config.handshake_timeout_ms);
  }
  return KVF_TIME_NEVER;
}

void kvf_tcp_links_clear(kvf_tcp *tcp)
{
  for (kvf_list *node = tcp->links.next; node != &tcp->links; node = node->next) {
    kvf_tcp_reads_cancel(tcp, KVF_CONTAINER_OF(node, kvf_tcp_link, in_links));
  }
}
