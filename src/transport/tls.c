/* Handshake and records by OpenSSL, over a BIO of ours that keeps what is encrypted until the socket takes it. */
#include "transport/tls.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/err.h>
#include <openssl/ssl.h>

#include "transport/cpu.h"
#include "wire/handshake_message.h"

#define RECORD_BYTES_MAX 16384u /* of plain text: RFC 8446, 5.1 */
#define RECORD_ROOM_BYTES (RECORD_BYTES_MAX + 512u)
#define READ_BUFFER_BYTES ((size_t)2 * RECORD_ROOM_BYTES) /* with each record OpenSSL moves what has come behind it */
#define WHY_BYTES 96
/* The one that the slower of both sides does better. The key goes with the hash that both suites have. */
#define AES_FIRST "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256"
#define CHACHA_FIRST "TLS_CHACHA20_POLY1305_SHA256:TLS_AES_128_GCM_SHA256"
/* A key may protect 2^24.5 records (RFC 8446, 5.5), and OpenSSL does not count them. */
#define RECORDS_PER_KEY (1u << 20)

/* OpenSSL takes no session without one where it verifies peers. */
static const unsigned char session_context[] = {'k', 'v', 'f', 'e', 'r', 'r', 'y'};

typedef struct psk {
  uint8_t id[KVF_KEY_ID_BYTES];
  uint8_t secret[KVF_HASH_BYTES];
} psk;

struct kvf_tls_context {
  SSL_CTX *ssl;
  BIO_METHOD *socket;
  psk psks[KVF_KEYS_MAX];
  size_t count;
};

struct kvf_tls {
  const kvf_tls_context *context;
  SSL *ssl; /* NULL: a server's, and its client has not said a word yet */
  int fd;
  int error; /* errno of the first failure; 0: none. Nothing works after it */
  bool proved;
  bool ended;         /* the socket has */
  bool buffered_only; /* nothing is to be received: OpenSSL goes on with what it has */
  bool drained;       /* OpenSSL has no whole record left of what it has received */
  char why[WHY_BYTES];
  uint32_t records; /* sent with the present key */
  uint8_t *out;     /* encrypted */
  size_t out_capacity;
  size_t out_first;
  size_t out_bytes;
  uint8_t *record; /* RECORD_BYTES_MAX for what lies in pieces; NULL until the handshake is over */
};

/* ---- the socket below it ---- */

static int socket_read(BIO *bio, char *data, size_t bytes, size_t *got)
{
  kvf_tls *tls = BIO_get_data(bio);
  BIO_clear_retry_flags(bio);
  if (tls->buffered_only) {
    BIO_set_retry_read(bio);
    return 0;
  }
  ssize_t read = recv(tls->fd, data, bytes, 0);
  if (read > 0) {
    tls->drained = false;
    *got = (size_t)read;
    return 1;
  }
  if (read == 0) {
    tls->ended = true;
  } else if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) {
    BIO_set_retry_read(bio);
  } else {
    tls->error = errno;
  }
  return 0;
}

/* Never blocks: there is room before anything is encrypted. */
static int socket_write(BIO *bio, const char *data, size_t bytes, size_t *written)
{
  kvf_tls *tls = BIO_get_data(bio);
  if (tls->out_capacity - tls->out_bytes < bytes) {
    return 0;
  }
  memcpy(tls->out + tls->out_bytes, data, bytes);
  tls->out_bytes += bytes;
  *written = bytes;
  return 1;
}

static long socket_control(BIO *bio, int command, long number, void *pointer)
{
  const kvf_tls *tls = BIO_get_data(bio);
  (void)number;
  (void)pointer;
  return command == BIO_CTRL_FLUSH || (command == BIO_CTRL_EOF && tls->ended);
}

/* Sends what waits. False: the connection is gone. */
static bool flush(kvf_tls *tls)
{
  while (tls->out_first < tls->out_bytes) {
    ssize_t sent = send(tls->fd, tls->out + tls->out_first, tls->out_bytes - tls->out_first, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) {
      continue;
    }
    if (sent < 0) {
      bool later = errno == EAGAIN || errno == EWOULDBLOCK;
      tls->error = later ? tls->error : errno;
      return later;
    }
    tls->out_first += (size_t)sent;
  }
  tls->out_first = 0;
  tls->out_bytes = 0;
  return true;
}

