/* A node as it runs: the core under one lock, and what carries its effects out.
 *
 * Threads: the callers', the transports', and one of the node's own (control.c) that owns the control connections and
 * the clock. Each of them takes the lock, gives the core its input, carries out the cheap effects (queueing a read,
 * storing a fence word), and releases the lock. Bytes are copied and sockets are written to outside the lock.
 */
#ifndef KVF_RUNTIME_PUMP_H
#define KVF_RUNTIME_PUMP_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/core.h"
#include "find/finder.h"
#include "memory/memory.h"
#include "runtime/log_sink.h"
#include "transport/rails.h"

/* A connection that the control thread is to dial. */
typedef struct kvf_dial {
  kvf_list link;
  uint64_t conn_id;
  kvf_address address;
} kvf_dial;

typedef struct kvf_node_link {
  uint32_t link_id;
  UT_hash_handle by_link_id;
  uint32_t transport;
  kvf_link *parts[KVF_RAILS_MAX]; /* as many as its transport has rails */
} kvf_node_link;

typedef struct kvf_control kvf_control;         /* control.c */
typedef struct kvf_checksummer kvf_checksummer; /* checksummer.c */
typedef struct kvf_ordering kvf_ordering;       /* ordering.c */

/* Why transports end a consumer's connection: kvf_node_reasons[]; what is none of the others counts as the last. */
#define KVF_NODE_REASONS 9
extern const kvf_status kvf_node_reasons[KVF_NODE_REASONS];

/* When the control thread is to look at the core. */
typedef struct kvf_node_clock {
  kvf_control *control;
  int wake_fd;             /* wakes the control thread; -1: there is none yet */
  bool wants_wake;         /* under the node's lock: the control thread has something to do */
  uint64_t armed_ns;       /* under the node's lock: until when the control thread sleeps */
  uint64_t light_sleep_ns; /* under the node's lock: until when it sleeps for a moment at a time, so that not each
                              load's clock wakes it */
} kvf_node_clock;

/* What is registered, and what stands by it. */
typedef struct kvf_node_memory {
  pthread_mutex_t lock; /* one registration or its end at a time; taken before the node's */
  bool is_set;          /* the transports have it */
  kvf_region *regions;
  uint32_t regions_count;
  uint64_t generation;          /* of the last registration, or try of one */
  kvf_memory_devices devices;   /* under the node's lock: where it is */
  void *fence_table;            /* config.lease_slots entries */
  int fence_fd;                 /* its file; -1: none */
  kvf_checksummer *checksummer; /* while there is memory; NULL: option checksum is off */
  kvf_ordering *ordering;       /* under the node's lock; NULL: this memory knows no ordering points */
  uint64_t last_point;          /* under the node's lock: the number that a load's was given last */
} kvf_node_memory;

/* That the engine has events to take. */
typedef struct kvf_node_events {
  int fd;
  bool fd_wanted;   /* under the lock: somebody has asked for it */
  bool fd_readable; /* under the lock */
  atomic_bool has;
  atomic_uint may_assist; /* without the lock: kvf_node_poll() has small reads of these transports to look after */
} kvf_node_events;

struct kvf_node {
  pid_t owner; /* a forked child has only a copy of it */
  kvf_config config;
  kvf_thread_cpus cpus;       /* the option thread_cpus */
  kvf_key keys[KVF_KEYS_MAX]; /* the first is ours, the second is taken from others too */
  size_t keys_count;          /* 1 also without a key, whose bytes are 0 then */
  kvf_tls_use tls;
  kvf_address address;    /* as tickets name it; port 0: does not listen */
  kvf_address listens_on; /* port 0: it does not */
  kvf_address other; /* a second one, of the other family: where it listens, and as tickets name it; port 0: none */
  kvf_log_sink *log; /* its own, or the one of config.log_queue */
  atomic_ullong log_lines_dropped;
  kvf_logger logger; /* to it */

  pthread_mutex_t lock;
  kvf_core *core;       /* under the lock, like all down to `closing` */
  kvf_finder finder;    /* its guest */
  kvf_node_link *links; /* by link */
  kvf_list dials;
  bool caller_helps;             /* the thread that holds the lock is a caller's, which may copy small reads itself */
  uint32_t small_reads;          /* a bit for each transport that has got reads that wait for assist() */
  uint64_t connections_accepted; /* by the transports */
  uint64_t connections_ended[KVF_NODE_REASONS];
  bool closing; /* effects are not carried out any more */

  uint32_t transports_count; /* set once: at open, or, of a node that does not listen, when it first has memory */
  kvf_rails transports[KVF_TRANSPORTS_MAX];
  uint32_t transports_used; /* a bit for each that has our memory: the others are left out */

  kvf_node_clock clock;
  kvf_node_memory memory;
  kvf_node_events events;
};

/* A load begins with a deadline that is earlier than what the control thread waits for, and ends long before it. Woken
 * by one, the thread looks each moment for a while, and those that follow need not wake it. */
#define KVF_LIGHT_SLEEP_NS (100 * KVF_NS_PER_MS)
#define KVF_LIGHT_SLEEP_FOR_NS (2 * KVF_NS_PER_S)

/* Makes the control thread look at the core again. Any thread. */
void kvf_node_wake(const kvf_node *node);

/* Takes the lock; returns the time for the input that follows. */
uint64_t kvf_node_enter(kvf_node *node);
/* Takes the lock, for an input after which the core draws a nonce, an id or a token: with fresh random bytes for it.
 * False: the system has none, and the lock is not taken. */
KVF_MUST_USE bool kvf_node_enter_fresh(kvf_node *node, uint64_t *now_ns);
/* As kvf_node_enter(), for a caller whose thread may copy small reads in kvf_node_leave(). The library's threads must
 * not: a copy can be stuck in the kernel, and the clock and the other peers do not wait for it. */
uint64_t kvf_node_enter_to_help(kvf_node *node);
/* Carries out what the input caused, lets the lock go, and does what must be done outside it. */
void kvf_node_leave(kvf_node *node, uint64_t now_ns);

/* In a caller's thread, without the lock: what these transports, a bit for each, can do for small reads. */
void kvf_node_assist(kvf_node *node, uint32_t transports);

/* Opens what a node needs that has memory, unless it is open: its fence table and transports. On failure `message` says
 * what to change. */
KVF_MUST_USE kvf_status kvf_node_equip(kvf_node *node, char *message);

/* A kvf_log_fn whose context is a node: puts the line into its log. */
void kvf_node_log(void *context, kvf_log_level level, const char *line);

/* The functions that transports call, for `node` as context. */
kvf_transport_host kvf_node_host(kvf_node *node);

#endif
