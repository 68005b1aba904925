/* Names to addresses, options of sockets, listening, accepting, connecting and closing. */
#include "transport/socket.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "memory/own_fds.h"

static const uint8_t v4_prefix[12] = {[10] = 0xff, [11] = 0xff};

socklen_t kvf_address_to_sockaddr(const kvf_address *address, struct sockaddr_storage *out)
{
  memset(out, 0, sizeof(*out));
  if (kvf_address_is_v4(address)) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(address->port)};
    memcpy(&v4.sin_addr, address->ip + 12, sizeof(v4.sin_addr));
    memcpy(out, &v4, sizeof(v4));
    return sizeof(v4);
  }
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_port = htons(address->port)};
  memcpy(&v6.sin6_addr, address->ip, sizeof(v6.sin6_addr));
  memcpy(out, &v6, sizeof(v6));
  return sizeof(v6);
}

bool kvf_address_from_sockaddr(const struct sockaddr_storage *from, kvf_address *out)
{
  if (from->ss_family == AF_INET) {
    struct sockaddr_in v4;
    memcpy(&v4, from, sizeof(v4));
    memcpy(out->ip, v4_prefix, sizeof(v4_prefix));
    memcpy(out->ip + 12, &v4.sin_addr, sizeof(v4.sin_addr));
    out->port = ntohs(v4.sin_port);
    return true;
  }
  if (from->ss_family == AF_INET6) {
    struct sockaddr_in6 v6;
    memcpy(&v6, from, sizeof(v6));
    memcpy(out->ip, &v6.sin6_addr, sizeof(v6.sin6_addr));
    out->port = ntohs(v6.sin6_port);
    return true;
  }
  return false;
}

/* Takes "NAME" or "NAME:PORT" apart. False: it has no such form. */
static bool split_name(const char *text, char name[NI_MAXHOST], uint16_t *port)
{
  const char *colon = strchr(text, ':');
  size_t bytes = colon == NULL ? strlen(text) : (size_t)(colon - text);
  if (bytes == 0 || bytes >= NI_MAXHOST) {
    return false;
  }
  memcpy(name, text, bytes);
  name[bytes] = '\0';
  *port = 0;
  if (colon == NULL) {
    return true;
  }
  char *rest = NULL;
  unsigned long number = strtoul(colon + 1, &rest, 10);
  *port = (uint16_t)number;
  return colon[1] >= '0' && colon[1] <= '9' && *rest == '\0' && number <= UINT16_MAX;
}

static kvf_status unusable(const char *text, const char *why, char *message)
{
  return kvf_fail(KVF_INVALID, message, "address \"%.64s\": %s", text, why);
}

/* "::" takes connections of both families. */
static bool serves_family(const kvf_address *listener, int family)
{
  bool is_v4 = kvf_address_is_v4(listener);
  return family == (is_v4 ? AF_INET : AF_INET6) || (!is_v4 && kvf_address_is_any(listener));
}

/* The first that the listener serves, or else the first. */
static const struct addrinfo *choose(const struct addrinfo *found, const kvf_address *listener)
{
  for (const struct addrinfo *one = found; listener != NULL && one != NULL; one = one->ai_next) {
    if (serves_family(listener, one->ai_family)) {
      return one;
    }
  }
  return found;
}

kvf_status kvf_address_resolve(const char *text, const kvf_address *listener, kvf_address *out, char *message)
{
  if (kvf_address_parse(text, 0, out) == KVF_OK) {
    return KVF_OK;
  }
  char name[NI_MAXHOST];
  uint16_t port = 0;
  if (!split_name(text, name, &port)) {
    return unusable(text, "expected HOST, HOST:PORT or [V6]:PORT", message);
  }
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  int error = getaddrinfo(name, NULL, &hints, &found);
  if (error != 0) {
    return unusable(text, gai_strerror(error), message);
  }
  kvf_address address;
  struct sockaddr_storage storage = {0};
  const struct addrinfo *chosen = choose(found, listener);
  memcpy(&storage, chosen->ai_addr, chosen->ai_addrlen);
  freeaddrinfo(found);
  if (!kvf_address_from_sockaddr(&storage, &address)) {
    return unusable(text, "neither IPv4 nor IPv6", message);
  }
  address.port = port;
  *out = address;
  return KVF_OK;
}

static void set_option(int fd, int level, int option, int value)
{
  (void)setsockopt(fd, level, option, &value, sizeof(value));
}

uint32_t kvf_socket_patience_ms(uint32_t handshake_timeout_ms)
{
  uint64_t ms = (uint64_t)handshake_timeout_ms * KVF_SOCKET_PATIENCE_HANDSHAKES;
  return ms < KVF_SOCKET_PATIENCE_MS_MIN ? KVF_SOCKET_PATIENCE_MS_MIN : ms > INT_MAX ? INT_MAX : (uint32_t)ms;
}

static int whole_seconds(uint32_t ms)
{
  return ms < 1000 ? 1 : (int)(ms / 1000);
}

