/* Every option's values, bounds and messages, identity fields, and checks of a whole configuration. */
#include "base/options.h"
#include "test.h"

static kvf_config defaults(void)
{
  kvf_config config;
  kvf_config_init(&config);
  return config;
}

/* Sets an option that is expected to be refused; the configuration stays as it was. */
static void assert_refused(const char *name, const char *value, kvf_status expected, const char *expected_message)
{
  kvf_config config = defaults();
  const kvf_config before = config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_config_set(&config, name, value, message), expected);
  assert_string_equal(message, expected_message);
  assert_int_equal(kvf_config_set(&config, name, value, NULL), expected);
  assert_memory_equal(&config, &before, sizeof(config));
}

/* A program that was compiled with an earlier header has a shorter config, which is not written beyond its end; a later
 * one has options that we do not know. */
TEST(configs_of_other_versions)
{
  const size_t all = sizeof(kvf_config);
  const size_t without_log = offsetof(kvf_config, log_level);
  struct {
    kvf_config config;
    char more[8];
  } later;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_config copy;
  memset(&later, 0x5a, sizeof(later));
  kvf_config_init_bytes(&later.config, without_log);
  assert_int_equal(*((char *)&later.config + without_log), 0x5a);
  assert_int_equal(kvf_config_set(&later.config, "block_tokens", "32", message), KVF_OK);
  assert_int_equal(kvf_config_set(&later.config, "log_level", "debug", message), KVF_NOT_FOUND);
  assert_int_equal(*((char *)&later.config + without_log), 0x5a);
  assert_int_equal(kvf_config_copy(&later.config, &copy), KVF_INVALID); /* there has been none so short */
  kvf_config_init_bytes(&later.config, all + sizeof(later.more));
  assert_int_equal(later.more[7], 0);
  assert_int_equal(kvf_config_set(&later.config, "block_tokens", "32", message), KVF_OK);
  assert_int_equal(kvf_config_copy(&later.config, &copy), KVF_OK);
  assert_int_equal(copy.block_tokens, 32);
  assert_int_equal(copy.struct_bytes, all);
  later.config.struct_bytes = 0;
  assert_int_equal(kvf_config_copy(&later.config, &copy), KVF_INVALID);
}

static void assert_set(const char *name, const char *value)
{
  kvf_config config = defaults();
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_config_set(&config, name, value, message), KVF_OK);
  assert_string_equal(message, "");
}

TEST(thread_cpus_are_a_word_or_a_list)
{
  static const char *const good[] = {"", "auto", "inherit", "0", "0-3,8"};
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    assert_set("thread_cpus", good[i]);
  }
  assert_refused("thread_cpus", "3-1", KVF_INVALID,
                 "thread_cpus = \"3-1\" is not allowed: it must be auto, inherit, or a list like 0-3,8");
}

TEST(defaults_are_sensible)
{
  kvf_config config = defaults();
  assert_int_equal(config.ranks, 1);
  assert_string_equal(config.listen, "127.0.0.1");
  assert_string_equal(config.transports, "local,tcp");
  assert_int_equal(config.lease_ttl_ms, 30000);
  assert_int_equal(config.load_timeout_ms, 30000);
  assert_int_equal(config.stall_timeout_ms, 1000);
  assert_int_equal(config.chunk_bytes, 4194304);
  assert_int_equal(config.policy, KVF_POLICY_RECOMPUTE);
  assert_int_equal(config.log_level, KVF_LOG_INFO);
  assert_null(config.log);
  assert_int_equal(kvf_config_check(&config, NULL), KVF_OK);
}

TEST(every_option_takes_its_default)
{
  const kvf_config before = defaults();
  unsigned count = 0;
  for (; kvf_option_at(count) != NULL; count++) {
    const kvf_option_info *info = kvf_option_at(count);
    kvf_config config = before;
    assert_int_equal(kvf_config_set(&config, info->name, info->initial, NULL), KVF_OK);
    assert_memory_equal(&config, &before, sizeof(config));
    assert_true(strlen(info->meaning) > 10 && strlen(info->allowed) > 0);
    for (unsigned i = 0; i < count; i++) {
      assert_string_not_equal(kvf_option_at(i)->name, info->name);
    }
  }
  assert_null(kvf_option_at(UINT32_MAX));
}

