/* One side of a transport under test: an instance, its memory, and a full implementation of kvf_transport_host. And two
 * linked sides of it: both in this process, or one in a process of its own. */
#ifndef KVF_TESTS_SIDES_SIDE_H
#define KVF_TESTS_SIDES_SIDE_H

#include <pthread.h>

#include "../child_process.h"
#include "../test.h"
#include "base/time.h"
#include "transport/paging.h"

#define SIDE_REGIONS_MAX 8
#define SIDE_LEASES_MAX 8
#define SIDE_READS_MAX 65536
#define SIDE_LINKS_MAX 1024
#define SIDE_POSITIONS_MAX 4096
#define SIDE_SLOTS 8
#define SIDE_LINES_MAX 64
#define SIDE_GENERATION 1 /* of the memory */
#define SIDE_SESSION_ID 7

/* Nothing takes this long unless it hangs. */
#define SIDE_PATIENCE_MS 60000

typedef struct side_shape {
  uint32_t count;
  kvf_region_layout regions[SIDE_REGIONS_MAX];
  uint32_t parts_count; /* 0: each region is a part */
  kvf_part parts[SIDE_REGIONS_MAX];
  kvf_share share; /* if there are parts */
} side_shape;

/* A lease that the producer's authorize() knows. Position p of every group is block blocks[p]. */
typedef struct side_lease {
  kvf_lease lease;
  uint64_t digest;
  uint32_t positions;
  uint32_t blocks[SIDE_POSITIONS_MAX];
  bool known;
  bool published;
  bool over;
} side_lease;

typedef struct side_read_record {
  kvf_read_result result;
  uint32_t done;
  uint32_t progress;
} side_read_record;

typedef struct side_link_record {
  kvf_link *link;  /* that the host was told of */
  char events[16]; /* U: link_up() begins, u: it returns; D and d: link_down() */
  kvf_status up;
  kvf_status down;
} side_link_record;

typedef struct side {
  const kvf_transport_ops *ops;
  kvf_transport *transport;
  kvf_incarnation incarnation;
  side_shape shape;
  kvf_region regions[SIDE_REGIONS_MAX];
  kvf_region checksums[KVF_GROUPS_MAX];
  kvf_region checksums_read[KVF_GROUPS_MAX];
  uint32_t checksums_count;
  kvf_paging *pages; /* with checksums; NULL: it has none */
  void *table;
  int table_fd;
  bool memory_set;

  pthread_mutex_t lock; /* guards what follows */
  pthread_cond_t changed;
  uint64_t last_read_id;
  uint64_t last_user;
  side_lease leases[SIDE_LEASES_MAX];
  side_link_record links[SIDE_LINKS_MAX]; /* by user; none is used twice: news of a link may come late */
  side_read_record *reads;                /* by id */
  uint32_t reads_done;
  char lines[SIDE_LINES_MAX][KVF_MESSAGE_BYTES_MAX];
  uint32_t lines_count;
  kvf_log_level level;   /* of the last one */
  kvf_status connection; /* what was said of the last one */
  const char *fault;     /* a promise that the transport has broken */
  char holds;            /* the event, U or D, that does not return until side_release() */
  char disconnects;      /* the event during which the host gives the link back */
} side;

/* What a producer tells: what the control handshake would carry. */
typedef struct side_introduction {
  kvf_incarnation incarnation;
  uint64_t generation;
  side_shape shape;
  size_t description_bytes;
  uint8_t description[KVF_TRANSPORT_DESCRIPTION_BYTES_MAX];
} side_introduction;

/* What sides are made of from here on. */
extern struct under_test {
  const kvf_transport_ops *ops; /* of two sides, and their memory (kvf_memory_kind, or the test's) */
  uint32_t producer_memory;
  uint32_t consumer_memory;
  bool has_checksums;
  kvf_tls_use tls; /* of side_config() */
} under_test;

/* Opens a transport and allocates and registers memory of this shape, of the kinds that it says, filled with the
 * pattern of this seed. `config` may be NULL: that of side_config(). */
void side_open(side *one, const kvf_transport_ops *ops, const side_shape *shape, uint32_t seed,
               const kvf_transport_config *config);
kvf_transport_config side_config(void);
/* Closes the transport, checks that the contract was kept, frees the memory. All links must be disconnected. */
void side_close(side *one);
/* The two halves of side_close(). */
void side_close_transport(side *one);
void side_free(side *one);
/* The host alone, for a transport that the test opens itself; side_free() ends it. */
kvf_transport_host side_host(side *one, const kvf_transport_ops *ops);

/* Sets every byte of every region to `value`. */
void side_set_all(side *one, uint8_t value);
bool side_all_are(const side *one, uint8_t value);
/* Its address: for test_memory_get() and so on (memory_kind.h). */
uint8_t *side_block(const side *one, uint32_t region, uint32_t block);
/* Whoever touches the region from here on, crashes or gets an error. */
void side_withdraw(const side *one, uint32_t region);
/* The memory without its checksums, to be set once more. */
kvf_transport_memory side_memory(const side *one);

void side_introduce(side *one, side_introduction *out);

/* ---- leases (producer) ---- */

/* A lease of `positions` blocks, whose ids are position * 7919 modulo the blocks of the shape; made known, checksummed,
 * stored live. */
side_lease *side_publish(side *one, uint64_t lease_id);
/* Known to authorize(), not published. */
side_lease *side_reserve(side *one, uint64_t lease_id);
/* A reserved lease, whose blocks have their checksums already. */
void side_go_live(side *one, side_lease *lease);
/* Ends it for authorize() and in the fence table. */
void side_end(side *one, side_lease *lease);
kvf_fence_claim side_claim(const side_introduction *producer, const side_lease *lease);

