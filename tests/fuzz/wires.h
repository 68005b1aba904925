/* Control connections of a core, without sockets: what comes is cut as the target says and goes through the runtime's
 * own framing; what the core sends must be whole, well-formed frames. recv() is the target's (`wrap` in meson.build).
 */
#ifndef KVF_TESTS_FUZZ_WIRES_H
#define KVF_TESTS_FUZZ_WIRES_H

#include "core/core.h"
#include "fuzz.h"
#include "runtime/control_socket.h"

#define MS KVF_NS_PER_MS
#define WIRES_MAX 8

typedef struct wire {
  uint64_t conn_id; /* 0: not in use */
  kvf_control_socket *socket;
  bool has_key;       /* who is at the other end: the target's to say, and never the core's to find otherwise */
  uint64_t out_bytes; /* all that the core has sent here */
  uint64_t limit;     /* the largest frame body that it could send so far */

  /* The handshake as it has gone by. */
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  size_t hello_bytes;
  uint8_t challenge[KVF_CHALLENGE_BYTES_MAX];
  size_t challenge_bytes;
  uint8_t proof[KVF_PROOF_BYTES_MAX];
  size_t proof_bytes;
  bool welcomed;
  bool is_other; /* who answers is not the process that was dialed */
} wire;

typedef struct wires {
  kvf_core *core;
  uint64_t now_ns;
  wire list[WIRES_MAX];
  /* A frame that is about to reach the core (may be NULL); a frame that it sends; it has done something: take effects
   * and events. */
  void (*on_in)(wire *from, kvf_frame_type type, const uint8_t *body, size_t bytes);
  void (*on_out)(wire *to, kvf_frame_type type, const uint8_t *body, size_t bytes);
  void (*settle)(void);
} wires;

/* A place for a connection with this id; NULL if all are taken. */
wire *wires_add(wires *all, uint64_t conn_id, bool has_key);
/* Takes the core's effects, output and events until there is nothing more. */
void wires_settle(wires *all);
/* The other end sends this frame; each recv() gives `cut` bytes of it at most (0: as many as there is room for). */
void wires_feed_frame(wires *all, wire *from, kvf_frame_type type, const void *body, size_t bytes, size_t cut);
/* The same, of a message. */
#define WIRES_SEND(all, from, type, name, message, cut)                                           \
  do {                                                                                            \
    static uint8_t encoded[WIRES_BODY_BYTES_MAX];                                                 \
    size_t encoded_bytes = 0;                                                                     \
    fuzz_check(kvf_##name##_encode(message, encoded, sizeof(encoded), &encoded_bytes) == KVF_OK); \
    wires_feed_frame(all, from, type, encoded, encoded_bytes, cut);                               \
  } while (0)
#define WIRES_BODY_BYTES_MAX 65536 /* of a message that a target sends */
/* What the tape says, of at most WIRES_ANY_BYTES: a frame of any type and body, or any bytes at all. */
#define WIRES_ANY_BYTES 2048
void wires_feed_any(wires *all, wire *from, fuzz_tape *tape, size_t cut, bool is_frame);
/* One that is in use, or NULL. */
wire *wires_choose(wires *all, fuzz_tape *tape);
/* The other end closes. */
void wires_close(wires *all, wire *from);
void wires_close_all(wires *all);

/* ---- a node for them ---- */

/* Options with small limits and short times; `key` may be empty. */
void wires_core_config(kvf_core_config *out, const char *key, uint8_t name);
/* One group, WIRES_BLOCKS blocks of WIRES_BLOCK_BYTES; transport "tcp". */
#define WIRES_BLOCKS 16
#define WIRES_BLOCK_BYTES 64
extern const kvf_region_layout wires_region;
void wires_set_memory(kvf_core *core);

#endif
