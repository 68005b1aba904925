/* Who speaks the protocol by hand: see stranger.h. */
#include "stranger.h"

#include <sys/socket.h>
#include <unistd.h>

#include "pair.h"
#include "test.h"
#include "transport/socket.h"

kvf_rank_record stranger_record(kvf_node *node)
{
  uint8_t bytes[KVF_ADDRESS_BYTES_MAX];
  size_t count = 0;
  kvf_rank_record record;
  assert_int_equal(kvf_node_address(node, bytes, sizeof(bytes), &count), KVF_OK);
  assert_int_equal(kvf_rank_record_decode(bytes, count, &record), KVF_OK);
  return record;
}

static int dial(const kvf_address *to)
{
  struct sockaddr_storage address;
  socklen_t length = kvf_address_to_sockaddr(to, &address);
  int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  assert_true(fd >= 0);
  if (connect(fd, (const struct sockaddr *)&address, length) != 0) {
    (void)close(fd);
    return -1;
  }
  return fd;
}

int stranger_dial(kvf_node *node)
{
  const kvf_rank_record record = stranger_record(node);
  return dial(&record.address);
}

/* How the node sees it, by now that it is connected. */
static void find_name(stranger *s)
{
  struct sockaddr_storage storage;
  socklen_t length = sizeof(storage);
  kvf_address address;
  char text[KVF_ADDRESS_TEXT_BYTES];
  assert_true(s->fd >= 0);
  assert_int_equal(getsockname(s->fd, (struct sockaddr *)&storage, &length), 0);
  assert_true(kvf_address_from_sockaddr(&storage, &address));
  kvf_address_format(&address, text);
  (void)snprintf(s->name, sizeof(s->name), "%.31s", text);
}

stranger stranger_connect_data(const stranger *session)
{
  stranger data = {.fd = dial(&session->data)};
  find_name(&data);
  return data;
}

void stranger_connect(stranger *s, kvf_node *node, const char *key)
{
  memset(s, 0, sizeof(*s));
  s->role = KVF_ROLE_RANK;
  if (key != NULL) {
    s->key.bytes = strlen(key);
    memcpy(s->key.data, key, s->key.bytes);
  }
  s->fd = stranger_dial(node);
  find_name(s);
}

void stranger_close(stranger *s)
{
  (void)close(s->fd);
  s->fd = -1;
}

void stranger_reset(stranger *s)
{
  const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
  assert_int_equal(setsockopt(s->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)), 0);
  stranger_close(s);
}

void stranger_hello(stranger *s)
{
  kvf_hello hello = {.version_min = KVF_PROTOCOL_VERSION, .version_max = KVF_PROTOCOL_VERSION, .role = s->role};
  memset(&hello.client, 's', sizeof(hello.client));
  assert_int_equal(kvf_handshake_key_id(&s->key, hello.key_id), KVF_OK);
  assert_int_equal(kvf_hello_encode(&hello, s->hello, sizeof(s->hello), &s->hello_bytes), KVF_OK);
  peer_send_frame(s->fd, KVF_FRAME_HELLO, s->hello, s->hello_bytes);
}

void stranger_challenge(stranger *s)
{
  kvf_challenge challenge;
  s->challenge_bytes = peer_receive_frame(s->fd, KVF_FRAME_CHALLENGE, s->challenge, sizeof(s->challenge));
  assert_int_equal(kvf_challenge_decode(s->challenge, s->challenge_bytes, &challenge), KVF_OK);
}

static void add_field(kvf_proof *proof, const char *name, const char *value)
{
  kvf_identity_field *field = &proof->identity[proof->identity_count++];
  (void)snprintf(field->name, sizeof(field->name), "%s", name);
  (void)snprintf(field->value, sizeof(field->value), "%s", value);
}

void stranger_proof(stranger *s, const char *model, uint32_t block_tokens)
{
  kvf_proof proof = {0};
  uint8_t body[KVF_PROOF_BYTES_MAX];
  char tokens[16];
  size_t bytes = 0;
  (void)snprintf(tokens, sizeof(tokens), "%u", block_tokens);
  add_field(&proof, "model", model);
  add_field(&proof, "block_tokens", tokens);
  assert_int_equal(
      kvf_handshake_client_proof(&s->key, s->hello, s->hello_bytes, s->challenge, s->challenge_bytes, proof.proof),
      KVF_OK);
  assert_int_equal(kvf_proof_encode(&proof, body, sizeof(body), &bytes), KVF_OK);
  peer_send_frame(s->fd, KVF_FRAME_PROOF, body, bytes);
}

static void hear_welcome(stranger *s)
{
  uint8_t *body = malloc(KVF_FRAME_BODY_BYTES_MAX);
  kvf_welcome welcome;
  assert_non_null(body);
  size_t bytes = peer_receive_frame(s->fd, KVF_FRAME_WELCOME, body, KVF_FRAME_BODY_BYTES_MAX);
  assert_int_equal(kvf_welcome_decode(body, bytes, &welcome), KVF_OK);
  s->session_id = welcome.session_id;
  for (size_t i = 0; i < welcome.transports_count; i++) {
    if (strcmp(welcome.transports[i].name, "tcp") == 0) {
      s->data = peer_data_port(welcome.transports[i].description, welcome.transports[i].description_bytes);
    }
  }
  kvf_welcome_free(&welcome);
  free(body);
}

void stranger_shake_hands(stranger *s)
{
  stranger_hello(s);
  stranger_challenge(s);
  stranger_proof(s, "test", PAIR_BLOCK_TOKENS);
  hear_welcome(s);
}

void stranger_open(stranger *s, kvf_node *node, const char *key)
{
  stranger_connect(s, node, key);
  stranger_shake_hands(s);
}

kvf_key stranger_session_key(const stranger *s)
{
  kvf_key key;
  assert_int_equal(kvf_handshake_session_key(&s->key, s->hello, s->hello_bytes, s->challenge, s->challenge_bytes, &key),
                   KVF_OK);
  return key;
}

kvf_refused stranger_expect_refused(stranger *s)
{
  uint8_t body[KVF_REFUSED_BYTES_MAX];
  kvf_refused refused;
  size_t bytes = peer_receive_frame(s->fd, KVF_FRAME_REFUSED, body, sizeof(body));
  assert_int_equal(kvf_refused_decode(body, bytes, &refused), KVF_OK);
  peer_expect_closed(s->fd);
  return refused;
}

void stranger_key_file(const char *key, char path[64])
{
  (void)snprintf(path, 64, "stranger.XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  assert_int_equal(write(fd, key, strlen(key)), (ssize_t)strlen(key));
  (void)close(fd);
}
