/* Where an engine listens that was not told. No node of these leaves loopback: the default route's address is made up.
 */
#include "kvferry/address.h"

#include <unistd.h>

#include "../../sides/peer.h"
#include "base/log.h"
#include "kvferry/node.h"
#include "pair.h"
#include "test.h"
#include "transport/own_address.h"

static const char *v4_route; /* NULL: there is none */
static const char *v6_route;

bool __wrap_kvf_own_address_of_route(bool is_v4, kvf_address *out);

bool __wrap_kvf_own_address_of_route(bool is_v4, kvf_address *out)
{
  const char *text = is_v4 ? v4_route : v6_route;
  return text != NULL && kvf_address_parse(text, 0, out) == KVF_OK;
}

static kvf_config config_of(const char *key_file)
{
  kvf_config config;
  kvf_config_init(&config);
  assert_int_equal(kvf_config_set(&config, "key_file", key_file, NULL), KVF_OK);
  return config;
}

/* ---- the choice ---- */

#define KEY "KVFERRY_KEY_FILE=/key"
#define NIXL "VLLM_NIXL_SIDE_CHANNEL_HOST="
#define PORT "VLLM_NIXL_SIDE_CHANNEL_PORT="

typedef struct choice {
  const char *key_file;
  char *environment[5];
  const char *listen;
  kvf_listen_source source;
} choice;

TEST(the_first_that_is_set_is_taken)
{
  static const choice choices[] = {
      {"/key", {"KVFERRY_LISTEN=10.1.0.1:70", NIXL "10.2.0.1"}, "10.1.0.1:70", KVF_LISTEN_VARIABLE},
      {"", {"KVFERRY_LISTEN=10.1.0.1"}, "10.1.0.1", KVF_LISTEN_VARIABLE}, /* refused at the start */
      {"", {"KVFERRY_LISTEN=eth0", KEY}, "eth0", KVF_LISTEN_VARIABLE},
      {"/key", {"KVFERRY_LISTEN=", NIXL "10.2.0.1"}, "10.2.0.1", KVF_LISTEN_NIXL},
      {"", {NIXL "10.2.0.1", KEY}, "10.2.0.1", KVF_LISTEN_NIXL},
      {"/key", {NIXL "10.2.0.1", PORT "5600"}, "10.2.0.1:5600", KVF_LISTEN_NIXL},
      {"/key", {NIXL "fd00::1", PORT "5600"}, "[fd00::1]:5600", KVF_LISTEN_NIXL},
      {"/key", {NIXL "[fd00::1]", PORT "x"}, "[fd00::1]", KVF_LISTEN_NIXL},
      {"/key", {NIXL "pod-0.example", PORT "0"}, "pod-0.example", KVF_LISTEN_NIXL},
      {"/key", {NIXL "10.2.0.1", PORT "65536"}, "10.2.0.1", KVF_LISTEN_NIXL},
      {"/key", {NIXL "0.0.0.0", PORT "5600"}, "10.3.0.1", KVF_LISTEN_ROUTE},
      {"/key", {NIXL "::"}, "10.3.0.1", KVF_LISTEN_ROUTE},
      {"/key", {PORT "5600", "VLLM_NIXL_SIDE_CHANNEL_HOSTS=10.2.0.1"}, "10.3.0.1", KVF_LISTEN_ROUTE},
      {"", {KEY}, "10.3.0.1", KVF_LISTEN_ROUTE},
      {"", {NIXL "10.2.0.1", "KVFERRY_KEY_FILE="}, "127.0.0.1", KVF_LISTEN_NO_KEY_FOR_NIXL},
      {"", {NIXL "0.0.0.0"}, "127.0.0.1", KVF_LISTEN_NO_KEY},
      {"", {NULL}, "127.0.0.1", KVF_LISTEN_NO_KEY},
  };
  v4_route = "10.3.0.1";
  v6_route = "fd03::1";
  for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++) {
    kvf_config config = config_of(choices[i].key_file);
    assert_int_equal(kvf_address_choose(&config, false, 0, choices[i].environment, NULL), KVF_OK);
    if (strcmp(config.listen, choices[i].listen) != 0 || config.listen_source != choices[i].source) {
      fail_msg("%zu: %s, by %d", i, config.listen, (int)config.listen_source);
    }
  }
}

TEST(a_route_of_either_family_will_do)
{
  kvf_config config = config_of("/key");
  v4_route = NULL;
  v6_route = "fd03::1";
  assert_int_equal(kvf_address_choose(&config, false, 0, NULL, NULL), KVF_OK);
  assert_string_equal(config.listen, "fd03::1");
  assert_int_equal(config.listen_source, KVF_LISTEN_ROUTE);
  v6_route = NULL;
  assert_int_equal(kvf_address_choose(&config, false, 0, NULL, NULL), KVF_OK);
  assert_string_equal(config.listen, "127.0.0.1");
  assert_int_equal(config.listen_source, KVF_LISTEN_NO_ROUTE);
}

