/* A level of the wheel is a digit of the time: placing a timer, turning to the next occupied slot, and firing. */
#include "base/wheel.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/bitmap.h"

#define SLOT_BITS 8
#define SLOT_MASK (KVF_WHEEL_LEVEL_SLOTS - 1u)

static_assert(1u << SLOT_BITS == KVF_WHEEL_LEVEL_SLOTS, "a level's slots are one digit of a tick");
static_assert(UINT64_MAX / KVF_WHEEL_GRANULE_NS < UINT64_C(1) << (SLOT_BITS * KVF_WHEEL_LEVELS),
              "the levels span all of time");

/* The first granule that begins at or after the time: rounding up is what keeps a timer from being early. */
static uint64_t tick_of_timer(uint64_t expires_ns)
{
  return expires_ns / KVF_WHEEL_GRANULE_NS + (expires_ns % KVF_WHEEL_GRANULE_NS != 0);
}

static uint64_t time_of_tick(uint64_t tick)
{
  return tick > UINT64_MAX / KVF_WHEEL_GRANULE_NS ? KVF_TIME_NEVER : tick * KVF_WHEEL_GRANULE_NS;
}

void kvf_wheel_init(kvf_wheel *wheel, uint64_t now_ns)
{
  wheel->tick = now_ns / KVF_WHEEL_GRANULE_NS;
  kvf_list_init(&wheel->due);
  kvf_list_init(&wheel->moving);
  memset(wheel->occupied, 0, sizeof(wheel->occupied));
  for (unsigned slot = 0; slot < KVF_WHEEL_SLOTS; slot++) {
    kvf_list_init(&wheel->slots[slot]);
  }
}

void kvf_timer_init(kvf_timer *timer, uint32_t kind)
{
  kvf_list_init(&timer->link);
  timer->expires_ns = KVF_TIME_NEVER;
  timer->kind = kind;
}

bool kvf_timer_is_armed(const kvf_timer *timer)
{
  return kvf_list_is_linked(&timer->link);
}

/* The level is that of the highest digit in which the timer's tick differs from the wheel's. So a level holds only
 * timers after the wheel's own slot there. All timers of a lower level come before those of a higher one. No slot holds
 * two turns of the wheel. */
static void place(kvf_wheel *wheel, kvf_timer *timer)
{
  uint64_t tick = tick_of_timer(timer->expires_ns);
  if (tick <= wheel->tick) {
    kvf_list_push_back(&wheel->due, &timer->link);
    return;
  }
  unsigned level = (63u - (unsigned)__builtin_clzll(tick ^ wheel->tick)) / SLOT_BITS;
  assert(level < KVF_WHEEL_LEVELS);
  unsigned slot = level * KVF_WHEEL_LEVEL_SLOTS + ((unsigned)(tick >> (level * SLOT_BITS)) & SLOT_MASK);
  kvf_list_push_back(&wheel->slots[slot], &timer->link);
  kvf_bitmap_set(wheel->occupied, slot);
}

void kvf_wheel_disarm(kvf_wheel *wheel, kvf_timer *timer)
{
  if (!kvf_timer_is_armed(timer)) {
    return;
  }
  /* One that is alone in its list has the list's head on both sides, which tells the slot. */
  const kvf_list *head = timer->link.next;
  bool alone = head == timer->link.prev;
  kvf_list_remove(&timer->link);
  uintptr_t offset = (uintptr_t)head - (uintptr_t)wheel->slots;
  if (alone && offset < sizeof(wheel->slots)) {
    kvf_bitmap_clear(wheel->occupied, offset / sizeof(wheel->slots[0]));
  }
}

void kvf_wheel_arm(kvf_wheel *wheel, kvf_timer *timer, uint64_t expires_ns)
{
  kvf_wheel_disarm(wheel, timer);
  timer->expires_ns = expires_ns;
  if (expires_ns != KVF_TIME_NEVER) {
    place(wheel, timer);
  }
}

/* The first occupied slot and the tick that it begins at; false if all are empty. */
static bool first_slot(const kvf_wheel *wheel, unsigned *slot, uint64_t *tick)
{
  for (unsigned word = 0; word < KVF_WHEEL_SLOTS / 64; word++) {
    if (wheel->occupied[word] != 0) {
      *slot = word * 64 + (unsigned)__builtin_ctzll(wheel->occupied[word]);
      unsigned shift = *slot / KVF_WHEEL_LEVEL_SLOTS * SLOT_BITS;
      uint64_t turn_begin = wheel->tick >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
      *tick = turn_begin | (uint64_t)(*slot & SLOT_MASK) << shift;
      assert(*tick > wheel->tick);
      return true;
    }
  }
  return false;
}

static void move_all(kvf_list *from, kvf_list *to)
{
  assert(!kvf_list_is_empty(from));
  from->next->prev = to->prev;
  to->prev->next = from->next;
  from->prev->next = to;
  to->prev = from->prev;
  kvf_list_init(from);
}

/* Turns the wheel to the next occupied slot; false if that is after `target`, where it then stands. */
static bool turn(kvf_wheel *wheel, uint64_t target)
{
  unsigned slot;
  uint64_t tick;
  if (!first_slot(wheel, &slot, &tick) || tick > target) {
    wheel->tick = target > wheel->tick ? target : wheel->tick;
    return false;
  }
  wheel->tick = tick;
  kvf_bitmap_clear(wheel->occupied, slot);
  move_all(&wheel->slots[slot], slot < KVF_WHEEL_LEVEL_SLOTS ? &wheel->due : &wheel->moving);
  return true;
}

/* A timer of the list, taken out; NULL if it is empty. Takes from both ends in turn: a long list is two chains of cache
 * misses then, which overlap, instead of one. */
static kvf_timer *pop_from(kvf_list *list, bool last)
{
  if (kvf_list_is_empty(list)) {
    return NULL;
  }
  kvf_list *link = last ? list->prev : list->next;
  kvf_list_remove(link);
  __builtin_prefetch(list->next, 1);
  __builtin_prefetch(list->prev, 1);
  return KVF_CONTAINER_OF(link, kvf_timer, link);
}

kvf_timer *kvf_wheel_expire(kvf_wheel *wheel, uint64_t now_ns, uint32_t *work)
{
  uint64_t target = now_ns / KVF_WHEEL_GRANULE_NS;
  while (*work > 0) {
    bool last = *work % 2 == 0;
    kvf_timer *timer = pop_from(&wheel->moving, last);
    if (timer != NULL) {
      *work -= 1;
      place(wheel, timer);
      continue;
    }
    timer = pop_from(&wheel->due, last);
    if (timer != NULL) {
      *work -= 1;
      return timer;
    }
    if (!turn(wheel, target)) {
      return NULL;
    }
  }
  return NULL;
}

uint64_t kvf_wheel_next_deadline(const kvf_wheel *wheel)
{
  unsigned slot;
  uint64_t tick;
  if (!kvf_list_is_empty(&wheel->due) || !kvf_list_is_empty(&wheel->moving)) {
    return time_of_tick(wheel->tick);
  }
  return first_slot(wheel, &slot, &tick) ? time_of_tick(tick) : KVF_TIME_NEVER;
}
