/* A transport whose links the test brings up and down, for rails to be made of, and a host that keeps what it is told.
 *
 * The fake keeps to the contract: it tells nothing of a part that has been given back, but a call that has begun goes
 * on. What breaks the contract from above, it counts in `wrong`. */
#ifndef KVF_TESTS_RAILS_FAKE_H
#define KVF_TESTS_RAILS_FAKE_H

#include <pthread.h>
#include <stdatomic.h>

#include "transport/tcp/rails.h"

#define FAKE_NEVER UINT32_MAX
#define HOST_LINKS_MAX 1024

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
  uint32_t reads;
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

/* What the host knows of a link. Its index is the link's `user`. */
typedef struct host_link {
  kvf_link *link; /* that it was told of */
  kvf_status up;
  kvf_status down;
  char events[16]; /* U: link_up() begins, u: it returns; D and d: link_down() */
  uint32_t events_count;
  bool is_wrong; /* more events than there may be, or of another link */
} host_link;

typedef struct host {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  host_link links[HOST_LINKS_MAX];
  char holds;       /* the event, U or D, that does not return until this is 0 */
  char disconnects; /* the event during which the host gives the link back */
  uint64_t reads_done;
  kvf_read_result last;
  uint64_t progressed;
  uint64_t session_asked;
  uint64_t lease_asked;
  kvf_status connection_why;
  kvf_log_level level;
  char line[32];
} host;

extern fake_world fakes;
extern host told;

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
/* In another thread; to be joined. */
pthread_t part_up_elsewhere(uint32_t rail, kvf_status status);
/* Tells of this part what it may be told, if anything. */
void part_tell(uint32_t rail, fake_part *part, bool up, kvf_status status);
/* Ends one of the rail's reads; false: there was none. */
bool read_end(uint32_t rail, uint64_t id);

/* Waits until the link's events are these, 5 seconds at most; false: they are not. */
bool host_has(uint64_t user, const char *events);
void host_release(void);

#endif