TEST(an_address_of_each_family_that_has_a_route)
{
  static char nixl[] = NIXL "10.2.0.1";
  char *const environment[] = {nixl, NULL};
  kvf_config config = config_of("/key");
  v4_route = "10.3.0.1";
  v6_route = "fd03::1";
  assert_int_equal(kvf_address_choose(&config, false, 0, NULL, NULL), KVF_OK);
  assert_string_equal(config.listen, "10.3.0.1");
  assert_string_equal(config.listen_other, "fd03::1");
  assert_int_equal(kvf_address_choose(&config, false, 0, environment, NULL), KVF_OK);
  assert_string_equal(config.listen_other, ""); /* who names one has one */
  config = config_of("/key");
  assert_int_equal(kvf_config_set(&config, "advertise", "192.0.2.1", NULL), KVF_OK);
  assert_int_equal(kvf_address_choose(&config, false, 0, NULL, NULL), KVF_OK);
  assert_string_equal(config.listen_other, "");
  config = config_of("");
  assert_int_equal(kvf_address_choose(&config, false, 0, NULL, NULL), KVF_OK);
  assert_string_equal(config.listen_other, "");
}

TEST(options_go_before_the_environment)
{
  static char nixl[] = NIXL "10.2.0.1";
  char *const environment[] = {"KVFERRY_LISTEN=10.1.0.1", "KVFERRY_ADVERTISE=10.1.0.2", KEY, nixl, NULL};
  char *const advertise[] = {"KVFERRY_ADVERTISE=10.1.0.2", NULL};
  kvf_config config = config_of("/other");
  assert_int_equal(kvf_config_set(&config, "listen", "10.9.0.1", NULL), KVF_OK);
  assert_int_equal(kvf_address_choose(&config, true, 0, environment, NULL), KVF_OK);
  assert_string_equal(config.listen, "10.9.0.1");
  assert_string_equal(config.advertise, "");
  assert_string_equal(config.key_file, "/other");
  assert_int_equal(config.listen_source, KVF_LISTEN_OPTION);
  assert_int_equal(kvf_address_choose(&config, true, 0, advertise, NULL), KVF_OK);

  assert_int_equal(kvf_address_choose(&config, false, 0, environment, NULL), KVF_OK);
  assert_string_equal(config.advertise, "10.1.0.2");
  assert_int_equal(kvf_config_set(&config, "advertise", "10.9.0.2", NULL), KVF_OK);
  assert_int_equal(kvf_address_choose(&config, false, 0, environment, NULL), KVF_OK);
  assert_string_equal(config.listen, "10.1.0.1");
  assert_string_equal(config.advertise, "10.9.0.2");

  /* A control node takes no connections, and has the key all the same. */
  config = config_of("");
  assert_int_equal(kvf_config_set(&config, "listen", "", NULL), KVF_OK);
  assert_int_equal(kvf_address_choose(&config, true, 0, environment, NULL), KVF_OK);
  assert_string_equal(config.listen, "");
  assert_string_equal(config.key_file, "/key");
}

TEST(ranks_of_one_host_take_ports_in_a_row)
{
  static const char *const ports[][2] = {
      {"10.0.0.1", "10.0.0.1"},
      {"10.0.0.1:0", "10.0.0.1:0"},
      {"10.0.0.1:7000", "10.0.0.1:7003"},
      {"[::1]:7000", "[::1]:7003"},
      {"[::1]", "[::1]"},
      {"::1", "::1"},
      {"", ""},
      {"10.0.0.0/8:70", "10.0.0.0/8:73"},
      {"eth0:70", "eth0:73"},
      {"10.0.0.1:70-73", "10.0.0.1:70-73"}, /* each takes the first that is free */
  };
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_config config;
  for (size_t i = 0; i < sizeof(ports) / sizeof(ports[0]); i++) {
    config = config_of("");
    assert_int_equal(kvf_config_set(&config, "listen", ports[i][0], NULL), KVF_OK);
    const bool is_advertised = kvf_config_set(&config, "advertise", ports[i][0], NULL) == KVF_OK; /* not all are */
    assert_int_equal(kvf_address_choose(&config, true, 3, NULL, message), KVF_OK);
    assert_string_equal(config.listen, ports[i][1]);
    assert_string_equal(config.advertise, is_advertised ? ports[i][1] : "");
  }
  char *const environment[] = {"KVFERRY_LISTEN=10.1.0.1:70", "KVFERRY_ADVERTISE=10.1.0.2:80", NULL};
  config = config_of("/key");
  assert_int_equal(kvf_address_choose(&config, false, 2, environment, NULL), KVF_OK);
  assert_string_equal(config.listen, "10.1.0.1:72");
  assert_string_equal(config.advertise, "10.1.0.2:82");
  char *const nixl[] = {NIXL "10.2.0.1", PORT "65534", NULL};
  config = config_of("/key");
  assert_int_equal(kvf_address_choose(&config, false, 1, nixl, NULL), KVF_OK);
  assert_string_equal(config.listen, "10.2.0.1:65535");
  assert_int_equal(kvf_address_choose(&config, false, 2, nixl, NULL), KVF_OK);
  assert_string_equal(config.listen, "10.2.0.1");
}

