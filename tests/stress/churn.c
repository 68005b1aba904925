/* The churn: producers are processes on ports of their own, which are killed and started anew on the same port while
 * all consumers load from all of them; now and then one is poisoned: it is stopped, or takes the blocks of all its
 * leases back early, or has another key, or something else listens on its port and answers garbage. With TLS the keys
 * are changed meanwhile, as docs/security.md says.
 *
 * Besides the promises of stress.h: a load fails only where a fault of its own producer explains the reason, and while
 * its producer is well a pair with open loads never stands still: the next outcome comes within STILL_US of what the
 * machine gives (pause.c). A new process is well from its first ticket on, whatever the one before it has died of. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "../sides/peer.h"
#include "core/peer.h"
#include "stress.h"

#define PRODUCERS 4
#define CONSUMERS 4
#define NODES (PRODUCERS + CONSUMERS)
#define PAIR_LOADS 2 /* at a time */
#define TICKETS 64   /* of one producer that wait */
/* Instrumented code takes several times as long, and so does a fake GPU, which has one thread for all its work. With
 * TLS all consumers shake hands with a new process at once: two cores have no idle moment for up to 75 ms then. */
#define STILL_US (SANITIZED || churn.order.devices || churn.order.tls ? 500000 : 100000)
/* What the machine has taken of a load's time when that explains a timeout. */
#define PAUSED_US 100000
/* After a stop: breakers close again, and what had run out meanwhile is told. */
#define AFTERMATH_MS 500
#define WARM_UP_LOADS 1000
/* Longer than an idle connection, and what is known of its peer, lives. */
#define IDLE_US 1500000
/* Between the first starts of the producers: 48 handshakes at once would measure two cores, and nothing else. */
#define APART_US 100000
#define FOREIGN_KEY 999999

typedef enum churn_state { CHURN_WELL, CHURN_DEAD, CHURN_STOPPED, CHURN_POISONED } churn_state;
typedef enum churn_kind { KIND_WELL, KIND_ENDS_EARLY, KIND_FOREIGN_KEY, KIND_GARBAGE, KINDS } churn_kind;

typedef struct churn_producer {
  held_port port;
  stress_setting setting;
  child_process child;
  atomic_int state;             /* churn_state */
  atomic_uint life;             /* tickets of an earlier one are of a process that has been killed */
  atomic_uint last_life[KINDS]; /* of each kind; 0: none yet */
  atomic_ullong stopped_until_ms;
  pthread_mutex_t lock;
  uint64_t taken; /* tickets, of those that came */
  uint64_t came;
  stress_ticket tickets[TICKETS];
} churn_producer;

static struct {
  stress_churn_order order;
  churn_producer producers[PRODUCERS];
  stress_site consumers[CONSUMERS];
  held_port ports[CONSUMERS];
  /* Of a pair: its last outcome, or since when it has had no open load, a sick producer, or another node for its
   * consumer. Its site's lock. */
  uint64_t moved_us[CONSUMERS][PRODUCERS];
  uint64_t restarts[CONSUMERS]; /* that look() has seen */
  atomic_ullong stillest_us;
  atomic_ullong latest_us; /* of an outcome, after its load's begin */
  atomic_ullong loads;
  atomic_ullong statuses[KVF_STATUSES_MAX];
  atomic_ullong lives[KINDS];
  atomic_ullong stops;
  atomic_bool poisoned; /* one producer at a time */
  char folder[32];      /* of key files */
  pthread_mutex_t keys_lock;
  uint32_t step;         /* of the change of keys; three make one */
  uint32_t steps[NODES]; /* that a node has come to */
} churn = {.keys_lock = PTHREAD_MUTEX_INITIALIZER};

static void note_longest(atomic_ullong *longest, uint64_t value)
{
  unsigned long long seen = atomic_load(longest);
  while (value > seen && !atomic_compare_exchange_weak(longest, &seen, value)) {
  }
}

static uint32_t index_of(const churn_producer *who)
{
  return (uint32_t)(who - churn.producers);
}

/* ---- keys ---- */

static bool write_keys(const char *path, uint32_t first, uint32_t second)
{
  char text[128];
  int bytes =
      snprintf(text, sizeof(text), "a key of the churn, number %08u\na key of the churn, number %08u\n", first, second);
  bytes = first == second ? bytes / 2 : bytes;
  int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool written = fd >= 0 && write(fd, text, (size_t)bytes) == bytes;
  if (fd >= 0) {
    (void)close(fd);
  }
  if (!written) {
    stress_fail("P6", "no key file");
  }
  return written;
}

