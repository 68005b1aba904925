/* Two ends with one key, or with two, over a socket that takes little: handshake, records, alerts and the end. */
#include "transport/tls.h"

#include <errno.h>
#include <unistd.h>

#include <openssl/ssl.h>

#include "test.h"

#define BULK_BYTES (3u << 20)
#define TURNS_MAX 100000

enum { CLIENT, SERVER };

/* Two ends of a connection whose kernel buffers are small. */
typedef struct scene {
  kvf_tls_context *contexts[2];
  kvf_tls *ends[2];
  int fds[2];
} scene;

static const kvf_key one = {"the first key, of 32 bytes ......", 32};
static const kvf_key two = {"the other key, of 32 bytes ......", 32};

static scene s;
static bool has_aes = true;
static char suites[128]; /* of the last context */

bool __wrap_kvf_cpu_has_aes(void);
int __real_SSL_CTX_set_ciphersuites(SSL_CTX *context, const char *text);
int __wrap_SSL_CTX_set_ciphersuites(SSL_CTX *context, const char *text);

bool __wrap_kvf_cpu_has_aes(void)
{
  return has_aes;
}

int __wrap_SSL_CTX_set_ciphersuites(SSL_CTX *context, const char *text)
{
  (void)snprintf(suites, sizeof(suites), "%s", text);
  return __real_SSL_CTX_set_ciphersuites(context, text);
}

static void close_scene(void)
{
  for (int side = 0; side < 2 && s.ends[side] != NULL; side++) {
    kvf_tls_free(s.ends[side]);
    kvf_tls_context_free(s.contexts[side]);
    (void)close(s.fds[side]);
    s.ends[side] = NULL;
  }
}

/* Closes the one before. */
static void open_scene(const kvf_key *client, const kvf_key *server, size_t server_keys)
{
  int small = 4096;
  close_scene();
  assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, s.fds), 0);
  assert_int_equal(kvf_tls_context_new(client, 1, &s.contexts[CLIENT]), KVF_OK);
  assert_int_equal(kvf_tls_context_new(server, server_keys, &s.contexts[SERVER]), KVF_OK);
  for (int side = 0; side < 2; side++) {
    assert_int_equal(setsockopt(s.fds[side], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)), 0);
    s.ends[side] = kvf_tls_new(s.contexts[side], s.fds[side], side == CLIENT);
    assert_non_null(s.ends[side]);
  }
}

static void open_with_one_key(void)
{
  open_scene(&one, &one, 1);
}

#define ONE_KEY_TEST(name) TEST_WITH(name, open_with_one_key, close_scene)

static ssize_t send_some(kvf_tls *tls, const void *data, size_t bytes)
{
  struct iovec iov = {(void *)(uintptr_t)data, bytes};
  const struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  return kvf_tls_sendmsg(tls, &message);
}

static ssize_t receive_some(kvf_tls *tls, void *data, size_t bytes)
{
  struct iovec iov = {data, bytes};
  const struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};
  return kvf_tls_recvmsg(tls, &message);
}

/* Sends a word each way; what the first call that fails for good says, else 0. */
static int greet(void)
{
  char word[2][5] = {"", ""};
  bool sent[2] = {false, false};
  bool got[2] = {false, false};
  for (int turn = 0; turn < 100 && !(got[0] && got[1]); turn++) {
    for (int side = 0; side < 2; side++) {
      ssize_t moved = sent[side] ? 0 : send_some(s.ends[side], side == CLIENT ? "hello" : "world", 5);
      if (moved < 0 && errno != EAGAIN) {
        return errno;
      }
      sent[side] = sent[side] || moved == 5;
      moved = got[side] ? 0 : receive_some(s.ends[side], word[side], 5);
      if (moved < 0 && errno != EAGAIN) {
        return errno;
      }
      got[side] = got[side] || moved == 5;
    }
  }
  assert_true(got[0] && got[1]);
  assert_memory_equal(word[CLIENT], "world", 5);
  assert_memory_equal(word[SERVER], "hello", 5);
  return 0;
}

