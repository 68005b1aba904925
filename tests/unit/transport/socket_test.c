/* Addresses and names, listening on a port or on the first that is free, and a connection's options and end. */
#include "transport/socket.h"

#include "../../sides/peer.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#define HANDSHAKE_MS 1000 /* the option's default */

static kvf_address resolved(const char *text)
{
  kvf_address address;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_address_resolve(text, NULL, &address, message), KVF_OK);
  return address;
}

static void assert_round_trip(const char *text, const char *expected)
{
  kvf_address address = resolved(text);
  char formatted[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&address, formatted);
  assert_string_equal(formatted, expected);
  struct sockaddr_storage storage;
  assert_true(kvf_address_to_sockaddr(&address, &storage) > 0);
  kvf_address back;
  assert_true(kvf_address_from_sockaddr(&storage, &back));
  assert_memory_equal(back.ip, address.ip, sizeof(back.ip));
  assert_int_equal(back.port, address.port);
}

TEST(addresses_survive_text_and_sockaddr)
{
  assert_round_trip("127.0.0.1", "127.0.0.1:0");
  assert_round_trip("127.0.0.1:65535", "127.0.0.1:65535");
  assert_round_trip("::1", "[::1]:0");
  assert_round_trip("[::1]", "[::1]:0");
  assert_round_trip("[fe80::2]:8080", "[fe80::2]:8080");
  assert_round_trip("0.0.0.0:1", "0.0.0.0:1");
  struct sockaddr_storage other = {.ss_family = AF_UNIX};
  kvf_address address;
  assert_false(kvf_address_from_sockaddr(&other, &address));
}

TEST(bad_text_is_refused)
{
  static const char *const bad[] = {
      "", ":80", "[::1", "[::1]80", "1.2.3.4:", "1.2.3.4:x", "1.2.3.4:65536", "1.2.3.4:-1", "[]:1", "1.2.3.4.5.6"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    kvf_address address = {.port = 7};
    char message[KVF_MESSAGE_BYTES_MAX] = "";
    assert_int_equal(kvf_address_resolve(bad[i], NULL, &address, message), KVF_INVALID);
    assert_non_null(strstr(message, "address \""));
    assert_int_equal(address.port, 7);
  }
}

/* The system's name server knows one name with addresses of both families, the IPv6 one first, as it is by default. */
int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found);
int __real_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found);

int __wrap_getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found)
{
  if (strcmp(name, "both.example") != 0) {
    return __real_getaddrinfo(name, service, hints, found);
  }
  assert_int_equal(__real_getaddrinfo("2001:db8::1", NULL, hints, found), 0);
  return __real_getaddrinfo("192.0.2.1", NULL, hints, &(*found)->ai_next);
}

/* Else an engine that listens on IPv4 would name an address at which nobody listens. */
TEST(a_name_is_looked_up_for_its_listener)
{
  static const struct {
    const char *listener;
    const char *expected;
  } cases[] = {{"0.0.0.0", "192.0.2.1:7"},
               {"10.0.0.1", "192.0.2.1:7"},
               {"::", "[2001:db8::1]:7"},
               {"fd00::1", "[2001:db8::1]:7"},
               {NULL, "[2001:db8::1]:7"}};
  kvf_address address;
  char message[KVF_MESSAGE_BYTES_MAX];
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    kvf_address listener = resolved(cases[i].listener == NULL ? "::" : cases[i].listener);
    char text[KVF_ADDRESS_TEXT_BYTES];
    assert_int_equal(
        kvf_address_resolve("both.example:7", cases[i].listener == NULL ? NULL : &listener, &address, message), KVF_OK);
    kvf_address_format(&address, text);
    assert_string_equal(text, cases[i].expected);
  }
  kvf_address v6 = resolved("fd00::1");
  assert_int_equal(kvf_address_resolve("192.0.2.1:7", &v6, &address, message), KVF_OK); /* as it was said */
  assert_true(kvf_address_is_v4(&address));
}

TEST(loopback_and_any_are_told)
{
  static const struct {
    const char *text;
    bool loopback;
    bool any;
  } cases[] = {{"127.0.0.1", true, false}, {"127.9.9.9", true, false}, {"::1", true, false}, {"0.0.0.0", false, true},
               {"::", false, true},        {"10.0.0.1", false, false}, {"::2", false, false}};
  for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
    kvf_address address = resolved(cases[i].text);
    assert_int_equal(kvf_address_is_loopback(&address), cases[i].loopback);
    assert_int_equal(kvf_address_is_any(&address), cases[i].any);
  }
}

static int option_of(int fd, int level, int option)
{
  int value = -1;
  socklen_t bytes = sizeof(value);
  assert_int_equal(getsockopt(fd, level, option, &value, &bytes), 0);
  return value;
}

static void assert_data_socket(int fd)
{
  assert_true(fd >= 0);
  assert_true((fcntl(fd, F_GETFL) & O_NONBLOCK) != 0);
  assert_true((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  assert_true(option_of(fd, IPPROTO_TCP, TCP_NODELAY) != 0);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_USER_TIMEOUT), 10000);
  assert_int_equal(option_of(fd, SOL_SOCKET, SO_KEEPALIVE), 1);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_KEEPIDLE), 5);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_KEEPINTVL), 1);
  assert_int_equal(option_of(fd, IPPROTO_TCP, TCP_KEEPCNT), KVF_SOCKET_PROBES);
}