static void count_line(void *context, kvf_log_level level, const char *line)
{
  assert_int_equal(level, KVF_LOG_WARN);
  assert_non_null(strstr(line, "has no effect any more"));
  assert_true(strstr(line, "backoff_min_ms") != NULL || strstr(line, "chunks_in_flight") != NULL);
  ++*(uint32_t *)context;
}

/* Their values count no more, not even a wrong one; each that was set is warned of once. */
TEST(options_that_are_gone_are_taken_with_a_warning)
{
  static const char *const names[] = {"breaker_cooldown_ms", "breaker_cooldown_max_ms", "backoff_min_ms",
                                      "backoff_max_ms", "chunks_in_flight"};
  const kvf_config before = defaults();
  uint32_t lines = 0;
  const kvf_logger logger = {.fn = count_line, .context = &lines, .level = KVF_LOG_WARN};
  kvf_config config = before;
  kvf_config_log_gone(&config, &logger);
  assert_int_equal(lines, 0);
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    assert_set(names[i], "2");
    assert_set(names[i], "soon");
    for (unsigned j = 0; kvf_option_at(j) != NULL; j++) {
      assert_string_not_equal(kvf_option_at(j)->name, names[i]);
    }
  }
  for (size_t i = 2; i < sizeof(names) / sizeof(names[0]); i += 2) {
    assert_int_equal(kvf_config_set(&config, names[i], "1", NULL), KVF_OK);
    assert_int_equal(kvf_config_set(&config, names[i], "", NULL), KVF_OK);
  }
  kvf_config_log_gone(&config, &logger);
  assert_int_equal(lines, 2);
  config.options_gone = 0;
  assert_memory_equal(&config, &before, sizeof(config));
}

/* Two options that shared a field would undo each other. */
TEST(every_option_has_a_field_of_its_own)
{
  kvf_config config = defaults();
  assert_int_equal(kvf_config_set(&config, "lease_ttl_ms", "4321", NULL), KVF_OK);
  for (unsigned i = 0; kvf_option_at(i) != NULL; i++) {
    if (strcmp(kvf_option_at(i)->name, "lease_ttl_ms") != 0) {
      assert_int_equal(kvf_config_set(&config, kvf_option_at(i)->name, kvf_option_at(i)->initial, NULL), KVF_OK);
    }
  }
  assert_int_equal(config.lease_ttl_ms, 4321);
}

TEST(numbers_have_bounds)
{
  const char *ttl = "it must be 100 to 3600000 ms";
  char expected[KVF_MESSAGE_BYTES_MAX];
  const char *const refused[] = {"99",   "3600001", "",     "-1",  "+100",       " 100",
                                 "100 ", "100ms",   "0x64", "1e3", "4294967396", "18446744073709551816"};
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    snprintf(expected, sizeof(expected), "lease_ttl_ms = \"%s\" is not allowed: %s", refused[i], ttl);
    assert_refused("lease_ttl_ms", refused[i], KVF_INVALID, expected);
  }
  assert_set("lease_ttl_ms", "100");
  assert_set("lease_ttl_ms", "3600000");
  assert_set("inline_bytes", "0");
}

TEST(choices_are_named)
{
  kvf_config config = defaults();
  assert_int_equal(kvf_config_set(&config, "policy", "auto", NULL), KVF_OK);
  assert_int_equal(config.policy, KVF_POLICY_AUTO);
  assert_int_equal(config.checksum, false);
  assert_int_equal(kvf_config_set(&config, "checksum", "on", NULL), KVF_OK);
  assert_int_equal(config.checksum, true);
  assert_int_equal(kvf_config_set(&config, "checksum", "false", NULL), KVF_OK);
  assert_int_equal(config.checksum, false);
  assert_int_equal(kvf_config_set(&config, "checksum", "true", NULL), KVF_OK);
  assert_int_equal(config.checksum, true);
  assert_refused("checksum", "yes", KVF_INVALID,
                 "checksum = \"yes\" is not allowed: it must be off or on, also false or true");
  assert_int_equal(kvf_config_set(&config, "log_level", "error", NULL), KVF_OK);
  assert_int_equal(config.log_level, KVF_LOG_ERROR);
  assert_int_equal(config.tls, KVF_TLS_OFF_LOOPBACK);
  assert_int_equal(kvf_config_set(&config, "tls", "always", NULL), KVF_OK);
  assert_int_equal(config.tls, KVF_TLS_ALWAYS);
  assert_refused("tls", "on", KVF_INVALID, "tls = \"on\" is not allowed: it must be off_loopback, always or never");
  assert_refused("policy", "Auto", KVF_INVALID, "policy = \"Auto\" is not allowed: it must be fail, recompute or auto");
  assert_refused("log_level", "", KVF_INVALID,
                 "log_level = \"\" is not allowed: it must be error, warn, info or debug");
}

