/* Opening, describing, memory: what needs no peer. */
#include "transport/tcp/common.h"

#include "../../held_port.h"
#include "node.h"
#include "test.h"
#include "wire/rails_description.h"

static const kvf_transport_ops *const ops = &kvf_transport_tcp_rail;

static side *opened(void)
{
  const node_shape shape = node_shape_simple(4, 4096);
  side *node = malloc(sizeof(*node));
  assert_non_null(node);
  node_open(node, ops, &shape, 1);
  return node;
}

static void closed(side *node)
{
  node_close(node);
  free(node);
}

/* Of the whole, which checks what its rails do not look at. */
static kvf_status open_status(const kvf_transport_config *config, char *message)
{
  const kvf_transport_host host = {0};
  kvf_transport *transport = (void *)8;
  kvf_status status = kvf_transport_tcp.open(config, &host, &transport, message);
  assert_null(transport);
  return status;
}

TEST(configurations_that_cannot_work_are_named)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_transport_config config = node_config();
  config.tcp_streams = 0;
  assert_int_equal(open_status(&config, message), KVF_INVALID);
  assert_non_null(strstr(message, "tcp_streams is 0"));
  config.tcp_streams = KVF_RAILS_MAX + 1;
  assert_int_equal(open_status(&config, message), KVF_INVALID);
  assert_non_null(strstr(message, "tcp_streams is 17: tcp needs 1 to 16"));
  config = node_config();
  strcpy(config.listen, "1.2.3.4:x");
  assert_int_equal(open_status(&config, message), KVF_INVALID);
  assert_non_null(strstr(message, "1.2.3.4:x"));
  strcpy(config.listen, "192.0.2.1"); /* a documentation address: no machine has it */
  assert_int_equal(open_status(&config, message), KVF_ADDRESS_IN_USE);
  assert_non_null(strstr(message, "192.0.2.1"));
}

static kvf_tcp_description description_of(side *node)
{
  node_introduction introduction;
  node_introduce(node, &introduction);
  kvf_tcp_description found = {0};
  assert_int_equal(
      kvf_tcp_description_read(introduction.description, introduction.description_bytes, &node->incarnation, &found),
      KVF_OK);
  return found;
}

TEST(the_port_of_listen_is_the_control_connections)
{
  const node_shape shape = node_shape_simple(4, 4096);
  kvf_transport_config config = node_config();
  strcpy(config.listen, "127.0.0.1:1"); /* nobody but root could bind it */
  side *node = malloc(sizeof(*node));
  assert_non_null(node);
  node_open_with(node, ops, &shape, 1, &config);
  const kvf_tcp_description found = description_of(node);
  assert_true(found.port > 1);
  assert_false(found.has_checksums);
  closed(node);
}

/* As a firewall lets them through: the first that is free, and no other. */
TEST(data_ports_are_of_the_range)
{
  const held_port taken = hold_port();
  const node_shape shape = node_shape_simple(4, 4096);
  kvf_transport_config config = node_config();
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  side *nodes[2];
  strcpy(config.listen, "127.0.0.1:1");
  config.data_port_first = taken.port;
  config.data_port_last = (uint16_t)(taken.port + 40);
  for (size_t i = 0; i < 2; i++) {
    nodes[i] = malloc(sizeof(*nodes[i]));
    assert_non_null(nodes[i]);
    node_open_with(nodes[i], ops, &shape, 1, &config);
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
  const node_shape shape = node_shape_simple(4, 4096);
  kvf_transport_config config = node_config();
  config.listen[0] = '\0';
  side *node = malloc(sizeof(*node));
  assert_non_null(node);
  node_open_with(node, ops, &shape, 1, &config);
  uint8_t description[64];
  size_t bytes = 77;
  assert_int_equal(ops->describe(node->transport, description, sizeof(description), &bytes), KVF_INVALID);
  assert_int_equal(bytes, 77);
  closed(node);
}

TEST(descriptions_are_checked)
{
  side *node = opened();
  node_introduction told;
  node_introduce(node, &told);
  kvf_tcp_description found;
  for (size_t bytes = 0; bytes < told.description_bytes; bytes++) {
    assert_int_equal(kvf_tcp_description_read(told.description, bytes, &node->incarnation, &found), KVF_PROTOCOL);
  }
  assert_int_equal(kvf_tcp_description_read(told.description, told.description_bytes + 1, &node->incarnation, &found),
                   KVF_PROTOCOL);
  for (size_t i = 0; i < told.description_bytes; i++) {
    node_introduction altered = told;
    altered.description[i] ^= 0x10;
    bool is_port = i == 4 || i == 5;
    kvf_status expected = is_port ? KVF_OK : KVF_PROTOCOL;
    kvf_tcp_description other;
    assert_int_equal(
        kvf_tcp_description_read(altered.description, altered.description_bytes, &node->incarnation, &other), expected);
  }
  told.description[4] = 0;
  told.description[5] = 0;
  assert_int_equal(kvf_tcp_description_read(told.description, told.description_bytes, &node->incarnation, &found),
                   KVF_PROTOCOL);
  closed(node);
}

TEST(memory_is_set_once_at_a_time)
{
  side *node = opened();
  const kvf_transport_memory memory = {.regions = node->regions,
                                       .regions_count = node->shape.count,
                                       .table = node->table,
                                       .table_slots = NODE_SLOTS,
                                       .table_fd = -1};
  assert_int_equal(ops->set_memory(node->transport, &memory), KVF_EXISTS);
  ops->clear_memory(node->transport);
  ops->clear_memory(node->transport);
  assert_int_equal(ops->set_memory(node->transport, &memory), KVF_OK);
  assert_int_equal(ops->set_memory(node->transport, &memory), KVF_EXISTS);
  closed(node);
}
