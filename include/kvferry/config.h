/* kvferry/config.h: options of a node.
 *
 * Options are set by name and text, so that a C program, a JSON object and a command line share one table. That table
 * is docs/options.md, with the defaults; kvf_option_at() returns its rows. A kvf_config is plain memory of the caller:
 * copy it, put it on the stack. Only one thread at a time may use it.
 */
#ifndef KVFERRY_CONFIG_H
#define KVFERRY_CONFIG_H

#include "kvferry/types.h"

KVF_C_BEGIN

typedef enum kvf_log_level { KVF_LOG_ERROR, KVF_LOG_WARN, KVF_LOG_INFO, KVF_LOG_DEBUG } kvf_log_level;

/* Takes one log line (no newline). `line` is valid until the call returns. A thread that does nothing else calls it,
 * one line at a time. While it blocks, 1024 lines wait; more are dropped (kvf_node_stats(): log_lines_dropped). Only
 * kvf_node_close() waits for it. It must not call the library. */
typedef void (*kvf_log_fn)(void *context, kvf_log_level level, const char *line);

/* ---- log lines that a thread of the program takes ---- */

/* For a program whose log has its own lock, for example an interpreter: no thread of the library calls the program. One
 * queue may serve all nodes of a process (kvf_config.log_queue). It has room for 1024 lines. More lines are dropped,
 * and one line says how many. If the program takes no line for KVF_LOG_QUEUE_UNTAKEN_MS, waiting lines go to standard
 * error, with their time (UTC) and the process id. */
typedef struct kvf_log_queue kvf_log_queue;

#define KVF_LOG_LINE_BYTES_MAX 512    /* with its terminating zero */
#define KVF_LOG_QUEUE_UNTAKEN_MS 1000 /* while no line is taken */

/* On success *out is the caller's, for kvf_log_queue_close(). KVF_INVALID: `out` is NULL. KVF_NO_MEMORY. KVF_SYSTEM:
 * the system starts no thread. */
KVF_API KVF_MUST_USE kvf_status kvf_log_queue_open(kvf_log_queue **out);

/* Call it after all its nodes are closed, and while no other call of the queue is under way. Lines that are left go to
 * standard error. Has no effect in a forked child. NULL is allowed. */
KVF_API void kvf_log_queue_close(kvf_log_queue *queue);

/* Waits until there is a line, at most timeout_ms, and leaves the line there. False: there is none yet. Only the thread
 * that takes the lines may call it: with this call the line taken before counts as written. */
KVF_API KVF_MUST_USE bool kvf_log_queue_wait(kvf_log_queue *queue, uint32_t timeout_ms);

/* Takes the next line (no newline). Does not wait. False: there is none. */
KVF_API KVF_MUST_USE bool kvf_log_queue_take(kvf_log_queue *queue, kvf_log_level *level,
                                             char line[KVF_LOG_LINE_BYTES_MAX]);

typedef enum kvf_policy { KVF_POLICY_FAIL, KVF_POLICY_RECOMPUTE, KVF_POLICY_AUTO } kvf_policy;

/* The connections that are inside TLS 1.3, with the shared key as PSK. All engines need the same setting. */
typedef enum kvf_tls_scope { KVF_TLS_OFF_LOOPBACK, KVF_TLS_ALWAYS, KVF_TLS_NEVER } kvf_tls_scope;

