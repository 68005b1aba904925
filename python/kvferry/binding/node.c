/* The type Node: its life, memory and ranks, events. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define POLL_EVENTS_MAX 256

/* ---- a node's life ---- */

bool kvfpy_set_option(PyObject *error, void *config, const char *name, const char *value)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = kvf_config_set(config, name, value, message);
  if (status != KVF_OK) {
    (void)kvfpy_raise_status(error, status, message);
  }
  return status == KVF_OK;
}

static bool set_identity(PyObject *error, void *config, const char *name, const char *value)
{
  kvf_status status = kvf_config_identity(config, name, value);
  if (status != KVF_OK) {
    char message[KVF_MESSAGE_BYTES_MAX];
    (void)PyOS_snprintf(message, sizeof(message), "identity field %.60s: %.160s", name, kvf_error_text());
    (void)kvfpy_raise_status(error, status, message);
  }
  return status == KVF_OK;
}

static PyObject *open_node(PyTypeObject *type, PyObject *error, const kvf_config *config, PyObject *log)
{
  kvfpy_node_object *self = (kvfpy_node_object *)PyType_GenericAlloc(type, 0);
  if (self == NULL) {
    return NULL;
  }
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = KVF_OK;
  self->owner = getpid();
  self->log = log == Py_None ? NULL : Py_NewRef(log);
  Py_BEGIN_ALLOW_THREADS;
  status = kvf_node_open(config, &self->node, message);
  Py_END_ALLOW_THREADS;
  if (status != KVF_OK) {
    Py_DECREF((PyObject *)self);
    return kvfpy_raise_status(error, status, message);
  }
  return (PyObject *)self;
}

/* os.environ writes to the process' environment, under the GIL. */
static bool choose_address(PyObject *error, kvf_config *config, PyObject *options, PyObject *index)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  uint32_t number = 0;
  if (index == Py_None) {
    return true;
  }
  if (!kvfpy_to_u32(index, &number)) {
    return false;
  }
  const bool listen_is_given = PyDict_GetItemString(options, "listen") != NULL;
  kvf_status status = kvf_address_choose(config, listen_is_given, number, environ, message);
  if (status != KVF_OK) {
    (void)kvfpy_raise_status(error, status, message);
  }
  return status == KVF_OK;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
  static char *names[] = {"options", "identity", "index", "log", NULL};
  PyObject *options = NULL;
  PyObject *identity = NULL;
  PyObject *index = Py_None;
  PyObject *log = Py_None;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!|OO:Node", names, &PyDict_Type, &options, &PyDict_Type,
                                   &identity, &index, &log)) {
    return NULL;
  }
  kvfpy_module_state *state = PyType_GetModuleState(type);
  if (state == NULL) {
    return NULL;
  }
  if (log != Py_None && !PyObject_TypeCheck(log, state->log_queue)) {
    return PyErr_Format(PyExc_TypeError, "a node's log is a LogQueue, or None");
  }
  kvf_config config;
  kvf_config_init(&config);
  config.log_queue = log == Py_None ? NULL : kvfpy_log_queue_of(log);
  if (!kvfpy_set_all(state->error, &config, options, kvfpy_set_option) ||
      !kvfpy_set_all(state->error, &config, identity, set_identity) ||
      !choose_address(state->error, &config, options, index)) {
    return NULL;
  }
  return open_node(type, state->error, &config, log);
}

static void close_node(kvfpy_node_object *self)
{
  kvf_node *node = self->node;
  self->node = NULL;
  if (node != NULL && self->owner == getpid()) {
    Py_BEGIN_ALLOW_THREADS;
    kvf_node_close(node);
    Py_END_ALLOW_THREADS;
  }
}

static void node_dealloc(PyObject *object)
{
  PyTypeObject *type = Py_TYPE(object);
  close_node((kvfpy_node_object *)object);
  Py_XDECREF(((kvfpy_node_object *)object)->log);
  PyObject_Free(object);
  Py_DECREF((PyObject *)type);
}

static PyObject *node_close(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  if (self->calls > 0) {
    return kvfpy_node_raise(self, KVF_INVALID, "another thread is in a call of this node");
  }
  close_node(self);
  Py_RETURN_NONE;
}

