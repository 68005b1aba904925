/* One side of a transport under test: an instance, its memory, and a full implementation of kvf_transport_host. */
#ifndef KVF_TESTS_CONFORMANCE_NODE_H
#define KVF_TESTS_CONFORMANCE_NODE_H

#include <pthread.h>

#include "transport/paging.h"

#define NODE_REGIONS_MAX 8
#define NODE_LEASES_MAX 8
#define NODE_READS_MAX 65536
#define NODE_LINKS_MAX 512
#define NODE_POSITIONS_MAX 4096
#define NODE_SLOTS 8
#define NODE_LINES_MAX 64
#define NODE_GENERATION 1 /* of the memory */

/* Nothing in the suite takes this long unless it hangs. */
#define NODE_PATIENCE_MS 60000

typedef struct node_shape {
  uint32_t count;
  kvf_region_layout regions[NODE_REGIONS_MAX];
  uint32_t parts_count; /* 0: each region is a part */
  kvf_part parts[NODE_REGIONS_MAX];
  kvf_share share; /* if there are parts */
} node_shape;

/* A lease that the producer's authorize() knows. Position p of every group is block blocks[p]. */
typedef struct node_lease {
  kvf_lease lease;
  uint64_t digest;
  uint32_t positions;
  uint32_t blocks[NODE_POSITIONS_MAX];
  bool known;
  bool published;
  bool over;
} node_lease;

typedef struct node_read_record {
  kvf_read_result result;
  uint32_t done;
  uint32_t progress;
} node_read_record;

typedef struct node_link_record {
  bool up_told;
  kvf_status up;
  bool down_told;
  kvf_status down;
} node_link_record;

typedef struct side {
  const kvf_transport_ops *ops;
  kvf_transport *transport;
  kvf_incarnation incarnation;
  node_shape shape;
  kvf_region regions[NODE_REGIONS_MAX];
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
  node_lease leases[NODE_LEASES_MAX];
  node_link_record links[NODE_LINKS_MAX]; /* by user; none is used twice: news of a link may come late */
  node_read_record *reads;                /* by id */
  char lines[NODE_LINES_MAX][KVF_MESSAGE_BYTES_MAX];
  uint32_t lines_count;
  uint32_t connections_accepted;
  uint32_t connections_ended;
  kvf_status connection_ended; /* the last one */
  const char *fault;           /* a promise that the transport has broken */
} side;

/* What a producer tells: what the control handshake would carry. */
typedef struct node_introduction {
  kvf_incarnation incarnation;
  uint64_t generation;
  node_shape shape;
  size_t description_bytes;
  uint8_t description[KVF_TRANSPORT_DESCRIPTION_BYTES_MAX];
} node_introduction;

/* Whether nodes that are opened have checksums. */
extern bool node_has_checksums;
extern kvf_tls_use node_tls; /* of node_config() */

/* Opens a transport and allocates and registers memory of this shape, of the kinds that it says, filled with the
 * pattern of this seed (pattern.h).
 */
void node_open(side *node, const kvf_transport_ops *ops, const node_shape *shape, uint32_t seed);
/* As node_open(), with a configuration of one's own. */
void node_open_with(side *node, const kvf_transport_ops *ops, const node_shape *shape, uint32_t seed,
                    const kvf_transport_config *config);
kvf_transport_config node_config(void);
/* Closes the transport, checks that the contract was kept, frees the memory. All links must be disconnected. */
void node_close(side *node);
/* The two halves of node_close(). */
void node_close_transport(side *node);
void node_free(side *node);

void node_fill(side *node, uint32_t seed);
/* Sets every byte of every region to `value`. */
void node_set_all(side *node, uint8_t value);
bool node_all_are(const side *node, uint8_t value);
/* Its address: for test_memory_get() and so on (memory_kind.h). */
uint8_t *node_block(const side *node, uint32_t region, uint32_t block);
/* Whoever touches the region from here on, crashes or gets an error. */
void node_withdraw(const side *node, uint32_t region);

void node_introduce(side *node, node_introduction *out);

/* ---- leases (producer) ---- */

/* A lease of `positions` blocks, whose ids are position * 7919 modulo the blocks of the shape; made known, checksummed,
 * stored live. */
node_lease *node_publish(side *node, uint64_t lease_id);
/* Known to authorize(), not published. */
node_lease *node_reserve(side *node, uint64_t lease_id);
/* A reserved lease, whose blocks have their checksums already. */
void node_go_live(side *node, node_lease *lease);
/* Ends it for authorize() and in the fence table. */
void node_end(side *node, node_lease *lease);
kvf_fence_claim node_claim(const node_introduction *producer, const node_lease *lease);

/* ---- links and reads (consumer) ---- */

/* What the control handshake would have agreed on. */
kvf_link_spec node_spec(const node_introduction *introduction);
/* Begins to connect, with a record of its own. *out is to be disconnected if this is KVF_OK. */
kvf_status node_begin_connect(side *node, const kvf_link_spec *spec, kvf_link **out);
/* Waits for link_up(). */
kvf_status node_wait_up(side *node, const kvf_link *link);
/* Connects; waits for the outcome. *out is to be disconnected whenever it is not NULL. */
kvf_status node_connect(side *node, const kvf_link_spec *spec, kvf_link **out);
/* Connects and expects success. */
kvf_link *node_connect_ok(side *node, const node_introduction *introduction);
/* Waits for link_down(). */
kvf_status node_wait_down(side *node, const kvf_link *link);
bool node_is_down(side *node, const kvf_link *link);

/* A new read of all heads, from no lease and with no items yet. */
kvf_transfer node_read(side *node);
/* Items for all positions of the lease in all groups: to local blocks first, first + 1, …. To be freed. */
kvf_transfer_item *node_items(const side *node, const node_lease *lease, uint32_t first, uint32_t *count);
kvf_read_result node_wait(side *node, uint64_t read_id);
bool node_is_done(side *node, uint64_t read_id);
/* Starts it and waits; a small one as a caller that asks for it without a pause. */
kvf_read_result node_read_now(side *node, kvf_link *link, const kvf_transfer *read);
/* The result's verdict: its status, or what the fence says. */
kvf_status node_verdict(const kvf_read_result *result, const kvf_fence_claim *claim);

/* Whether a log line contains `text`. */
bool node_has_logged(side *node, const char *text);

/* One region, one group, one head. */
node_shape node_shape_simple(uint32_t blocks, uint32_t block_bytes);

/* Zeroed; never NULL. */
void *allocate(size_t bytes);
void sleep_us(uint64_t us);
uint64_t now_ns(void);

/* What the blocks of a region hold until somebody writes to them. A word at a time: a byte at a time is most of what
 * the whole suite costs, and with a sanitizer many times that. */
typedef struct pattern_place {
  uint32_t seed;
  uint32_t region;
  uint32_t block;
  uint64_t offset; /* in the block */
} pattern_place;

void pattern_fill(uint8_t *to, pattern_place at, size_t bytes);
bool pattern_is(const uint8_t *got, pattern_place at, size_t bytes);

#endif
