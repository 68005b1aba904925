/* A transport whose links the test brings up and down, for rails to be made of, with a side's host above them.
 *
 * The fake keeps to the contract: it tells nothing of a part that has been given back, but a call that has begun goes
 * on. What breaks the contract from above, it counts in `wrong`. */
#ifndef KVF_TESTS_SIDES_RAILS_FAKE_H
#define KVF_TESTS_SIDES_RAILS_FAKE_H

#include <stdatomic.h>

#include "side.h"
#include "transport/tcp/rails.h"

#define FAKE_NEVER UINT32_MAX
#define FAKE_READS_MAX 16384

typedef struct fake_part {
  kvf_link base;
  struct fake_part *next;
  uint64_t session_id;
  kvf_address peer;
  const kvf_region_layout *remote;
  uint8_t description[64];
  size_t description_bytes;
  enum { PART_CONNECTING, PART_UP, PART_OVER } state;
  bool is_given_back;
  bool has_thread;
  pthread_t thread;
} fake_part;

typedef struct fake_rail {
  kvf_transport base;
  kvf_transport_host host;
  bool is_open;
  bool has_memory;
  bool has_more; /* what assist() says */
  uint32_t assists;
  fake_part *parts; /* the newest first */
  uint64_t read_ids[FAKE_READS_MAX];
  uint32_t reads; /* open */
  kvf_link *read_link;
  uint64_t cancelled;
  kvf_link *cancelled_link;
} fake_rail;

typedef struct fake_world {
  pthread_mutex_t lock;
  fake_rail rails[KVF_RAILS_MAX];
  uint32_t opened;
  uint32_t clears;
  uint32_t given_back;
  atomic_uint wrong;
  /* The rail whose call fails, with this status. */
  uint32_t open_fails, memory_fails, describe_fails, connect_fails;
  kvf_status status;
  bool has_no_memory;    /* for reads */
  bool comes_up_at_once; /* from a thread of its own, before connect() returns */
} fake_world;

extern fake_world fakes;
extern side told; /* the host */

/* Before and after each test. */
void fakes_begin(void);
void fakes_end(void);

kvf_status made_open(uint32_t count, kvf_transport **out, char *message);

/* A link to a peer of `theirs` rails, described as "a", "b", "c" … */
kvf_status made_connect(kvf_transport *made, uint64_t user, uint64_t session_id, uint32_t theirs, kvf_link **out);

/* The newest part of a rail, and what it tells of it. */
fake_part *part_of(uint32_t rail);
void part_up(uint32_t rail, kvf_status status);
void part_down(uint32_t rail, kvf_status status);
/* As if the call had begun before the part was given back. */
void part_up_late(uint32_t rail);
void part_down_late(uint32_t rail);
/* Brings it up in another thread; to be joined. */
pthread_t part_up_elsewhere(uint32_t rail);
/* Tells of this part what it may be told, if anything. */
void part_tell(fake_part *part, bool up, kvf_status status);
/* Ends the newest of the rail's reads; false: there was none. */
bool read_end(uint32_t rail);

#endif
