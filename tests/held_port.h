/* A port of 127.0.0.1, or of ::1, for somebody who must be told one, or that is to stay closed. It is held by a socket
 * that is bound and does not listen: the system gives it to nobody else, and only who names it may listen there, as
 * SO_REUSEADDR of both allows. */
#ifndef KVF_TESTS_HELD_PORT_H
#define KVF_TESTS_HELD_PORT_H

#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct held_port {
  int fd; /* close it; < 0: there is none */
  uint16_t port;
  char address[24];
} held_port;

static inline held_port hold_port_of(sa_family_t family)
{
  union {
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
  } at = {.v6 = {.sin6_family = family}};
  socklen_t bytes = family == AF_INET ? sizeof(at.v4) : sizeof(at.v6);
  void *any = &at;
  const int on = 1;
  if (family == AF_INET) {
    at.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else {
    at.v6.sin6_addr = in6addr_loopback;
  }
  held_port held = {.fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (setsockopt(held.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 || bind(held.fd, any, bytes) != 0 ||
      getsockname(held.fd, any, &bytes) != 0) {
    (void)close(held.fd);
    return (held_port){.fd = -1};
  }
  held.port = ntohs(family == AF_INET ? at.v4.sin_port : at.v6.sin6_port);
  (void)snprintf(held.address, sizeof(held.address), "%s:%u", family == AF_INET ? "127.0.0.1" : "[::1]",
                 (unsigned)held.port);
  return held;
}

static inline held_port hold_port(void)
{
  return hold_port_of(AF_INET);
}

#endif