/* The origin of a node's listen address; kvf_address_choose() sets it. */
typedef enum kvf_listen_source {
  KVF_LISTEN_UNSAID, /* kvf_address_choose() was not called: the log says nothing of it */
  KVF_LISTEN_OPTION,
  KVF_LISTEN_VARIABLE,        /* KVFERRY_LISTEN */
  KVF_LISTEN_NIXL,            /* VLLM_NIXL_SIDE_CHANNEL_HOST; if its port is in use, a later one or any */
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

/* Set the fields with kvf_config_set() and kvf_config_identity(). A program may read them. New fields are added at the
 * end. */
typedef struct kvf_config {
  size_t struct_bytes; /* kvf_config_init() sets it */

  /* The engine. */
  uint32_t rank;         /* this node's rank in its engine; of no meaning to a control node */
  uint32_t ranks;        /* ranks of the engine */
  uint32_t block_tokens; /* tokens of a block; blocks pair by token position */
  /* block_tokens of each KV group, comma-separated. Empty: all groups have block_tokens. The option block_tokens must
   * be a multiple of each. 0: the group is a state, one block for all tokens of a lease. If all groups are states,
   * block_tokens must be at least the longest prompt. */
  char group_block_tokens[KVF_IDENTITY_BYTES_MAX];
  uint32_t identity_fields;
  kvf_identity_field identity[KVF_IDENTITY_FIELDS_MAX];

  /* The network. */
  /* "HOST", "HOST:PORT", "V6", "[V6]:PORT", or "HOST:PORT-PORT" for the first free port. HOST may be an interface: then
   * its IPv4 address is taken, or without one its IPv6 address. HOST may be a network ("10.0.0.0/8"): then the one
   * address in it is taken. Empty: take no connections (a control node, a rank that only loads). */
  char listen[KVF_HOST_BYTES_MAX];
  char advertise[KVF_HOST_BYTES_MAX];  /* the address that tickets name; empty: the listen address */
  char key_file[KVF_PATH_BYTES_MAX];   /* file with the shared key, and perhaps a second key that is accepted too;
                                          empty: no key, loopback only */
  kvf_tls_scope tls;                   /* of control connections and tcp's data; has no effect without a key */
  char transports[KVF_HOST_BYTES_MAX]; /* comma-separated, best first: "local,tcp" */
  char require[KVF_HOST_BYTES_MAX];    /* those of `transports` that must be usable; no other is used; empty: any */
  char peers[KVF_PATH_BYTES_MAX];      /* comma-separated HOST:PORT that the node connects to by itself; empty: none */
  bool checksum;                       /* make checksums of own blocks, and ask for those of loaded blocks */
  uint8_t options_gone;                /* no option: a bit for each option that was set and has no effect any more */
  uint32_t connections_max;
  uint32_t handshake_timeout_ms;
  uint32_t idle_timeout_ms;
  uint32_t breaker_cooldown_ms;     /* no option: time from a peer's failure to its first probe */
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
  kvf_log_fn log; /* NULL: standard error; kvf_node_close() waits one second for it at most */
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
  /* No option: a second address, of the other family, without a port; kvf_address_choose() sets it. If the node cannot
   * listen there, it starts without it. */
  char listen_other[KVF_HOST_BYTES_MAX];

  char data_ports[KVF_PORTS_BYTES_MAX]; /* "PORT" or "PORT-PORT": the range of tcp's data ports; empty: any */
  uint32_t ticket_version;              /* version of own tickets: 5, or 4 for consumers of the release before */

  /* No option. If not NULL, all lines go to this queue, and none to `log`. kvf_node_close() waits two seconds at most
   * until they are taken or written to standard error. The queue must outlive the node. */
  kvf_log_queue *log_queue;
} kvf_config;

/* Fills `config`, which is `struct_bytes` bytes long, with the defaults of the option table. */
KVF_API void kvf_config_init_bytes(kvf_config *config, size_t struct_bytes);

/* Fills a config of this header's length. So a compiled program also runs with a later library, whose config is longer.
 */
static inline void kvf_config_init(kvf_config *config)
{
  kvf_config_init_bytes(config, sizeof(*config));
}

/* Sets one option from text. On failure `config` is unchanged. `message` (may be NULL) then names the option, its value
 * and the allowed values: show it to the author of the configuration. An option that has lost its effect is accepted
 * for one more release, with any value, and kvf_node_open() logs a warning.
 * KVF_NOT_FOUND: the option does not exist, or is newer than the header that the program was compiled with.
 * KVF_INVALID: the value is not allowed. */
KVF_API KVF_MUST_USE kvf_status kvf_config_set(kvf_config *config, const char *name, const char *value,
                                               char message[KVF_MESSAGE_BYTES_MAX]);

/* Adds one field to the node's identity, for example "dtype" = "float32". Two nodes with different fields refuse each
 * other with KVF_INCOMPATIBLE. The message names the first field that differs; for a ticket, the consumer's log does.
 *
 * Add a field for each property that decides how the bytes of a block are interpreted. Such properties are: model and
 * its revision, dtype, quantization and scales, the order of layers and heads, the kernel's layout. A missing field can
 * cause wrong answers without any error.
 *
 * Names and values are text without control characters, shorter than KVF_IDENTITY_BYTES_MAX bytes. Setting a name again
 * replaces its value.
 * KVF_INVALID: empty, too long, or with a control character. KVF_LIMIT: more than KVF_IDENTITY_FIELDS_MAX fields;
 * kvf_node_open() needs one of them for its own field "block_tokens". */
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