/* ---- links and reads (consumer) ---- */

/* What the control handshake would have agreed on. */
kvf_link_spec side_spec(const side_introduction *introduction);
/* Begins to connect, with a record of its own. *out is to be disconnected if this is KVF_OK. */
kvf_status side_begin_connect(side *one, const kvf_link_spec *spec, kvf_link **out);
/* Waits for link_up(), or link_down(). */
kvf_status side_wait_up(side *one, const kvf_link *link);
kvf_status side_wait_down(side *one, const kvf_link *link);
/* What is known of a link now. */
side_link_record side_link(side *one, uint64_t user);
/* Lets the host's call return that it holds. */
void side_release(side *one);
/* Connects; waits for the outcome. *out is to be disconnected whenever it is not NULL. */
kvf_status side_connect(side *one, const kvf_link_spec *spec, kvf_link **out);
/* Connects and expects success. */
kvf_link *side_connect_ok(side *one, const side_introduction *introduction);

/* A new read of all heads. */
kvf_transfer side_read(side *one, const kvf_lease *lease, const kvf_transfer_item *items, uint32_t count);
/* Items for all positions of the lease in all groups: to local blocks first, first + 1, …. To be freed. */
kvf_transfer_item *side_items(const side *one, const side_lease *lease, uint32_t first, uint32_t *count);
kvf_read_result side_wait(side *one, uint64_t read_id);
bool side_is_done(side *one, uint64_t read_id);
/* Starts it and waits; a small one as a caller that asks for it without a pause. */
kvf_read_result side_read_now(side *one, kvf_link *link, const kvf_transfer *read);
/* The result's verdict: its status, or what the fence says. */
kvf_status side_verdict(const kvf_read_result *result, const kvf_fence_claim *claim);

/* Whether a log line contains `text`. */
bool side_has_logged(side *one, const char *text);

/* One region, one group, one head. */
side_shape side_shape_simple(uint32_t blocks, uint32_t block_bytes);

#define WITHOUT_UCX 77 /* the exit status of a test that was skipped */

/* Loads UCX, or the one that $KVFERRY_TEST_UCX_LIBRARY names, over TCP unless $UCX_TLS says otherwise; its complaints
 * about peers that have been killed are not shown. 0, or WITHOUT_UCX and a line that says why. First of all in main().
 */
int with_ucx(void);

/* ---- two sides ---- */

#define SEED 5 /* of the producer's memory */
#define LEASE_ID UINT64_C(1001)

typedef struct sides {
  side producer; /* of one in another process nothing but `leases` is used */
  side consumer;
  side_introduction introduction;
  side_lease *lease; /* LEASE_ID, of all blocks, published */
  kvf_link *link;    /* NULL: it has been disconnected */
  child_process process;
} sides;

/* The sides of a test; closed after it, if they are still open. */
extern sides *two;
#define SIDES_TEST(name) TEST_WITH(name, NULL, sides_close)

/* Either side alone, with its kind of memory. */
void producer_open(side *one, const side_shape *shape);
void consumer_open(side *one, const side_shape *shape);
void sides_open(const side_shape *producer, const side_shape *consumer);
void sides_open_unlinked(const side_shape *producer, const side_shape *consumer);
/* Both of so many blocks. */
void sides_open_simple(uint32_t blocks, uint32_t block_bytes);
/* Disconnects what is linked, closes both, frees. */
void sides_close(void);
void sides_disconnect(void);
/* The producer introduces itself and publishes the lease. */
void sides_meet(void);
/* Connects, and expects success. */
void sides_link(void);

/* Whether a read is of this region, if its items are of the region's group. */
bool read_has(const kvf_transfer *read, uint32_t region);
/* Whether the items' bytes at the consumer are those that the producer was filled with. */
bool sides_match(const kvf_transfer *read);
/* A read of every position of the lease, to local blocks from `first` on. read->items is to be freed. */
kvf_transfer lease_read(side *consumer, const side_lease *lease, uint32_t first);
void read_free(const kvf_transfer *read);

/* ---- several reads at once, ended in whatever way, and what must be true when they have all ended ---- */

#define VOLLEY_READS 4
#define VOLLEY_BLOCKS 64
#define VOLLEY_BLOCK_BYTES 131072
/* A cancelled read ends much sooner; a machine that is busy may take its time. */
#define VOLLEY_CANCEL_NS (5 * KVF_NS_PER_S)

/* Reads that together fetch a whole lease of VOLLEY_BLOCKS into the consumer's first blocks. */
typedef struct read_volley {
  kvf_transfer reads[VOLLEY_READS];
  kvf_transfer_item *items;
} read_volley;

/* Sides for volleys; the consumer has one block more than they fill. */
void volley_sides(void);
read_volley volley_start(void);
void volley_cancel(const read_volley *volley);
/* Waits for all; those that say so must have the right bytes. Then the blocks get their next owner. */
void volley_end(read_volley *volley);
/* Nobody but the next owner has written to their blocks. */
bool next_owner_is_alone(void);
/* So it is, and the link still works, or a new one does, to read one block into the one more. */
void volleys_are_over(void);

/* ---- another process ---- */

/* Sides for volleys whose producer is to be started. */
void volley_sides_apart(void);
/* Starts this executable as the producer, and links. */
void process_start(void);
void process_kill(void);
/* What such a process does. Returns its exit status. */
int process_main(void);

/* A consumer in a process of its own, which reads the lease over and over until it is killed. Returns when it has
 * begun. */
void consumer_start(child_process *child);
int consumer_main(void);

#endif
