/* One table of all options, with type, bounds and default of each; and what makes, sets and checks a configuration. */
#include "base/options.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu_list.h"
#include "base/status.h"
#include "kvferry/part.h"

static const char *const policy_names[] = {
    [KVF_POLICY_FAIL] = "fail", [KVF_POLICY_RECOMPUTE] = "recompute", [KVF_POLICY_AUTO] = "auto"};
static const char *const switch_names[] = {[false] = "off", [true] = "on"};
static const char *const tls_scope_names[] = {
    [KVF_TLS_OFF_LOOPBACK] = "off_loopback", [KVF_TLS_ALWAYS] = "always", [KVF_TLS_NEVER] = "never"};
static const char *const log_level_names[] = {
    [KVF_LOG_ERROR] = "error", [KVF_LOG_WARN] = "warn", [KVF_LOG_INFO] = "info", [KVF_LOG_DEBUG] = "debug"};
static const char *const transport_names[] = {"local", "tcp", "ucx"};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

_Static_assert(KVF_LISTEN_PORTS_MAX == 1024, "LISTEN_ALLOWED");
_Static_assert(KVF_RANKS_MAX == 64, "the table's texts for rank and ranks");
_Static_assert(COUNT_OF(transport_names) <= KVF_TRANSPORTS_MAX, "one slot for each transport");

/* ---- values ---- */

/* The index of the `bytes` long `text` in `names`, or -1. */
static int find_name(const char *const *names, size_t count, const char *text, size_t bytes)
{
  for (size_t i = 0; i < count; i++) {
    if (strlen(names[i]) == bytes && memcmp(names[i], text, bytes) == 0) {
      return (int)i;
    }
  }
  return -1;
}

/* Decimal digits only: no sign, no space, no unit. */
static bool parse_number(const char *text, uint32_t min, uint32_t max, uint32_t *out)
{
  uint64_t number = 0;
  size_t digits = strspn(text, "0123456789");
  if (digits == 0 || text[digits] != 0) {
    return false;
  }
  for (; *text != 0 && number <= UINT32_MAX; text++) {
    number = number * 10 + (uint64_t)(*text - '0');
  }
  if (number < min || number > max) {
    return false;
  }
  *out = (uint32_t)number;
  return true;
}

#define DIGITS "0123456789"
#define HOST_CHARACTERS DIGITS "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-_"
#define IPV6_CHARACTERS DIGITS "abcdefABCDEF:."

bool kvf_is_bare_ipv6(const char *text)
{
  return *text != '[' && strchr(text, ':') != strrchr(text, ':');
}

/* The shape only: whether the host exists shows when it is used. */
static bool is_place(const char *text, bool or_network)
{
  if (*text == 0) {
    return true;
  }
  const bool has_brackets = *text == '[';
  const bool is_bare = kvf_is_bare_ipv6(text);
  text += has_brackets;
  const size_t host_bytes = strspn(text, has_brackets || is_bare ? IPV6_CHARACTERS : HOST_CHARACTERS);
  text += host_bytes;
  if (or_network && host_bytes > 0 && text[0] == '/' && strspn(text + 1, DIGITS) > 0) {
    text += 1 + strspn(text + 1, DIGITS);
  }
  if (host_bytes == 0 || (has_brackets && *text++ != ']')) {
    return false;
  }
  uint32_t port = 0;
  return *text == 0 || (!is_bare && *text == ':' && parse_number(text + 1, 0, UINT16_MAX, &port));
}

static bool is_address(const char *text)
{
  return is_place(text, false);
}

void kvf_listen_split(const char *listen, char first[KVF_HOST_BYTES_MAX], uint16_t *last)
{
  uint32_t port = 0;
  (void)snprintf(first, KVF_HOST_BYTES_MAX, "%s", listen);
  char *colon = strrchr(first, ':');
  char *dash = colon == NULL ? NULL : strchr(colon, '-');
  if (dash != NULL && parse_number(dash + 1, 1, UINT16_MAX, &port)) {
    *dash = 0;
  }
  *last = (uint16_t)port;
}