/* ---- memory and engine ---- */

static int to_part_kind(PyObject *value, void *out)
{
  uint32_t kind = 0;
  int converted = kvfpy_to_u32(value, &kind);
  *(kvf_part_kind *)out = (kvf_part_kind)kind;
  return converted;
}

static int to_dtype(PyObject *value, void *out)
{
  uint32_t dtype = 0;
  int converted = kvfpy_to_u32(value, &dtype);
  *(kvf_dtype *)out = (kvf_dtype)dtype;
  return converted;
}

static int to_part(PyObject *value, void *out)
{
  static const kvfpy_field fields[] = {{"layer", kvfpy_to_u32, offsetof(kvf_part, layer)},
                                       {"kind", to_part_kind, offsetof(kvf_part, kind)},
                                       {"index", kvfpy_to_u32, offsetof(kvf_part, index)},
                                       {"group", kvfpy_to_u32, offsetof(kvf_part, group)},
                                       {"dtype", to_dtype, offsetof(kvf_part, dtype)},
                                       {"region", kvfpy_to_u32, offsetof(kvf_part, region)},
                                       {"offset_bytes", kvfpy_to_u32, offsetof(kvf_part, offset_bytes)},
                                       {"unit_bytes", kvfpy_to_u32, offsetof(kvf_part, unit_bytes)},
                                       {"row_bytes", kvfpy_to_u32, offsetof(kvf_part, row_bytes)},
                                       {"head_bytes", kvfpy_to_u32, offsetof(kvf_part, head_bytes)},
                                       {"rows", kvfpy_to_u32, offsetof(kvf_part, rows)},
                                       {"block_tokens", kvfpy_to_u32, offsetof(kvf_part, block_tokens)},
                                       {"heads", kvfpy_to_u32, offsetof(kvf_part, heads)},
                                       {"first_head", kvfpy_to_u32, offsetof(kvf_part, first_head)},
                                       {"heads_total", kvfpy_to_u32, offsetof(kvf_part, heads_total)},
                                       {NULL, NULL, 0}};
  return kvfpy_to_fields(value, "a part", fields, out);
}

typedef struct registration {
  kvf_region *regions;
  size_t count;
  kvf_part *parts;
  kvf_layout layout;
} registration;

static kvf_status call_register(kvf_node *node, void *arguments)
{
  registration *given = arguments;
  given->layout.parts = given->parts;
  return given->parts == NULL ? kvf_node_register(node, given->regions, given->count)
                              : kvf_node_register_layout(node, given->regions, given->count, &given->layout);
}

static PyObject *node_register(kvfpy_node_object *self, PyObject *args)
{
  PyObject *regions = NULL;
  PyObject *parts = NULL;
  PyObject *result = NULL;
  registration given = {.layout.share = {.heads_total = 1, .heads = 1}};
  kvf_share *share = &given.layout.share;
  if (!PyArg_ParseTuple(args, "O|O(O&O&O&):register", &regions, &parts, kvfpy_to_u32, &share->first_head, kvfpy_to_u32,
                        &share->heads, kvfpy_to_u32, &share->heads_total)) {
    return NULL;
  }
  given.regions = kvfpy_to_regions(regions, &given.count);
  if (given.regions != NULL && parts != NULL) {
    given.parts = kvfpy_to_items(parts, sizeof(*given.parts), to_part, &given.layout.parts_count);
  }
  if (given.regions != NULL && (parts == NULL || given.parts != NULL)) {
    result = kvfpy_call_or_raise(self, call_register, &given);
  }
  free(given.parts);
  free(given.regions);
  return result;
}

typedef struct address_record {
  uint8_t data[KVF_ADDRESS_BYTES_MAX];
  size_t bytes;
} address_record;

static kvf_status call_address(kvf_node *node, void *arguments)
{
  address_record *record = arguments;
  return kvf_node_address(node, record->data, sizeof(record->data), &record->bytes);
}

static PyObject *node_address(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  address_record record = {.bytes = 0};
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call_address, &record, &status)) {
    return NULL;
  }
  return status == KVF_OK ? kvfpy_struct_object(record.data, record.bytes) : kvfpy_node_raise(self, status, NULL);
}

