/* Methods of Node: leases and tickets. */
#include "binding.h"

#include <stdlib.h>

typedef struct reservation {
  uint32_t number; /* of blocks that are not known */
  kvfpy_block_table table;
  uint64_t pool_blocks;
  kvf_lease lease;
} reservation;

static kvf_status call_lease_reserve(kvf_node *node, void *arguments)
{
  reservation *want = arguments;
  return kvf_lease_reserve(node, want->number, want->pool_blocks, &want->lease);
}

static kvf_status call_lease_reserve_blocks(kvf_node *node, void *arguments)
{
  reservation *want = arguments;
  const kvf_blocks blocks = kvfpy_block_table_view(&want->table);
  return kvf_lease_reserve_blocks(node, &blocks, want->pool_blocks, &want->lease);
}

static PyObject *reserve(kvfpy_node_object *self, kvf_status (*call)(kvf_node *, void *), reservation *want)
{
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call, want, &status)) {
    return NULL;
  }
  return status == KVF_OK ? Py_BuildValue("(iy#K)", (int)status, (const char *)&want->lease,
                                          (Py_ssize_t)sizeof(want->lease), (unsigned long long)want->lease.id)
                          : Py_BuildValue("(iOi)", (int)status, Py_None, 0);
}

PyObject *kvfpy_node_lease_reserve(kvfpy_node_object *self, PyObject *args)
{
  reservation want = {.number = 0};
  return PyArg_ParseTuple(args, "O&O&:lease_reserve", kvfpy_to_u32, &want.number, kvfpy_to_u64, &want.pool_blocks)
             ? reserve(self, call_lease_reserve, &want)
             : NULL;
}

PyObject *kvfpy_node_lease_reserve_blocks(kvfpy_node_object *self, PyObject *args)
{
  reservation want = {.number = 0};
  PyObject *result = NULL;
  if (PyArg_ParseTuple(args, "O&O&:lease_reserve_blocks", kvfpy_to_block_table, &want.table, kvfpy_to_u64,
                       &want.pool_blocks)) {
    result = reserve(self, call_lease_reserve_blocks, &want);
  }
  free(want.table.ids);
  return result;
}

PyObject *kvfpy_node_lease_release(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, kvf_lease_release);
}

static kvf_status call_lease_ended(kvf_node *node, void *item, const void *context)
{
  return kvf_lease_ended(node, *(const uint64_t *)item, *(const uint64_t *)context);
}

PyObject *kvfpy_node_lease_ended(kvfpy_node_object *self, PyObject *args)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_lease_ended, NULL};
  PyObject *list = NULL;
  uint64_t mask = 0;
  return PyArg_ParseTuple(args, "OO&:lease_ended", &list, kvfpy_to_rank, &mask)
             ? kvfpy_node_batch(self, list, &kind, &mask)
             : NULL;
}

typedef struct ticket_order {
  kvf_lease lease;
  kvf_prompt prompt;
  kvfpy_block_table table;
  char *ticket;
  size_t bytes;
} ticket_order;

static kvf_status call_ticket_make(kvf_node *node, void *arguments)
{
  ticket_order *order = arguments;
  const kvf_blocks blocks = kvfpy_block_table_view(&order->table);
  return kvf_ticket_make(node, &order->lease, &blocks, &order->prompt, order->ticket, KVF_TICKET_BYTES_MAX,
                         &order->bytes);
}

PyObject *kvfpy_node_ticket_make(kvfpy_node_object *self, PyObject *args)
{
  ticket_order order = {.bytes = 0};
  kvf_status status = KVF_OK;
  PyObject *result = NULL;
  if (!PyArg_ParseTuple(args, "O&O&O&:ticket_make", kvfpy_to_lease, &order.lease, kvfpy_to_prompt, &order.prompt,
                        kvfpy_to_block_table, &order.table)) {
    return NULL;
  }
  order.ticket = malloc(KVF_TICKET_BYTES_MAX);
  if (order.ticket == NULL) {
    (void)PyErr_NoMemory();
  } else if (kvfpy_call_node(self, call_ticket_make, &order, &status)) {
    result = status == KVF_OK ? Py_BuildValue("(is#)", (int)status, order.ticket, (Py_ssize_t)order.bytes)
                              : Py_BuildValue("(iO)", (int)status, Py_None);
  }
  free(order.ticket);
  free(order.table.ids);
  return result;
}

static kvf_status call_ticket_offer(kvf_node *node, void *arguments)
{
  const kvfpy_text *ticket = arguments;
  return kvf_ticket_offer(node, ticket->text, ticket->bytes);
}

PyObject *kvfpy_node_ticket_offer(kvfpy_node_object *self, PyObject *text)
{
  kvfpy_text ticket;
  kvf_status status = KVF_OK;
  return kvfpy_to_text(text, &ticket) && kvfpy_call_node(self, call_ticket_offer, &ticket, &status)
             ? PyLong_FromLong(status)
             : NULL;
}

typedef struct publication {
  kvf_lease lease;
  kvf_prompt prompt;
  kvfpy_block_table table;
  uint64_t user;
} publication;

static int to_publication(PyObject *value, void *out)
{
  static const kvfpy_field fields[] = {{"lease", kvfpy_to_lease, offsetof(publication, lease)},
                                       {"prompt", kvfpy_to_prompt, offsetof(publication, prompt)},
                                       {"user", kvfpy_to_u64, offsetof(publication, user)},
                                       {"blocks", kvfpy_to_block_table, offsetof(publication, table)},
                                       {NULL, NULL, 0}};
  return kvfpy_to_fields(value, "a publication", fields, out);
}

static kvf_status call_lease_publish(kvf_node *node, void *item, const void *context)
{
  const publication *order = item;
  const kvf_blocks blocks = kvfpy_block_table_view(&order->table);
  return kvf_lease_publish(node, &order->lease, &blocks, &order->prompt, kvfpy_point_or_null(context), order->user);
}

static void publication_clear(void *item)
{
  free(((publication *)item)->table.ids);
}

PyObject *kvfpy_node_lease_publish(kvfpy_node_object *self, PyObject *args)
{
  static const kvfpy_batch_kind kind = {sizeof(publication), to_publication, call_lease_publish, publication_clear};
  return kvfpy_node_batch_after(self, args, &kind);
}

static kvf_status call_lease_end(kvf_node *node, void *item, const void *context)
{
  (void)context;
  return kvf_lease_end(node, item);
}

static kvf_status call_leases_end_lingering(kvf_node *node, void *unused)
{
  (void)unused;
  kvf_leases_end_lingering(node);
  return KVF_OK;
}

PyObject *kvfpy_node_leases_end_lingering(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  return kvfpy_call_or_raise(self, call_leases_end_lingering, NULL);
}

PyObject *kvfpy_node_lease_end(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(kvf_lease), kvfpy_to_lease, call_lease_end, NULL};
  return kvfpy_node_batch(self, list, &kind, NULL);
}