static bool is_listen(const char *text)
{
  char first[KVF_HOST_BYTES_MAX];
  uint16_t last = 0;
  uint32_t port = 0;
  kvf_listen_split(text, first, &last);
  if (!is_place(first, true) || (last > 0 && kvf_is_bare_ipv6(first))) {
    return false;
  }
  return last == 0 || (parse_number(strrchr(first, ':') + 1, 1, last, &port) && last - port < KVF_LISTEN_PORTS_MAX);
}

bool kvf_ports_parse(const char *text, uint16_t *first, uint16_t *last)
{
  char low[KVF_PORTS_BYTES_MAX];
  uint32_t from = 0;
  uint32_t to = 0;
  const size_t bytes = strcspn(text, "-");
  if (bytes >= sizeof(low)) {
    return false;
  }
  memcpy(low, text, bytes);
  low[bytes] = 0;
  if (!parse_number(low, 1, UINT16_MAX, &from) ||
      !parse_number(text[bytes] == 0 ? low : text + bytes + 1, from, UINT16_MAX, &to) ||
      to - from >= KVF_LISTEN_PORTS_MAX) {
    return false;
  }
  *first = (uint16_t)from;
  *last = (uint16_t)to;
  return true;
}

static bool is_ports_or_none(const char *text)
{
  uint16_t first = 0;
  uint16_t last = 0;
  return *text == 0 || kvf_ports_parse(text, &first, &last);
}

static bool is_free_of_control_characters(const char *text)
{
  for (; *text != 0; text++) {
    if ((unsigned char)*text < 0x20 || *text == 0x7f) {
      return false;
    }
  }
  return true;
}

static bool is_cpus(const char *text)
{
  kvf_cpu_list list;
  return *text == 0 || strcmp(text, "auto") == 0 || strcmp(text, "inherit") == 0 || kvf_cpu_list_parse(text, &list);
}

/* One bit for each that is named; 0 unless all are known and none is named twice. */
static unsigned parse_transports(const char *text)
{
  unsigned seen = 0;
  for (;;) {
    size_t bytes = strcspn(text, ",");
    int found = find_name(transport_names, COUNT_OF(transport_names), text, bytes);
    if (found < 0 || (seen & (1u << found)) != 0) {
      return 0;
    }
    seen |= 1u << found;
    if (text[bytes] == 0) {
      return seen;
    }
    text += bytes + 1;
  }
}

bool kvf_peer_names_next(const char **rest, char address[KVF_HOST_BYTES_MAX])
{
  size_t bytes = strcspn(*rest, ",");
  if (bytes == 0 || bytes >= KVF_HOST_BYTES_MAX) {
    return false;
  }
  memcpy(address, *rest, bytes);
  address[bytes] = 0;
  const bool goes_on = (*rest)[bytes] == ',' && (*rest)[bytes + 1] != 0;
  *rest += goes_on ? bytes + 1 : bytes;
  return true;
}

static bool is_peers(const char *text)
{
  char address[KVF_HOST_BYTES_MAX];
  uint32_t count = 0;
  while (kvf_peer_names_next(&text, address)) {
    const char *colon = strrchr(address, ':');
    if (!is_address(address) || kvf_is_bare_ipv6(address) || colon == NULL || colon[1] == ']' ||
        strchr(colon, ']') != NULL || ++count > KVF_STATIC_PEERS_MAX) {
      return false;
    }
  }
  return *text == 0;
}

uint32_t kvf_group_tokens_parse(const char *text, uint32_t out[KVF_GROUPS_MAX])
{
  uint32_t groups = 0;
  for (const char *rest = text; groups < KVF_GROUPS_MAX;) {
    char number[sizeof("65536")] = {0};
    const size_t bytes = strcspn(rest, ",");
    if (bytes >= sizeof(number)) {
      return 0;
    }
    memcpy(number, rest, bytes);
    if (!parse_number(number, 0, KVF_PART_ROWS_MAX, &out[groups++])) {
      return 0;
    }
    if (rest[bytes] == 0) {
      return groups;
    }
    rest += bytes + 1;
  }
  return 0;
}

