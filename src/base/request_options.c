/* kvf_request_options_set() of kvferry/consumer.h. */
#include <string.h>

#include "base/options.h"
#include "base/status.h"
#include "kvferry/consumer.h"

static const char *const names[] = {"policy", "auto_max_recompute_tokens", "load_timeout_ms"};

static bool is_of_request(const char *name)
{
  for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
    if (strcmp(names[i], name) == 0) {
      return true;
    }
  }
  return false;
}

kvf_status kvf_request_options_set(kvf_request_options *options, const char *name, const char *value,
                                   char message[KVF_MESSAGE_BYTES_MAX])
{
  char unwanted[KVF_MESSAGE_BYTES_MAX];
  kvf_config config;
  message = message == NULL ? unwanted : message;
  kvf_config_init(&config);
  if (options == NULL || name == NULL || !is_of_request(name)) {
    kvf_status wrong = options == NULL || name == NULL ? KVF_INVALID : KVF_NOT_FOUND;
    (void)kvf_fail(wrong, message, "\"%.64s\" is not an option of a request: those are %s, %s, and %s",
                   name == NULL ? "" : name, names[0], names[1], names[2]);
    return kvf_answer_as(wrong, message);
  }
  config.policy = options->policy;
  config.auto_max_recompute_tokens = options->auto_max_recompute_tokens;
  config.load_timeout_ms = options->load_timeout_ms;
  kvf_status status = kvf_config_set(&config, name, value, message);
  if (status == KVF_OK && config.load_timeout_ms > options->load_timeout_ms) {
    status =
        kvf_fail(KVF_INVALID, message, "load_timeout_ms = %u is not allowed for a request: at most the engine's, %u",
                 config.load_timeout_ms, options->load_timeout_ms);
  }
  if (status == KVF_OK) {
    options->policy = config.policy;
    options->auto_max_recompute_tokens = config.auto_max_recompute_tokens;
    options->load_timeout_ms = config.load_timeout_ms;
  }
  return kvf_answer_as(status, message);
}
