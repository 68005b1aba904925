/* Bugs planted on purpose, so that tests are seen to fail: each takes out what a promise rests on. They are compiled in
 * by the build option `mutants` alone, and then one at a time is active; elsewhere KVF_MUTANT() is the constant false.
 *
 * `if (KVF_MUTANT(FENCE_UNCHECKED)) { what the bug does }` */
#ifndef KVF_BASE_MUTANT_H
#define KVF_BASE_MUTANT_H

#include <stdbool.h>

/* Name, the promise that it breaks, what it does. */
#define KVF_MUTANTS(X)                                                                                         \
  X(DIGEST_UNCHECKED, "P1", "the fence's digest is not compared")                                              \
  X(OVER_UNSTORED, "P1", "a lease's blocks are given back, and its fence still says live")                     \
  X(SLOT_ID_REUSED, "P1", "the id of a released lease is given to another one")                                \
  X(FENCE_UNCHECKED, "P1", "blocks count as loaded whatever the fence said after they were read")              \
  X(FENCE_READ_FIRST, "P1", "local, ucx: the fence is sampled before the blocks are copied, not after")        \
  X(COPIED_UNPUBLISHED, "P1", "local, ucx: blocks are copied though their lease may not be live yet")          \
  X(OVER_AFTER_FREE, "P1", "a lease's blocks are used again before over is stored (litmus, simulated engine)") \
  X(CHECKSUM_UNCOMPARED, "P1", "a block's bytes are not compared with its checksums")                          \
  X(LIVE_UNORDERED, "P1", "the live word may be seen before bytes that were streamed")                         \
  X(DIGEST_STORED_LATE, "P1", "the live word is stored before the digest that belongs to it")                  \
  X(PUBLISHED_EARLY, "P1", "simulated engine: a lease is published before its bytes are there")                \
  X(PREEMPTED_UNENDED, "P1", "simulated engine: preempted blocks are used again under a live lease")           \
  X(BARS_IGNORED, "P1", "recovery: a request is rewound though that cannot apply")                             \
  X(CACHED_UNCOMPUTED, "P1", "simulated engine: failed blocks can be found before they have been computed")    \
  X(REWIND_PAST_GAP, "P1", "recovery: good blocks after a failed one are counted")                             \
  X(SOURCE_PAST_GAP, "P1", "a load that goes on from another source leaves a block out")                       \
  X(WALL_CLOCK, "P2", "simulated engine: time is the wall clock's, which is set back")                         \
  X(DEADLINE_IGNORED, "P2", "a load's deadline passes unnoticed")                                              \
  X(BREAKER_STAYS_OPEN, "P2", "an open breaker is never probed")                                               \
  X(ABORT_UNTOLD, "P2", "recovery: the loads of a request that was given up are not aborted")                  \
  X(SECOND_OUTCOME, "P3", "a load that is not quiet with its outcome reports it again")                        \
  X(OUTCOME_OF_EACH_SOURCE, "P3", "a load that goes on from another source reports each")                      \
  X(FINISH_COUNTED_TWICE, "P3", "acknowledgements are counted, whichever reader they are of")                  \
  X(FINISH_ACROSS_CONSUMERS, "P3", "acknowledgements of two consumers are counted together")                   \
  X(RENEWED_AFTER_EXPIRY, "P3", "a renewal that comes too late is accepted")                                   \
  X(ERRORS_DRAINED_TWICE, "P3", "recovery: a failed block is drained again")                                   \
  X(RELEASED_TWICE, "P3", "recovery: a request is released again at its end")                                  \
  X(CANCEL_IS_QUIET, "P4", "a read that was cancelled counts as ended")                                        \
  X(ATTEMPT_NOT_QUIET, "P4", "simulated engine: a cancelled read is reported ended while it still writes")     \
  X(REWIND_BEFORE_QUIET, "P4", "recovery: the engine goes on while a rank may still write")                    \
  X(RELEASED_BEFORE_QUIET, "P4", "recovery: a request is released at its end, quiet or not")                   \
  X(UNRELEASED_FREED, "P4", "simulated engine: blocks are freed at a request's end, released or not")          \
  X(LEASE_NEVER_EXPIRES, "P5", "a lease that nobody comes for is kept for ever")                               \
  X(MERGE_LONGEST, "P7", "the longest prefix of the ranks is used, not the shortest")                          \
  X(RANK_DECIDES_ALONE, "P7", "the first rank's report decides")                                               \
  X(RECOVERY_RANK_ALONE, "P7", "recovery: the first rank's report decides")                                    \
  X(EXCHANGE_MISSED, "P7", "simulated engine: a rank enters the exchange without its last news")               \
  X(MAC_UNCHECKED, "P8", "a ticket's MAC is not compared")                                                     \
  X(PROOF_UNCHECKED, "P8", "whoever connects is taken to have the key")                                        \
  X(TOKEN_UNCHECKED, "P8", "a lease's token is not compared")                                                  \
  X(RESTART_UNNOTICED, "P8", "another incarnation is taken for the one that made the ticket")                  \
  X(PROMPT_UNCHECKED, "P8", "a ticket is good for any prompt")

typedef enum kvf_mutant {
  KVF_MUTANT_NONE,
#define KVF_MUTANT_ENUMERATOR(name, promise, what) KVF_MUTANT_##name,
  KVF_MUTANTS(KVF_MUTANT_ENUMERATOR)
#undef KVF_MUTANT_ENUMERATOR
      KVF_MUTANT_COUNT
} kvf_mutant;

#ifdef KVF_MUTANTS_BUILT
#define KVF_MUTANT(name) (kvf_mutant_active == KVF_MUTANT_##name)

extern kvf_mutant kvf_mutant_active;

/* As above; "NONE" for KVF_MUTANT_NONE. */
const char *kvf_mutant_name(kvf_mutant mutant);
const char *kvf_mutant_promise(kvf_mutant mutant);
const char *kvf_mutant_what(kvf_mutant mutant);

/* Makes the mutant of this name the active one; false if there is none of it. Before any node is opened. At the start
 * it is the one that $KVFERRY_MUTANT names, if that is set. */
bool kvf_mutant_choose(const char *name);
#else
#define KVF_MUTANT(name) false
#endif

#endif
