/* Methods of Node: requests and loads. */
#include "binding.h"

#include <stdlib.h>

static kvf_status call_request_options_init(kvf_node *node, void *options)
{
  kvf_request_options_init(node, options);
  return KVF_OK;
}

static bool set_request_option(PyObject *error, void *options, const char *name, const char *value)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = kvf_request_options_set(options, name, value, message);
  if (status != KVF_OK) {
    (void)kvfpy_raise_status(error, status, message);
  }
  return status == KVF_OK;
}

/* The node's own options, and what a dict changes about them. */
static bool read_request_options(kvfpy_node_object *self, PyObject *changes, kvf_request_options *out)
{
  kvf_status status = KVF_OK;
  return kvfpy_call_node(self, call_request_options_init, out, &status) &&
         kvfpy_set_all(kvfpy_state_of(self)->error, out, changes, set_request_option);
}

typedef struct request_order {
  const char *ticket;
  size_t bytes;
  kvf_prompt prompt;
  kvf_request_options options;
  uint64_t user;
  kvf_request_info info;
} request_order;

static kvf_status call_request_open(kvf_node *node, void *arguments)
{
  request_order *order = arguments;
  return kvf_request_open(node, order->ticket, order->bytes, &order->prompt, &order->options, order->user,
                          &order->info);
}

static PyObject *count_object(const kvfpy_module_state *state, const void *item)
{
  (void)state;
  return PyLong_FromUnsignedLong(*(const uint32_t *)item);
}

static PyObject *request_info_object(const kvfpy_module_state *state, const kvf_request_info *info)
{
  PyObject *counts = kvfpy_make_list(state, info->counts, sizeof(info->counts[0]), info->groups, count_object);
  return counts == NULL
             ? NULL
             : kvfpy_record_object(state, KVFPY_REQUEST_INFO, "(KINsIK)", (unsigned long long)info->id, info->tokens,
                                   counts, info->peer, info->load_timeout_ms, (unsigned long long)info->attachment);
}

PyObject *kvfpy_node_request_open(kvfpy_node_object *self, PyObject *args)
{
  request_order order = {.bytes = 0};
  Py_ssize_t bytes = 0;
  kvf_status status = KVF_OK;
  PyObject *options = NULL;
  uint32_t keep_from_tokens = 0;
  const char *name = NULL;
  if (!PyArg_ParseTuple(args, "s#O&O&O!|O&s:request_open", &order.ticket, &bytes, kvfpy_to_prompt, &order.prompt,
                        kvfpy_to_u64, &order.user, &PyDict_Type, &options, kvfpy_to_u32, &keep_from_tokens, &name) ||
      !read_request_options(self, options, &order.options)) {
    return NULL;
  }
  order.options.keep_from_tokens = keep_from_tokens;
  order.options.name = name;
  order.bytes = (size_t)bytes;
  if (!kvfpy_call_node(self, call_request_open, &order, &status)) {
    return NULL;
  }
  PyObject *info = status == KVF_OK ? request_info_object(kvfpy_state_of(self), &order.info) : Py_NewRef(Py_None);
  return info == NULL ? NULL : Py_BuildValue("(iN)", (int)status, info);
}

typedef struct refusal {
  int status;
  uint32_t tokens;
  kvf_request_options options;
  kvf_verdict verdict;
} refusal;

static kvf_status call_request_refused(kvf_node *node, void *arguments)
{
  refusal *refused = arguments;
  return kvf_request_refused(node, kvf_status_describe(refused->status)->status, refused->tokens, &refused->options,
                             &refused->verdict);
}

PyObject *kvfpy_node_request_refused(kvfpy_node_object *self, PyObject *args)
{
  refusal refused = {.status = KVF_OK};
  kvf_status status = KVF_OK;
  PyObject *options = NULL;
  if (!PyArg_ParseTuple(args, "iO&O!:request_refused", &refused.status, kvfpy_to_u32, &refused.tokens, &PyDict_Type,
                        &options) ||
      !read_request_options(self, options, &refused.options) ||
      !kvfpy_call_node(self, call_request_refused, &refused, &status)) {
    return NULL;
  }
  return status == KVF_OK ? kvfpy_verdict_object(kvfpy_state_of(self), &refused.verdict)
                          : kvfpy_node_raise(self, status, NULL);
}

static kvf_status call_request_wait(kvf_node *node, void *item, const void *context)
{
  return kvf_request_wait(node, *(const uint64_t *)item, *(const int *)context != 0);
}

