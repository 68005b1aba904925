/* Opening, describing, memory: what needs no peer. */
#include "transport/tcp/common.h"

#include "../../held_port.h"
#include "../../sides/side.h"
#include "test.h"

static const kvf_transport_ops *const ops = &kvf_transport_tcp;

static side *opened_with(const kvf_transport_config *config)
{
  const side_shape shape = side_shape_simple(4, 4096);
  side *one = allocate(sizeof(*one));
  side_open_with(one, ops, &shape, 1, config);
  return one;
}

static side *opened(void)
{
  const kvf_transport_config config = side_config();
  return opened_with(&config);
}

static void closed(side *one)
{
  side_close(one);
  free(one);
}

static kvf_status open_status(const kvf_transport_config *config, char *message)
{
  const kvf_transport_host host = {0};
  kvf_transport *transport = (void *)8;
  kvf_status status = ops->open(config, &host, &transport, message);
  assert_null(transport);
  return status;
}

TEST(configurations_that_cannot_work_are_named)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_transport_config config = side_config();
  strcpy(config.listen, "1.2.3.4:x");
  assert_int_equal(open_status(&config, message), KVF_INVALID);
  assert_non_null(strstr(message, "1.2.3.4:x"));
  strcpy(config.listen, "192.0.2.1"); /* a documentation address: no machine has it */
  assert_int_equal(open_status(&config, message), KVF_ADDRESS_IN_USE);
  assert_non_null(strstr(message, "192.0.2.1"));
}

static kvf_tcp_description description_of(side *one)
{
  side_introduction introduction;
  side_introduce(one, &introduction);
  kvf_tcp_description found = {0};
  assert_int_equal(
      kvf_tcp_description_read(introduction.description, introduction.description_bytes, &one->incarnation, &found),
      KVF_OK);
  return found;
}

TEST(the_port_of_listen_is_the_control_connections)
{
  kvf_transport_config config = side_config();
  strcpy(config.listen, "127.0.0.1:1"); /* nobody but root could bind it */
  side *one = opened_with(&config);
  const kvf_tcp_description found = description_of(one);
  assert_true(found.port > 1);
  assert_false(found.has_checksums);
  closed(one);
}

/* As a firewall lets them through: the first that is free, and no other. */
TEST(data_ports_are_of_the_range)
{
  const held_port taken = hold_port();
  kvf_transport_config config = side_config();
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  side *nodes[2];
  strcpy(config.listen, "127.0.0.1:1");
  config.data_port_first = taken.port;
  config.data_port_last = (uint16_t)(taken.port + 40);
  for (size_t i = 0; i < 2; i++) {
    nodes[i] = opened_with(&config);
  }
  const uint16_t first = description_of(nodes[0]).port;
  assert_int_equal(first, taken.port);
  assert_in_range(description_of(nodes[1]).port, first + 1, config.data_port_last);
  config.data_port_last = first;
  assert_int_equal(open_status(&config, message), KVF_ADDRESS_IN_USE);
  assert_non_null(strstr(message, "no port of it is free; each rank takes as many as tcp_streams says"));
  closed(nodes[1]);
  closed(nodes[0]);
  (void)close(taken.fd);
}

TEST(a_node_that_does_not_listen_describes_nothing)
{
  kvf_transport_config config = side_config();
  config.listen[0] = '\0';
  side *one = opened_with(&config);
  uint8_t description[64];
  size_t bytes = 77;
  assert_int_equal(ops->describe(one->transport, description, sizeof(description), &bytes), KVF_INVALID);
  assert_int_equal(bytes, 77);
  closed(one);
}

TEST(descriptions_are_checked)
{
  side *one = opened();
  side_introduction told;
  side_introduce(one, &told);
  kvf_tcp_description found;
  for (size_t bytes = 0; bytes < told.description_bytes; bytes++) {
    assert_int_equal(kvf_tcp_description_read(told.description, bytes, &one->incarnation, &found), KVF_PROTOCOL);
  }
  assert_int_equal(kvf_tcp_description_read(told.description, told.description_bytes + 1, &one->incarnation, &found),
                   KVF_PROTOCOL);
  for (size_t i = 0; i < told.description_bytes; i++) {
    side_introduction altered = told;
    altered.description[i] ^= 0x10;
    bool is_port = i == 4 || i == 5;
    kvf_status expected = is_port ? KVF_OK : KVF_PROTOCOL;
    kvf_tcp_description other;
    assert_int_equal(
        kvf_tcp_description_read(altered.description, altered.description_bytes, &one->incarnation, &other), expected);
  }
  told.description[4] = 0;
  told.description[5] = 0;
  assert_int_equal(kvf_tcp_description_read(told.description, told.description_bytes, &one->incarnation, &found),
                   KVF_PROTOCOL);
  closed(one);
}

TEST(memory_is_set_once_at_a_time)
{
  side *one = opened();
  const kvf_transport_memory memory = side_memory(one);
  assert_int_equal(ops->set_memory(one->transport, &memory), KVF_EXISTS);
  ops->clear_memory(one->transport);
  ops->clear_memory(one->transport);
  assert_int_equal(ops->set_memory(one->transport, &memory), KVF_OK);
  assert_int_equal(ops->set_memory(one->transport, &memory), KVF_EXISTS);
  closed(one);
}