TEST(transports_are_known_and_named_once)
{
  const char *const refused[] = {"", ",", "tcp,", ",tcp", "tcp,tcp", "rdma", "local,tc", "local, tcp", "TCP"};
  char expected[KVF_MESSAGE_BYTES_MAX];
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    snprintf(expected, sizeof(expected),
             "transports = \"%s\" is not allowed: it must be a comma-separated list of local, tcp, ucx", refused[i]);
    assert_refused("transports", refused[i], KVF_INVALID, expected);
  }
  assert_set("transports", "tcp");
  assert_set("transports", "tcp,local");
  assert_set("transports", "local,ucx,tcp");
  assert_set("require", "");
  assert_set("require", "ucx,local");
  assert_refused(
      "require", "tcp,rdma", KVF_INVALID,
      "require = \"tcp,rdma\" is not allowed: it must be empty, or a comma-separated list of local, tcp, ucx");
}

TEST(peers_are_addresses_with_ports)
{
  const char *const good[] = {"", "127.0.0.1:80", "p-1.example:9000,p-2.example:9000", "[::1]:80,10.0.0.1:81"};
  const char *const bad[] = {"p-1",   "p-1:80,",       ",p-1:80", "p-1:80,,p-2:80",
                             "[::1]", "p-1:80 p-2:80", "p-1:x",   "fd00::1:80"};
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    assert_set("peers", good[i]);
  }
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    char expected[KVF_MESSAGE_BYTES_MAX];
    snprintf(expected, sizeof(expected),
             "peers = \"%s\" is not allowed: it must be empty, or at most 64 of HOST:PORT, comma-separated", bad[i]);
    assert_refused("peers", bad[i], KVF_INVALID, expected);
  }
  char many[65 * 5] = "";
  for (size_t i = 0; i < 64; i++) {
    (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), "%sa:1", i == 0 ? "" : ",");
  }
  assert_set("peers", many);
  (void)snprintf(many + strlen(many), sizeof(many) - strlen(many), ",a:1");
  kvf_config config;
  kvf_config_init(&config);
  assert_int_equal(kvf_config_set(&config, "peers", many, NULL), KVF_INVALID);
}

TEST(addresses_have_a_shape)
{
  const char *const good[] = {"",          "127.0.0.1",      "127.0.0.1:0",  "host-1.example:65535",
                              "eth_0.100", "[::1]",          "[fe80::1]:80", "::1",
                              "fd00::a:1", "::ffff:10.0.0.1"};
  const char *const bad[] = {":80",  "host:", "host:65536", "host:80:80", "fd00::g", "[host]:80",
                             "[::1", "[]:80", "[::1]80",    "a b",        "h\n"};
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    assert_set("listen", good[i]);
    assert_set("advertise", good[i]);
  }
  kvf_config config = defaults();
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    assert_int_equal(kvf_config_set(&config, "listen", bad[i], NULL), KVF_INVALID);
  }
}

static void assert_only_listen_takes(const char *const *good, size_t good_count, const char *const *bad,
                                     size_t bad_count)
{
  kvf_config config = defaults();
  for (size_t i = 0; i < good_count; i++) {
    assert_set("listen", good[i]);
    assert_int_equal(kvf_config_set(&config, "advertise", good[i], NULL), KVF_INVALID);
  }
  for (size_t i = 0; i < bad_count; i++) {
    assert_int_equal(kvf_config_set(&config, "listen", bad[i], NULL), KVF_INVALID);
  }
}