static bool is_group_tokens_or_none(const char *text)
{
  uint32_t tokens[KVF_GROUPS_MAX];
  return *text == 0 || kvf_group_tokens_parse(text, tokens) > 0;
}

static bool is_transports(const char *text)
{
  return parse_transports(text) != 0;
}

static bool is_transports_or_none(const char *text)
{
  return *text == 0 || is_transports(text);
}

/* ---- the table ---- */

typedef struct kvf_option {
  kvf_option_info info;
  size_t offset;
  size_t bytes;                      /* of the field */
  bool (*is_text)(const char *text); /* what a text must be; NULL: it is a number */
  const char *const *names;          /* of a choice, which is stored as the index of one; NULL: it is in digits */
  uint32_t min;                      /* of a number */
  uint32_t max;
} kvf_option;

#define FIELD(field) .offset = offsetof(kvf_config, field), .bytes = sizeof(((kvf_config *)0)->field)
#define NUMBER(field, unit, initial, least, most, meaning) \
  {{#field, unit, #initial, #least " to " #most, meaning}, FIELD(field), .min = (least), .max = (most)}
#define TEXT(field, check, initial, allowed, meaning) \
  {{#field, "", initial, allowed, meaning}, FIELD(field), .is_text = (check)}
#define CHOICE(field, choices, initial, allowed, meaning) \
  {{#field, "", initial, allowed, meaning}, FIELD(field), .names = (choices), .max = COUNT_OF(choices) - 1}

#define ADDRESS_ALLOWED "empty, HOST, HOST:PORT, IPV6 or [IPV6]:PORT"
#define LISTEN_ALLOWED \
  ADDRESS_ALLOWED "; HOST also an interface or network (10.0.0.0/8), PORT also PORT-PORT (1024 ports at most)"

static const kvf_option table[] = {
    NUMBER(rank, "", 0, 0, 63, "This node's rank in its engine; a control node ignores it."),
    NUMBER(ranks, "", 1, 1, 64, "Tensor-parallel ranks of the engine."),
    NUMBER(block_tokens, "tokens", 16, 1, 16777216, "Tokens per KV block."),
    TEXT(group_block_tokens, is_group_tokens_or_none, "", "empty, or at most 16 of 0 to 65536, comma-separated",
         "Tokens per block of each KV group, if they differ; they divide block_tokens. 0: a state, one block per "
         "lease."),

    TEXT(listen, is_listen, "127.0.0.1", LISTEN_ALLOWED,
         "Where the node listens. Without a port: any free one. PORT-PORT: the first free one. Empty: nowhere."),
    TEXT(advertise, is_address, "", ADDRESS_ALLOWED, "This node's address in tickets. Empty: the listen address."),
    TEXT(data_ports, is_ports_or_none, "", "empty, PORT or PORT-PORT, 1024 ports at most",
         "Ports for data over tcp, at the address of `listen`: the first free one for each of a rank's tcp_streams. "
         "Empty: any."),
    TEXT(
        key_file, is_free_of_control_characters, "", "a path, or empty",
        "File with the key that all engines share. A second line: another accepted key. Without a key: loopback only."),
    CHOICE(tls, tls_scope_names, "off_loopback", "off_loopback, always or never",
           "Which connections the shared key encrypts; the same on all engines."),
    TEXT(transports, is_transports, "local,tcp", "a comma-separated list of local, tcp, ucx",
         "The transports that may be used, best first."),
    TEXT(require, is_transports_or_none, "", "empty, or a comma-separated list of local, tcp, ucx",
         "Those of `transports` that must all work, else the node does not start. No others are used. Best first."),
    TEXT(peers, is_peers, "", "empty, or at most 64 of HOST:PORT, comma-separated",
         "Producers' nodes to connect to before the first request."),
    CHOICE(checksum, switch_names, "off", "off or on, also false or true",
           "Make checksums of published blocks; compare them in loads. A part then has one row and its own region."),
    NUMBER(connections_max, "", 1024, 1, 65536,
           "Most connections of peers. Above it, the longest idle one of the host with most is closed. Unproved "
           "connections: a quarter as many more."),
    NUMBER(handshake_timeout_ms, "ms", 1000, 10, 60000, "How long the handshake of a new connection may take."),
    NUMBER(idle_timeout_ms, "ms", 300000, 100, 86400000, "How long an unused connection stays open."),

    NUMBER(lease_slots, "", 16384, 1, 4194304, "Most leases at a time."),
    NUMBER(lease_ttl_ms, "ms", 30000, 100, 3600000, "How long a lease lasts without renewal."),
    NUMBER(lease_max_ms, "ms", 600000, 100, 86400000, "How long a lease lasts at most, with renewals."),
    NUMBER(lease_linger_ms, "ms", 50, 0, 60000,
           "How long a lease stays after its first completed load, for other engines with its ticket. When room is "
           "short, such leases end first. 0: not at all."),
    NUMBER(ticket_version, "", 5, 4, 5,
           "Version of this node's tickets. 4: for decode engines of the previous release, which take no other; one "
           "address per rank, no key."),
    NUMBER(lease_pool_share_percent, "%", 90, 1, 100,
           "Largest share of the engine's pool under lease; a block of several leases counts once."),

    NUMBER(loads_max, "", 4096, 1, 65536, "Most loads at a time."),
    NUMBER(load_timeout_ms, "ms", 30000, 1, 3600000, "How long a load may take."),
    NUMBER(stall_timeout_ms, "ms", 1000, 10, 60000, "How long a read may get no byte before its link has failed."),
    NUMBER(release_timeout_ms, "ms", 5000, 10, 600000,
           "How long reads may go on after their load's outcome; then the node is unhealthy."),
    NUMBER(chunk_bytes, "bytes", 4194304, 4096, 67108864,
           "Largest chunk. A load is split among all threads that can read it."),
    NUMBER(device_chunk_bytes, "bytes", 67108864, 4096, 268435456, "Largest chunk of loads into GPU memory."),
    NUMBER(device_gather_bytes, "bytes", 0, 0, 67108864,
           "Between GPUs, a kernel copies pieces shorter than this on average; the driver copies others in batches. 0: "
           "8388608 within one GPU, 262144 from another."),
    NUMBER(device_gather_blocks, "", 64, 1, 1024, "Most thread blocks of that kernel."),
    NUMBER(device_gather_threads, "", 512, 32, 512, "Threads per thread block, in whole warps of 32."),
    NUMBER(copy_threads, "", 2, 1, 64, "Threads that copy blocks over local."),
    NUMBER(inline_bytes, "bytes", 65536, 0, 1048576,
           "Reads up to this size come first, and the caller waits. Over tcp and ucx it does them while it polls; over "
           "local it waits spin_us at most."),
    NUMBER(tcp_streams, "", 2, 1, 16, "tcp connections per peer, each with its own data thread."),
    NUMBER(tcp_buffer_bytes, "bytes", 0, 0, 268435456, "Socket buffers of tcp. 0: the operating system's choice."),
    TEXT(ucx_library, is_free_of_control_characters, "", "a path, or empty",
         "UCX. Empty: the system's libucp.so.0, else PyPI's libucx beside kvferry."),
    TEXT(cuda_library, is_free_of_control_characters, "", "a path, or empty",
         "CUDA's driver, one per process. Empty: the system's libcuda.so.1."),
    NUMBER(spin_us, "us", 50, 0, 1000000, "How long data and copy threads poll for more work before they sleep."),
    TEXT(thread_cpus, is_cpus, "auto", "auto, inherit, or a list like 0-3,8",
         "Where the library's threads run. auto: on all CPUs, copy threads near the registered memory. inherit: on the "
         "CPUs of the thread that opens the node."),
    CHOICE(policy, policy_names, "recompute", "fail, recompute or auto",
           "What to do with a request whose load has failed."),
    NUMBER(auto_max_recompute_tokens, "tokens", 2048, 0, 1000000000, "Most tokens to recompute with policy auto."),
    NUMBER(recompute_budget_tokens_per_s, "tokens/s", 0, 0, 1000000000,
           "How much this engine recomputes; requests above it fail and may be retried. 0: no limit."),

    CHOICE(log_level, log_level_names, "info", "error, warn, info or debug", "How much is logged."),

    /* Options of the release before: constants now, which tests alone set, in the struct. Their names are taken, with
     * any value, for one release. */
    NUMBER(breaker_cooldown_ms, "ms", 500, 1, 600000, ""),
    NUMBER(breaker_cooldown_max_ms, "ms", 10000, 1, 600000, ""),
    NUMBER(backoff_min_ms, "ms", 10, 1, 60000, ""),
    NUMBER(backoff_max_ms, "ms", 1000, 1, 60000, ""),
    NUMBER(chunks_in_flight, "", 4, 1, 64, ""),
};

#define ROWS COUNT_OF(table)
#define GONE_COUNT 5 /* the last: a bit of options_gone each */
#define TABLE_COUNT (ROWS - GONE_COUNT)

/* A switch may be given by JSON's words. */
static const char *word_of_ours(const kvf_option *option, const char *value)
{
  if (option->names == switch_names && (strcmp(value, "true") == 0 || strcmp(value, "false") == 0)) {
    return switch_names[value[0] == 't'];
  }
  return value;
}

/* Writes the option's value into `config`; false, and nothing written, if it is not allowed. */
static bool store(const kvf_option *option, kvf_config *config, const char *value)
{
  char *field = (char *)config + option->offset;
  if (option->is_text != NULL) {
    size_t length = strlen(value);
    if (length >= option->bytes || !option->is_text(value)) {
      return false;
    }
    memset(field, 0, option->bytes);
    memcpy(field, value, length + 1);
    return true;
  }
  uint32_t number = 0;
  if (option->names == NULL) {
    if (!parse_number(value, option->min, option->max, &number)) {
      return false;
    }
  } else {
    value = word_of_ours(option, value);
    int found = find_name(option->names, option->max + 1, value, strlen(value));
    if (found < 0) {
      return false;
    }
    number = (uint32_t)found;
  }
  memcpy(field, &number, option->bytes); /* little-endian: a switch is its first byte */
  return true;
}

/* ---- messages ---- */

static size_t min_size(size_t a, size_t b)
{
  return a < b ? a : b;
}

#define NAME_BYTES_MAX 48 /* longer names are near to none */

/* Levenshtein's distance: insertions, deletions and replacements that make `b` of `a`. */
static size_t distance(const char *a, const char *b)
{
  size_t row[NAME_BYTES_MAX + 1];
  const size_t columns = strlen(b);
  assert(columns <= NAME_BYTES_MAX);
  for (size_t j = 0; j <= columns; j++) {
    row[j] = j;
  }
  for (size_t i = 0; a[i] != 0; i++) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < columns; j++) {
      size_t above = row[j + 1];
      size_t replaced = diagonal + (a[i] != b[j]);
      row[j + 1] = min_size(replaced, 1 + min_size(above, row[j]));
      diagonal = above;
    }
  }
  return row[columns];
}

/* The name that the writer may have meant; NULL if none is near. */
static const char *nearest_name(const char *name)
{
  const char *nearest = NULL;
  size_t nearest_distance = strlen(name) / 2 + 1;
  if (strlen(name) > NAME_BYTES_MAX) {
    return NULL;
  }
  for (size_t i = 0; i < TABLE_COUNT; i++) {
    size_t far = distance(name, table[i].info.name);
    if (far < nearest_distance) {
      nearest = table[i].info.name;
      nearest_distance = far;
    }
  }
  return nearest;
}

static kvf_status say_unknown(const char *name, char *message)
{
  const char *nearest = nearest_name(name);
  return nearest == NULL
             ? kvf_fail(KVF_NOT_FOUND, message, "unknown option \"%.64s\"", name)
             : kvf_fail(KVF_NOT_FOUND, message, "unknown option \"%.64s\": did you mean \"%s\"?", name, nearest);
}

static kvf_status say_bad_value(const kvf_option *option, const char *value, char *message)
{
  return kvf_fail(KVF_INVALID, message, "%s = \"%.64s\" is not allowed: it must be %s%s%s", option->info.name, value,
                  option->info.allowed, option->info.unit[0] == 0 ? "" : " ", option->info.unit);
}

/* ---- public ---- */

void kvf_config_init_bytes(kvf_config *config, size_t struct_bytes)
{
  kvf_config defaults = {.struct_bytes = sizeof(defaults)};
  for (size_t i = 0; i < ROWS; i++) {
    bool stored = store(&table[i], &defaults, table[i].info.initial);
    assert(stored);
    (void)stored;
  }
  memset(config, 0, struct_bytes);
  memcpy(config, &defaults, min_size(struct_bytes, sizeof(defaults)));
  config->struct_bytes = struct_bytes;
}

kvf_status kvf_config_copy(const kvf_config *config, kvf_config *out)
{
  if (config->struct_bytes < offsetof(kvf_config, log_context) + sizeof(config->log_context)) {
    return KVF_INVALID;
  }
  kvf_config_init(out);
  memcpy(out, config, min_size(config->struct_bytes, sizeof(*out)));
  out->struct_bytes = sizeof(*out);
  return KVF_OK;
}

kvf_status kvf_config_set(kvf_config *config, const char *name, const char *value, char message[KVF_MESSAGE_BYTES_MAX])
{
  char unwanted[KVF_MESSAGE_BYTES_MAX];
  message = message == NULL ? unwanted : message;
  if (config == NULL || name == NULL || value == NULL) {
    return kvf_answer_as(kvf_fail(KVF_INVALID, message, "an option needs a name and a value"), message);
  }
  for (size_t i = 0; i < TABLE_COUNT; i++) {
    if (strcmp(table[i].info.name, name) == 0 && table[i].offset + table[i].bytes <= config->struct_bytes) {
      const bool stored = store(&table[i], config, value);
      return kvf_answer_as(stored ? KVF_OK : say_bad_value(&table[i], value, message), message);
    }
  }
  for (size_t i = 0; i < GONE_COUNT; i++) {
    if (strcmp(table[TABLE_COUNT + i].info.name, name) == 0) {
      config->options_gone |= (uint8_t)(1u << i);
      return KVF_OK;
    }
  }
  return kvf_answer_as(say_unknown(name, message), message);
}

void kvf_config_log_gone(const kvf_config *config, const kvf_logger *logger)
{
  for (size_t i = 0; i < GONE_COUNT; i++) {
    if ((config->options_gone & (1u << i)) != 0) {
      kvf_log(
          logger, KVF_LOG_WARN,
          "option %s has no effect any more, and the next release refuses it: it is always %s, which served everybody",
          table[TABLE_COUNT + i].info.name, table[TABLE_COUNT + i].info.initial);
    }
  }
}

/* Whether `text` is fit for a field of the identity. */
static bool is_identity_text(const char *text)
{
  const size_t bytes = text == NULL ? 0 : strnlen(text, KVF_IDENTITY_BYTES_MAX);
  return bytes > 0 && bytes < KVF_IDENTITY_BYTES_MAX && is_free_of_control_characters(text);
}

kvf_status kvf_config_identity(kvf_config *config, const char *name, const char *value)
{
  kvf_status status = KVF_NOT_NULL(config, name, value);
  if (status == KVF_OK && (!is_identity_text(name) || !is_identity_text(value))) {
    status = kvf_because(KVF_INVALID, "%s of the identity's field \"%.64s\": 1 to %d bytes without control characters",
                         is_identity_text(name) ? "value" : "name", name, KVF_IDENTITY_BYTES_MAX - 1);
  }
  if (status != KVF_OK) {
    return kvf_answer(status);
  }
  uint32_t at = 0;
  while (at < config->identity_fields && at < KVF_IDENTITY_FIELDS_MAX && strcmp(config->identity[at].name, name) != 0) {
    at++;
  }
  if (at >= KVF_IDENTITY_FIELDS_MAX) {
    return kvf_answer(kvf_because(KVF_LIMIT, "field \"%s\": the identity has %d fields, KVF_IDENTITY_FIELDS_MAX", name,
                                  KVF_IDENTITY_FIELDS_MAX));
  }
  kvf_identity_field *field = &config->identity[at];
  memset(field, 0, sizeof(*field));
  memcpy(field->name, name, strlen(name));
  memcpy(field->value, value, strlen(value));
  config->identity_fields += at == config->identity_fields;
  return KVF_OK;
}

const kvf_option_info *kvf_option_at(unsigned i)
{
  return i < TABLE_COUNT ? &table[i].info : NULL;
}

/* ---- check ---- */

static kvf_status check_option(const kvf_option *option, const kvf_config *config, char *message)
{
  const char *field = (const char *)config + option->offset;
  char shown[65] = {0};
  if (option->is_text != NULL) {
    memcpy(shown, field, strnlen(field, min_size(option->bytes, sizeof(shown) - 1)));
    return memchr(field, 0, option->bytes) != NULL && option->is_text(field) ? KVF_OK
                                                                             : say_bad_value(option, shown, message);
  }
  uint32_t number = 0;
  memcpy(&number, field, option->bytes);
  (void)snprintf(shown, sizeof(shown), "%u", number);
  return number >= option->min && number <= option->max ? KVF_OK : say_bad_value(option, shown, message);
}

static kvf_status check_identity(const kvf_config *config, char *message)
{
  bool has_block_tokens = false;
  for (uint32_t i = 0; i < config->identity_fields; i++) {
    if (i >= KVF_IDENTITY_FIELDS_MAX || !is_identity_text(config->identity[i].name) ||
        !is_identity_text(config->identity[i].value)) {
      return kvf_fail(KVF_INVALID, message, "the identity's fields are to be set by kvf_config_identity()");
    }
    has_block_tokens = has_block_tokens || strcmp(config->identity[i].name, "block_tokens") == 0;
  }
  return config->identity_fields < KVF_IDENTITY_FIELDS_MAX || has_block_tokens
             ? KVF_OK
             : kvf_fail(KVF_INVALID, message, "too many fields of the identity: the node adds block_tokens");
}

static kvf_status check_group_tokens(const kvf_config *config, char *message)
{
  uint32_t tokens[KVF_GROUPS_MAX];
  const uint32_t groups = kvf_group_tokens_parse(config->group_block_tokens, tokens);
  for (uint32_t group = 0; group < groups; group++) {
    if (tokens[group] > 0 && config->block_tokens % tokens[group] != 0) {
      return kvf_fail(KVF_INVALID, message, "block_tokens = %u is not a multiple of all of group_block_tokens = %s",
                      config->block_tokens, config->group_block_tokens);
    }
  }
  return KVF_OK;
}

#define ORDER(smaller, larger) {#smaller, #larger, config->smaller, config->larger}

kvf_status kvf_config_check(const kvf_config *config, char *message)
{
  char unwanted[KVF_MESSAGE_BYTES_MAX];
  message = message == NULL ? unwanted : message;
  const struct {
    const char *smaller;
    const char *larger;
    uint32_t smaller_value;
    uint32_t larger_value;
  } orders[] = {
      ORDER(backoff_min_ms, backoff_max_ms),
      ORDER(breaker_cooldown_ms, breaker_cooldown_max_ms),
      ORDER(lease_ttl_ms, lease_max_ms),
      {"rank", "ranks - 1", config->rank, config->ranks - 1},
  };
  kvf_status status = KVF_OK;
  for (size_t i = 0; i < ROWS && status == KVF_OK; i++) {
    status = check_option(&table[i], config, message);
  }
  for (size_t i = 0; i < COUNT_OF(orders) && status == KVF_OK; i++) {
    if (orders[i].smaller_value > orders[i].larger_value) {
      status = kvf_fail(KVF_INVALID, message, "%s = %u is not allowed: it must be at most %s, which is %u",
                        orders[i].smaller, orders[i].smaller_value, orders[i].larger, orders[i].larger_value);
    }
  }
  if (status == KVF_OK && (parse_transports(config->require) & ~parse_transports(config->transports)) != 0) {
    status = kvf_fail(KVF_INVALID, message, "require = \"%s\" is not allowed: transports = \"%s\" must name them too",
                      config->require, config->transports);
  }
  if (status == KVF_OK) {
    status = check_group_tokens(config, message);
  }
  return status == KVF_OK ? check_identity(config, message) : status;
}