/* For a node that is about to be started. Returns the step that it is to come to. */
static uint32_t give_keys(const stress_setting *setting)
{
  (void)pthread_mutex_lock(&churn.keys_lock);
  uint32_t step = churn.step;
  (void)pthread_mutex_unlock(&churn.keys_lock);
  const uint32_t old = step / 3;
  const uint32_t pairs[3][2] = {{old, old + 1}, {old + 1, old}, {old + 1, old + 1}};
  if (setting->key_file[0] != '\0') {
    (void)write_keys(setting->key_file, pairs[step % 3][0], pairs[step % 3][1]);
  }
  return step;
}

/* The node has started. When all have come to a step, the next begins. */
static void has_keys(uint32_t node, uint32_t step)
{
  (void)pthread_mutex_lock(&churn.keys_lock);
  bool all = true;
  churn.steps[node] = step + 1;
  for (uint32_t i = 0; i < NODES; i++) {
    all = all && churn.steps[i] == churn.step + 1;
  }
  churn.step += all && churn.order.tls;
  (void)pthread_mutex_unlock(&churn.keys_lock);
}

static bool lags(uint32_t node)
{
  (void)pthread_mutex_lock(&churn.keys_lock);
  bool behind = churn.steps[node] != churn.step + 1;
  (void)pthread_mutex_unlock(&churn.keys_lock);
  return behind;
}

/* The consumers are restarted one after the other; the producers are anyway. */
static void *rotate(void *unused)
{
  (void)unused;
  kvf_prng prng = stress_prng();
  for (uint32_t index = 0; !atomic_load(&stress_stop); index = (index + 1) % CONSUMERS) {
    if (lags(PRODUCERS + index)) {
      uint32_t step = give_keys(&churn.consumers[index].setting);
      stress_site_restart(&churn.consumers[index]);
      has_keys(PRODUCERS + index, step);
    }
    sleep_us(kvf_prng_below(&prng, 200000));
  }
  return NULL;
}

/* ---- a producer: tickets ---- */

static void put_ticket(churn_producer *who, const stress_ticket *ticket)
{
  (void)pthread_mutex_lock(&who->lock);
  if (who->came - who->taken < TICKETS) { /* else its lease runs out */
    stress_ticket *slot = &who->tickets[who->came++ % TICKETS];
    *slot = *ticket;
    slot->source.producer = index_of(who);
    slot->source.life = atomic_load(&who->life);
  }
  (void)pthread_mutex_unlock(&who->lock);
}

static bool take_ticket(churn_producer *who, stress_ticket *out)
{
  (void)pthread_mutex_lock(&who->lock);
  bool found = who->taken < who->came;
  if (found) {
    *out = who->tickets[who->taken++ % TICKETS];
  }
  (void)pthread_mutex_unlock(&who->lock);
  return found;
}

static uint32_t open_loads(stress_site *site, uint32_t producer)
{
  uint32_t count = 0;
  (void)pthread_mutex_lock(&site->lock);
  for (uint32_t i = 0; i < STRESS_LOADS; i++) {
    count += site->loads[i].id != 0 && site->loads[i].source.producer == producer;
  }
  (void)pthread_mutex_unlock(&site->lock);
  return count;
}

/* Each ticket once: its load must be good if its producer is. */
static bool take(stress_site *site, kvf_prng *prng, stress_ticket *out)
{
  uint32_t first = (uint32_t)kvf_prng_below(prng, PRODUCERS);
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    uint32_t producer = (first + i) % PRODUCERS;
    if (open_loads(site, producer) < PAIR_LOADS && take_ticket(&churn.producers[producer], out)) {
      return true;
    }
  }
  return false;
}

/* ---- a producer: its lives ---- */

/* Its tickets go to the consumers for so long. */
static void pass_on(churn_producer *who, uint64_t ms, churn_state from_first_ticket)
{
  const uint64_t until_ms = now_ms() + ms;
  while (now_ms() < until_ms && !atomic_load(&stress_last)) {
    stress_ticket ticket;
    stress_news news = stress_child_hear(&who->child, &ticket);
    if (news == STRESS_HUNG_UP) {
      stress_fail("P6", "a producer has ended by itself");
      return;
    }
    if (news == STRESS_TICKET) {
      put_ticket(who, &ticket);
      atomic_store(&who->state, from_first_ticket);
    }
  }
}

static bool may_poison(void)
{
  return !atomic_exchange(&churn.poisoned, true);
}