TEST(only_listening_takes_networks)
{
  const char *const good[] = {"10.0.0.0/8", "10.0.0.0/8:7000", "10.0.0.0/8:7000-7003", "fd00::/8", "[fd00::/8]:7000"};
  const char *const bad[] = {"10.0.0.0/",  "10.0.0.0/8/8", "/8",         "[fd00::]/8",
                             "10.0.0.0/x", "fd00::/8-9",   "fd00::/8:80"};
  assert_only_listen_takes(good, sizeof(good) / sizeof(good[0]), bad, sizeof(bad) / sizeof(bad[0]));
}

TEST(data_ports_are_a_range)
{
  static const char *const good[] = {"", "1", "7100", "7100-7100", "7100-7199", "64512-65535", "1-1024"};
  static const char *const bad[] = {
      "0",      "0-5",       "-",           "7100-",          "-7100",     "7199-7100",
      "1-1025", "65536",     "65535-65536", "7100-7199-7200", "7100:7199", "10.0.0.1:7100-7199",
      " 7100",  "7100 - 71", "71O0"};
  uint16_t first = 7;
  uint16_t last = 8;
  for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
    assert_set("data_ports", good[i]);
  }
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    kvf_config config = defaults();
    assert_int_equal(kvf_config_set(&config, "data_ports", bad[i], NULL), KVF_INVALID);
    assert_false(kvf_ports_parse(bad[i], &first, &last));
  }
  assert_false(kvf_ports_parse("", &first, &last));
  assert_int_equal(first, 7);
  assert_int_equal(last, 8);
  assert_true(kvf_ports_parse("7100", &first, &last));
  assert_int_equal(first, 7100);
  assert_int_equal(last, 7100);
  assert_true(kvf_ports_parse("7100-7199", &first, &last));
  assert_int_equal(last, 7199);
}

TEST(only_listening_has_ranges_of_ports)
{
  const char *const good[] = {"127.0.0.1:7000-7003", "a-1.example:1-1024", "[::1]:65535-65535"};
  const char *const bad[] = {"h:7003-7000", "h:0-9",   "h:1-1025", "h:1-65536", "h:1-",
                             "h:-9",        "h:1-2-3", ":1-2",     "1-2:",      "fd00::1-5"};
  char first[KVF_HOST_BYTES_MAX];
  uint16_t last;
  assert_only_listen_takes(good, sizeof(good) / sizeof(good[0]), bad, sizeof(bad) / sizeof(bad[0]));
  kvf_listen_split("a-1.example:1-1024", first, &last);
  assert_string_equal(first, "a-1.example:1");
  assert_int_equal(last, 1024);
  kvf_listen_split("a-1.example", first, &last);
  assert_string_equal(first, "a-1.example");
  assert_int_equal(last, 0);
}

TEST(texts_have_room)
{
  kvf_config config = defaults();
  char path[KVF_PATH_BYTES_MAX + 1];
  memset(path, 'k', sizeof(path));
  path[KVF_PATH_BYTES_MAX] = 0;
  assert_int_equal(kvf_config_set(&config, "key_file", path, NULL), KVF_INVALID);
  path[KVF_PATH_BYTES_MAX - 1] = 0;
  assert_int_equal(kvf_config_set(&config, "key_file", path, NULL), KVF_OK);
  assert_string_equal(config.key_file, path);
  assert_int_equal(kvf_config_set(&config, "key_file", "", NULL), KVF_OK);
  assert_string_equal(config.key_file, "");
}

TEST(unknown_names_get_a_suggestion)
{
  assert_refused("lease_ttl", "1", KVF_NOT_FOUND, "unknown option \"lease_ttl\": did you mean \"lease_ttl_ms\"?");
  assert_refused("Policy", "1", KVF_NOT_FOUND, "unknown option \"Policy\": did you mean \"policy\"?");
  assert_refused("zzzzzz", "1", KVF_NOT_FOUND, "unknown option \"zzzzzz\"");
  assert_refused("", "1", KVF_NOT_FOUND, "unknown option \"\"");
}

