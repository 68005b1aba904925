/* The other side of a connection, as a test wants it: a blocking socket that speaks the frames of the tcp transport or
 * of a node's control port, well or badly, or anything else. Each call fails the test if it takes longer than ten
 * seconds. */
#ifndef KVF_TESTS_SIDES_PEER_H
#define KVF_TESTS_SIDES_PEER_H

#include <sys/socket.h>

#include "side.h"
#include "wire/data_message.h"
#include "wire/frame.h"
#include "wire/handshake_message.h"

/* ---- ports ---- */

/* A port of 127.0.0.1, or of ::1, for somebody who must be told one, or that is to stay closed. It is held by a socket
 * that is bound and does not listen: the system gives it to nobody else, and only who names it may listen there, as
 * SO_REUSEADDR of both allows. */
typedef struct held_port {
  int fd; /* close it; < 0: there is none */
  uint16_t port;
  char address[24];
} held_port;

held_port hold_port_of(sa_family_t family);
held_port hold_port(void);

/* ---- bytes and frames ---- */

void peer_send(int fd, const void *data, size_t bytes);
void peer_receive(int fd, void *data, size_t bytes);
void peer_send_frame(int fd, kvf_frame_type type, const void *body, size_t body_bytes);
/* The next frame, which must be of this type and fit. Returns the size of its body. */
size_t peer_receive_frame(int fd, kvf_frame_type type, void *body, size_t capacity);
/* Closes in such a way that the other side gets a reset. */
void peer_reset(int fd);
/* The other side has closed, or will within the patience; what it still had to say is thrown away. */
void peer_expect_closed(int fd);
/* The other side has nothing to say for this long, and has not closed. */
void peer_expect_silence(int fd, int ms);

/* Where those that connect from now on come from; NULL: 127.0.0.1. */
extern const char *peer_from;

/* ---- a consumer ---- */

/* Layers (regions) that reads ask for. */
extern uint32_t peer_layers;

/* Connects to the port that the description, one rail's, names. */
int peer_connect(const void *description, size_t description_bytes);
/* The first data port that the description, a node's, names. */
kvf_address peer_data_port(const void *description, size_t description_bytes);
/* Takes the challenge and shows this proof of the session's key. */
void peer_hello(int fd, uint64_t session_id, const kvf_key *session_key);
/* The whole handshake. */
int peer_connect_proved(const kvf_link_spec *spec);
/* The whole handshake; false: the proof was right, and the other side has closed. Then *fd is nothing. */
bool peer_try(const kvf_link_spec *spec, int *fd);
void peer_send_read(int fd, uint64_t read_id, const kvf_lease *lease, const kvf_transfer_item *items, uint32_t count);
void peer_send_cancel(int fd, uint64_t read_id);
kvf_data_chunk peer_receive_chunk(int fd);
kvf_data_trailer peer_receive_trailer(int fd);

/* ---- a producer ---- */

int peer_accept(int listener);
/* Sends a challenge; checks the client's proof. Returns what a producer with the key answers. */
kvf_data_ready peer_challenge(int fd, const kvf_link_spec *spec);
/* Receives a READ; *items has room for `capacity`. */
kvf_data_read peer_receive_read(int fd, kvf_transfer_item *items, uint32_t capacity);
void peer_send_chunk(int fd, uint64_t read_id, int32_t status, uint64_t payload_bytes);
void peer_send_trailer(int fd, uint64_t read_id, uint64_t word, uint64_t digest);

/* ---- a consumer under test, and the producer that the test plays for it ---- */

#define CONSUMER_BLOCKS 96 /* as many as the reads of a test */
#define CONSUMER_BLOCK_BYTES UINT64_C(65536)

typedef struct tcp_consumer {
  side one;
  side_introduction introduction; /* of the played producer */
  kvf_link_spec spec;
  int listener;
  kvf_link *link;
  uint64_t user; /* of the last link, whose record outlives it */
  int fd;        /* the producer's end; -1: none */
} tcp_consumer;

tcp_consumer *tcp_consumer_open(uint32_t handshake_timeout_ms);
/* Begins to connect. */
void tcp_consumer_connect(tcp_consumer *consumer);
/* Connects and plays the handshake. */
void tcp_consumer_link(tcp_consumer *consumer);
/* Disconnects if there is a link, closes what is open. */
void tcp_consumer_close(tcp_consumer *consumer);

/* ---- somebody at a control port (the nodes are those of ../nodes/pair.h) ---- */

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

/* A connected descriptor; -1: refused. */
int stranger_dial(kvf_address to);
/* Connects; `key` may be NULL. */
void stranger_connect(stranger *s, kvf_address to, const char *key);
void stranger_close(stranger *s);
/* The same by peer_reset(). */
void stranger_reset(stranger *s);

/* The steps of the handshake. */
void stranger_hello(stranger *s);
void stranger_challenge(stranger *s);
/* `model` is the one identity field besides block_tokens. */
void stranger_proof(stranger *s, const char *model, uint32_t block_tokens);
/* All of them: an open session. */
void stranger_shake_hands(stranger *s);
/* The same, and connects first. */
void stranger_open(stranger *s, kvf_address to, const char *key);
kvf_key stranger_session_key(const stranger *s);
/* Another stranger, at the data port that an open session was told of. */
stranger stranger_connect_data(const stranger *session);

/* The node says why it hangs up, and does. */
kvf_refused stranger_expect_refused(stranger *s);

/* A file that holds this text, to be unlinked by the caller; `path` has room for 64 bytes. */
void stranger_key_file(const char *key, char path[64]);

#endif
