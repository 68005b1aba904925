/* Two nodes whose connections are inside TLS (option tls), and those who do not belong there. */
#include <fcntl.h>
#include <unistd.h>

#include "../../sides/peer.h"
#include "pair.h"
#include "test.h"
#include "transport/tls.h"

#define KEY "a key of sixteen"
#define OTHER_KEY "a key of 16, too"
#define BLOCKS 48
#define PATIENCE_MS 10000

static char key_path[64];

static void open_node(pair_node *n, const char *key_file, const char *tls, const char *transports)
{
  const pair_option options[] = {{"key_file", key_file},     {"tls", tls},
                                 {"transports", transports}, {"handshake_timeout_ms", "1000"},
                                 {"connections_max", "16"},  {NULL, NULL}};
  pair_open_node(n, options);
}

static void open_nodes(const char *producer_tls, const char *consumer_tls, const char *transports)
{
  open_node(&p.producer, key_path, producer_tls, transports);
  open_node(&p.consumer, key_path, consumer_tls, transports);
}

/* Loads BLOCKS blocks and looks at each of their bytes. */
static kvf_status load(uint32_t seed)
{
  pair_ticket ticket;
  pair_offer(&p.producer, 0, BLOCKS / 2, seed, true, &ticket);
  const kvf_status status = pair_fetch(&p.consumer, &ticket, 10, NULL);
  pair_take_back(&p.producer, &ticket);
  return status;
}

TEST(loads_go_through_tls)
{
  static const char *const transports[] = {"tcp", "local"};
  for (size_t i = 0; i < 2; i++) {
    open_nodes("always", "always", transports[i]);
    for (uint32_t seed = 1; seed <= 20; seed++) {
      assert_int_equal(load(seed), KVF_OK);
    }
    assert_int_equal(pair_stat(&p.producer, "sessions_refused", "handshake_refused"), 0);
    pair_close();
  }
}

/* Whether TLS with this key gets through the handshake at the node's control port; `why` is what it says else. */
static bool tls_gets_through(kvf_node *node, const char *text, char why[128])
{
  kvf_key key = {.bytes = strlen(text)};
  memcpy(key.data, text, key.bytes);
  kvf_tls_context *context;
  assert_int_equal(kvf_tls_context_new(&key, 1, &context), KVF_OK);
  stranger s = {.fd = stranger_dial(pair_record(node).address)};
  assert_int_equal(fcntl(s.fd, F_SETFL, O_NONBLOCK), 0);
  kvf_tls *tls = kvf_tls_new(context, s.fd, true);
  assert_non_null(tls);
  const struct msghdr nothing = {0};
  uint8_t byte;
  struct iovec room = {&byte, 1};
  const struct msghdr one_byte = {.msg_iov = &room, .msg_iovlen = 1};
  uint64_t until_ms = now_ms() + PATIENCE_MS;
  bool through = false;
  while (!through && kvf_tls_why(tls)[0] == '\0' && now_ms() < until_ms) {
    through = kvf_tls_sendmsg(tls, &nothing) == 0;
    if (!through && kvf_tls_recvmsg(tls, &one_byte) == 0) {
      break;
    }
    sleep_ms(1);
  }
  (void)snprintf(why, 128, "%s", kvf_tls_why(tls));
  kvf_tls_free(tls);
  kvf_tls_context_free(context);
  stranger_close(&s);
  return through;
}

PAIR_TEST(another_key_gets_nowhere)
{
  char why[128];
  open_node(&p.producer, key_path, "always", "tcp");
  assert_true(tls_gets_through(p.producer.node, KEY, why));
  assert_false(tls_gets_through(p.producer.node, OTHER_KEY, why));
  assert_string_equal(why, "TLS: it refused our key (option key_file)");
  assert_true(pair_wait_log(&p.producer, "refused a connection from 127.0.0.1:",
                            "handshake_refused: TLS: it has another key (option key_file)", PATIENCE_MS));
  assert_int_equal(pair_stat(&p.producer, "sessions_refused", "handshake_refused"), 1);
}

PAIR_TEST(who_does_not_speak_tls_is_named)
{
  open_nodes("off_loopback", "always", "tcp");
  assert_int_equal(load(1), KVF_HANDSHAKE_REFUSED);
  assert_true(
      pair_logged(&p.consumer, "peer 127.0.0.1:", "handshake_refused: TLS: it does not speak TLS (option tls)"));
  assert_true(pair_wait_log(&p.producer, "refused a connection from 127.0.0.1:",
                            "handshake_refused: it speaks TLS, which this node does not (option tls)", PATIENCE_MS));
}