static void stand_still(churn_producer *who, kvf_prng *prng)
{
  atomic_store(&who->stopped_until_ms, UINT64_MAX);
  atomic_store(&who->state, CHURN_STOPPED);
  atomic_fetch_add(&churn.stops, 1);
  bool stopped = child_stop(&who->child);
  pass_on(who, 100 + kvf_prng_below(prng, 1400), CHURN_STOPPED);
  if (!stopped || !child_continue(&who->child)) {
    stress_fail("P6", "a producer cannot be stopped");
  }
  pass_on(who, AFTERMATH_MS, CHURN_STOPPED);
  atomic_store(&who->stopped_until_ms, now_ms());
  atomic_store(&who->state, CHURN_WELL);
}

/* Until the kill. */
static void live_on(churn_producer *who, kvf_prng *prng, churn_kind kind, uint32_t step)
{
  pass_on(who, 100 + kvf_prng_below(prng, 1000), kind == KIND_WELL ? CHURN_WELL : CHURN_POISONED);
  if (kind != KIND_FOREIGN_KEY && atomic_load(&who->state) != CHURN_DEAD) {
    has_keys(index_of(who), step);
  }
  if (atomic_load(&who->state) == CHURN_WELL && stress_one_in(prng, 4) && may_poison()) {
    stand_still(who, prng);
    atomic_store(&churn.poisoned, false);
    pass_on(who, kvf_prng_below(prng, 500), CHURN_WELL);
  }
}

/* A process, from its start to the kill. False: it does not start. */
static bool live(churn_producer *who, kvf_prng *prng, churn_kind kind)
{
  stress_setting setting = who->setting;
  uint32_t step = give_keys(&setting);
  setting.ends_early = kind == KIND_ENDS_EARLY;
  if (kind == KIND_FOREIGN_KEY) {
    (void)write_keys(setting.key_file, FOREIGN_KEY, FOREIGN_KEY);
  }
  if (!stress_child_start(&who->child, &setting)) {
    stress_fail("P6", "no process: %s", strerror(errno));
    return false;
  }
  stress_count_child(who->child.pid, true);
  live_on(who, prng, kind, step);
  atomic_store(&who->state, CHURN_DEAD);
  (void)kill(who->child.pid, SIGKILL);
  stress_count_child(who->child.pid, false);
  (void)child_end(&who->child);
  return true;
}

/* -1: that is not possible. */
static int listen_on(const held_port *port)
{
  struct sockaddr_storage address = {.ss_family = AF_UNSPEC};
  socklen_t bytes = sizeof(address);
  void *any = &address;
  const int on = 1;
  if (getsockname(port->fd, any, &bytes) != 0) {
    return -1;
  }
  int fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 || bind(fd, any, bytes) != 0 ||
      listen(fd, 64) != 0) {
    (void)close(fd);
    return -1;
  }
  return fd;
}

/* Something else has got the port of a process that is gone. */
static bool answer_garbage(const churn_producer *who, kvf_prng *prng)
{
  int listener = listen_on(&who->port);
  if (listener < 0) {
    stress_fail("P6", "nobody can listen on %s: %s", who->port.address, strerror(errno));
    return false;
  }
  const uint64_t until_ms = now_ms() + 100 + kvf_prng_below(prng, 400);
  while (now_ms() < until_ms && !atomic_load(&stress_last)) {
    struct pollfd readable = {.fd = listener, .events = POLLIN};
    if (poll(&readable, 1, 5) != 1) {
      continue;
    }
    uint64_t garbage[64];
    for (size_t i = 0; i < sizeof(garbage) / sizeof(garbage[0]); i++) {
      garbage[i] = kvf_prng_next(prng);
    }
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    (void)send(fd, garbage, sizeof(garbage), MSG_NOSIGNAL);
    (void)close(fd);
  }
  (void)shutdown(listener, SHUT_RDWR); /* a process that is just being spawned has a copy */
  (void)close(listener);
  return true;
}

static churn_kind next_kind(kvf_prng *prng)
{
  if (!stress_one_in(prng, 3) || !may_poison()) {
    return KIND_WELL;
  }
  switch (kvf_prng_below(prng, churn.order.tls ? 3 : 2)) {
    case 0:
      return KIND_ENDS_EARLY;
    case 1:
      return KIND_GARBAGE;
    default:
      return KIND_FOREIGN_KEY;
  }
}