TEST(what_cannot_be_meant_is_refused)
{
  static const struct {
    char *environment[3];
    const char *said;
  } refused[] = {
      {{"KVFERRY_LISTEN=a b"}, "KVFERRY_LISTEN: listen = \"a b\" is not allowed"},
      {{"KVFERRY_LISTEN=10.1.0.1", "KVFERRY_ADVERTISE=10.0.0.0/8"}, "KVFERRY_ADVERTISE: advertise = \"10.0.0.0/8\""},
      {{"KVFERRY_ADVERTISE=10.1.0.1"}, "KVFERRY_ADVERTISE goes with KVFERRY_LISTEN, which is not set"},
      {{NIXL "a/b"}, "VLLM_NIXL_SIDE_CHANNEL_HOST: listen = \"a/b\" is not allowed"},
      {{"KVFERRY_LISTEN=10.1.0.1:65535"}, "listen = \"10.1.0.1:65536\" is not allowed"},
  };
  char message[KVF_MESSAGE_BYTES_MAX];
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    kvf_config config = config_of("/key");
    assert_int_equal(kvf_address_choose(&config, false, 1, refused[i].environment, message), KVF_INVALID);
    if (strstr(message, refused[i].said) == NULL) {
      fail_msg("\"%s\" does not say \"%s\"", message, refused[i].said);
    }
  }
  assert_int_equal(kvf_address_choose(NULL, false, 0, NULL, NULL), KVF_INVALID);
  kvf_config shorter = config_of("/key"); /* as of a program that was compiled before it had all that is set */
  shorter.struct_bytes = offsetof(kvf_config, listen_other);
  assert_int_equal(kvf_address_choose(&shorter, false, 0, NULL, NULL), KVF_INVALID);
}

/* ---- what becomes of it ---- */

typedef struct lines {
  char text[4096];
} lines;

/* All have come when the node has been closed. */
static void take_line(void *context, kvf_log_level level, const char *line)
{
  lines *said = context;
  const size_t length = strlen(said->text);
  (void)snprintf(said->text + length, sizeof(said->text) - length, "%d %s\n", (int)level, line);
}

static kvf_status open_node(const char *key_file, const char *listen, char *const *environment, lines *said,
                            kvf_node **out, char *message)
{
  kvf_config config = config_of(key_file);
  config.log = take_line;
  config.log_context = said;
  said->text[0] = '\0';
  if (listen != NULL) {
    assert_int_equal(kvf_config_set(&config, "listen", listen, NULL), KVF_OK);
  }
  assert_int_equal(kvf_address_choose(&config, listen != NULL, 0, environment, message), KVF_OK);
  return kvf_node_open(&config, out, message);
}

/* Starts and closes a node, which must have said this, and nothing else, with the port between. Returns that. */
static uint16_t assert_says(const char *key_file, const char *listen, char *const *environment, kvf_log_level level,
                            const char *after_port)
{
  lines said;
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  char expected[KVF_LOG_LINE_BYTES_MAX];
  unsigned port = 0;
  if (open_node(key_file, listen, environment, &said, &node, message) != KVF_OK) {
    fail_msg("%s", message);
  }
  kvf_node_close(node);
  const char *colon = strchr(said.text, ':');
  port = colon == NULL ? 0 : (unsigned)strtoul(colon + 1, NULL, 10);
  (void)snprintf(expected, sizeof(expected), "%d listens on 127.0.0.1:%u%s\n", (int)level, port, after_port);
  assert_string_equal(said.text, expected);
  assert_int_not_equal(port, 0);
  return (uint16_t)port;
}

