/* Somebody who connects to a node's control port and speaks its protocol, well or badly. Each call fails the test if it
 * takes longer than ten seconds. Bytes and frames are sent and received by ../sides/tcp_peer.h. */
#ifndef KVF_TESTS_STRANGER_H
#define KVF_TESTS_STRANGER_H

#include "../sides/tcp_peer.h"
#include "kvferry/kvferry.h"
#include "wire/handshake_message.h"
#include "wire/rank_record.h"

typedef struct stranger {
  int fd;
  kvf_key key;
  char name[32]; /* "127.0.0.1:PORT", as the node sees it */
  uint8_t role;
  uint8_t hello[KVF_HELLO_BYTES_MAX];
  size_t hello_bytes;
  uint8_t challenge[KVF_CHALLENGE_BYTES_MAX];
  size_t challenge_bytes;
  uint64_t session_id; /* an open session's */
  kvf_address data;    /* where the producer's data port is, as it was told */
} stranger;

/* How the node says that it is reached. */
kvf_rank_record stranger_record(kvf_node *node);
/* A connected descriptor; -1: refused. */
int stranger_dial(kvf_node *node);
/* Connects; `key` may be NULL. */
void stranger_connect(stranger *s, kvf_node *node, const char *key);
void stranger_close(stranger *s);
/* Closes in such a way that the node gets a reset. */
void stranger_reset(stranger *s);

/* The steps of the handshake. */
void stranger_hello(stranger *s);
void stranger_challenge(stranger *s);
/* `model` is the one identity field besides block_tokens. */
void stranger_proof(stranger *s, const char *model, uint32_t block_tokens);
/* All of them: an open session. */
void stranger_shake_hands(stranger *s);
/* The same, and connects first. */
void stranger_open(stranger *s, kvf_node *node, const char *key);
kvf_key stranger_session_key(const stranger *s);
/* Another stranger, at the data port that an open session was told of. */
stranger stranger_connect_data(const stranger *session);

/* The node says why it hangs up, and does. */
kvf_refused stranger_expect_refused(stranger *s);

/* A file that holds this text, to be unlinked by the caller; `path` has room for 64 bytes. */
void stranger_key_file(const char *key, char path[64]);

#endif
