/* Options: names and values as an engine's configuration has them, one after the other; a configuration struct of any
 * bytes; the key file; and the core's start with whatever was accepted.
 *
 * A refusal changes nothing and its message is terminated; what was accepted one by one is accepted again, and whole
 * configurations that pass the check are ones that a core starts with. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/options.h"
#include "core/core.h"
#include "core/core_state.h"
#include "fuzz.h"
#include "runtime/key_file.h"

#define TEXT_BYTES 2048
#define LEASE_SLOTS_MAX 64 /* a core with many takes too long to start for a fuzzer */

static unsigned options_count(void)
{
  unsigned count = 0;
  while (kvf_option_at(count) != NULL) {
    count++;
  }
  return count;
}

static void take_text(fuzz_tape *tape, char out[TEXT_BYTES])
{
  size_t got;
  size_t wanted = fuzz_u8(tape);
  wanted = wanted == 255 ? fuzz_u16(tape) % TEXT_BYTES : wanted;
  const uint8_t *bytes = fuzz_bytes(tape, wanted, &got);
  memcpy(out, bytes, got);
  out[got] = '\0';
}

static void check_message(const char message[KVF_MESSAGE_BYTES_MAX])
{
  fuzz_check(memchr(message, 0, KVF_MESSAGE_BYTES_MAX) != NULL && message[0] != '\0');
}

static bool is_same(const kvf_config *a, const kvf_config *b)
{
  /* Not one byte may have changed. NOLINTNEXTLINE(bugprone-suspicious-memory-comparison): padding included */
  return memcmp(a, b, sizeof(*b)) == 0;
}

/* What was accepted alone passes the check, unless it disagrees with another option. */
static void check_alone(const char *name, const char *value)
{
  static kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_config_init(&config);
  fuzz_check(kvf_config_set(&config, name, value, NULL) == KVF_OK);
  fuzz_check(kvf_config_check(&config, message) == KVF_OK || strstr(message, "it must be at most") != NULL ||
             strstr(message, "is not a multiple") != NULL);
}

static void set(fuzz_tape *tape, kvf_config *config)
{
  static kvf_config before;
  char name[TEXT_BYTES];
  char value[TEXT_BYTES];
  char message[KVF_MESSAGE_BYTES_MAX];
  unsigned i = fuzz_choose(tape, options_count() + 1);
  if (kvf_option_at(i) != NULL) {
    (void)snprintf(name, sizeof(name), "%s", kvf_option_at(i)->name);
  } else {
    take_text(tape, name);
  }
  take_text(tape, value);
  memcpy(&before, config, sizeof(before));
  memset(message, 'x', sizeof(message));
  kvf_status status = kvf_config_set(config, name, value, message);
  if (status != KVF_OK) {
    fuzz_check(status == KVF_INVALID || status == KVF_NOT_FOUND);
    fuzz_check(is_same(&before, config));
    check_message(message);
    return;
  }
  memcpy(&before, config, sizeof(before));
  check_alone(name, value);
  fuzz_check(kvf_config_set(config, name, value, NULL) == KVF_OK);
  fuzz_check(is_same(&before, config));
}

static void set_identity(fuzz_tape *tape, kvf_config *config)
{
  char name[TEXT_BYTES];
  char value[TEXT_BYTES];
  take_text(tape, name);
  take_text(tape, value);
  uint32_t before = config->identity_fields;
  kvf_status status = kvf_config_identity(config, name, value);
  fuzz_check(config->identity_fields >= before && config->identity_fields <= KVF_IDENTITY_FIELDS_MAX);
  fuzz_check(status == KVF_OK ? config->identity_fields - before <= 1 : config->identity_fields == before);
}

/* The struct is the caller's memory: anything may be in it. */
static void scribble(fuzz_tape *tape, kvf_config *config)
{
  size_t got;
  size_t at = fuzz_u16(tape) % offsetof(kvf_config, log);
  size_t room = offsetof(kvf_config, log) - at;
  size_t wanted = fuzz_u8(tape);
  const uint8_t *bytes = fuzz_bytes(tape, wanted < room ? wanted : room, &got);
  memcpy((uint8_t *)config + at, bytes, got);
}

