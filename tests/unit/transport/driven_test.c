#include "transport/driven.h"

#include "test.h"

static kvf_driven driven;
static kvf_driven_link link;
static uint64_t told_id; /* of the last read that was reported */

static void on_read_done(void *context, const kvf_read_result *result)
{
  assert_ptr_equal(context, &driven);
  told_id = result->id;
}

static int set_up(__attribute__((unused)) void **state)
{
  static const kvf_transport_config config;
  const kvf_transport_host host = {.context = &driven, .read_done = on_read_done};
  memset(&driven, 0, sizeof(driven));
  memset(&link, 0, sizeof(link));
  kvf_driven_init(&driven, &kvf_transport_tcp, &config, &host, 1);
  link.base.transport = &driven.base;
  kvf_list_init(&link.open);
  return 0;
}

static int tear_down(__attribute__((unused)) void **state)
{
  kvf_driven_free(&driven);
  return 0;
}

static void run_nothing(void *owner, kvf_command *command)
{
  (void)owner;
  (void)command;
}

static void end(kvf_driven_read *read)
{
  const kvf_read_result result = {.id = read->transfer.id};
  kvf_driven_read_done(read, &result);
  assert_int_equal(told_id, read->transfer.id);
}

TEST_WITH(reads_are_found_while_they_are_open, set_up, tear_down)
{
  kvf_driven_read reads[2] = {0};
  for (uint64_t i = 0; i < 2; i++) {
    const kvf_transfer request = {.id = 7 + i};
    kvf_driven_read_start(&link.base, &request, &reads[i], run_nothing, run_nothing);
  }
  assert_ptr_equal(kvf_commands_next(&driven.commands), &reads[0].start);
  kvf_driven_read_cancel(&link.base, 99);
  kvf_driven_read_cancel(&link.base, 8);
  assert_ptr_equal(kvf_driven_open_read(&link), &reads[0]);
  end(&reads[0]);
  assert_ptr_equal(kvf_driven_open_read(&link), &reads[1]);
  end(&reads[1]); /* and what was wished of it is off the list */
  assert_null(kvf_driven_open_read(&link));
  assert_null(kvf_commands_next(&driven.commands));
}
