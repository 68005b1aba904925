/* Calls into a node without the GIL, and what they raise. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

PyObject *kvfpy_raise_status(PyObject *error, kvf_status status, const char *message)
{
  const char *why = status == KVF_AGAIN ? kvf_status_describe(status)->meaning : kvf_error_text();
  const char *text = message != NULL && message[0] != '\0' ? message : why;
  PyObject *words = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace"); /* cut anywhere */
  PyObject *value = words != NULL ? PyObject_CallFunction(error, "N", words) : NULL;
  PyObject *number = value != NULL ? PyLong_FromLong(status) : NULL;
  if (number != NULL && PyObject_SetAttrString(value, "status", number) == 0) {
    PyErr_SetObject(error, value);
  }
  Py_XDECREF(number);
  Py_XDECREF(value);
  return NULL;
}

const kvfpy_module_state *kvfpy_state_of_type(PyObject *object)
{
  return PyType_GetModuleState(Py_TYPE(object)); /* the types cannot be derived from: it is there */
}

const kvfpy_module_state *kvfpy_state_of(kvfpy_node_object *self)
{
  return kvfpy_state_of_type((PyObject *)self);
}

PyObject *kvfpy_node_raise(kvfpy_node_object *self, kvf_status status, const char *message)
{
  return kvfpy_raise_status(kvfpy_state_of(self)->error, status, message);
}

bool kvfpy_call_node(kvfpy_node_object *self, kvfpy_node_call call, void *arguments, kvf_status *status)
{
  kvf_node *node = self->node;
  if (node == NULL || self->owner != getpid()) {
    (void)kvfpy_node_raise(self, KVF_CLOSED,
                           node == NULL ? "the node is closed" : "the node belongs to the parent of this process");
    return false;
  }
  self->calls++;
  Py_BEGIN_ALLOW_THREADS;
  *status = call(node, arguments);
  Py_END_ALLOW_THREADS;
  self->calls--;
  return true;
}

PyObject *kvfpy_call_or_raise(kvfpy_node_object *self, kvfpy_node_call call, void *arguments)
{
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call, arguments, &status)) {
    return NULL;
  }
  return status == KVF_OK ? Py_NewRef(Py_None) : kvfpy_node_raise(self, status, NULL);
}

typedef struct batch {
  const kvfpy_batch_kind *kind;
  const void *context;
  size_t count;
  char *items;
  kvf_status *statuses;
} batch;

static kvf_status batch_run(kvf_node *node, void *arguments)
{
  batch *run = arguments;
  for (size_t i = 0; i < run->count; i++) {
    run->statuses[i] = run->kind->call(node, run->items + i * run->kind->item_bytes, run->context);
  }
  return KVF_OK;
}

static bool batch_parse(batch *run, PyObject *list)
{
  for (size_t i = 0; i < run->count; i++) {
    if (!run->kind->parse(PyList_GetItem(list, (Py_ssize_t)i), run->items + i * run->kind->item_bytes)) {
      return false;
    }
  }
  return true;
}

static PyObject *status_object(const kvfpy_module_state *state, const void *item)
{
  (void)state;
  return PyLong_FromLong(*(const kvf_status *)item);
}

PyObject *kvfpy_node_batch(kvfpy_node_object *self, PyObject *list, const kvfpy_batch_kind *kind, const void *context)
{
  Py_ssize_t count = kvfpy_list_length(list);
  if (count < 0) {
    return NULL;
  }
  PyObject *result = NULL;
  kvf_status unused = KVF_OK;
  batch run = {.kind = kind, .context = context, .count = (size_t)count};
  run.items = calloc(run.count + 1, kind->item_bytes);
  run.statuses = calloc(run.count + 1, sizeof(*run.statuses));
  if (run.items == NULL || run.statuses == NULL) {
    (void)PyErr_NoMemory();
  } else if (batch_parse(&run, list) && kvfpy_call_node(self, batch_run, &run, &unused)) {
    result = kvfpy_make_list(NULL, run.statuses, sizeof(*run.statuses), run.count, status_object);
  }
  for (size_t i = 0; kind->clear != NULL && run.items != NULL && i < run.count; i++) {
    kind->clear(run.items + i * kind->item_bytes);
  }
  free(run.statuses);
  free(run.items);
  return result;
}

PyObject *kvfpy_node_batch_after(kvfpy_node_object *self, PyObject *args, const kvfpy_batch_kind *kind)
{
  PyObject *list = NULL;
  kvfpy_point after = {.is_given = false};
  return PyArg_ParseTuple(args, "O|O&", &list, kvfpy_to_point, &after) ? kvfpy_node_batch(self, list, kind, &after)
                                                                       : NULL;
}

typedef kvf_status (*call_by_id)(kvf_node *node, uint64_t id);

static kvf_status call_id(kvf_node *node, void *item, const void *context)
{
  return (*(const call_by_id *)context)(node, *(const uint64_t *)item);
}

PyObject *kvfpy_node_ids(kvfpy_node_object *self, PyObject *list, call_by_id call)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_id, NULL};
  return kvfpy_node_batch(self, list, &kind, &call);
}