ONE_KEY_TEST(both_sides_have_the_key)
{
  assert_int_equal(greet(), 0);
  for (int side = 0; side < 2; side++) {
    assert_string_equal(kvf_tls_why(s.ends[side]), "");
    assert_int_equal(kvf_tls_unsent_bytes(s.ends[side]), 0);
    char byte;
    assert_int_equal(receive_some(s.ends[side], &byte, 1), -1);
    assert_int_equal(errno, EAGAIN);
  }
}

/* A server looks without taking anything, and begins its session with the client's first byte. */
ONE_KEY_TEST(a_server_waits_for_a_word)
{
  char byte;
  assert_int_equal(receive_some(s.ends[SERVER], &byte, 1), -1);
  assert_int_equal(errno, EAGAIN);
  assert_int_equal(send_some(s.ends[SERVER], "world", 5), -1);
  assert_int_equal(errno, EAGAIN);
  assert_false(kvf_tls_has_heard(s.ends[SERVER]));
  assert_int_equal(kvf_tls_buffered_bytes(s.ends[SERVER]), 0);
  assert_int_equal(kvf_tls_unsent_bytes(s.ends[SERVER]), 0);
  assert_int_equal(greet(), 0);
  assert_true(kvf_tls_has_heard(s.ends[SERVER]));
}

ONE_KEY_TEST(a_server_hears_that_a_silent_client_has_gone)
{
  char byte;
  (void)shutdown(s.fds[CLIENT], SHUT_RDWR);
  assert_int_equal(receive_some(s.ends[SERVER], &byte, 1), 0);
  assert_false(kvf_tls_has_heard(s.ends[SERVER]));
}

ONE_KEY_TEST(a_server_takes_either_key_of_a_change)
{
  const kvf_key both[2] = {two, one};
  for (int i = 0; i < 2; i++) {
    open_scene(&both[i], both, 2);
    assert_int_equal(greet(), 0);
  }
}

ONE_KEY_TEST(another_key_is_refused)
{
  open_scene(&one, &two, 1);
  assert_int_equal(greet(), EPROTO);
  assert_string_equal(kvf_tls_why(s.ends[SERVER]), "TLS: it has another key (option key_file)");
  char byte;
  assert_int_equal(receive_some(s.ends[CLIENT], &byte, 1), -1);
  assert_int_equal(errno, EPROTO);
  assert_string_equal(kvf_tls_why(s.ends[CLIENT]), "TLS: it refused our key (option key_file)");
  assert_int_equal(send_some(s.ends[CLIENT], "x", 1), -1);
  assert_int_equal(errno, EPROTO);
}

/* Its id is no secret: it goes by in the open. */
ONE_KEY_TEST(the_id_of_the_key_is_not_enough)
{
  uint8_t hello[2048];
  assert_int_equal(send_some(s.ends[CLIENT], "x", 1), -1);
  ssize_t bytes = recv(s.fds[SERVER], hello, sizeof(hello), 0);
  assert_true(bytes > 48);
  hello[bytes - 1] ^= 1; /* of the binder, which only the key makes */
  assert_int_equal(send(s.fds[CLIENT], hello, (size_t)bytes, 0), bytes);
  char byte;
  assert_int_equal(receive_some(s.ends[SERVER], &byte, 1), -1);
  assert_int_equal(errno, EPROTO);
  assert_string_not_equal(kvf_tls_why(s.ends[SERVER]), "");
}

ONE_KEY_TEST(who_does_not_speak_tls)
{
  static const char text[] = "GET / HTTP/1.1\r\n\r\n";
  char byte;
  for (int side = 0; side < 2; side++) {
    assert_int_equal(send(s.fds[!side], text, sizeof(text), 0), sizeof(text));
    ssize_t got = receive_some(s.ends[side], &byte, 1);
    assert_int_equal(got, -1);
    assert_int_equal(errno, EPROTO);
    assert_string_not_equal(kvf_tls_why(s.ends[side]), "");
  }
}