static bool has_room(kvf_tls *tls)
{
  if (tls->out_capacity - tls->out_bytes >= RECORD_ROOM_BYTES) {
    return true;
  }
  (void)flush(tls);
  memmove(tls->out, tls->out + tls->out_first, tls->out_bytes - tls->out_first);
  tls->out_bytes -= tls->out_first;
  tls->out_first = 0;
  return tls->out_capacity - tls->out_bytes >= RECORD_ROOM_BYTES;
}

/* ---- the keys ---- */

static SSL_SESSION *session_of(SSL *ssl, const psk *key)
{
  static const unsigned char aes_128_gcm_sha256[] = {0x13, 0x01};
  SSL_SESSION *session = SSL_SESSION_new();
  const SSL_CIPHER *cipher = SSL_CIPHER_find(ssl, aes_128_gcm_sha256);
  if (session != NULL && SSL_SESSION_set1_master_key(session, key->secret, sizeof(key->secret)) == 1 &&
      SSL_SESSION_set1_id_context(session, session_context, sizeof(session_context)) == 1 &&
      SSL_SESSION_set_cipher(session, cipher) == 1 && SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1) {
    return session;
  }
  SSL_SESSION_free(session);
  return NULL;
}

static int offer_key(SSL *ssl, const EVP_MD *digest, const unsigned char **id, size_t *id_bytes, SSL_SESSION **session)
{
  const kvf_tls *tls = SSL_get_app_data(ssl);
  const psk *key = &tls->context->psks[0];
  (void)digest; /* that of all suites that we have allowed */
  *session = session_of(ssl, key);
  *id = key->id;
  *id_bytes = sizeof(key->id);
  return *session != NULL;
}

static int find_key(SSL *ssl, const unsigned char *id, size_t id_bytes, SSL_SESSION **session)
{
  kvf_tls *tls = SSL_get_app_data(ssl);
  *session = NULL;
  for (size_t i = 0; i < tls->context->count; i++) {
    const psk *key = &tls->context->psks[i];
    if (id_bytes == sizeof(key->id) && memcmp(id, key->id, id_bytes) == 0) {
      *session = session_of(ssl, key);
      return *session != NULL;
    }
  }
  (void)snprintf(tls->why, sizeof(tls->why), "TLS: it has another key (option key_file)");
  return 1;
}

static kvf_status derive(const kvf_key *key, psk *out)
{
  const kvf_span label = {"kvferry tls psk", 15};
  kvf_status status = kvf_handshake_key_id(key, out->id);
  return status == KVF_OK ? kvf_hmac(key, &label, 1, out->secret) : status;
}

/* ---- context ---- */

static bool set_up(kvf_tls_context *context)
{
  SSL_CTX *ssl = context->ssl = SSL_CTX_new(TLS_method());
  BIO_METHOD *socket = context->socket = BIO_meth_new(BIO_TYPE_SOURCE_SINK, "kvferry socket");
  if (ssl == NULL || socket == NULL || SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(ssl, kvf_cpu_has_aes() ? AES_FIRST : CHACHA_FIRST) != 1 ||
      SSL_CTX_set_num_tickets(ssl, 0) != 1 ||
      SSL_CTX_set_session_id_context(ssl, session_context, sizeof(session_context)) != 1) {
    return false;
  }
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER, NULL);         /* there is no certificate to be convinced by */
  SSL_CTX_set_options(ssl, SSL_OP_IGNORE_UNEXPECTED_EOF); /* frames and payload say how long they are */
  if (!kvf_cpu_has_aes()) {
    SSL_CTX_set_options(ssl, SSL_OP_CIPHER_SERVER_PREFERENCE);
  }
  (void)SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  (void)SSL_CTX_set_mode(ssl, SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(ssl, 1); /* else each record takes two system calls */
  SSL_CTX_set_default_read_buffer_len(ssl, READ_BUFFER_BYTES);
  SSL_CTX_set_psk_use_session_callback(ssl, offer_key);
  SSL_CTX_set_psk_find_session_callback(ssl, find_key);
  return BIO_meth_set_read_ex(socket, socket_read) == 1 && BIO_meth_set_write_ex(socket, socket_write) == 1 &&
         BIO_meth_set_ctrl(socket, socket_control) == 1;
}