PAIR_TEST(who_does_not_expect_tls_says_so)
{
  open_nodes("always", "never", "tcp");
  assert_int_equal(load(1), KVF_HANDSHAKE_REFUSED);
  assert_true(pair_logged(
      &p.consumer, "peer 127.0.0.1:", "handshake_refused: it speaks TLS, which this node does not (option tls)"));
  assert_true(pair_wait_log(&p.producer, "refused a connection from 127.0.0.1:",
                            "handshake_refused: TLS: it does not speak TLS (option tls)", PATIENCE_MS));
}

/* ---- a fleet changes from one key to another (docs/security.md) ---- */

/* The key files of the procedure's steps: all engines have a step's, or those of it and of the step before. */
static const char *const steps[] = {KEY, KEY "\n" OTHER_KEY, OTHER_KEY "\n" KEY, OTHER_KEY};
#define STEPS (sizeof(steps) / sizeof(steps[0]))

static kvf_status load_between(size_t producer, size_t consumer, const char *tls, const char *refusal)
{
  char links[2][64];
  stranger_key_file(steps[producer], links[0]);
  stranger_key_file(steps[consumer], links[1]);
  open_node(&p.producer, links[0], tls, "tcp");
  open_node(&p.consumer, links[1], tls, "tcp");
  kvf_status status = load(1);
  assert_true(refusal == NULL || pair_logged(&p.consumer, "handshake_refused", refusal));
  pair_close();
  (void)unlink(links[0]);
  (void)unlink(links[1]);
  return status;
}

TEST(every_step_of_a_rotation_loads)
{
  for (size_t producer = 0; producer < STEPS; producer++) {
    for (size_t consumer = producer == 0 ? 0 : producer - 1; consumer <= producer + 1 && consumer < STEPS; consumer++) {
      assert_int_equal(load_between(producer, consumer, "always", NULL), KVF_OK);
      assert_int_equal(load_between(producer, consumer, "never", NULL), KVF_OK);
    }
  }
}

/* The first two at once: who has not heard of the new key refuses it, and does not take its tickets. */
TEST(a_step_that_is_left_out_is_noticed)
{
  assert_int_equal(load_between(0, 2, "always", "TLS: it refused our key (option key_file)"), KVF_HANDSHAKE_REFUSED);
  assert_int_equal(load_between(0, 2, "never", "do not have the same key (option key_file)"), KVF_HANDSHAKE_REFUSED);
  assert_int_equal(load_between(2, 0, "always", NULL), KVF_OTHER_KEY);
  assert_int_equal(load_between(0, 3, "always", NULL), KVF_OTHER_KEY);
}

PAIR_TEST(silent_strangers_are_few_and_short_lived)
{
  enum { STRANGERS = 40 };
  open_nodes("always", "always", "tcp");
  const size_t before = count_entries("/proc/self/fd");
  int fds[STRANGERS];
  for (size_t i = 0; i < STRANGERS; i++) {
    fds[i] = stranger_dial(pair_record(p.producer.node).address);
    assert_true(fds[i] >= 0);
    if (i % 2 == 0) { /* the beginning of a record that never ends */
      assert_int_equal(write(fds[i], "\x16\x03\x01\x3f\xff\x01", 6), 6);
    }
  }
  assert_true(pair_wait_stat(&p.producer, "sessions_evicted", "", STRANGERS / 2, PATIENCE_MS));
  assert_true(pair_wait_log(&p.producer, "too many connections have not proved their key", NULL, PATIENCE_MS));
  assert_int_equal(load(1), KVF_OK);
  assert_true(
      pair_wait_log(&p.producer, "handshake_timeout: no handshake within handshake_timeout_ms", NULL, PATIENCE_MS));
  for (size_t i = 0; i < STRANGERS; i++) {
    (void)close(fds[i]);
  }
  uint64_t until_ms = now_ms() + PATIENCE_MS;
  while (count_entries("/proc/self/fd") > before + 8 && now_ms() < until_ms) {
    sleep_ms(10);
  }
  assert_in_range(count_entries("/proc/self/fd"), 0, before + 8); /* the load's own connections */
}

TEST(no_tls_without_a_key)
{
  pair_expect_refused((const pair_option[]){{"tls", "always"}, {NULL, NULL}}, KVF_INVALID,
                      "tls = always needs a shared key (option key_file)");
}

int main(void)
{
  stranger_key_file(KEY, key_path);
  int failed = test_run(NULL);
  (void)unlink(key_path);
  return failed;
}