ONE_KEY_TEST(altered_bytes_are_noticed)
{
  assert_int_equal(greet(), 0);
  assert_int_equal(send_some(s.ends[CLIENT], "payload", 7), 7);
  uint8_t wire[256];
  ssize_t bytes = recv(s.fds[SERVER], wire, sizeof(wire), 0);
  assert_true(bytes > 7);
  assert_null(memmem(wire, (size_t)bytes, "payload", 7));
  wire[bytes / 2] ^= 0x10;
  assert_int_equal(send(s.fds[CLIENT], wire, (size_t)bytes, 0), bytes);
  char got[7];
  assert_int_equal(receive_some(s.ends[SERVER], got, sizeof(got)), -1);
  assert_int_equal(errno, EPROTO);
}

/* In pieces of odd sizes, some of them empty, some larger than a record; the kernel takes a few KiB at a time. */
ONE_KEY_TEST(much_goes_both_ways)
{
  uint8_t *from = allocate(BULK_BYTES);
  uint8_t *to[2] = {allocate(BULK_BYTES), allocate(BULK_BYTES)};
  for (size_t i = 0; i < BULK_BYTES; i++) {
    from[i] = (uint8_t)(i * 2654435761u >> 13);
  }
  size_t sent[2] = {0, 0};
  size_t got[2] = {0, 0};
  for (int turn = 0; turn < TURNS_MAX && (got[0] < BULK_BYTES || got[1] < BULK_BYTES); turn++) {
    for (int side = 0; side < 2; side++) {
      size_t left = BULK_BYTES - sent[side];
      size_t first = left < 40000 ? left : 40000;
      size_t second = left - first < 333 ? left - first : 333;
      struct iovec iov[4] = {{from + sent[side], first},
                             {from, 0},
                             {from + sent[side] + first, second},
                             {from + sent[side] + first + second, left - first - second}};
      const struct msghdr message = {.msg_iov = iov, .msg_iovlen = 4};
      ssize_t moved = kvf_tls_sendmsg(s.ends[side], &message);
      assert_true(moved >= 0 || errno == EAGAIN);
      sent[side] += moved > 0 ? (size_t)moved : 0;
      assert_true(kvf_tls_unsent_bytes(s.ends[side]) <= KVF_TLS_UNSENT_BYTES_MAX);

      size_t room = BULK_BYTES - got[side];
      struct iovec into[2] = {{to[side] + got[side], room / 2}, {to[side] + got[side] + room / 2, room - room / 2}};
      const struct msghdr answer = {.msg_iov = into, .msg_iovlen = 2};
      moved = room > 0 ? kvf_tls_recvmsg(s.ends[side], &answer) : 0;
      assert_true(moved >= 0 || errno == EAGAIN);
      got[side] += moved > 0 ? (size_t)moved : 0;
    }
  }
  for (int side = 0; side < 2; side++) {
    assert_int_equal(kvf_tls_unsent_bytes(s.ends[side]), 0);
    assert_memory_equal(to[side], from, BULK_BYTES);
    free(to[side]);
  }
  free(from);
}

ONE_KEY_TEST(keys_change_while_it_goes_on)
{
  if (SANITIZED) {
    skip(); /* a million records */
  }
  assert_int_equal(greet(), 0);
  for (uint32_t i = 0; i < (1u << 20) + 3; i++) {
    uint8_t byte = (uint8_t)(i * 7);
    uint8_t got = 0;
    assert_int_equal(send_some(s.ends[CLIENT], &byte, 1), 1);
    assert_int_equal(receive_some(s.ends[SERVER], &got, 1), 1);
    assert_int_equal(got, byte);
  }
}

/* The suite is the one that the slower side is better at, and each side takes either. */
TEST_WITH(suites_by_machine, NULL, close_scene)
{
  for (int client = 0; client < 2; client++) {
    for (int server = 0; server < 2; server++) {
      close_scene();
      has_aes = server != 0;
      open_scene(&one, &one, 1);
      kvf_tls_free(s.ends[CLIENT]);
      kvf_tls_context_free(s.contexts[CLIENT]);
      has_aes = client != 0;
      assert_int_equal(kvf_tls_context_new(&one, 1, &s.contexts[CLIENT]), KVF_OK);
      assert_int_equal(strncmp(suites, has_aes ? "TLS_AES" : "TLS_CHACHA", 7), 0);
      s.ends[CLIENT] = kvf_tls_new(s.contexts[CLIENT], s.fds[CLIENT], true);
      assert_int_equal(greet(), 0);
    }
  }
  has_aes = true;
}