PyObject *kvfpy_node_request_wait(kvfpy_node_object *self, PyObject *args)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_request_wait, NULL};
  PyObject *list = NULL;
  int waits = 0;
  return PyArg_ParseTuple(args, "Op:request_wait", &list, &waits) ? kvfpy_node_batch(self, list, &kind, &waits) : NULL;
}

PyObject *kvfpy_node_request_begin(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, kvf_request_begin);
}

static kvf_status call_request_report(kvf_node *node, void *item, const void *context)
{
  (void)context;
  return kvf_request_report(node, item);
}

PyObject *kvfpy_node_request_report(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(kvf_report), kvfpy_to_report, call_request_report, NULL};
  return kvfpy_node_batch(self, list, &kind, NULL);
}

static kvf_status call_request_released(kvf_node *node, void *item, const void *context)
{
  return kvf_request_released(node, *(const uint64_t *)item, *(const uint64_t *)context);
}

PyObject *kvfpy_node_request_released(kvfpy_node_object *self, PyObject *args)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_request_released, NULL};
  PyObject *list = NULL;
  uint64_t mask = 0;
  return PyArg_ParseTuple(args, "OO&:request_released", &list, kvfpy_to_rank, &mask)
             ? kvfpy_node_batch(self, list, &kind, &mask)
             : NULL;
}

PyObject *kvfpy_node_request_stuck(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, kvf_request_stuck);
}

PyObject *kvfpy_node_request_cancel(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, kvf_request_cancel);
}

PyObject *kvfpy_node_request_detach(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, kvf_request_detach);
}

typedef struct load_order {
  kvf_load_params load;
  PyObject *ticket; /* owned: the load's is in it */
  PyObject *name;   /* the same */
  kvfpy_block_table table;
} load_order;

static int to_text(PyObject *value, void *out)
{
  *(PyObject **)out = Py_NewRef(value);
  return PyUnicode_AsUTF8AndSize(value, NULL) != NULL;
}

static int to_load_order(PyObject *value, void *out)
{
  static const kvfpy_field fields[] = {{"request_id", kvfpy_to_u64, offsetof(load_order, load.request_id)},
                                       {"ticket", to_text, offsetof(load_order, ticket)},
                                       {"prompt", kvfpy_to_prompt, offsetof(load_order, load.prompt)},
                                       {"timeout_ms", kvfpy_to_u32, offsetof(load_order, load.timeout_ms)},
                                       {"user", kvfpy_to_u64, offsetof(load_order, load.user)},
                                       {"destination", kvfpy_to_block_table, offsetof(load_order, table)},
                                       {"name", to_text, offsetof(load_order, name)},
                                       {NULL, NULL, 0}};
  load_order *order = out;
  Py_ssize_t bytes = 0;
  if (!kvfpy_to_fields(value, "a load", fields, out)) {
    return 0;
  }
  order->load.ticket = PyUnicode_AsUTF8AndSize(order->ticket, &bytes);
  order->load.ticket_bytes = (size_t)bytes;
  order->load.name = PyUnicode_AsUTF8AndSize(order->name, NULL);
  order->load.destination = kvfpy_block_table_view(&order->table);
  return 1;
}

static kvf_status call_load_start(kvf_node *node, void *item, const void *context)
{
  kvf_load_params *load = &((load_order *)item)->load;
  load->after = kvfpy_point_or_null(context);
  return kvf_load_start(node, load);
}

static void load_order_clear(void *item)
{
  load_order *order = item;
  Py_XDECREF(order->ticket);
  Py_XDECREF(order->name);
  free(order->table.ids);
}

PyObject *kvfpy_node_load_start(kvfpy_node_object *self, PyObject *args)
{
  static const kvfpy_batch_kind kind = {sizeof(load_order), to_load_order, call_load_start, load_order_clear};
  return kvfpy_node_batch_after(self, args, &kind);
}

PyObject *kvfpy_node_load_abort(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, kvf_load_abort);
}

static kvf_status load_stuck(kvf_node *node, uint64_t request_id)
{
  return kvf_load_is_stuck(node, request_id) ? KVF_OK : KVF_NOT_FOUND;
}

PyObject *kvfpy_node_load_stuck(kvfpy_node_object *self, PyObject *list)
{
  return kvfpy_node_ids(self, list, load_stuck);
}