TEST(messages_are_bounded_and_clean)
{
  kvf_config config = defaults();
  char message[KVF_MESSAGE_BYTES_MAX];
  char text[1000];
  memset(text, '\n', sizeof(text));
  text[sizeof(text) - 1] = 0;
  assert_int_equal(kvf_config_set(&config, text, "1", message), KVF_NOT_FOUND);
  assert_null(strchr(message, '\n'));
  assert_int_equal(kvf_config_set(&config, "transports", text, message), KVF_INVALID);
  assert_null(strchr(message, '\n'));
  assert_non_null(strstr(message, "it must be a comma-separated list"));
}

TEST(null_arguments_are_refused)
{
  kvf_config config = defaults();
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_config_set(NULL, "policy", "auto", NULL), KVF_INVALID);
  assert_int_equal(kvf_config_set(&config, NULL, "auto", message), KVF_INVALID);
  assert_int_equal(kvf_config_set(&config, "policy", NULL, message), KVF_INVALID);
  assert_string_equal(message, "an option needs a name and a value");
}

TEST(identity_is_a_set)
{
  kvf_config config = defaults();
  assert_int_equal(kvf_config_identity(&config, "dtype", "float32"), KVF_OK);
  assert_int_equal(kvf_config_identity(&config, "model", "a"), KVF_OK);
  assert_int_equal(kvf_config_identity(&config, "dtype", "f16"), KVF_OK);
  assert_int_equal(config.identity_fields, 2);
  assert_string_equal(config.identity[0].name, "dtype");
  assert_string_equal(config.identity[0].value, "f16");
  assert_int_equal(kvf_config_check(&config, NULL), KVF_OK);
}

TEST(identity_is_bounded)
{
  kvf_config config = defaults();
  char text[KVF_IDENTITY_BYTES_MAX + 1];
  memset(text, 'i', sizeof(text));
  text[KVF_IDENTITY_BYTES_MAX] = 0;
  assert_int_equal(kvf_config_identity(&config, text, "v"), KVF_INVALID);
  assert_int_equal(kvf_config_identity(&config, "n", text), KVF_INVALID);
  assert_int_equal(kvf_config_identity(&config, "", "v"), KVF_INVALID);
  assert_int_equal(kvf_config_identity(&config, "n", ""), KVF_INVALID);
  assert_int_equal(kvf_config_identity(&config, NULL, "v"), KVF_INVALID);
  assert_int_equal(config.identity_fields, 0);
  for (int i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    snprintf(text, sizeof(text), "field %d", i);
    assert_int_equal(kvf_config_identity(&config, text, "v"), KVF_OK);
  }
  assert_int_equal(kvf_config_identity(&config, "one more", "v"), KVF_LIMIT);
  assert_int_equal(kvf_config_identity(&config, "field 31", "w"), KVF_OK);
  assert_int_equal(config.identity_fields, KVF_IDENTITY_FIELDS_MAX);
}

/* They would not pass the handshake, and could begin a log line of their own. */
TEST(identity_has_no_control_characters)
{
  const char *const refused[] = {"\n", "a\tb", "\x1b[2J", "a\x7f", "\x01", "\x1f"};
  kvf_config config = defaults();
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    assert_int_equal(kvf_config_identity(&config, refused[i], "v"), KVF_INVALID);
    assert_int_equal(kvf_config_identity(&config, "n", refused[i]), KVF_INVALID);
  }
  assert_int_equal(config.identity_fields, 0);
  assert_int_equal(kvf_config_identity(&config, "a name", "~\xc3\xa9 "), KVF_OK);
  config.identity[0].value[0] = '\n';
  assert_int_equal(kvf_config_check(&config, NULL), KVF_INVALID);
}

TEST(block_tokens_by_group)
{
  const char *const refused[] = {",",     "16,",    ",16", "16,,8",
                                 "65537", "000016", "-1",  "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17"};
  uint32_t tokens[KVF_GROUPS_MAX];
  kvf_config config = defaults();
  for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
    assert_int_equal(kvf_config_set(&config, "group_block_tokens", refused[i], NULL), KVF_INVALID);
    assert_int_equal(kvf_group_tokens_parse(refused[i], tokens), 0);
  }
  assert_int_equal(kvf_group_tokens_parse("65536,8,0", tokens), 3);
  assert_int_equal(tokens[0], 65536);
  assert_int_equal(tokens[1], 8);
  assert_int_equal(tokens[2], 0);
  assert_int_equal(kvf_group_tokens_parse("1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16", tokens), KVF_GROUPS_MAX);
  assert_int_equal(kvf_group_tokens_parse("", tokens), 0);
  assert_int_equal(kvf_config_set(&config, "group_block_tokens", "", NULL), KVF_OK);
}

