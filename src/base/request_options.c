/* kvf_request_options_set() of kvferry/consumer.h. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/options.h"
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

static void say_not_of_request(const char *name, char *message)
{
  if (message != NULL) {
    snprintf(message, KVF_MESSAGE_BYTES_MAX, "\"%.64s\" is not an option of a request: those are %s, %s, and %s", name,
             names[0], names[1], names[2]);
    kvf_log_clean(message);
  }
}

kvf_status kvf_request_options_set(kvf_request_options *options, const char *name, const char *value,
                                   char message[KVF_MESSAGE_BYTES_MAX])
{
  kvf_config config;
  kvf_config_init(&config);
  if (options == NULL || name == NULL || !is_of_request(name)) {
    say_not_of_request(name == NULL ? "" : name, message);
    return options == NULL || name == NULL ? KVF_INVALID : KVF_NOT_FOUND;
  }
  config.policy = options->policy;
  config.auto_max_recompute_tokens = options->auto_max_recompute_tokens;
  config.load_timeout_ms = options->load_timeout_ms;
  kvf_status status = kvf_config_set(&config, name, value, message);
  if (status != KVF_OK) {
    return status;
  }
  if (config.load_timeout_ms > options->load_timeout_ms) {
    if (message != NULL) {
      snprintf(message, KVF_MESSAGE_BYTES_MAX,
               "load_timeout_ms = %u is not allowed for a request: at most the engine's, %u", config.load_timeout_ms,
               options->load_timeout_ms);
    }
    return KVF_INVALID;
  }
  *options = (kvf_request_options){config.policy, config.auto_max_recompute_tokens, config.load_timeout_ms};
  return KVF_OK;
}
