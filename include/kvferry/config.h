/* kvferry/config.h: options of a node.
 *
 * Options are set by name and text, so that a C program, a JSON object and a command line share one table
 * (docs/options.md, with the defaults, is checked against it; kvf_option_at() has them too). A kvf_config is plain
 * memory of the caller's: copy it, put it on the stack. Not for use by several threads at once.
 */
#ifndef KVFERRY_CONFIG_H
#define KVFERRY_CONFIG_H

#include "kvferry/types.h"

KVF_C_BEGIN

typedef enum kvf_log_level { KVF_LOG_ERROR, KVF_LOG_WARN, KVF_LOG_INFO, KVF_LOG_DEBUG } kvf_log_level;

/* Takes one log line (no newline); `line` lives until the call returns. Called by a thread that does nothing else, one
 * line at a time. While it blocks, 1024 lines wait and more are dropped (kvf_node_stats(): log_lines_dropped); nothing
 * else waits for it but kvf_node_close(). Must not call the library. */
typedef void (*kvf_log_fn)(void *context, kvf_log_level level, const char *line);

/* ---- log lines that a thread of the program takes ---- */

/* For a program whose log has a lock of its own, as an interpreter's: no thread of the library calls it. One queue may
 * serve all nodes of a process (kvf_config.log_queue). It has room for 1024 lines; more are dropped, and a line says
 * how many. What nobody takes for KVF_LOG_QUEUE_UNTAKEN_MS goes to standard error, with its time (UTC) and the process.
 */
typedef struct kvf_log_queue kvf_log_queue;

#define KVF_LOG_LINE_BYTES_MAX 512    /* with its terminating zero */
#define KVF_LOG_QUEUE_UNTAKEN_MS 1000 /* while no line is taken */

/* KVF_INVALID: `out` is NULL. KVF_NO_MEMORY. KVF_SYSTEM: no thread. */
KVF_API KVF_MUST_USE kvf_status kvf_log_queue_open(kvf_log_queue **out);

/* When all its nodes are closed, and nobody is in another call of it. Lines that are left go to standard error. Without
 * effect in a forked child; NULL is allowed. */
KVF_API void kvf_log_queue_close(kvf_log_queue *queue);

/* Waits until there is a line, and leaves it there. False: there is none yet. For one thread, that takes the lines: one
 * that it has taken before counts as written now. */
KVF_API KVF_MUST_USE bool kvf_log_queue_wait(kvf_log_queue *queue, uint32_t timeout_ms);

/* Takes the next line (no newline). Never waits for one. False: there is none. */
KVF_API KVF_MUST_USE bool kvf_log_queue_take(kvf_log_queue *queue, kvf_log_level *level,
                                             char line[KVF_LOG_LINE_BYTES_MAX]);

typedef enum kvf_policy { KVF_POLICY_FAIL, KVF_POLICY_RECOMPUTE, KVF_POLICY_AUTO } kvf_policy;

/* Which connections are inside TLS 1.3, with the shared key as PSK. All engines must say the same. */
typedef enum kvf_tls_scope { KVF_TLS_OFF_LOOPBACK, KVF_TLS_ALWAYS, KVF_TLS_NEVER } kvf_tls_scope;

/* Why a node listens where it does; kvf_address_choose() sets it. */
typedef enum kvf_listen_source {
  KVF_LISTEN_UNSAID, /* nobody has asked: nothing is said of it either */
  KVF_LISTEN_OPTION,
  KVF_LISTEN_VARIABLE,        /* KVFERRY_LISTEN */
  KVF_LISTEN_NIXL,            /* VLLM_NIXL_SIDE_CHANNEL_HOST; its port is a wish: a later one does as well, or any */
  KVF_LISTEN_ROUTE,           /* the default route's address */
  KVF_LISTEN_NO_ROUTE,        /* loopback */
  KVF_LISTEN_NO_KEY,          /* loopback */
  KVF_LISTEN_NO_KEY_FOR_NIXL, /* loopback */
} kvf_listen_source;

