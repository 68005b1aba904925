/* Methods of Node: finding tickets. */
#include "binding.h"

#include <stdlib.h>

typedef struct find_order {
  kvf_prompt prompt;
  const char *at;
  uint32_t timeout_ms;
  uint64_t user;
  uint64_t id;
} find_order;

static kvf_status call_ticket_find(kvf_node *node, void *arguments)
{
  find_order *order = arguments;
  return kvf_ticket_find(node, &order->prompt, order->at, order->timeout_ms, order->user, &order->id);
}

PyObject *kvfpy_node_ticket_find(kvfpy_node_object *self, PyObject *args)
{
  find_order order = {.id = 0};
  kvf_status status = KVF_OK;
  if (!PyArg_ParseTuple(args, "O&zO&O&:ticket_find", kvfpy_to_prompt, &order.prompt, &order.at, kvfpy_to_u32,
                        &order.timeout_ms, kvfpy_to_u64, &order.user) ||
      !kvfpy_call_node(self, call_ticket_find, &order, &status)) {
    return NULL;
  }
  return Py_BuildValue("(iK)", (int)status, (unsigned long long)order.id);
}

typedef struct taken {
  uint64_t id;
  char *ticket;
  size_t bytes;
} taken;

static kvf_status call_ticket_take(kvf_node *node, void *arguments)
{
  taken *found = arguments;
  return kvf_ticket_take(node, found->id, found->ticket, KVF_TICKET_BYTES_MAX, &found->bytes);
}

PyObject *kvfpy_node_ticket_take(kvfpy_node_object *self, PyObject *find_id)
{
  taken found = {.bytes = 0};
  kvf_status status = KVF_OK;
  PyObject *result = NULL;
  if (!kvfpy_to_u64(find_id, &found.id)) {
    return NULL;
  }
  found.ticket = malloc(KVF_TICKET_BYTES_MAX);
  if (found.ticket == NULL) {
    return PyErr_NoMemory();
  }
  if (kvfpy_call_node(self, call_ticket_take, &found, &status)) {
    result = status == KVF_OK ? PyUnicode_FromStringAndSize(found.ticket, (Py_ssize_t)found.bytes) : Py_NewRef(Py_None);
  }
  free(found.ticket);
  return result;
}

typedef struct prompt_order {
  kvfpy_text ticket;
  kvf_prompt prompt;
} prompt_order;

static kvf_status call_ticket_prompt(kvf_node *node, void *arguments)
{
  prompt_order *order = arguments;
  return kvf_ticket_prompt(node, order->ticket.text, order->ticket.bytes, &order->prompt);
}

PyObject *kvfpy_node_ticket_prompt(kvfpy_node_object *self, PyObject *text)
{
  prompt_order order;
  kvf_status status = KVF_OK;
  if (!kvfpy_to_text(text, &order.ticket) || !kvfpy_call_node(self, call_ticket_prompt, &order, &status)) {
    return NULL;
  }
  return status == KVF_OK ? Py_BuildValue("(iN)", (int)status, kvfpy_struct_object(&order.prompt, sizeof(order.prompt)))
                          : Py_BuildValue("(iO)", (int)status, Py_None);
}