kvf_status kvf_tls_context_new(const kvf_key *keys, size_t count, kvf_tls_context **out)
{
  assert(count >= 1 && count <= KVF_KEYS_MAX);
  kvf_tls_context *context = calloc(1, sizeof(*context));
  *out = NULL;
  if (context == NULL) {
    return KVF_NO_MEMORY;
  }
  kvf_status status = KVF_OK;
  for (size_t i = 0; status == KVF_OK && i < count; i++) {
    status = derive(&keys[i], &context->psks[context->count++]);
  }
  if (status != KVF_OK || !set_up(context)) {
    ERR_clear_error();
    kvf_tls_context_free(context);
    return KVF_NO_MEMORY;
  }
  *out = context;
  return KVF_OK;
}

void kvf_tls_context_free(kvf_tls_context *context)
{
  if (context == NULL) {
    return;
  }
  SSL_CTX_free(context->ssl);
  BIO_meth_free(context->socket);
  kvf_forget(context->psks, sizeof(context->psks));
  free(context);
}

/* ---- session ---- */

static bool begin(kvf_tls *tls, bool is_client)
{
  BIO *bio = BIO_new(tls->context->socket);
  tls->out = malloc(KVF_TLS_UNSENT_BYTES_FIRST);
  tls->out_capacity = KVF_TLS_UNSENT_BYTES_FIRST;
  tls->ssl = SSL_new(tls->context->ssl);
  if (bio == NULL || tls->out == NULL || tls->ssl == NULL || SSL_set_app_data(tls->ssl, tls) != 1) {
    ERR_clear_error();
    (void)BIO_free(bio);
    return false;
  }
  BIO_set_data(bio, tls);
  BIO_set_init(bio, 1);
  SSL_set_bio(tls->ssl, bio, bio);
  if (is_client) {
    SSL_set_connect_state(tls->ssl);
  } else {
    SSL_set_accept_state(tls->ssl);
  }
  return true;
}

kvf_tls *kvf_tls_new(const kvf_tls_context *context, int fd, bool is_client)
{
  kvf_tls *tls = calloc(1, sizeof(*tls));
  if (tls == NULL) {
    return NULL;
  }
  tls->context = context;
  tls->fd = fd;
  if (is_client && !begin(tls, true)) {
    kvf_tls_free(tls);
    return NULL;
  }
  return tls;
}

void kvf_tls_free(kvf_tls *tls)
{
  if (tls == NULL) {
    return;
  }
  SSL_free(tls->ssl);
  free(tls->out);
  if (tls->record != NULL) {
    kvf_forget(tls->record, RECORD_BYTES_MAX);
  }
  free(tls->record);
  free(tls);
}

/* An alert (RFC 8446, 6): OpenSSL sends none to who has sent no record, and so leaves ours without an explanation. */
static void queue_alert(kvf_tls *tls)
{
  static const uint8_t protocol_version[] = {21, 3, 3, 0, 2, 2, 70};
  if (tls->out_capacity - tls->out_bytes >= sizeof(protocol_version)) {
    memcpy(tls->out + tls->out_bytes, protocol_version, sizeof(protocol_version));
    tls->out_bytes += sizeof(protocol_version);
  }
}

static void explain(kvf_tls *tls)
{
  unsigned long error = ERR_peek_error();
  const char *text = ERR_reason_error_string(error);
  if (tls->why[0] != '\0') {
    return; /* found by find_key() */
  }
  if (ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) == SSL_R_WRONG_VERSION_NUMBER) {
    text = "it does not speak TLS (option tls)";
    queue_alert(tls);
  } else if (ERR_GET_LIB(error) == ERR_LIB_SSL && ERR_GET_REASON(error) == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE) {
    text = "it refused our key (option key_file)";
  }
  (void)snprintf(tls->why, sizeof(tls->why), "TLS: %s", text != NULL ? text : "unknown error");
}

