/* Many threads on the public interface of several nodes in one process, and one more in a child process, while faults
 * rain: leases that end early, aborts, nodes closed and opened again on the same address, connections cut, strangers, a
 * producer process that is stopped or killed; with --memory cuda half of the nodes have a fake GPU's memory, and its
 * driver has faults. Meant to be run with TSan. What must hold all the while:
 *
 *   P1  bytes that a load calls good are those of its prompt
 *   P2  an outcome comes by the load's deadline (with room for a busy machine)
 *   P3  one outcome, one release, at most one verdict, one end of a lease
 *   P4  after released nothing writes to the destination
 *   P5  every lease ends
 *   P6  no call fails in a way that it does not document; in the end descriptors, threads and memory are as before
 *
 * That is the rain. The churn is another mix of the same engines: churn.c. */
#ifndef KVF_TESTS_STRESS_H
#define KVF_TESTS_STRESS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/prng.h"
#include "pair.h"

#define STRESS_BLOCKS 32
#define STRESS_TICKET_BLOCKS 6
#define STRESS_TICKET_BYTES 2048
#define STRESS_QUEUED_MAX 64 /* kernels of an engine, before it waits */
#define STRESS_LEASES 64
#define STRESS_LOADS 64

#define STRESS_LOAD_TIMEOUT_MS 1500
#define STRESS_THREADS_MAX 32
/* How much later than it should something may come before it counts as never: a machine under load, and TSan. */
#define STRESS_PATIENCE_MS 20000

/* ---- stress.c: what all share ---- */

extern atomic_bool stress_stop;  /* the rain is over: engines begin nothing more */
extern atomic_bool stress_last;  /* they have begun the last of it: who polls goes when nothing is open */
extern atomic_uint stress_wrong; /* promises seen broken */