TEST(a_node_says_where_it_listens_and_why)
{
  char key_file[64];
  char *const variable[] = {"KVFERRY_LISTEN=127.0.0.0/8", "KVFERRY_ADVERTISE=10.1.0.2:80", NULL};
  char *const nixl[] = {NIXL "127.0.0.1", NULL};
  stranger_key_file("a key of sixteen", key_file);
  v4_route = "127.0.0.1";
  v6_route = NULL;
  (void)assert_says(key_file, "lo", nixl, KVF_LOG_INFO, " (lo): the option listen says so");
  (void)assert_says(key_file, NULL, variable, KVF_LOG_INFO, " (lo), tickets name 10.1.0.2:80: KVFERRY_LISTEN says so");
  (void)assert_says(key_file, NULL, nixl, KVF_LOG_INFO, " (lo): VLLM_NIXL_SIDE_CHANNEL_HOST says so");
  (void)assert_says(key_file, NULL, NULL, KVF_LOG_INFO, " (lo): it is the address of the default route");
  v4_route = v6_route = NULL;
  (void)assert_says(key_file, NULL, NULL, KVF_LOG_WARN,
                    " (lo): for this host alone, since there is no default route: name an address by KVFERRY_LISTEN or "
                    "the option listen");
  (void)assert_says("", NULL, NULL, KVF_LOG_INFO,
                    " (lo): for this host alone, since there is no key: name one by the option key_file or "
                    "KVFERRY_KEY_FILE");
  (void)assert_says("", NULL, nixl, KVF_LOG_WARN,
                    " (lo): for this host alone, since VLLM_NIXL_SIDE_CHANNEL_HOST counts with a key only: name one by "
                    "the option key_file or KVFERRY_KEY_FILE");
  (void)unlink(key_file);
}

/* Each at the same port, if it is free, as it is in one of some tries. */
TEST(a_node_says_both_addresses)
{
  char key_file[64];
  char expected[KVF_LOG_LINE_BYTES_MAX];
  lines said;
  kvf_node *node = NULL;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  stranger_key_file("a key of sixteen", key_file);
  v4_route = "127.0.0.1";
  v6_route = "::1";
  unsigned port = 0;
  unsigned other = 1;
  for (int i = 0; i < 5 && other != port; i++) {
    assert_int_equal(open_node(key_file, NULL, NULL, &said, &node, message), KVF_OK);
    kvf_node_close(node);
    const char *second = strstr(said.text, "\n2 listens on [::1]:");
    assert_non_null(second);
    port = (unsigned)strtoul(strchr(said.text, ':') + 1, NULL, 10);
    other = (unsigned)strtoul(second + strlen("\n2 listens on [::1]:"), NULL, 10);
  }
  assert_int_equal(other, port);
  (void)snprintf(expected, sizeof(expected),
                 "2 listens on 127.0.0.1:%u (lo): it is the address of the default route\n"
                 "2 listens on [::1]:%u (lo): it is the address of the default route\n",
                 port, port);
  assert_string_equal(said.text, expected);
  (void)unlink(key_file);
}

TEST(a_wish_for_a_port_gives_way)
{
  char key_file[64];
  char wish[64];
  char taken[32];
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  char *const environment[] = {NIXL "127.0.0.1", wish, NULL};
  const held_port held = hold_port();
  const unsigned wished[] = {held.port, UINT16_MAX};
  stranger_key_file("a key of sixteen", key_file);
  for (size_t i = 0; i < 2; i++) {
    lines unread;
    kvf_node *first = NULL;
    (void)snprintf(wish, sizeof(wish), PORT "%u", wished[i]);
    (void)snprintf(taken, sizeof(taken), "; port %u is taken", wished[i]);
    if (open_node(key_file, NULL, environment, &unread, &first, message) != KVF_OK) {
      fail_msg("%s", message);
    }
    if (i == 0) {
      assert_int_equal(pair_record(first).address.port, held.port);
    }
    char why[KVF_LOG_LINE_BYTES_MAX];
    (void)snprintf(why, sizeof(why), " (lo): VLLM_NIXL_SIDE_CHANNEL_HOST says so%s", taken);
    const uint16_t port = assert_says(key_file, NULL, environment, KVF_LOG_INFO, why);
    if (i == 0) {
      assert_in_range(port, held.port + 1, held.port + 64); /* others may have the next ones */
    }
    kvf_node_close(first);
  }
  (void)close(held.fd);
  (void)unlink(key_file);
}

TEST(a_refusal_names_who_said_so)
{
  char *const environment[] = {"KVFERRY_LISTEN=192.0.2.1", NULL};
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  lines unread;
  kvf_node *node = NULL;
  assert_int_equal(open_node("", NULL, environment, &unread, &node, message), KVF_INVALID);
  assert_string_equal(message,
                      "listen = 192.0.2.1 is not a loopback address: that needs a shared key (option "
                      "key_file); KVFERRY_LISTEN says so");
}
