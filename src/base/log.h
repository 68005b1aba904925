/* Log lines: formatted, bounded, clean of control characters, limited in rate. Writing them somewhere is the sink's. */
#ifndef KVF_BASE_LOG_H
#define KVF_BASE_LOG_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>

#include "kvferry/config.h"
#include "kvferry/types.h"

/* Where lines go. fn NULL: nowhere. Copy it freely. */
typedef struct kvf_logger {
  kvf_log_fn fn;
  void *context;
  kvf_log_level level; /* the most talkative level that is written */
} kvf_logger;

/* Writes one line. Too long a line ends in "...". Control characters, which a peer's text may hold, become '?', so that
 * no peer can begin a line of its own or steer a terminal. Not under a lock that the sink may take. */
__attribute__((format(printf, 3, 4))) void kvf_log(const kvf_logger *logger, kvf_log_level level, const char *format,
                                                   ...);

/* Replaces control characters of `text` in place. */
void kvf_log_clean(char *text);

/* A request, as lines speak of it. */
typedef struct kvf_log_request {
  uint64_t id;      /* 0: it has none yet */
  const char *name; /* the engine's; NULL or empty: none */
} kvf_log_request;

typedef struct kvf_log_prefix {
  char text[KVF_REQUEST_NAME_BYTES_MAX + 48];
} kvf_log_prefix;

/* How lines about it begin: "request cmpl-8cf8 (3): ", "request 3: ", "request cmpl-8cf8: ", or "". */
kvf_log_prefix kvf_log_request_prefix(kvf_log_request request);

/* Copies a name that a client may have chosen: one that is too long ends in "...", control characters become '?'.
 * NULL: an empty one. */
void kvf_log_copy_name(char out[KVF_REQUEST_NAME_BYTES_MAX], const char *name);

#define KVF_LOG_LIMIT_SLOTS 64

typedef struct kvf_log_limit_slot {
  uint32_t key;
  uint64_t second_began_ns;
  uint32_t written; /* lines since then */
  uint32_t left_out;
} kvf_log_limit_slot;

/* Bounds the lines per second and key, and those of all keys to KVF_LOG_LIMIT_SLOTS times as many. Of keys that are
 * equal modulo KVF_LOG_LIMIT_SLOTS one at a time is counted: the first line of each is always written. All but
 * lines_per_s is 0 at first. */
typedef struct kvf_log_limit {
  uint32_t lines_per_s;
  kvf_log_limit_slot all;
  kvf_log_limit_slot slots[KVF_LOG_LIMIT_SLOTS];
} kvf_log_limit;

/* Whether a line of `key` may be written now. If so *left_out is how many were not since the last one that was; else it
 * is unchanged. */
bool kvf_log_limit_allows(kvf_log_limit *limit, uint32_t key, uint64_t now_ns, uint32_t *left_out);

#endif