#define KVF_PATH_BYTES_MAX 1024
#define KVF_HOST_BYTES_MAX 64
#define KVF_CPUS_BYTES_MAX 256
#define KVF_TRANSPORTS_MAX 4
#define KVF_LISTEN_PORTS_MAX 1024 /* of a range, also of data_ports */
#define KVF_PORTS_BYTES_MAX 16

typedef struct kvf_identity_field {
  char name[KVF_IDENTITY_BYTES_MAX];
  char value[KVF_IDENTITY_BYTES_MAX];
} kvf_identity_field;

/* Fields are set by kvf_config_set() and kvf_config_identity(); reading them is fine, what is
 * new comes at the end. */
typedef struct kvf_config {
  size_t struct_bytes; /* kvf_config_init() sets it */

  /* The engine. */
  uint32_t rank;         /* this node's rank in its engine; of no meaning to a control node */
  uint32_t ranks;        /* ranks of the engine */
  uint32_t block_tokens; /* tokens of a block; blocks pair by token position */
  /* The same by KV group, comma-separated, where they differ: block_tokens is then a multiple of each. 0: a state, one
     block of a lease, which stands for all of its tokens; where there is nothing but states, block_tokens is no less
     than the longest prompt. Empty: all groups are alike */
  char group_block_tokens[KVF_IDENTITY_BYTES_MAX];
  uint32_t identity_fields;
  kvf_identity_field identity[KVF_IDENTITY_FIELDS_MAX];

  /* The network. */
  char listen[KVF_HOST_BYTES_MAX];     /* "HOST", "HOST:PORT", "V6", "[V6]:PORT", "HOST:PORT-PORT": the first that is
                                          free; for HOST also an interface, whose IPv4 address it is, or where it has
                                          none the IPv6 one, or a network ("10.0.0.0/8"), for the one address in it;
                                          empty: take no connections (a control node, a rank that only loads) */
  char advertise[KVF_HOST_BYTES_MAX];  /* the address that tickets name; empty: the listen address */
  char key_file[KVF_PATH_BYTES_MAX];   /* file with the shared key, and maybe one that is accepted too; empty: none,
                                          loopback only */
  kvf_tls_scope tls;                   /* control and tcp's data; without a key there is none */
  char transports[KVF_HOST_BYTES_MAX]; /* comma-separated, best first: "local,tcp" */
  char require[KVF_HOST_BYTES_MAX];    /* of them, those that must be usable, and no other is used; empty: any */
  char peers[KVF_PATH_BYTES_MAX]; /* comma-separated HOST:PORT: connected to on the node's own account; empty: none */
  bool checksum;                  /* blocks travel with checksums: made here for others, and wanted of others */
  uint8_t options_gone;           /* no option: a bit for each that was set and has no effect any more */
  uint32_t connections_max;
  uint32_t handshake_timeout_ms;
  uint32_t idle_timeout_ms;
  uint32_t breaker_cooldown_ms;     /* no option: after a peer has failed, how long until it is probed first */
  uint32_t breaker_cooldown_max_ms; /* no option: longest time between two probes of a failed peer */

  /* Producer. */
  uint32_t lease_slots;
  uint32_t lease_ttl_ms;
  uint32_t lease_max_ms;
  uint32_t lease_pool_share_percent;

  /* Consumer. */
  uint32_t loads_max;
  uint32_t load_timeout_ms;
  uint32_t stall_timeout_ms;
  uint32_t release_timeout_ms;
  uint32_t backoff_min_ms; /* no option: wait before the first retry of a load */
  uint32_t backoff_max_ms; /* no option: longest wait between two retries of a load */
  uint32_t chunk_bytes;
  uint32_t chunks_in_flight; /* no option: chunks that one load reads from one peer at a time */
  uint32_t copy_threads;
  uint32_t inline_bytes;
  uint32_t tcp_streams;
  uint32_t tcp_buffer_bytes;
  char ucx_library[KVF_PATH_BYTES_MAX];
  uint32_t spin_us;
  char thread_cpus[KVF_CPUS_BYTES_MAX]; /* "auto" or empty, "inherit", or a list of CPUs */
  kvf_policy policy;
  uint32_t auto_max_recompute_tokens;
  uint32_t recompute_budget_tokens_per_s;

  kvf_log_level log_level;
  kvf_log_fn log; /* NULL: standard error, for which kvf_node_close() waits a second at most */
  void *log_context;

  /* GPUs. */
  char cuda_library[KVF_PATH_BYTES_MAX];
  uint32_t device_chunk_bytes;
  uint32_t device_gather_bytes;
  uint32_t device_gather_blocks;
  uint32_t device_gather_threads;

  /* Producer. The structure grows at its end. */
  uint32_t lease_linger_ms;

  kvf_listen_source listen_source; /* no option */
  /* No option: a second address, of the other family, without a port; kvf_address_choose() sets it. A node does without
   * if it must. */
  char listen_other[KVF_HOST_BYTES_MAX];

  char data_ports[KVF_PORTS_BYTES_MAX]; /* "PORT" or "PORT-PORT", that tcp's data ports are taken from; empty: any */
  uint32_t ticket_version;              /* that a producer writes: 5, or 4, which the release before reads */

  /* No option. If it is not NULL, all lines go there and none to `log`, and kvf_node_close() waits until they are
   * taken, or written to standard error: two seconds at most. It outlives the node. */
  kvf_log_queue *log_queue;
} kvf_config;

