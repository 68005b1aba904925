/* What goes wrong, and who looks on. */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "../sides/peer.h"
#include "stress.h"

#define FDS_MAX 512

static stress_site *any_site(const stress_sites *sites, kvf_prng *prng)
{
  return &sites->site[kvf_prng_below(prng, sites->count)];
}

/* ---- connections ---- */

static bool is_connection(int fd)
{
  struct sockaddr_storage peer;
  socklen_t bytes = sizeof(peer);
  void *any = &peer;
  return syscall(SYS_getpeername, fd, any, &bytes) == 0 && peer.ss_family == AF_INET;
}

/* Cuts some connection of this process, whose ever it is. By bare system calls: between the look and the cut the
 * descriptor may have become another's, which is a race that TSan would report, and one that does no harm. */
static void cut_connection(kvf_prng *prng)
{
  int fds[FDS_MAX];
  size_t count = 0;
  for (int fd = 3; fd < FDS_MAX; fd++) {
    if (is_connection(fd)) {
      fds[count++] = fd;
    }
  }
  if (count > 0) {
    int fd = fds[kvf_prng_below(prng, count)];
    const struct linger reset = {.l_onoff = 1, .l_linger = 0};
    if (stress_one_in(prng, 2)) {
      (void)syscall(SYS_setsockopt, fd, SOL_SOCKET, SO_LINGER, &reset, sizeof(reset));
    }
    (void)syscall(SYS_shutdown, fd, SHUT_RDWR);
  }
}

static uint16_t port_of(const stress_site *site)
{
  return (uint16_t)strtoul(strrchr(site->setting.listen, ':') + 1, NULL, 10);
}

/* Somebody who connects and says nothing, or nonsense, and goes with a reset. */
static void send_stranger(const stress_sites *sites, kvf_prng *prng)
{
  uint8_t noise[256];
  struct sockaddr_in address = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons(port_of(any_site(sites, prng)))};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const void *any = &address;
  if (fd < 0) {
    return;
  }
  for (size_t i = 0; i < sizeof(noise); i++) {
    noise[i] = (uint8_t)kvf_prng_next(prng);
  }
  if (connect(fd, any, sizeof(address)) == 0) {
    size_t bytes = kvf_prng_below(prng, sizeof(noise));
    ssize_t sent = send(fd, noise, bytes, MSG_NOSIGNAL);
    (void)sent; /* refused or not */
    sleep_us(kvf_prng_below(prng, 500));
  }
  peer_reset(fd);
}

void *stress_rain(void *context)
{
  const stress_sites *sites = context;
  kvf_prng prng = stress_prng();
  while (!atomic_load(&stress_stop)) {
    switch (kvf_prng_below(&prng, 16)) {
      case 0:
        stress_site_restart(any_site(sites, &prng));
        break;
      case 1:
        stress_site_unregister(any_site(sites, &prng), &prng);
        break;
      case 2:
      case 3:
      case 4:
        send_stranger(sites, &prng);
        break;
      default:
        cut_connection(&prng);
        break;
    }
    sleep_us(kvf_prng_below(&prng, 20000));
  }
  return NULL;
}

/* ---- those who look on ---- */

static void look(stress_site *site)
{
  kvf_stat stats[KVF_STATS_MAX];
  uint8_t record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  if (kvf_node_stats(site->n.node, stats, KVF_STATS_MAX) == 0 || kvf_node_event_fd(site->n.node) < 0) {
    stress_fail("P6", "no statistics");
  }
  kvf_histogram histograms[KVF_HISTOGRAMS_MAX];
  kvf_peer_stat peers[4];
  if (kvf_node_histograms(site->n.node, histograms, KVF_HISTOGRAMS_MAX) == 0 ||
      kvf_node_peers(site->n.node, peers, 4) > 4) {
    stress_fail("P6", "no distributions");
  }
  (void)kvf_node_healthy(site->n.node);
  if (kvf_node_address(site->n.node, record, sizeof(record), &bytes) != KVF_OK ||
      kvf_node_set_ranks(site->n.node, record, &bytes, 1) != KVF_OK) {
    stress_fail("P6", "no address");
  }
  if (kvf_load_abort(site->n.node, UINT64_MAX) != KVF_NOT_FOUND ||
      kvf_request_cancel(site->n.node, UINT64_MAX) != KVF_NOT_FOUND) {
    stress_fail("P6", "there is a load that nobody began");
  }
}

void *stress_look(void *context)
{
  const stress_sites *sites = context;
  kvf_prng prng = stress_prng();
  while (!atomic_load(&stress_stop)) {
    stress_site *site = any_site(sites, &prng);
    (void)pthread_rwlock_rdlock(&site->life);
    look(site);
    (void)pthread_rwlock_unlock(&site->life);
    sleep_us(kvf_prng_below(&prng, 2000));
  }
  return NULL;
}
