/* Prompts, and the tickets on their way to a consumer: see stress.h. */
#include <string.h>

#include "stress.h"

#define BOARD_TICKETS 32

/* The last tickets that were made. */
static struct {
  pthread_mutex_t lock;
  uint64_t count; /* that ever came */
  stress_ticket tickets[BOARD_TICKETS];
} board = {.lock = PTHREAD_MUTEX_INITIALIZER};

uint64_t stress_new_seed(kvf_prng *prng)
{
  return kvf_prng_next(prng) | 1; /* 0 is nobody's */
}

kvf_prompt stress_prompt(uint64_t seed, uint32_t count)
{
  return pair_prompt(count * PAIR_BLOCK_TOKENS, (uint32_t)seed);
}

static int parent = -1; /* in a child process: where its tickets go */

void stress_offer_to(int channel)
{
  parent = channel;
}

void stress_offer(const stress_ticket *ticket)
{
  if (parent >= 0) {
    bool sent = child_send(parent, ticket, sizeof(*ticket));
    (void)sent; /* stress_child_main() sees that the parent has gone */
    return;
  }
  (void)pthread_mutex_lock(&board.lock);
  board.tickets[board.count % BOARD_TICKETS] = *ticket;
  board.count++;
  (void)pthread_mutex_unlock(&board.lock);
}

/* Mostly the newest ones, so that many are still good. */
static bool take(stress_site *site, kvf_prng *prng, stress_ticket *out)
{
  (void)site;
  (void)pthread_mutex_lock(&board.lock);
  uint64_t back = kvf_prng_below(prng, stress_one_in(prng, 4) ? BOARD_TICKETS : 3);
  bool found = back < board.count;
  if (found) {
    *out = board.tickets[(board.count - 1 - back) % BOARD_TICKETS];
  }
  (void)pthread_mutex_unlock(&board.lock);
  return found;
}

const stress_mix stress_rain_mix = {
    .options = {{"stall_timeout_ms", "200"}, {"lease_ttl_ms", "300"}, {"lease_max_ms", "2000"}},
    .ticket_blocks = STRESS_TICKET_BLOCKS,
    .ends_early_one_in = 3,
    .forged_one_in = 16,
    .take = take,
};
