/* A consumer's core and a producer's, on a wire (control_world.h), each with a finder. */
#ifndef KVF_TESTS_FIND_WORLD_H
#define KVF_TESTS_FIND_WORLD_H

#include "base/status.h"
#include "control_world.h"
#include "find/finder.h"
#include "test.h"
#include "wire/find_message.h"

static struct {
  kvf_finder consumer;
  kvf_finder producer;
} finders;

static inline kvf_core *consumer(void)
{
  return &world.consumer.core;
}

static inline kvf_core *producer(void)
{
  return &world.producer.core;
}

static inline void find_world_open(const control_options *options)
{
  control_world_open(options);
  kvf_finder_init(&finders.consumer, consumer());
  kvf_finder_init(&finders.producer, producer());
}

/* Of the prompt that control_ticket() makes a ticket for. */
static inline kvf_find_key key_of(uint32_t blocks)
{
  const kvf_prompt prompt = {.tokens = blocks * 16};
  return kvf_find_key_of_prompt(&prompt);
}

static inline kvf_status offer_ticket(const kvf_core *core, const kvf_ticket *ticket, const char *text,
                                      size_t text_bytes)
{
  kvf_finder *finder = core == producer() ? &finders.producer : &finders.consumer;
  const kvf_find_key key = kvf_find_key_of_prompt(&ticket->prompt);
  return kvf_offers_add(&finder->offers, world.now_ns, &ticket->lease, &key, text, text_bytes);
}

#endif
