/* What the target `tcp_server` knows of leases and of the consumers that it plays, and the check of what the server
 * sends them. */
#ifndef KVF_TESTS_FUZZ_TCP_SERVED_H
#define KVF_TESTS_FUZZ_TCP_SERVED_H

#include "tcp_world.h"
#include "transport/tcp/server.h"

#define LEASES 3
#define POSITIONS 3
#define READS_MAX 512
#define SENT_BYTES_MAX 16384
#define RECEIVED_BYTES_MAX 64
#define HELD_BYTES_MAX 2048

typedef enum lease_state { NOT_PUBLISHED, LIVE, OVER } lease_state;

typedef struct lease_model {
  kvf_lease lease;
  lease_state state;
  uint32_t blocks[POSITIONS];
} lease_model;

/* A READ as it was sent: its frame's body, in the consumer's `sent`. */
typedef struct sent_read {
  size_t at;
  size_t bytes;
} sent_read;

typedef enum expects { CHALLENGE, READY, CHUNK, PAYLOAD, TRAILER } expects;

typedef struct consumer {
  bool has_key;
  bool proved;       /* with the right proof, as its first frame */
  bool broken;       /* has sent what is not to be answered, or could not send all: what comes is not to be foreseen */
  bool may_be_stuck; /* has taken nothing for so long that it is thrown out if answers wait */
  uint64_t deaf_ns;  /* for how long it takes nothing */
  expects state;
  uint64_t out_bytes; /* that the transport has sent */
  kvf_data_challenge challenge;
  uint8_t ready_proof[KVF_HASH_BYTES];  /* that the server must answer */
  uint8_t received[RECEIVED_BYTES_MAX]; /* a part of a frame */
  size_t received_bytes;

  uint8_t sent[SENT_BYTES_MAX]; /* since the proof */
  size_t sent_bytes;
  size_t parsed_bytes;
  uint8_t held[HELD_BYTES_MAX]; /* the rest of a frame that is sent in two pieces */
  size_t buffered_bytes;
  sent_read reads[READS_MAX];
  uint32_t reads_count;
  uint32_t answered;

  /* The payload that comes. */
  kvf_data_read read;
  uint32_t item;
  uint32_t region;
  uint32_t offset;
  uint64_t payload_left;
} consumer;

extern consumer consumers[TCP_ENDS_MAX];
extern lease_model leases[LEASES];

consumer *consumer_of(const tcp_end *end);

void served_init(void);
/* kvf_transport_host.authorize() for these leases. */
kvf_status served_authorize(void *context, const kvf_lease *lease, kvf_transfer_item *wanted, uint32_t count);
/* The lease is published; or, if it is, ended. */
void served_next_state(lease_model *model);
/* The server has sent these bytes: what they must be. */
void served_on_bytes(tcp_end *from, const uint8_t *data, size_t bytes);

#endif