TEST(patience_with_a_silent_host)
{
  assert_int_equal(kvf_socket_patience_ms(1000), 10000);
  assert_int_equal(kvf_socket_patience_ms(301), 3010);
  assert_int_equal(kvf_socket_patience_ms(10), KVF_SOCKET_PATIENCE_MS_MIN);
  assert_int_equal(kvf_socket_patience_ms(60000), 600000); /* the longest that the option allows */
  assert_int_equal(kvf_socket_patience_ms(UINT32_MAX), INT32_MAX);
}

TEST(listener_and_connection)
{
  kvf_address any_port = resolved("127.0.0.1");
  kvf_address bound;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  int listener = -1;
  assert_int_equal(kvf_socket_listen(&any_port, HANDSHAKE_MS, &listener, &bound, message), KVF_OK);
  assert_true(bound.port != 0);
  assert_true((fcntl(listener, F_GETFD) & FD_CLOEXEC) != 0);
  kvf_address peer;
  assert_int_equal(kvf_socket_accept(listener, &peer), -1);
  assert_int_equal(errno, EAGAIN);

  int client = kvf_socket_connect(&bound, HANDSHAKE_MS, 65536);
  assert_data_socket(client);
  assert_true(option_of(client, SOL_SOCKET, SO_RCVBUF) >= 65536);
  struct pollfd waiting = {.fd = listener, .events = POLLIN};
  assert_int_equal(poll(&waiting, 1, 10000), 1);
  int server = kvf_socket_accept(listener, &peer);
  assert_data_socket(server);
  assert_true(kvf_address_is_loopback(&peer));
  assert_int_equal(kvf_socket_error(client), 0);
  close(client);
  close(server);
  close(listener);
}

TEST(who_was_reset_before_its_turn_is_passed_over)
{
  kvf_address any_port = resolved("127.0.0.1");
  kvf_address bound;
  kvf_address peer;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  int listener = -1;
  assert_int_equal(kvf_socket_listen(&any_port, HANDSHAKE_MS, &listener, &bound, message), KVF_OK);
  for (int i = 0; i < 2; i++) {
    int client = kvf_socket_connect(&bound, HANDSHAKE_MS, 0);
    struct pollfd connected = {.fd = client, .events = POLLOUT};
    assert_int_equal(poll(&connected, 1, 10000), 1);
    kvf_socket_drop_unsent(client);
    close(client);
  }
  int alive = kvf_socket_connect(&bound, HANDSHAKE_MS, 0);
  for (int i = 0; i < 2; i++) {
    assert_int_equal(kvf_socket_accept(listener, &peer), -1);
    assert_int_equal(errno, ECONNABORTED);
  }
  int server = kvf_socket_accept(listener, &peer);
  assert_data_socket(server);
  close(server);
  close(alive);
  close(listener);
}

TEST(port_in_use_names_the_address)
{
  kvf_address address = resolved("127.0.0.1");
  kvf_address bound;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  int first = -1;
  int second = 99;
  assert_int_equal(kvf_socket_listen(&address, HANDSHAKE_MS, &first, &bound, message), KVF_OK);
  assert_int_equal(kvf_socket_listen(&bound, HANDSHAKE_MS, &second, &address, message), KVF_ADDRESS_IN_USE);
  assert_int_equal(second, -1);
  char text[KVF_ADDRESS_TEXT_BYTES];
  kvf_address_format(&bound, text);
  assert_non_null(strstr(message, text));
  assert_non_null(strstr(message, "choose another port"));
  close(first);

  kvf_address foreign = resolved("192.0.2.1:1"); /* a documentation address: no machine has it */
  assert_int_equal(kvf_socket_listen(&foreign, HANDSHAKE_MS, &second, &bound, message), KVF_ADDRESS_IN_USE);
  assert_non_null(strstr(message, "no interface"));
}

TEST(first_free_port_is_taken)
{
  const held_port port = hold_port();
  kvf_address address = resolved(port.address);
  kvf_address first;
  kvf_address second;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  int fds[3];
  assert_int_equal(kvf_socket_listen(&address, HANDSHAKE_MS, &fds[0], &first, message), KVF_OK);
  assert_int_equal(first.port, port.port);
  const uint16_t last = (uint16_t)(port.port + 40);
  assert_int_equal(kvf_socket_listen_first(&address, last, HANDSHAKE_MS, &fds[1], &second, message), KVF_OK);
  assert_in_range(second.port, first.port + 1, last);
  assert_int_equal(kvf_socket_listen_first(&address, second.port, HANDSHAKE_MS, &fds[2], &second, message),
                   KVF_ADDRESS_IN_USE);
  assert_int_equal(kvf_socket_listen_first(&address, 0, HANDSHAKE_MS, &fds[2], &second, message), KVF_ADDRESS_IN_USE);
  assert_int_equal(fds[2], -1);
  close(fds[1]);
  close(fds[0]);
  close(port.fd);
}

TEST(refused_connection_has_its_error)
{
  const held_port port = hold_port();
  kvf_address closed = resolved(port.address);
  int fd = kvf_socket_connect(&closed, HANDSHAKE_MS, 0);
  if (fd < 0) {
    assert_int_equal(errno, ECONNREFUSED);
    close(port.fd);
    return;
  }
  struct pollfd waiting = {.fd = fd, .events = POLLOUT};
  assert_int_equal(poll(&waiting, 1, 10000), 1);
  assert_int_equal(kvf_socket_error(fd), ECONNREFUSED);
  close(fd);
  close(port.fd);
}