typedef struct rank_records {
  uint8_t data[KVF_RANKS_MAX * KVF_ADDRESS_BYTES_MAX];
  size_t bytes[KVF_RANKS_MAX];
  uint32_t count;
} rank_records;

static kvf_status call_set_ranks(kvf_node *node, void *arguments)
{
  const rank_records *records = arguments;
  return kvf_node_set_ranks(node, records->data, records->bytes, records->count);
}

static PyObject *node_set_ranks(kvfpy_node_object *self, PyObject *list)
{
  rank_records records = {.count = 0};
  Py_ssize_t count = kvfpy_list_length(list);
  if (count < 0 || count > KVF_RANKS_MAX) {
    return count < 0 ? NULL : PyErr_Format(PyExc_ValueError, "at most %d ranks", KVF_RANKS_MAX);
  }
  size_t offset = 0;
  for (Py_ssize_t i = 0; i < count; i++) {
    char *data = NULL;
    Py_ssize_t length = 0;
    if (PyBytes_AsStringAndSize(PyList_GetItem(list, i), &data, &length) < 0) {
      return NULL;
    }
    if (length > KVF_ADDRESS_BYTES_MAX) {
      return PyErr_Format(PyExc_ValueError, "record %zd is not an address record", i);
    }
    memcpy(records.data + offset, data, (size_t)length);
    records.bytes[i] = (size_t)length;
    offset += (size_t)length;
  }
  records.count = (uint32_t)count;
  return kvfpy_call_or_raise(self, call_set_ranks, &records);
}

static kvf_status call_unregister(kvf_node *node, void *arguments)
{
  (void)arguments;
  return kvf_node_unregister(node);
}

static PyObject *node_unregister(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  kvf_status status = KVF_OK;
  return kvfpy_call_node(self, call_unregister, NULL, &status) ? PyLong_FromLong(status) : NULL;
}

static kvf_status call_healthy(kvf_node *node, void *arguments)
{
  *(bool *)arguments = kvf_node_healthy(node);
  return KVF_OK;
}

static PyObject *node_healthy(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  bool healthy = false;
  kvf_status status = KVF_OK;
  return kvfpy_call_node(self, call_healthy, &healthy, &status) ? PyBool_FromLong(healthy) : NULL;
}

/* ---- events ---- */

static PyObject *or_none(PyObject *object)
{
  return object != NULL ? object : Py_NewRef(Py_None);
}

static PyObject *event_object(const kvfpy_module_state *state, const void *item)
{
  const kvf_event *event = item;
  PyObject *cause = NULL;
  PyObject *report = NULL;
  PyObject *verdict = NULL;
  if (event->kind == KVF_EVENT_LEASE_ENDED) {
    cause = PyLong_FromLong((long)event->u.lease_end);
  } else if (event->kind == KVF_EVENT_LOAD) {
    report = kvfpy_struct_object(&event->u.report, sizeof(event->u.report));
  } else if (event->kind == KVF_EVENT_VERDICT) {
    verdict = kvfpy_verdict_object(state, &event->u.verdict);
  } else if (event->kind == KVF_EVENT_TICKET) {
    cause = PyLong_FromLong(event->u.found);
  }
  if (PyErr_Occurred() != NULL) {
    return NULL;
  }
  return kvfpy_record_object(state, KVFPY_EVENT, "(iKKNNN)", (int)event->kind, (unsigned long long)event->id,
                             (unsigned long long)event->user, or_none(cause), or_none(report), or_none(verdict));
}

typedef struct event_list {
  kvf_event events[POLL_EVENTS_MAX];
  size_t count;
} event_list;

static kvf_status call_poll(kvf_node *node, void *arguments)
{
  event_list *list = arguments;
  list->count = kvf_node_poll(node, list->events, POLL_EVENTS_MAX);
  return KVF_OK;
}

static PyObject *node_poll(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  event_list polled;
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call_poll, &polled, &status)) {
    return NULL;
  }
  return kvfpy_make_list(kvfpy_state_of(self), polled.events, sizeof(polled.events[0]), polled.count, event_object);
}