static void assert_check_fails(const kvf_config *config, const char *expected_message)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_config_check(config, message), KVF_INVALID);
  assert_string_equal(message, expected_message);
  assert_int_equal(kvf_config_check(config, NULL), KVF_INVALID);
}

TEST(check_compares_options)
{
  kvf_config config = defaults();
  config.backoff_min_ms = 1001;
  assert_check_fails(&config, "backoff_min_ms = 1001 is not allowed: it must be at most backoff_max_ms, which is 1000");
  config = defaults();
  config.breaker_cooldown_ms = 10001;
  assert_check_fails(
      &config,
      "breaker_cooldown_ms = 10001 is not allowed: it must be at most breaker_cooldown_max_ms, which is 10000");
  config = defaults();
  assert_int_equal(kvf_config_set(&config, "require", "tcp", NULL), KVF_OK);
  assert_int_equal(kvf_config_check(&config, NULL), KVF_OK);
  assert_int_equal(kvf_config_set(&config, "require", "tcp,ucx", NULL), KVF_OK);
  assert_check_fails(&config, "require = \"tcp,ucx\" is not allowed: transports = \"local,tcp\" must name them too");
  config = defaults();
  config.lease_max_ms = 29999;
  assert_check_fails(&config, "lease_ttl_ms = 30000 is not allowed: it must be at most lease_max_ms, which is 29999");
  config = defaults();
  assert_int_equal(kvf_config_set(&config, "group_block_tokens", "16,8,0", NULL), KVF_OK);
  assert_int_equal(kvf_config_check(&config, NULL), KVF_OK);
  config.block_tokens = 24;
  assert_check_fails(&config, "block_tokens = 24 is not a multiple of all of group_block_tokens = 16,8,0");
  config = defaults();
  config.rank = 1;
  assert_check_fails(&config, "rank = 1 is not allowed: it must be at most ranks - 1, which is 0");
}

TEST(check_looks_at_fields_that_were_not_set_by_name)
{
  kvf_config config = defaults();
  config.chunk_bytes = 0;
  assert_check_fails(&config, "chunk_bytes = \"0\" is not allowed: it must be 4096 to 67108864 bytes");
  config = defaults();
  const uint32_t no_policy = 3;
  memcpy(&config.policy, &no_policy, sizeof(no_policy));
  assert_check_fails(&config, "policy = \"3\" is not allowed: it must be fail, recompute or auto");
  config = defaults();
  const uint32_t no_switch = 2;
  memcpy(&config.checksum, &no_switch, sizeof(no_switch));
  assert_check_fails(&config, "checksum = \"2\" is not allowed: it must be off or on, also false or true");
  config = defaults();
  const uint32_t no_level = 4;
  memcpy(&config.log_level, &no_level, sizeof(no_level));
  assert_check_fails(&config, "log_level = \"4\" is not allowed: it must be error, warn, info or debug");
  config = defaults();
  memset(config.transports, 't', sizeof(config.transports));
  assert_int_equal(kvf_config_check(&config, NULL), KVF_INVALID);
  config = defaults();
  for (int i = 0; i < KVF_IDENTITY_FIELDS_MAX; i++) {
    char name[32];
    assert_int_equal(kvf_config_check(&config, NULL), KVF_OK);
    snprintf(name, sizeof(name), "field %d", i);
    assert_int_equal(kvf_config_identity(&config, name, "v"), KVF_OK);
  }
  assert_check_fails(&config, "too many fields of the identity: the node adds block_tokens");
  config.identity_fields = KVF_IDENTITY_FIELDS_MAX + 1;
  assert_check_fails(&config, "the identity's fields are to be set by kvf_config_identity()");
}