/* What a call of OpenSSL's that brought nothing means: 0 the end, else -1 with errno. */
static ssize_t nothing(kvf_tls *tls, int result)
{
  if (tls->error == 0) {
    int kind = SSL_get_error(tls->ssl, result);
    if (kind == SSL_ERROR_WANT_READ) {
      tls->drained = true;
      errno = EAGAIN;
      return -1;
    }
    if (kind == SSL_ERROR_ZERO_RETURN || tls->ended) {
      return 0;
    }
    explain(tls);
    tls->error = EPROTO;
  }
  ERR_clear_error();
  (void)flush(tls); /* the alert that says why */
  errno = tls->error;
  return -1;
}

/* The other side has the key: it may cost us more. */
static bool grow_buffers(kvf_tls *tls)
{
  uint8_t *out = realloc(tls->out, KVF_TLS_UNSENT_BYTES_MAX);
  if (out == NULL) {
    return false;
  }
  tls->out = out;
  tls->out_capacity = KVF_TLS_UNSENT_BYTES_MAX;
  tls->record = malloc(RECORD_BYTES_MAX);
  return tls->record != NULL;
}

/* A server's: many connect who never say a word, and shall cost little. 1: the client has spoken; else as recv(). */
static ssize_t listen_for_client(kvf_tls *tls)
{
  char first;
  ssize_t got = recv(tls->fd, &first, sizeof(first), MSG_PEEK);
  if (got == 1 && !begin(tls, false)) {
    tls->error = errno = ENOMEM;
    return -1;
  }
  return got;
}

/* 1: data may flow; else as nothing(). */
static ssize_t shake_hands(kvf_tls *tls)
{
  if (tls->error != 0) {
    errno = tls->error;
    return -1;
  }
  if (tls->proved) {
    return 1;
  }
  ssize_t spoken = tls->ssl != NULL ? 1 : listen_for_client(tls);
  if (spoken != 1) {
    return spoken;
  }
  ERR_clear_error();
  int result = SSL_do_handshake(tls->ssl);
  if (result != 1) {
    ssize_t why = nothing(tls, result);
    int error = errno;
    (void)flush(tls);
    errno = tls->error != 0 ? tls->error : error;
    return why;
  }
  if (!SSL_session_reused(tls->ssl)) { /* cannot be, without a certificate; to be sure */
    (void)snprintf(tls->why, sizeof(tls->why), "TLS: a handshake without the key");
    tls->error = errno = EPROTO;
    return -1;
  }
  if (!grow_buffers(tls)) {
    tls->error = errno = ENOMEM;
    return -1;
  }
  tls->proved = true;
  return flush(tls) ? 1 : -1;
}

/* ---- send ---- */

typedef struct iov_cursor {
  const struct iovec *at;
  size_t left;   /* pieces, this one included */
  size_t offset; /* in this one */
} iov_cursor;

