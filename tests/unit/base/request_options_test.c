/* Options of a request, by their names: what is set, and what is refused. */
#include "kvferry/consumer.h"
#include "test.h"

static const kvf_request_options own = {.policy = KVF_POLICY_RECOMPUTE,
                                        .auto_max_recompute_tokens = 2048,
                                        .load_timeout_ms = 30000,
                                        .keep_from_tokens = 64};

static void assert_set(const char *name, const char *value, kvf_request_options expected)
{
  kvf_request_options options = own;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_request_options_set(&options, name, value, message), KVF_OK);
  assert_memory_equal(&options, &expected, sizeof(options));
  assert_string_equal(message, "");
}

static void assert_refused(const char *name, const char *value, kvf_status expected, const char *expected_message)
{
  kvf_request_options options = own;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_request_options_set(&options, name, value, message), expected);
  assert_memory_equal(&options, &own, sizeof(options));
  assert_string_equal(message, expected_message);
  assert_int_equal(kvf_request_options_set(&options, name, value, NULL), expected);
}

TEST(each_is_set_by_name)
{
  assert_set("policy", "auto",
             (kvf_request_options){.policy = KVF_POLICY_AUTO,
                                   .auto_max_recompute_tokens = 2048,
                                   .load_timeout_ms = 30000,
                                   .keep_from_tokens = 64});
  assert_set("policy", "fail",
             (kvf_request_options){.policy = KVF_POLICY_FAIL,
                                   .auto_max_recompute_tokens = 2048,
                                   .load_timeout_ms = 30000,
                                   .keep_from_tokens = 64});
  assert_set("auto_max_recompute_tokens", "0",
             (kvf_request_options){.policy = KVF_POLICY_RECOMPUTE,
                                   .auto_max_recompute_tokens = 0,
                                   .load_timeout_ms = 30000,
                                   .keep_from_tokens = 64});
  assert_set("load_timeout_ms", "1",
             (kvf_request_options){.policy = KVF_POLICY_RECOMPUTE,
                                   .auto_max_recompute_tokens = 2048,
                                   .load_timeout_ms = 1,
                                   .keep_from_tokens = 64});
  assert_set("load_timeout_ms", "30000", own);
}

TEST(a_load_is_not_made_longer)
{
  assert_refused("load_timeout_ms", "30001", KVF_INVALID,
                 "load_timeout_ms = 30001 is not allowed for a request: at most the engine's, 30000");
}

TEST(bad_values_are_named)
{
  assert_refused("policy", "maybe", KVF_INVALID,
                 "policy = \"maybe\" is not allowed: it must be fail, recompute or auto");
  assert_refused("load_timeout_ms", "0", KVF_INVALID,
                 "load_timeout_ms = \"0\" is not allowed: it must be 1 to 3600000 ms");
  assert_refused("auto_max_recompute_tokens", "", KVF_INVALID,
                 "auto_max_recompute_tokens = \"\" is not allowed: it must be 0 to 1000000000 tokens");
  assert_refused("policy", NULL, KVF_INVALID, "an option needs a name and a value");
}

/* The engine's options are not the client's to set. */
TEST(other_options_are_refused)
{
  assert_refused("key_file", "/etc/passwd", KVF_NOT_FOUND,
                 "\"key_file\" is not an option of a request: those are policy, auto_max_recompute_tokens, and "
                 "load_timeout_ms");
  assert_refused("a\nb", "1", KVF_NOT_FOUND,
                 "\"a?b\" is not an option of a request: those are policy, auto_max_recompute_tokens, and "
                 "load_timeout_ms");
  assert_int_equal(kvf_request_options_set(NULL, "policy", "fail", NULL), KVF_INVALID);
  assert_refused(NULL, "1", KVF_INVALID,
                 "\"\" is not an option of a request: those are policy, auto_max_recompute_tokens, and "
                 "load_timeout_ms");
}
