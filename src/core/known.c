#include "core/known.h"

#include <string.h>

/* How often to look whether one has to be dialled again. What keeps failing is the breakers' matter. */
#define LOOK_NS KVF_NS_PER_S

void kvf_known_init(kvf_known *known, kvf_peers *peers, kvf_wheel *wheel)
{
  *known = (kvf_known){.peers = peers, .wheel = wheel};
  kvf_timer_init(&known->timer, KVF_TIMER_KNOWN);
}

kvf_status kvf_known_add(kvf_known *known, const kvf_address *address)
{
  if (known->count == KVF_KNOWN_PEERS_MAX) {
    return KVF_LIMIT;
  }
  known->entries[known->count++] = (kvf_known_peer){.address = *address};
  return KVF_OK;
}

static void release(kvf_known *known, uint64_t now_ns, kvf_known_peer *entry)
{
  if (entry->held) {
    kvf_peers_release(known->peers, now_ns, entry->peer);
    entry->held = false;
  }
}

/* All zeros: whoever answers. */
static void hold(kvf_known *known, uint64_t now_ns, kvf_known_peer *entry, const kvf_incarnation *incarnation)
{
  const kvf_peer_key key = {.address = entry->address, .incarnation = *incarnation};
  release(known, now_ns, entry);
  entry->held = kvf_peers_acquire(known->peers, &key, &entry->peer) == KVF_OK; /* else later */
  if (entry->held) {
    kvf_peers_want_ready(known->peers, now_ns, entry->peer);
  }
}

static void look(kvf_known *known, uint64_t now_ns, kvf_known_peer *entry)
{
  if (!entry->held || known->peers->table[entry->peer]->gone != KVF_OK) {
    hold(known, now_ns, entry, &(kvf_incarnation){0});
  } else {
    kvf_peers_want_ready(known->peers, now_ns, entry->peer);
  }
}

void kvf_known_on_timer(kvf_known *known, uint64_t now_ns)
{
  for (uint32_t i = 0; i < known->count; i++) {
    look(known, now_ns, &known->entries[i]);
  }
  kvf_wheel_arm(known->wheel, &known->timer, kvf_time_add(now_ns, LOOK_NS));
}

void kvf_known_start(kvf_known *known, uint64_t now_ns)
{
  if (known->count > 0) {
    kvf_known_on_timer(known, now_ns);
  }
}

void kvf_known_stop(kvf_known *known, uint64_t now_ns)
{
  for (uint32_t i = 0; i < known->count; i++) {
    release(known, now_ns, &known->entries[i]);
  }
  kvf_wheel_disarm(known->wheel, &known->timer);
}

void kvf_known_on_named(kvf_known *known, uint64_t now_ns, uint32_t peer)
{
  const kvf_incarnation named = known->peers->table[peer]->named;
  for (uint32_t i = 0; i < known->count; i++) {
    if (known->entries[i].held && known->entries[i].peer == peer) {
      hold(known, now_ns, &known->entries[i], &named);
    }
  }
}
