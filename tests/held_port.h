/* A port of 127.0.0.1 for somebody who must be told one, or that is to stay closed. It is held by a socket that is
 * bound and does not listen: the system gives it to nobody else, and only who names it may listen there, as
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

static inline held_port hold_port(void)
{
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t bytes = sizeof(at);
  void *any = &at;
  const int on = 1;
  held_port held = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  if (setsockopt(held.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 || bind(held.fd, any, bytes) != 0 ||
      getsockname(held.fd, any, &bytes) != 0) {
    (void)close(held.fd);
    return (held_port){.fd = -1};
  }
  held.port = ntohs(at.sin_port);
  (void)snprintf(held.address, sizeof(held.address), "127.0.0.1:%u", (unsigned)held.port);
  return held;
}

#endif