static void read_key(fuzz_tape *tape)
{
  size_t got;
  char link_id[32];
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_key keys[KVF_KEYS_MAX];
  size_t count = 0;
  const uint8_t *bytes = fuzz_bytes(tape, fuzz_u16(tape) % 512, &got);
  int fd = memfd_create("key", MFD_CLOEXEC);
  fuzz_check(fd >= 0 && write(fd, bytes, got) == (ssize_t)got && fchmod(fd, 0600) == 0);
  (void)snprintf(link_id, sizeof(link_id), "/proc/self/fd/%d", fd);
  if (kvf_key_file_read(link_id, keys, &count, message) == KVF_OK) {
    fuzz_check(count >= 1 && count <= KVF_KEYS_MAX);
    for (size_t i = 0; i < count; i++) {
      fuzz_check(keys[i].bytes >= KVF_KEY_BYTES_MIN && keys[i].bytes <= KVF_KEY_BYTES_MAX && keys[i].bytes <= got);
      fuzz_check(memmem(bytes, got, keys[i].data, keys[i].bytes) != NULL);
      fuzz_check(memchr(keys[i].data, '\n', keys[i].bytes) == NULL);
    }
  } else {
    fuzz_check(count == 0);
    check_message(message);
  }
  (void)close(fd);
}

static void start_core(const kvf_config *options)
{
  static kvf_core core;
  static kvf_core_config config;
  config.options = *options;
  config.options.log = NULL;
  if (config.options.lease_slots > LEASE_SLOTS_MAX) {
    config.options.lease_slots = LEASE_SLOTS_MAX;
  }
  fuzz_check(kvf_core_init(&core, &config, 1) == KVF_OK);
  kvf_core_free(&core);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
  static kvf_config config;
  char message[KVF_MESSAGE_BYTES_MAX];
  fuzz_tape tape = {.data = data, .bytes = bytes};
  memset(&config, 0, sizeof(config));
  kvf_config_init(&config);
  fuzz_check(kvf_config_check(&config, message) == KVF_OK);
  bool scribbled = false;
  while (!fuzz_is_over(&tape)) {
    switch (fuzz_choose(&tape, 8)) {
      case 0:
        scribble(&tape, &config);
        scribbled = true;
        break;
      case 1:
      case 2:
        /* Its own fields are bounds that kvf_config_identity() trusts. */
        if (!scribbled) {
          set_identity(&tape, &config);
        }
        break;
      case 3:
        read_key(&tape);
        break;
      default:
        set(&tape, &config);
        break;
    }
  }
  memset(message, 0, sizeof(message));
  if (kvf_config_check(&config, message) == KVF_OK) {
    start_core(&config);
  } else {
    check_message(message);
  }
  return 0;
}

static void put_text(fuzz_seed_out *out, const char *text)
{
  fuzz_put_u8(out, (unsigned)strlen(text));
  fuzz_put(out, text, strlen(text));
}

/* Every option set to its default, to what the table allows, and to what it does not; then the rest. */
bool fuzz_seed(unsigned i, fuzz_seed_out *out)
{
  unsigned count = options_count();
  if (i < count) {
    const kvf_option_info *info = kvf_option_at(i);
    char allowed[64];
    (void)snprintf(allowed, sizeof(allowed), "%.*s", (int)strcspn(info->allowed, " ,"), info->allowed);
    fuzz_put_u8(out, 4);
    fuzz_put_u8(out, i);
    put_text(out, info->initial);
    fuzz_put_u8(out, 4);
    fuzz_put_u8(out, i);
    put_text(out, allowed);
    const char *most = strstr(info->allowed, " to ");
    if (most != NULL) {
      (void)snprintf(allowed, sizeof(allowed), "%lu", strtoul(most + 4, NULL, 10) + 1);
      fuzz_put_u8(out, 4);
      fuzz_put_u8(out, i);
      put_text(out, most + 4);
      fuzz_put_u8(out, 4);
      fuzz_put_u8(out, i);
      put_text(out, allowed);
    }
  } else if (i == count) {
    fuzz_put_u8(out, 1);
    put_text(out, "dtype");
    put_text(out, "float32");
    fuzz_put_u8(out, 3);
    fuzz_put(out, "\x18\x00", 2);
    fuzz_put(out, "a key of sixteen bytes\n", 24);
    fuzz_put_u8(out, 4);
    fuzz_put_u8(out, 3);
    put_text(out, "[::1]:4000");
    fuzz_put_u8(out, 4);
    fuzz_put_u8(out, count);
    put_text(out, "transports");
    put_text(out, "tcp,local");
  } else if (i == count + 1) {
    fuzz_put_u8(out, 0);
    fuzz_put(out, "\x00\x00\x04\x05\x00\x00\x00", 7);
  } else {
    return false;
  }
  return true;
}