static void *produce(void *context)
{
  churn_producer *who = context;
  kvf_prng prng = stress_prng();
  sleep_us((uint64_t)index_of(who) * APART_US);
  while (!atomic_load(&stress_last)) {
    const churn_kind kind = next_kind(&prng);
    atomic_store(&who->last_life[kind], atomic_fetch_add(&who->life, 1) + 1);
    atomic_fetch_add(&churn.lives[kind], 1);
    if (!(kind == KIND_GARBAGE ? answer_garbage(who, &prng) : live(who, &prng, kind))) {
      return NULL;
    }
    if (kind != KIND_WELL) {
      atomic_store(&churn.poisoned, false);
    }
    if (stress_one_in(&prng, 4)) {
      sleep_us(kvf_prng_below(&prng, 200000)); /* for so long nobody listens there */
    }
  }
  return NULL;
}

/* ---- a consumer: its loads ---- */

/* Whether something that was done to the load's producer explains that it ended so; or the machine, that it took too
 * long. */
static bool is_explained(const churn_producer *who, const stress_load *load, kvf_status status)
{
  const uint32_t life = load->source.life;
  const uint32_t garbage = atomic_load(&who->last_life[KIND_GARBAGE]);
  const uint32_t foreign = atomic_load(&who->last_life[KIND_FOREIGN_KEY]);
  const uint64_t took_us = (now_ms() - load->begin_ms) * 1000;
  const bool paused = took_us > stress_given_us() - load->begin_given_us + PAUSED_US;
  const bool stopped = load->begin_ms <= atomic_load(&who->stopped_until_ms);
  const bool dead = life != atomic_load(&who->life) || atomic_load(&who->state) == CHURN_DEAD;
  switch (status) {
    case KVF_OK:
      return true;
    case KVF_ABORTED:
      return load->gives_up;
    case KVF_LEASE_EXPIRED:
    case KVF_LEASE_UNKNOWN: /* whoever cancels a request ends its lease, and its load may see that first */
      return load->source.ends_early || load->gives_up || stopped || paused;
    case KVF_PEER_DOWN:
      return dead || stopped;
    case KVF_PEER_RESTARTED:
    case KVF_TRANSFER_SETUP: /* killed while a session's key was being proved, it seems to refuse it */
      return dead;
    case KVF_PROTOCOL:
      return life < garbage;
    case KVF_TRANSFER_FAILED: /* its connection broke, and who answered then was no producer of ours */
      return life < garbage || life < foreign;
    case KVF_OTHER_KEY: /* a foreign one; or of a process that was killed before the key changed twice */
    case KVF_HANDSHAKE_REFUSED:
      return churn.order.tls && (dead || life == foreign);
    case KVF_TRANSFER_STALLED: /* a process may take its time to die */
    case KVF_HANDSHAKE_TIMEOUT:
      return dead || stopped || paused;
    case KVF_DEADLINE:
      return stopped || paused;
    default:
      return false;
  }
}

static void outcome(stress_site *site, const stress_load *load, kvf_status status)
{
  const uint32_t producer = load->source.producer;
  churn_producer *who = &churn.producers[producer];
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    atomic_fetch_add(&churn.statuses[i], kvf_status_at(i)->status == status);
  }
  atomic_fetch_add(&churn.loads, 1);
  churn.moved_us[site - churn.consumers][producer] = stress_given_us();
  if (!is_explained(who, load, status)) {
    stress_fail("P2", "consumer %u, load %llu: %s of producer %u, life %u (now %u, state %d), after %llu ms: why?",
                (unsigned)(site - churn.consumers), (unsigned long long)load->id, kvf_status_name(status), producer,
                load->source.life, atomic_load(&who->life), atomic_load(&who->state),
                (unsigned long long)(now_ms() - load->begin_ms));
  }
}

/* Which pairs stand still. */
static void look(stress_site *site)
{
  const uint64_t now_us = stress_given_us();
  const size_t consumer = (size_t)(site - churn.consumers);
  uint64_t *moved_us = churn.moved_us[consumer];
  const uint64_t restarts = atomic_load(&site->restarts);
  const bool is_new = restarts != churn.restarts[consumer];
  bool waits[PRODUCERS] = {false};
  churn.restarts[consumer] = restarts;
  for (uint32_t i = 0; i < STRESS_LOADS; i++) {
    const stress_load *load = &site->loads[i];
    if (load->id == 0 || load->loaded || !load->started) {
      continue;
    }
    note_longest(&churn.latest_us, now_us - load->begin_given_us);
    waits[load->source.producer] =
        waits[load->source.producer] || load->source.life == atomic_load(&churn.producers[load->source.producer].life);
  }
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    const bool well = atomic_load(&churn.producers[i].state) == CHURN_WELL;
    if (!waits[i] || !well || is_new) {
      moved_us[i] = now_us;
      continue;
    }
    note_longest(&churn.stillest_us, now_us - moved_us[i]);
    if (now_us - moved_us[i] > STILL_US) {
      stress_fail("P2", "consumer %zu waits for producer %u, which is well in its life %u, for %llu ms", consumer, i,
                  atomic_load(&churn.producers[i].life), (unsigned long long)(now_us - moved_us[i]) / 1000);
    }
  }
}

