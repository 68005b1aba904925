#include "cuda_exporter.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- in the test ---- */

static exporter_reply receive(const child_process *child)
{
  exporter_reply got;
  assert_true(child_receive(child->channel, &got, sizeof(got)));
  assert_int_equal(got.pid, child->pid);
  return got;
}

exporter_reply exporter_start(child_process *child, const exporter_order *order)
{
  assert_true(child_start(child, EXPORTER_MODE, SOCK_STREAM));
  assert_true(child_send(child->channel, order, sizeof(*order)));
  return receive(child);
}

exporter_reply exporter_ask(const child_process *child, exporter_question question)
{
  assert_true(child_send(child->channel, &question, sizeof(question)));
  return receive(child);
}

void exporter_end(const child_process *child)
{
  assert_int_equal(child_end(child), 0);
}

void exporter_kill(const child_process *child)
{
  assert_int_equal(kill(child->pid, SIGKILL), 0);
  assert_true(WIFSIGNALED(child_end(child)));
}

/* ---- in the child ---- */

static void look(const exporter_order *order, kvf_cu_memory base, exporter_reply *out)
{
  out->pid = getpid();
  out->descriptors = kind_descriptors();
  out->allocations = fake_cuda_count().allocations;
  out->is_written = kind_device_is_written(base + order->offset, order->region_bytes, order->seed);
}

static kvf_cu_memory make(const exporter_order *order)
{
  kind_begin();
  const kvf_cu_memory base = order->kind == EXPORT_ALLOCATION
                                 ? kind_allocate(order->bytes)
                                 : kind_map(order->bytes, order->mappings, order->handle_types);
  const kvf_region region = kind_region(base + order->offset, order->region_bytes);
  kind_write_device(base + order->offset, order->region_bytes, order->seed);
  assert_int_equal(kvf_memory_cuda.check(&region, kind_message), KVF_OK);
  return base;
}

/* Until the test goes. */
static void answer(const exporter_order *order, kvf_cu_memory base, exporter_reply *reply)
{
  exporter_question question = EXPORTER_LOOK;
  bool is_exported = reply->status == KVF_OK;
  do {
    if (question == EXPORTER_UNEXPORT) {
      kvf_memory_cuda.unexport(reply->exported.bytes);
      is_exported = false;
    }
    look(order, base, reply);
  } while (child_send(STDIN_FILENO, reply, sizeof(*reply)) && child_receive(STDIN_FILENO, &question, sizeof(question)));
  if (is_exported) {
    kvf_memory_cuda.unexport(reply->exported.bytes);
  }
}

int exporter_run(void)
{
  exporter_order order;
  exporter_reply reply = {.pid = 0};
  if (!child_receive(STDIN_FILENO, &order, sizeof(order))) {
    return 1;
  }
  const kvf_cu_memory base = make(&order);
  const kvf_region region = kind_region(base + order.offset, order.region_bytes);
  reply.descriptors_before = kind_descriptors();
  reply.allocations_before = fake_cuda_count().allocations;
  reply.status = kvf_memory_cuda.export(&region, reply.exported.bytes, &reply.exported.length, reply.message);
  answer(&order, base, &reply);
  return 0;
}