/* A frame's end before it does not shift it, which would cost a copy of each block. */
ONE_KEY_TEST(a_block_as_large_as_a_record_is_one)
{
  static uint8_t block[16384];
  uint8_t header[5];
  assert_int_equal(greet(), 0);
  struct iovec iov[2] = {{"frame", 5}, {block, sizeof(block)}};
  const struct msghdr message = {.msg_iov = iov, .msg_iovlen = 2};
  assert_int_equal(kvf_tls_sendmsg(s.ends[CLIENT], &message), 5 + sizeof(block));
  assert_int_equal(recv(s.fds[SERVER], header, sizeof(header), MSG_PEEK), sizeof(header));
  assert_int_equal(header[3] << 8 | header[4], 5 + 1 + 16); /* the content's type, and the tag */
}

/* Who drains what is held gets no further than that, however much comes meanwhile. */
ONE_KEY_TEST(what_is_held_comes_alone)
{
  assert_int_equal(greet(), 0);
  char got[32] = "";
  assert_int_equal(send_some(s.ends[CLIENT], "a record", 8), 8);
  assert_int_equal(send_some(s.ends[CLIENT], "another", 7), 7);
  assert_int_equal(kvf_tls_buffered_bytes(s.ends[SERVER]), 0);
  assert_int_equal(receive_some(s.ends[SERVER], got, 3), 3); /* both have left the socket */
  assert_int_equal(kvf_tls_buffered_bytes(s.ends[SERVER]), 5);
  assert_int_equal(send_some(s.ends[CLIENT], "late", 4), 4);
  assert_int_equal(receive_some(s.ends[SERVER], got + 3, 5), 5);
  assert_true(kvf_tls_buffered_bytes(s.ends[SERVER]) >= 7);
  assert_int_equal(receive_some(s.ends[SERVER], got + 8, sizeof(got) - 8), 7);
  assert_int_equal(kvf_tls_buffered_bytes(s.ends[SERVER]), 0);
  assert_int_equal(receive_some(s.ends[SERVER], got + 15, sizeof(got) - 15), 4);
  assert_string_equal(got, "a recordanotherlate");
}

/* Or its reader would ask again and again, where only the descriptor tells of the rest. */
ONE_KEY_TEST(half_a_record_is_not_held)
{
  static uint8_t record[16384];
  uint8_t got[sizeof(record)];
  assert_int_equal(greet(), 0);
  assert_int_equal(send_some(s.ends[CLIENT], record, sizeof(record)), sizeof(record));
  assert_true(kvf_tls_unsent_bytes(s.ends[CLIENT]) > 0);
  assert_int_equal(receive_some(s.ends[SERVER], got, sizeof(got)), -1);
  assert_int_equal(errno, EAGAIN);
  assert_int_equal(kvf_tls_buffered_bytes(s.ends[SERVER]), 0);
}

ONE_KEY_TEST(the_end_of_the_connection)
{
  assert_int_equal(greet(), 0);
  assert_int_equal(send_some(s.ends[CLIENT], "last", 4), 4);
  assert_int_equal(shutdown(s.fds[CLIENT], SHUT_WR), 0);
  char got[8];
  assert_int_equal(receive_some(s.ends[SERVER], got, sizeof(got)), 4);
  assert_int_equal(receive_some(s.ends[SERVER], got, sizeof(got)), 0);
  assert_int_equal(close(s.fds[CLIENT]), 0);
  s.fds[CLIENT] = dup(0);
  assert_int_equal(send_some(s.ends[SERVER], "x", 1), -1);
  assert_int_equal(errno, EPIPE);
  assert_int_equal(receive_some(s.ends[SERVER], got, sizeof(got)), -1);
}

/* A frame that could not be sent yet waits for the descriptor to be readable, not to be writable. */
ONE_KEY_TEST(a_handshake_does_not_wait_to_write)
{
  assert_int_equal(send_some(s.ends[CLIENT], "frame", 5), -1);
  assert_int_equal(errno, EAGAIN);
  assert_int_equal(kvf_tls_unsent_bytes(s.ends[CLIENT]), 0);
}