const stress_mix stress_churn_mix = {
    .options = {{"stall_timeout_ms", "500"},
                {"handshake_timeout_ms", "1000"},
                {"lease_ttl_ms", "3000"},
                {"lease_max_ms", "10000"},
                {"connections_max", "256"}},
    .ticket_blocks = 4, /* so that the pool has room for all loads that a consumer may have */
    .ends_early_one_in = 16,
    .take = take,
    .look = look,
    .outcome = outcome,
};

/* ---- a run ---- */

static void set_up(stress_setting *setting, uint32_t node, held_port port, bool local)
{
  *setting = (stress_setting){.consumer = node >= PRODUCERS, .churn = true, .devices = churn.order.devices};
  (void)snprintf(setting->listen, sizeof(setting->listen), "%s", port.address);
  (void)snprintf(setting->transports, sizeof(setting->transports), "%s", local ? "local,tcp" : "tcp");
  if (churn.order.tls) {
    (void)snprintf(setting->key_file, sizeof(setting->key_file), "%s/%u", churn.folder, node);
  }
}

static void open_all(void)
{
  const sa_family_t family = churn.order.ipv6 ? AF_INET6 : AF_INET;
  (void)snprintf(churn.folder, sizeof(churn.folder), "/tmp/kvferry-churn-XXXXXX");
  if (mkdtemp(churn.folder) == NULL) {
    stress_fail("P6", "no folder for keys");
  }
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    churn_producer *who = &churn.producers[i];
    who->port = hold_port_of(family);
    atomic_store(&who->state, CHURN_DEAD);
    (void)pthread_mutex_init(&who->lock, NULL);
    set_up(&who->setting, i, who->port, i % 2 == 0);
  }
  for (uint32_t i = 0; i < CONSUMERS; i++) {
    stress_setting setting;
    churn.ports[i] = hold_port_of(family);
    set_up(&setting, PRODUCERS + i, churn.ports[i], true);
    uint32_t step = give_keys(&setting);
    stress_site_open(&churn.consumers[i], &setting);
    has_keys(PRODUCERS + i, step);
  }
}

static void close_all(void)
{
  for (uint32_t i = 0; i < CONSUMERS; i++) {
    stress_site_close(&churn.consumers[i]);
    (void)close(churn.ports[i].fd);
  }
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    (void)close(churn.producers[i].port.fd);
    (void)pthread_mutex_destroy(&churn.producers[i].lock);
  }
  for (uint32_t i = 0; i < NODES && churn.order.tls; i++) {
    char path[64];
    (void)snprintf(path, sizeof(path), "%s/%u", churn.folder, i);
    (void)unlink(path);
  }
  (void)rmdir(churn.folder);
}

/* Of all consumers. */
static uint64_t sum_of_stat(const char *name)
{
  uint64_t count = 0;
  for (uint32_t i = 0; i < CONSUMERS; i++) {
    count += pair_stat(&churn.consumers[i].n, name, "");
  }
  return count;
}

/* A request whose producer was killed is told nobody until its lease has run out. */
static void wait_for_requests(void)
{
  const uint64_t until_ms = now_ms() + STRESS_PATIENCE_MS;
  while (sum_of_stat("requests_open") > 0) {
    if (now_ms() > until_ms) {
      stress_fail("P3", "%llu requests stay open", (unsigned long long)sum_of_stat("requests_open"));
      return;
    }
    sleep_us(5000);
  }
}