static kvf_status call_event_fd(kvf_node *node, void *arguments)
{
  *(int *)arguments = kvf_node_event_fd(node);
  return KVF_OK;
}

static PyObject *node_fileno(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  int descriptor = -1;
  kvf_status status = KVF_OK;
  return kvfpy_call_node(self, call_event_fd, &descriptor, &status) ? PyLong_FromLong(descriptor) : NULL;
}

/* ---- the type ---- */

static PyMethodDef node_methods[] = {
    KVFPY_METHOD("close", node_close, METH_NOARGS),
    KVFPY_METHOD("register", node_register, METH_VARARGS),
    KVFPY_METHOD("address", node_address, METH_NOARGS),
    KVFPY_METHOD("set_ranks", node_set_ranks, METH_O),
    KVFPY_METHOD("unregister", node_unregister, METH_NOARGS),
    KVFPY_METHOD("healthy", node_healthy, METH_NOARGS),
    KVFPY_METHOD("poll", node_poll, METH_NOARGS),
    KVFPY_METHOD("fileno", node_fileno, METH_NOARGS),
    KVFPY_METHOD("stats", kvfpy_node_stats, METH_NOARGS),
    KVFPY_METHOD("histograms", kvfpy_node_histograms, METH_NOARGS),
    KVFPY_METHOD("peers", kvfpy_node_peers, METH_NOARGS),
    KVFPY_METHOD("lease_reserve", kvfpy_node_lease_reserve, METH_VARARGS),
    KVFPY_METHOD("lease_reserve_blocks", kvfpy_node_lease_reserve_blocks, METH_VARARGS),
    KVFPY_METHOD("lease_release", kvfpy_node_lease_release, METH_O),
    KVFPY_METHOD("lease_ended", kvfpy_node_lease_ended, METH_VARARGS),
    KVFPY_METHOD("ticket_make", kvfpy_node_ticket_make, METH_VARARGS),
    KVFPY_METHOD("lease_publish", kvfpy_node_lease_publish, METH_VARARGS),
    KVFPY_METHOD("lease_end", kvfpy_node_lease_end, METH_O),
    KVFPY_METHOD("leases_end_lingering", kvfpy_node_leases_end_lingering, METH_NOARGS),
    KVFPY_METHOD("ticket_offer", kvfpy_node_ticket_offer, METH_O),
    KVFPY_METHOD("ticket_find", kvfpy_node_ticket_find, METH_VARARGS),
    KVFPY_METHOD("ticket_take", kvfpy_node_ticket_take, METH_O),
    KVFPY_METHOD("ticket_prompt", kvfpy_node_ticket_prompt, METH_O),
    KVFPY_METHOD("request_open", kvfpy_node_request_open, METH_VARARGS),
    KVFPY_METHOD("request_refused", kvfpy_node_request_refused, METH_VARARGS),
    KVFPY_METHOD("request_wait", kvfpy_node_request_wait, METH_VARARGS),
    KVFPY_METHOD("request_begin", kvfpy_node_request_begin, METH_O),
    KVFPY_METHOD("request_report", kvfpy_node_request_report, METH_O),
    KVFPY_METHOD("request_released", kvfpy_node_request_released, METH_VARARGS),
    KVFPY_METHOD("request_stuck", kvfpy_node_request_stuck, METH_O),
    KVFPY_METHOD("request_cancel", kvfpy_node_request_cancel, METH_O),
    KVFPY_METHOD("request_detach", kvfpy_node_request_detach, METH_O),
    KVFPY_METHOD("load_start", kvfpy_node_load_start, METH_VARARGS),
    KVFPY_METHOD("load_abort", kvfpy_node_load_abort, METH_O),
    KVFPY_METHOD("load_stuck", kvfpy_node_load_stuck, METH_O),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot node_slots[] = {
    KVFPY_SLOT(Py_tp_new, node_new),
    KVFPY_SLOT(Py_tp_dealloc, node_dealloc),
    {Py_tp_methods, node_methods},
    {0, NULL},
};

PyType_Spec kvfpy_node_spec = {
    .name = "kvferry._kvferry.Node",
    .basicsize = sizeof(kvfpy_node_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = node_slots,
};