static bool send_record(kvf_tls *tls, const void *record, size_t bytes)
{
  if (++tls->records == RECORDS_PER_KEY) {
    tls->records = 0;
    if (SSL_key_update(tls->ssl, SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
      return false;
    }
  }
  size_t written;
  return SSL_write_ex(tls->ssl, record, bytes, &written) == 1;
}

static size_t piece_bytes(const iov_cursor *walk)
{
  return walk->at->iov_len - walk->offset;
}

static void skip_empty(iov_cursor *walk)
{
  while (walk->left > 0 && piece_bytes(walk) == 0) {
    *walk = (iov_cursor){walk->at + 1, walk->left - 1, 0};
  }
}

/* The next record's plain text: where it lies, or copied together, short of a piece that needs no copy. 0: there is
 * nothing left. */
static size_t next_record(kvf_tls *tls, iov_cursor *walk, const void **out)
{
  skip_empty(walk);
  if (walk->left == 0) {
    return 0;
  }
  if (piece_bytes(walk) >= RECORD_BYTES_MAX) {
    *out = (const uint8_t *)walk->at->iov_base + walk->offset;
    walk->offset += RECORD_BYTES_MAX;
    return RECORD_BYTES_MAX;
  }
  size_t bytes = 0;
  while (walk->left > 0 && bytes < RECORD_BYTES_MAX && piece_bytes(walk) < RECORD_BYTES_MAX) {
    size_t room = RECORD_BYTES_MAX - bytes;
    size_t some = piece_bytes(walk) < room ? piece_bytes(walk) : room;
    memcpy(tls->record + bytes, (const uint8_t *)walk->at->iov_base + walk->offset, some);
    bytes += some;
    walk->offset += some;
    skip_empty(walk);
  }
  *out = tls->record;
  return bytes;
}

/* As much as there is room for; *over: all. False: OpenSSL has failed. */
static bool encrypt_some(kvf_tls *tls, iov_cursor *walk, size_t *taken, bool *over)
{
  while (has_room(tls)) {
    const void *record;
    size_t bytes = next_record(tls, walk, &record);
    if (bytes == 0) {
      *over = true;
      return true;
    }
    ERR_clear_error();
    if (!send_record(tls, record, bytes)) {
      return false;
    }
    *taken += bytes;
  }
  return tls->error == 0;
}

ssize_t kvf_tls_sendmsg(kvf_tls *tls, const struct msghdr *message)
{
  ssize_t ready = shake_hands(tls);
  if (ready != 1) {
    errno = ready == 0 ? EPIPE : errno;
    return -1;
  }
  iov_cursor walk = {message->msg_iov, message->msg_iovlen, 0};
  size_t taken = 0;
  bool over = false;
  do {
    if (!encrypt_some(tls, &walk, &taken, &over)) {
      ssize_t why = nothing(tls, 0);
      errno = why == 0 ? EPIPE : errno;
      return -1;
    }
    if (!flush(tls)) {
      errno = tls->error;
      return -1;
    }
  } while (!over && kvf_tls_unsent_bytes(tls) == 0); /* what is left waits for the descriptor, which must tell */
  if (taken == 0 && !over) {
    errno = EAGAIN;
    return -1;
  }
  return (ssize_t)taken;
}

size_t kvf_tls_unsent_bytes(const kvf_tls *tls)
{
  return tls->out_bytes - tls->out_first;
}

/* ---- receive ---- */

/* Fills the pieces as far as there is something to fill them with. */
static ssize_t decrypt(kvf_tls *tls, const struct msghdr *message)
{
  size_t got = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++) {
    const struct iovec *piece = &message->msg_iov[i];
    for (size_t offset = 0; offset < piece->iov_len;) {
      size_t some = 0;
      ERR_clear_error();
      int result = SSL_read_ex(tls->ssl, (uint8_t *)piece->iov_base + offset, piece->iov_len - offset, &some);
      if (result != 1) {
        ssize_t why = nothing(tls, result); /* which the next call says again */
        return got > 0 ? (ssize_t)got : why;
      }
      offset += some;
      got += some;
    }
  }
  return (ssize_t)got;
}

ssize_t kvf_tls_recvmsg(kvf_tls *tls, const struct msghdr *message)
{
  ssize_t ready = shake_hands(tls);
  if (ready != 1) {
    return ready;
  }
  tls->buffered_only = kvf_tls_buffered_bytes(tls) > 0;
  ssize_t got = decrypt(tls, message);
  tls->buffered_only = false;
  return got;
}

size_t kvf_tls_buffered_bytes(const kvf_tls *tls)
{
  const int decrypted = tls->ssl == NULL ? 0 : SSL_pending(tls->ssl);
  if (decrypted > 0) {
    return (size_t)decrypted;
  }
  return tls->ssl != NULL && !tls->drained && SSL_has_pending(tls->ssl) ? RECORD_BYTES_MAX : 0;
}

bool kvf_tls_has_heard(const kvf_tls *tls)
{
  return tls->ssl != NULL;
}

const char *kvf_tls_why(const kvf_tls *tls)
{
  return tls->why;
}