/* Says which promise was broken, once; the run ends. */
void stress_fail(const char *promise, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A generator of its own for a thread. */
kvf_prng stress_prng(void);
void stress_seed(uint64_t seed);
static inline bool stress_one_in(kvf_prng *prng, uint64_t n)
{
  return kvf_prng_below(prng, n) == 0;
}

typedef struct stress_threads {
  pthread_t threads[STRESS_THREADS_MAX];
  uint32_t count;
} stress_threads;

void stress_begin(stress_threads *threads, void *(*run)(void *), void *context);
void stress_join(stress_threads *threads);

/* What this process has. */
typedef struct stress_residue {
  costs costs;
  uint64_t resident_bytes; /* told, not checked: allocators keep pages */
  uint64_t events;         /* of the driver's */
} stress_residue;

stress_residue stress_measure(void);
/* Waits until no more is left than there was before; fails if that does not come. */
void stress_check_residue(const stress_residue *before);

/* ---- ticket.c: prompts, their bytes, and the tickets on their way to a consumer ---- */

/* Where a ticket comes from, for the churn. */
typedef struct stress_source {
  uint32_t producer;
  uint32_t life;   /* of its process: the how many'th it is */
  bool ends_early; /* the engine takes the blocks back before it has to */
} stress_source;

typedef struct stress_ticket {
  stress_source source;
  uint64_t seed; /* of the prompt */
  uint32_t count;
  uint32_t bytes;
  char text[STRESS_TICKET_BYTES];
} stress_ticket;

uint64_t stress_new_seed(kvf_prng *prng);
kvf_prompt stress_prompt(uint64_t seed, uint32_t count);

/* Any consumer may take it, several may take the same. In a child process: it goes to the parent. */
void stress_offer(const stress_ticket *ticket);
void stress_offer_to(int channel);

/* ---- site.c: a node, its engine's blocks, and how it is restarted ---- */

typedef struct stress_lease {
  kvf_lease lease; /* id 0: unused */
  uint32_t count;
  uint32_t blocks[STRESS_TICKET_BLOCKS];
  bool ended; /* by the engine, before the event */
} stress_lease;

typedef struct stress_load {
  uint64_t id; /* 0: unused */
  stress_source source;
  uint64_t seed;
  uint64_t begin_ms;
  uint64_t begin_given_us; /* stress_given_us() */
  uint32_t count;
  uint32_t blocks[STRESS_TICKET_BLOCKS];
  uint32_t prefix;
  bool gives_up; /* the engine aborts it */
  bool started;  /* else its blocks are the engine's */
  bool loaded;
  bool load_released;
  bool decided;
  bool cancelled;
  bool released;
} stress_load;

/* What a node is told. The parent sends it to a child process. */
typedef struct stress_setting {
  char listen[KVF_HOST_BYTES_MAX]; /* the same after each restart */
  char transports[16];
  char key_file[64]; /* empty: none; else everything is inside TLS */
  bool consumer;
  bool churn;
  bool devices;    /* its memory may be a GPU's; drawn anew with each node */
  bool ends_early; /* a producer that takes the blocks of every lease back early */
} stress_setting;

typedef struct stress_site {
  stress_setting setting;

  pthread_rwlock_t life; /* held for writing while the node is closed and opened; else for reading around each call */
  pair_node n;           /* its memory changes only while it is closed */

  pthread_mutex_t lock; /* the engine's: all below. May be held around calls, never taken before `life`. */
  atomic_uint queued;   /* kernels, where its memory is a GPU's */
  bool used[STRESS_BLOCKS];
  stress_lease leases[STRESS_LEASES];
  stress_load loads[STRESS_LOADS];

  atomic_ullong outcomes;
  atomic_ullong good; /* loads of all their blocks */
  atomic_ullong lease_ends;
  atomic_ullong restarts;
} stress_site;

void stress_site_open(stress_site *site, const stress_setting *setting);
void stress_site_close(stress_site *site);
/* Closes the node; all its blocks are the engine's again, and are scribbled on; opens it. */
void stress_site_restart(stress_site *site);
/* Unregisters the memory, waits until that is done, and restarts the node. */
void stress_site_unregister(stress_site *site, kvf_prng *prng);

/* Takes free blocks. False: there are not so many. For a consumer: nothing has written to them since they were
 * released.
 */
bool stress_blocks_take(stress_site *site, kvf_prng *prng, uint32_t count, uint32_t *blocks);
void stress_blocks_give(stress_site *site, const uint32_t *blocks, uint32_t count);

/* ---- memory.c: the bytes of blocks, the host's or a GPU's ---- */

bool stress_on_device(const stress_site *site);
/* As pair_fill(), with the bytes of nobody where the seed is 0. On a GPU they are there later. */
void stress_fill(stress_site *site, uint32_t block, uint64_t seed, uint32_t position);
/* It has nobody's, when all before this is done; else P4 is broken. */
void stress_expect_untouched(stress_site *site, uint32_t block);
/* For a publication or a load that is to come after all this. NULL: it is done. */
const kvf_ordering_point *stress_point(const stress_site *site);
/* Around calls of its engine's that need the driver, where its memory may be a GPU's. */
void stress_enter_device(const stress_site *site);
void stress_leave_device(const stress_site *site);
/* Draws what the GPUs of this process are like. Before any site. */
void stress_devices_begin(void);

/* ---- the threads; each runs until stress_stop, those that poll until stress_last and their site is idle ---- */

void *stress_engine(void *context);      /* offers or loads, as a stress_site is to */
void *stress_poll(void *context);        /* its events */
void *stress_look(void *context);        /* statistics and the like, of a stress_sites */
void *stress_rain(void *context);        /* faults, of a stress_sites */
void *stress_child(void *context);       /* a stress_setting */
void *stress_shake_device(void *unused); /* faults of the driver and of its device 0 */

/* ---- producer.c, consumer.c: what an engine does once, with `life` held for reading ---- */

#define STRESS_EVENTS 16 /* at a time */

void stress_produce(stress_site *site, kvf_prng *prng);
void stress_consume(stress_site *site, kvf_prng *prng);
/* Returns how many events there were. */
size_t stress_produce_poll(stress_site *site);
size_t stress_consume_poll(stress_site *site);

/* All sites of the parent, for stress_look() and stress_rain(). */
typedef struct stress_sites {
  stress_site *site;
  uint32_t count;
} stress_sites;

/* False as long as something is open there. Says what, if `complain`. */
bool stress_is_idle(stress_site *site, bool complain);
/* Waits until nothing is, with those that poll, which then end. */
void stress_settle(const stress_sites *sites, stress_threads *pollers);

/* ---- child.c: a producer in a process of its own ---- */

typedef enum stress_news { STRESS_NO_NEWS, STRESS_TICKET, STRESS_HUNG_UP } stress_news;

bool stress_child_start(child_process *child, const stress_setting *setting);
/* Waits for its next ticket, 5 ms at most. */
stress_news stress_child_hear(const child_process *child, stress_ticket *out);
/* What it does. */
int stress_child_main(void);

/* ---- the mixes ---- */

typedef struct stress_mix {
  pair_option options[6]; /* of all nodes; the last has no name */
  uint32_t ticket_blocks; /* of one prompt, at most */
  uint32_t ends_early_one_in;
  uint32_t forged_one_in;
  /* A ticket for that consumer. False: there is none. */
  bool (*take)(stress_site *site, kvf_prng *prng, stress_ticket *out);
  /* May be NULL. After each look for events, with the site's lock; and with every outcome. */
  void (*look)(stress_site *site);
  void (*outcome)(stress_site *site, const stress_load *load, kvf_status status);
} stress_mix;

extern const stress_mix *stress_mix_now;
extern const stress_mix stress_rain_mix;  /* ticket.c */
extern const stress_mix stress_churn_mix; /* churn.c */

typedef struct stress_churn_order {
  uint64_t loads;
  bool devices;
  bool tls; /* and rotation of its keys */
  bool ipv6;
} stress_churn_order;

void stress_churn(const stress_churn_order *order);

/* ---- pause.c: what the machine takes ---- */

/* A clock that stands still while the machine lets this process wait; while stress_watch_machine() runs. */
uint64_t stress_given_us(void);
void *stress_watch_machine(void *unused);
/* A process whose use of the processors is ours. */
void stress_count_child(pid_t pid, bool lives);
typedef struct stress_pauses {
  uint64_t all_us; /* others' share included */
  uint64_t longest_us;
  uint64_t count;
  uint64_t others_us;
} stress_pauses;
stress_pauses stress_pauses_seen(void);

#endif
