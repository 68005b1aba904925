/* A proxy between the nodes of this process and those that they dial: it forwards, until its plan says otherwise.
 * Linked with --wrap=kvf_socket_connect: while it is armed, every new connection runs through it. One proxy a process.
 */
#ifndef KVF_TESTS_HOSTILE_PROXY_H
#define KVF_TESTS_HOSTILE_PROXY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum proxy_mode {
  PROXY_PASS,
  PROXY_RESET,   /* both sides get a reset */
  PROXY_CLOSE,   /* both sides get the end of the stream */
  PROXY_GARBAGE, /* from there on other bytes, for ever */
  PROXY_VANISH,  /* nothing is taken or given any more, on any connection, and no end is seen */
  PROXY_DRIP     /* one byte in 10 ms */
} proxy_mode;

typedef enum proxy_line { PROXY_CONTROL, PROXY_DATA } proxy_line;

/* What happens to each connection of `line` after so many bytes in that direction. */
typedef struct proxy_plan {
  proxy_mode mode;
  proxy_line line;
  bool to_consumer; /* counts, and harms, what the producer says; else what the consumer says */
  uint64_t after_bytes;
} proxy_plan;

void proxy_start(void);
void proxy_stop(void);
/* New connections run through it; `control_port` is the producer's. */
void proxy_arm(uint16_t control_port);
/* They do not any more; those that are open are closed. */
void proxy_disarm(void);
void proxy_set(const proxy_plan *plan);
/* How often the plan's moment has come since it was set. */
unsigned proxy_count(void);

#endif
