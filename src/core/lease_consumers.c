#include "core/lease_consumers.h"

#include <assert.h>
#include <string.h>

enum { STATE_NONE = 0, STATE_ATTACHED, STATE_COMPLETED, STATE_ABORTED };

static_assert(KVF_LEASE_READERS_MAX == 64, "a consumer's readers are the bits of a word");

#define NO_INDEX KVF_LEASE_CONSUMERS_MAX

/* Leaves the records alone: they are set when a consumer attaches, and a publish need not touch their cache lines. */
void kvf_consumers_init(kvf_lease_consumers *consumers)
{
  memset(consumers->state, STATE_NONE, sizeof(consumers->state));
}

static unsigned first_in_state(const kvf_lease_consumers *consumers, uint8_t state)
{
  unsigned i = 0;
  while (i < KVF_LEASE_CONSUMERS_MAX && consumers->state[i] != state) {
    i++;
  }
  return i;
}

static unsigned find(const kvf_lease_consumers *consumers, const kvf_consumer_key *key)
{
  for (unsigned i = 0; i < KVF_LEASE_CONSUMERS_MAX; i++) {
    const kvf_consumer_key *other = &consumers->records[i].key;
    if (consumers->state[i] != STATE_NONE && other->request_id == key->request_id &&
        memcmp(&other->incarnation, &key->incarnation, sizeof(key->incarnation)) == 0) {
      return i;
    }
  }
  return NO_INDEX;
}

/* The consumer's record, a new one in state ATTACHED if it has none; NO_INDEX if there is no room. */
static unsigned find_or_attach(kvf_lease_consumers *consumers, const kvf_consumer_key *key)
{
  unsigned i = find(consumers, key);
  if (i != NO_INDEX) {
    return i;
  }
  i = first_in_state(consumers, STATE_NONE);
  if (i == NO_INDEX) {
    i = first_in_state(consumers, STATE_ABORTED);
  }
  if (i != NO_INDEX) {
    consumers->state[i] = STATE_ATTACHED;
    consumers->readers[i] = 0;
    consumers->records[i] = (kvf_lease_consumer){.key = *key};
  }
  return i;
}

bool kvf_consumers_renew(kvf_lease_consumers *consumers, const kvf_consumer_key *key)
{
  unsigned i = find_or_attach(consumers, key);
  return i == NO_INDEX || consumers->state[i] == STATE_ATTACHED;
}

static kvf_consumers_verdict judge(const kvf_lease_consumers *consumers)
{
  if (first_in_state(consumers, STATE_ATTACHED) != NO_INDEX) {
    return KVF_CONSUMERS_KEEP;
  }
  if (first_in_state(consumers, STATE_COMPLETED) != NO_INDEX) {
    return KVF_CONSUMERS_COMPLETED;
  }
  return first_in_state(consumers, STATE_ABORTED) != NO_INDEX ? KVF_CONSUMERS_ABANDONED : KVF_CONSUMERS_KEEP;
}

kvf_consumers_verdict kvf_consumers_complete(kvf_lease_consumers *consumers, const kvf_consumer_key *key,
                                             uint32_t reader, uint32_t readers)
{
  if (readers > KVF_LEASE_READERS_MAX || reader >= readers) {
    return KVF_CONSUMERS_KEEP;
  }
  unsigned i = find_or_attach(consumers, key);
  if (i == NO_INDEX || consumers->state[i] != STATE_ATTACHED) {
    return KVF_CONSUMERS_KEEP;
  }
  if (consumers->readers[i] != 0 && consumers->readers[i] != readers) {
    return KVF_CONSUMERS_KEEP;
  }
  consumers->readers[i] = (uint8_t)readers;
  uint64_t done = consumers->records[i].done;
  consumers->records[i].done = done | UINT64_C(1) << reader;
  if (consumers->records[i].done == UINT64_MAX >> (64 - readers)) {
    consumers->state[i] = STATE_COMPLETED;
  }
  return judge(consumers);
}

kvf_consumers_verdict kvf_consumers_abort(kvf_lease_consumers *consumers, const kvf_consumer_key *key)
{
  unsigned i = find_or_attach(consumers, key);
  if (i != NO_INDEX && consumers->state[i] == STATE_ATTACHED) {
    consumers->state[i] = STATE_ABORTED;
  }
  return judge(consumers);
}