/* The user timeout ends a connection with bytes that are not acknowledged, and an idle one at the probe after it. */
static void set_connection_options(int fd, uint32_t handshake_timeout_ms)
{
  uint32_t patience_ms = kvf_socket_patience_ms(handshake_timeout_ms);
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, (int)patience_ms);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, whole_seconds(patience_ms / 2));
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, whole_seconds(patience_ms / 2 / KVF_SOCKET_PROBES));
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, KVF_SOCKET_PROBES);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
}

void kvf_socket_set_buffers(int fd, uint32_t bytes)
{
  if (bytes > 0) {
    int value = bytes > INT_MAX ? INT_MAX : (int)bytes;
    set_option(fd, SOL_SOCKET, SO_SNDBUF, value);
    set_option(fd, SOL_SOCKET, SO_RCVBUF, value);
  }
}

static int open_socket(const kvf_address *address)
{
  int family = kvf_address_is_v4(address) ? AF_INET : AF_INET6;
  return KVF_OWN_FD(socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP));
}

/* Returns 0, or an errno. */
static int bind_and_listen(int fd, const kvf_address *address, uint32_t handshake_timeout_ms, kvf_address *bound)
{
  struct sockaddr_storage storage;
  socklen_t bytes = kvf_address_to_sockaddr(address, &storage);
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  set_connection_options(fd, handshake_timeout_ms); /* accepted connections inherit them */
  if (storage.ss_family == AF_INET6) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0); /* "::" also serves IPv4, for any default of the system */
  }
  if (bind(fd, (const struct sockaddr *)&storage, bytes) != 0 || listen(fd, SOMAXCONN) != 0) {
    return errno;
  }
  bytes = sizeof(storage);
  if (getsockname(fd, (struct sockaddr *)&storage, &bytes) != 0) {
    return errno;
  }
  return kvf_address_from_sockaddr(&storage, bound) ? 0 : EAFNOSUPPORT;
}

kvf_status kvf_socket_listen(const kvf_address *address, uint32_t handshake_timeout_ms, int *out_fd, kvf_address *bound,
                             char *message)
{
  char text[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(address, text);
  *out_fd = -1;
  int fd = open_socket(address);
  if (fd < 0) {
    return kvf_fail(KVF_SYSTEM, message, "cannot open a socket for %s: %s", text, strerror(errno));
  }
  int error = bind_and_listen(fd, address, handshake_timeout_ms, bound);
  if (error == 0) {
    *out_fd = fd;
    return KVF_OK;
  }
  kvf_own_fd_close(fd);
  const char *hint = "";
  if (error == EADDRINUSE) {
    hint = " (choose another port, or 0 for any free one)";
  } else if (error == EADDRNOTAVAIL) {
    hint = " (no interface of this machine has that address)";
  }
  (void)snprintf(message, KVF_MESSAGE_BYTES_MAX, "cannot listen on %s: %s%s", text, strerror(error), hint);
  return error == EADDRINUSE || error == EADDRNOTAVAIL ? KVF_ADDRESS_IN_USE : KVF_SYSTEM;
}

kvf_status kvf_socket_listen_first(const kvf_address *address, uint16_t last, uint32_t handshake_timeout_ms,
                                   int *out_fd, kvf_address *bound, char *message)
{
  kvf_address at = *address;
  kvf_status status = kvf_socket_listen(&at, handshake_timeout_ms, out_fd, bound, message);
  while (status == KVF_ADDRESS_IN_USE && at.port < last) {
    at.port++;
    status = kvf_socket_listen(&at, handshake_timeout_ms, out_fd, bound, message);
  }
  return status;
}

int kvf_socket_accept(int listener, kvf_address *peer)
{
  struct sockaddr_storage storage = {0};
  socklen_t bytes = sizeof(storage);
  int fd = KVF_OWN_FD(accept4(listener, (struct sockaddr *)&storage, &bytes, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (fd < 0) {
    return -1;
  }
  *peer = (kvf_address){0};
  if (!kvf_address_from_sockaddr(&storage, peer) || kvf_socket_error(fd) != 0) {
    kvf_own_fd_close(fd);
    errno = ECONNABORTED;
    return -1;
  }
  return fd;
}

int kvf_socket_connect(const kvf_address *peer, uint32_t handshake_timeout_ms, uint32_t buffer_bytes)
{
  int fd = open_socket(peer);
  if (fd < 0) {
    return -1;
  }
  set_connection_options(fd, handshake_timeout_ms);
  kvf_socket_set_buffers(fd, buffer_bytes);
  struct sockaddr_storage storage;
  socklen_t bytes = kvf_address_to_sockaddr(peer, &storage);
  if (connect(fd, (const struct sockaddr *)&storage, bytes) != 0 && errno != EINPROGRESS) {
    int error = errno;
    kvf_own_fd_close(fd);
    errno = error;
    return -1;
  }
  return fd;
}

void kvf_socket_close(int fd)
{
  (void)shutdown(fd, SHUT_RDWR);
  kvf_own_fd_close(fd);
}

void kvf_socket_drop_unsent(int fd)
{
  const struct linger none = {.l_onoff = 1, .l_linger = 0};
  (void)setsockopt(fd, SOL_SOCKET, SO_LINGER, &none, sizeof(none));
}

int kvf_socket_error(int fd)
{
  int error = 0;
  socklen_t bytes = sizeof(error);
  return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) == 0 ? error : errno;
}