/* Loads so many, and waits until nothing is open. */
static void load(uint64_t loads, bool keys_change)
{
  const stress_sites all = {churn.consumers, CONSUMERS};
  stress_threads engines = {.count = 0};
  stress_threads others = {.count = 0};
  uint64_t told_ms = now_ms();
  atomic_store(&stress_stop, false);
  atomic_store(&stress_last, false);
  atomic_store(&churn.loads, 0);
  stress_begin(&others, stress_watch_machine, NULL);
  for (uint32_t i = 0; i < CONSUMERS; i++) {
    stress_begin(&engines, stress_engine, &churn.consumers[i]);
    stress_begin(&others, stress_poll, &churn.consumers[i]);
  }
  for (uint32_t i = 0; i < PRODUCERS; i++) {
    stress_begin(&others, produce, &churn.producers[i]);
  }
  if (keys_change) {
    stress_begin(&engines, rotate, NULL);
  }
  while (atomic_load(&churn.loads) < loads && !atomic_load(&stress_stop)) {
    sleep_us(10000);
    if (now_ms() > told_ms + 5000) {
      told_ms += 5000;
      (void)printf("%llu loads, longest standstill %.1f ms\n", atomic_load(&churn.loads),
                   (double)atomic_load(&churn.stillest_us) / 1000);
    }
  }
  atomic_store(&stress_stop, true);
  stress_join(&engines);
  stress_settle(&all, &others);
  wait_for_requests();
  sleep_us(IDLE_US);
}

static void tell(uint64_t ms)
{
  const stress_pauses pauses = stress_pauses_seen();
  const unsigned long long loads = atomic_load(&churn.loads);
  (void)printf("%-28s%llu in %.1f s\n", "loads", loads, (double)ms / 1000);
  for (unsigned i = 0; kvf_status_at(i) != NULL; i++) {
    unsigned long long count = atomic_load(&churn.statuses[i]);
    if (count > 0) {
      (void)printf("  %-26s%llu\n", kvf_status_at(i)->status == KVF_OK ? "whole" : kvf_status_at(i)->name, count);
    }
  }
  const unsigned long long early = atomic_load(&churn.lives[KIND_ENDS_EARLY]);
  const unsigned long long foreign = atomic_load(&churn.lives[KIND_FOREIGN_KEY]);
  (void)printf("%-28s%llu\n", "killed and started anew", atomic_load(&churn.lives[KIND_WELL]) + early + foreign);
  (void)printf("%-28s%llu\n", "  stopped for a while", atomic_load(&churn.stops));
  (void)printf("%-28s%llu\n", "  all leases ended early", early);
  (void)printf("%-28s%llu\n", "  with another key", foreign);
  (void)printf("%-28s%llu\n", "garbage on the port", atomic_load(&churn.lives[KIND_GARBAGE]));
  (void)printf("%-28s%.1f\n", "changes of the key", (double)churn.step / 3);
  (void)printf("%-28s%.1f ms\n%-28s%.1f ms\n", "longest standstill", (double)atomic_load(&churn.stillest_us) / 1000,
               "longest load", (double)atomic_load(&churn.latest_us) / 1000);
  (void)printf("%-28s%llu, %.1f ms in all, %.1f ms at most\n", "the machine's pauses", (unsigned long long)pauses.count,
               (double)pauses.all_us / 1000, (double)pauses.longest_us / 1000);
  (void)printf("%-28s%.1f ms\n", "  taken by others", (double)pauses.others_us / 1000);
}

static void forget_warm_up(void)
{
  for (unsigned i = 0; i < KVF_STATUSES_MAX; i++) {
    atomic_store(&churn.statuses[i], 0);
  }
  for (unsigned i = 0; i < KINDS; i++) {
    atomic_store(&churn.lives[i], 0);
  }
  atomic_store(&churn.stops, 0);
}

void stress_churn(const stress_churn_order *order)
{
  stress_mix_now = &stress_churn_mix;
  churn.order = *order;
  open_all();
  load(WARM_UP_LOADS, false); /* a node's heap depends on its keys, and on which threads have shaken hands */
  stress_residue before = stress_measure();
  const uint64_t known = sum_of_stat("peers_known");
  const uint64_t begin_ms = now_ms();
  forget_warm_up();
  if (atomic_load(&stress_wrong) == 0) {
    load(order->loads, order->tls);
    tell(now_ms() - begin_ms);
    /* A node remembers the processes that it has met, up to KVF_PEERS_MAX; sizes of allocations are up to a quarter
     * apart (the sanitizers'). */
    const uint64_t knows = sum_of_stat("peers_known");
    before.costs.memory_bytes += (knows > known ? knows - known : 0) * sizeof(kvf_peer) * 5 / 4;
    stress_check_residue(&before);
  }
  if (atomic_load(&churn.latest_us) > STRESS_LOAD_TIMEOUT_MS * 1000 + STILL_US) {
    stress_fail("P2", "a load went on after its deadline");
  }
  close_all();
}