/* Fills `config`, which is `struct_bytes` long, with the defaults of the option table. */
KVF_API void kvf_config_init_bytes(kvf_config *config, size_t struct_bytes);

/* The same for a config as this header has it: a program goes on with a later library, whose config is longer. */
static inline void kvf_config_init(kvf_config *config)
{
  kvf_config_init_bytes(config, sizeof(*config));
}

/* Sets one option from text. On failure `config` is unchanged, and `message` (may be NULL) names the option, the value
 * and what is allowed: show it to the person who wrote the configuration. KVF_NOT_FOUND: no such option, or the program
 * was compiled before there was. KVF_INVALID: the value. An option that has no effect any more is taken for one
 * release, whatever its value, and kvf_node_open() logs a warning. */
KVF_API KVF_MUST_USE kvf_status kvf_config_set(kvf_config *config, const char *name, const char *value,
                                               char message[KVF_MESSAGE_BYTES_MAX]);

/* Adds one field to what the same bytes mean ("dtype" = "float32"): two nodes whose fields differ refuse each other
 * with KVF_INCOMPATIBLE, and the message, or for a ticket the consumer's log, names the first field that differs. Name
 * all that the bytes of a block depend on: model and its revision, dtype, quantization and scales, the order of layers
 * and heads, the kernel's layout. What is left out can give wrong answers, and nothing would say so. Both
 * names and values are text of fewer than KVF_IDENTITY_BYTES_MAX bytes without control characters; setting a name again
 * replaces its value.
 * KVF_INVALID: empty, too long, or with a control character. KVF_LIMIT: more than KVF_IDENTITY_FIELDS_MAX fields;
 * kvf_node_open() needs room for one of its own, "block_tokens". */
KVF_API KVF_MUST_USE kvf_status kvf_config_identity(kvf_config *config, const char *name, const char *value);

typedef struct kvf_option_info {
  const char *name;
  const char *unit;    /* "ms", "bytes", "" */
  const char *initial; /* the default, as text */
  const char *allowed; /* for a person: "1 to 64" */
  const char *meaning; /* one sentence */
} kvf_option_info;

/* The i-th option, NULL past the last: for documents and `--help`. Static memory; any thread. */
KVF_API const kvf_option_info *kvf_option_at(unsigned i);

KVF_C_END
#endif
