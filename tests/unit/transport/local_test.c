/* Opening, closing and the memory of the local transport; what both transports promise is in tests/conformance. */
#include "transport/local/local.h"

#include <unistd.h>

#include "../../sides/side.h"
#include "test.h"

static const kvf_transport_ops *const ops = &kvf_transport_local;

TEST(it_is_called_local)
{
  assert_string_equal(ops->name, "local");
}

TEST(no_copy_threads_is_refused)
{
  kvf_transport_config config = side_config();
  const kvf_transport_host host = {0};
  kvf_transport *transport = (void *)&config;
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  config.copy_threads = 0;
  assert_int_equal(ops->open(&config, &host, &transport, message), KVF_INVALID);
  assert_null(transport);
  assert_string_equal(message, "copy_threads is 0: local needs at least 1");
}

TEST(an_idle_transport_closes)
{
  const side_shape shape = side_shape_simple(2, 4096);
  for (uint32_t threads = 1; threads <= 8; threads++) {
    side one;
    kvf_transport_config config = side_config();
    config.copy_threads = threads;
    side_open(&one, ops, &shape, 1, &config);
    side_close(&one);
  }
}

TEST(without_memory_there_is_nothing_to_describe)
{
  const side_shape shape = side_shape_simple(2, 4096);
  side one;
  side_open(&one, ops, &shape, 1, NULL);
  uint8_t room[KVF_TRANSPORT_DESCRIPTION_BYTES_MAX];
  size_t bytes = 0;
  ops->clear_memory(one.transport);
  assert_int_equal(ops->describe(one.transport, room, sizeof(room), &bytes), KVF_INVALID);

  const kvf_transport_memory tableless = {.regions = one.regions, .regions_count = 1, .table_fd = -1};
  assert_int_equal(ops->set_memory(one.transport, &tableless), KVF_OK);
  assert_int_equal(ops->describe(one.transport, room, sizeof(room), &bytes), KVF_INVALID);
  side_close(&one);
}

TEST(a_description_names_this_process_and_its_memory)
{
  const side_shape shape = {.count = 2, .regions = {{64, 64, 4, 1, 1, 0, 0}, {96, 64, 4, 1, 1, 0, 0}}};
  side one;
  side_open(&one, ops, &shape, 1, NULL);
  side_introduction introduction;
  side_introduce(&one, &introduction);
  const kvf_local_place here = kvf_local_place_here();
  kvf_local_description head;
  kvf_memory_import imports[2];
  const kvf_memory_devices devices = kvf_memory_devices_of(one.regions, 2);
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(kvf_local_description_read(introduction.description, introduction.description_bytes, &here,
                                              &one.incarnation, 2, 1, &head, message),
                   KVF_OK);
  const kvf_memory_exports exports = {(const uint8_t *)(uintptr_t)head.exports_address, head.exports_bytes};
  assert_int_equal(kvf_local_import(&head, exports, shape.regions, &devices, imports, message), KVF_OK);
  assert_int_equal(head.pid, getpid());
  assert_int_equal(head.table_slots, SIDE_SLOTS);
  assert_int_equal(head.table_address, (uintptr_t)one.table);
  assert_int_equal(head.has_table_fd, 1);
  assert_int_equal(head.table_fd, one.table_fd);
  assert_int_equal(imports[0].base, (uintptr_t)one.regions[0].base);
  assert_int_equal(imports[1].base, (uintptr_t)one.regions[1].base);
  assert_memory_equal((const void *)(uintptr_t)head.cookie_address, head.cookie, sizeof(head.cookie));
  side_close(&one);
}

TEST(every_transport_has_a_cookie_of_its_own)
{
  const side_shape shape = side_shape_simple(2, 64);
  side first;
  side second;
  side_open(&first, ops, &shape, 1, NULL);
  side_open(&second, ops, &shape, 1, NULL);
  assert_memory_not_equal(kvf_local_of(first.transport)->cookie, kvf_local_of(second.transport)->cookie,
                          KVF_LOCAL_COOKIE_BYTES);
  side_close(&first);
  side_close(&second);
}
