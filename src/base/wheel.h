/* A hierarchical timer wheel with intrusive timers: arm, disarm and fire in O(1), any number at once.
 *
 * Time is counted in granules. A timer never fires before its time, and at most one granule after it, once
 * kvf_wheel_expire() is called. A level has 256 slots, each as wide as the whole level below. The levels together span
 * all of the 64-bit time, so there is neither a horizon nor an origin. `now_ns` must not go backwards. Not for use by
 * several threads at once. A wheel points into itself: it must not be moved once it is initialised.
 */
#ifndef KVF_BASE_WHEEL_H
#define KVF_BASE_WHEEL_H

#include "base/list.h"
#include "base/time.h"

#define KVF_WHEEL_GRANULE_NS KVF_NS_PER_MS
#define KVF_WHEEL_LEVELS 6        /* 256^6 granules: more than 2^64 ns */
#define KVF_WHEEL_LEVEL_SLOTS 256 /* a timer of half a minute is moved between levels once */
#define KVF_WHEEL_SLOTS (KVF_WHEEL_LEVELS * KVF_WHEEL_LEVEL_SLOTS)

/* Lives in what it times. expires_ns is the time that it was last armed for; kind is the user's, who tells by it what
 * the timer is a part of. */
typedef struct kvf_timer {
  kvf_list link;
  uint64_t expires_ns;
  uint32_t kind;
} kvf_timer;

typedef struct kvf_wheel {
  uint64_t tick; /* granules up to this one have been looked at */
  kvf_list due;
  kvf_list moving;                         /* what is left of a slot whose time has begun: goes to lower levels */
  uint64_t occupied[KVF_WHEEL_SLOTS / 64]; /* a bit a slot */
  kvf_list slots[KVF_WHEEL_SLOTS];         /* of level 0, of level 1 ... */
} kvf_wheel;

void kvf_wheel_init(kvf_wheel *wheel, uint64_t now_ns);

void kvf_timer_init(kvf_timer *timer, uint32_t kind);
bool kvf_timer_is_armed(const kvf_timer *timer);

/* Arms the timer, or arms it anew for another time. KVF_TIME_NEVER disarms. A time that has passed fires at the next
 * kvf_wheel_expire(). */
void kvf_wheel_arm(kvf_wheel *wheel, kvf_timer *timer, uint64_t expires_ns);

/* Legal, and without effect, for a timer that is not armed. */
void kvf_wheel_disarm(kvf_wheel *wheel, kvf_timer *timer);

/* A timer whose time has come, disarmed; NULL if there is none or *work is used up. Every timer that is looked
 * at takes one from *work: call again with more if the deadline is still in the past. Timers come in no particular
 * order within a granule, though in the same one whenever the calls are the same. */
kvf_timer *kvf_wheel_expire(kvf_wheel *wheel, uint64_t now_ns, uint32_t *work);

/* When to call kvf_wheel_expire(): no later than the first timer may fire; earlier at most KVF_WHEEL_LEVELS times in a
 * timer's life. Not after `now_ns` of the last kvf_wheel_expire() if its work was used up before it was done.
 * KVF_TIME_NEVER: no timer is armed. */
uint64_t kvf_wheel_next_deadline(const kvf_wheel *wheel);

#endif
