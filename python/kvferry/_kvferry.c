/* The Python binding: kvferry's C interface in batch-shaped calls. _kvferry.pyi is its manual.
 *
 * Plain-data structs (kvf_lease, kvf_prompt, kvf_report) cross as bytes, block ids as one bytes object of native uint32
 * for each KV group, addresses as ints. Every call into a node runs without the GIL; the library never calls Python.
 */
#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvferry/kvferry.h"

#define POLL_EVENTS_MAX 256

typedef struct kvfpy_module_state {
  PyObject *error;
} kvfpy_module_state;

typedef struct kvfpy_node_object {
  PyObject ob_base;
  kvf_node *node;
  pid_t owner;    /* a forked child must leave its parent's node alone */
  unsigned calls; /* that run without the GIL: close() must not run beside them */
} kvfpy_node_object;

/* ---- results ---- */

typedef PyObject *(*kvfpy_make_object)(const void *item);

/* A list with an object for each of `count` items. */
static PyObject *kvfpy_make_list(const void *items, size_t item_bytes, size_t count, kvfpy_make_object make)
{
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list != NULL && i < count; i++) {
    PyObject *object = make((const char *)items + i * item_bytes);
    if (object == NULL || PyList_SetItem(list, (Py_ssize_t)i, object) < 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

static PyObject *status_object(const void *item)
{
  return PyLong_FromLong(*(const kvf_status *)item);
}

static PyObject *kvfpy_struct_object(const void *data, size_t bytes)
{
  return PyBytes_FromStringAndSize(data, (Py_ssize_t)bytes);
}

/* ---- calls ---- */

static PyObject *kvfpy_raise_status(PyObject *error, kvf_status status, const char *message)
{
  const char *text = message != NULL && message[0] != '\0' ? message : kvf_status_describe(status)->meaning;
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

static PyObject *kvfpy_node_raise(kvfpy_node_object *self, kvf_status status, const char *message)
{
  kvfpy_module_state *state = PyType_GetModuleState(Py_TYPE(self));
  return state == NULL ? NULL : kvfpy_raise_status(state->error, status, message);
}

typedef kvf_status (*kvfpy_node_call)(kvf_node *node, void *arguments);

/* Makes one call without the GIL. False, with an exception set, if the node cannot be used. */
static bool kvfpy_call_node(kvfpy_node_object *self, kvfpy_node_call call, void *arguments, kvf_status *status)
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

/* One call that returns nothing, or raises. */
static PyObject *kvfpy_call_or_raise(kvfpy_node_object *self, kvfpy_node_call call, void *arguments)
{
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call, arguments, &status)) {
    return NULL;
  }
  return status == KVF_OK ? Py_NewRef(Py_None) : kvfpy_node_raise(self, status, NULL);
}

/* The length of a list, -1 with an exception set if it is none. */
static Py_ssize_t kvfpy_list_length(PyObject *list)
{
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "a batch is a list");
    return -1;
  }
  return PyList_Size(list);
}

static bool kvfpy_is_tuple(PyObject *value)
{
  if (!PyTuple_Check(value)) {
    PyErr_SetString(PyExc_TypeError, "an item of this batch is a tuple");
    return false;
  }
  return true;
}

/* A batch: a list, each item parsed into a struct of item_bytes, then a call for each, then a list of statuses. */
typedef struct kvfpy_batch_kind {
  size_t item_bytes;
  int (*parse)(PyObject *value, void *item); /* a converter: 0 with an exception set on failure */
  kvfpy_node_call call;
  void (*clear)(void *item); /* NULL: an item owns nothing. Items that were not parsed are zero. */
} kvfpy_batch_kind;

typedef struct batch {
  const kvfpy_batch_kind *kind;
  size_t count;
  char *items;
  kvf_status *statuses;
} batch;

static kvf_status batch_run(kvf_node *node, void *arguments)
{
  batch *run = arguments;
  for (size_t i = 0; i < run->count; i++) {
    run->statuses[i] = run->kind->call(node, run->items + i * run->kind->item_bytes);
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

static PyObject *kvfpy_node_batch(kvfpy_node_object *self, PyObject *list, const kvfpy_batch_kind *kind)
{
  Py_ssize_t count = kvfpy_list_length(list);
  if (count < 0) {
    return NULL;
  }
  PyObject *result = NULL;
  kvf_status unused = KVF_OK;
  batch run = {.kind = kind, .count = (size_t)count};
  run.items = calloc(run.count + 1, kind->item_bytes);
  run.statuses = calloc(run.count + 1, sizeof(*run.statuses));
  if (run.items == NULL || run.statuses == NULL) {
    (void)PyErr_NoMemory();
  } else if (batch_parse(&run, list) && kvfpy_call_node(self, batch_run, &run, &unused)) {
    result = kvfpy_make_list(run.statuses, sizeof(*run.statuses), run.count, status_object);
  }
  for (size_t i = 0; kind->clear != NULL && run.items != NULL && i < run.count; i++) {
    kind->clear(run.items + i * kind->item_bytes);
  }
  free(run.statuses);
  free(run.items);
  return result;
}

/* ---- arguments ---- */

static int kvfpy_to_u32(PyObject *value, void *out)
{
  unsigned long number = PyLong_AsUnsignedLong(value);
  if (PyErr_Occurred() != NULL) {
    return 0;
  }
  if (number > UINT32_MAX) {
    PyErr_SetString(PyExc_OverflowError, "the number does not fit 32 bits");
    return 0;
  }
  *(uint32_t *)out = (uint32_t)number;
  return 1;
}

static int kvfpy_to_u64(PyObject *value, void *out)
{
  unsigned long long number = PyLong_AsUnsignedLongLong(value);
  if (PyErr_Occurred() != NULL) {
    return 0;
  }
  *(uint64_t *)out = number;
  return 1;
}

static int to_struct(PyObject *value, void *out, size_t bytes, const char *what)
{
  char *data = NULL;
  Py_ssize_t length = 0;
  if (PyBytes_AsStringAndSize(value, &data, &length) < 0) {
    return 0;
  }
  if ((size_t)length != bytes) {
    (void)PyErr_Format(PyExc_ValueError, "a %s is %zu bytes long, not %zd", what, bytes, length);
    return 0;
  }
  memcpy(out, data, bytes);
  return 1;
}

static int kvfpy_to_lease(PyObject *value, void *out)
{
  return to_struct(value, out, sizeof(kvf_lease), "lease");
}

static int kvfpy_to_prompt(PyObject *value, void *out)
{
  return to_struct(value, out, sizeof(kvf_prompt), "prompt");
}

static int kvfpy_to_report(PyObject *value, void *out)
{
  return to_struct(value, out, sizeof(kvf_report), "report");
}

typedef struct kvfpy_block_table {
  uint32_t *ids; /* owned */
  uint32_t counts[KVF_GROUPS_MAX];
  uint32_t groups;
} kvfpy_block_table;

static kvf_blocks kvfpy_block_table_view(const kvfpy_block_table *table)
{
  return (kvf_blocks){.ids = table->ids, .counts = table->counts, .groups = table->groups};
}

static bool count_blocks(PyObject *groups, kvfpy_block_table *out, size_t *total)
{
  Py_ssize_t count = PyTuple_Check(groups) ? PyTuple_Size(groups) : -1;
  if (count < 0 || count > KVF_GROUPS_MAX) {
    (void)PyErr_Format(PyExc_ValueError, "blocks are a tuple of at most %d KV groups", KVF_GROUPS_MAX);
    return false;
  }
  for (Py_ssize_t g = 0; g < count; g++) {
    Py_ssize_t bytes = PyBytes_Size(PyTuple_GetItem(groups, g));
    if (bytes < 0) {
      return false;
    }
    if ((size_t)bytes % sizeof(uint32_t) != 0 || (size_t)bytes / sizeof(uint32_t) > KVF_BLOCKS_PER_LEASE_MAX) {
      PyErr_SetString(PyExc_ValueError, "the block ids of a group are not whole uint32s, or too many");
      return false;
    }
    out->counts[g] = (uint32_t)((size_t)bytes / sizeof(uint32_t));
    *total += out->counts[g];
  }
  out->groups = (uint32_t)count;
  return true;
}

/* A converter, from a tuple of bytes, one for each group. On success out->ids is the caller's to free. */
static int kvfpy_to_block_table(PyObject *groups, void *out)
{
  kvfpy_block_table *table = out;
  size_t total = 0;
  if (!count_blocks(groups, table, &total)) {
    return 0;
  }
  table->ids = malloc((total + 1) * sizeof(*table->ids));
  if (table->ids == NULL) {
    (void)PyErr_NoMemory();
    return 0;
  }
  size_t offset = 0;
  for (uint32_t g = 0; g < table->groups; g++) {
    memcpy(table->ids + offset, PyBytes_AsString(PyTuple_GetItem(groups, (Py_ssize_t)g)),
           table->counts[g] * sizeof(*table->ids));
    offset += table->counts[g];
  }
  return 1;
}

/* ---- a node's life ---- */

/* Sets one field of a kvf_config or kvf_request_options. */
typedef bool (*kvfpy_set_field)(PyObject *error, void *fields, const char *name, const char *value);

static bool set_option(PyObject *error, void *config, const char *name, const char *value)
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
    (void)PyOS_snprintf(message, sizeof(message), "identity field %.60s: %s", name,
                        kvf_status_describe(status)->meaning);
    (void)kvfpy_raise_status(error, status, message);
  }
  return status == KVF_OK;
}

/* All of a dict's names and values. */
static bool kvfpy_set_all(PyObject *error, void *fields, PyObject *values, kvfpy_set_field set)
{
  PyObject *name = NULL;
  PyObject *value = NULL;
  Py_ssize_t position = 0;
  while (PyDict_Next(values, &position, &name, &value)) {
    const char *name_text = PyUnicode_AsUTF8AndSize(name, NULL);
    const char *value_text = name_text != NULL ? PyUnicode_AsUTF8AndSize(value, NULL) : NULL;
    if (value_text == NULL || !set(error, fields, name_text, value_text)) {
      return false;
    }
  }
  return true;
}

static PyObject *open_node(PyTypeObject *type, PyObject *error, const kvf_config *config)
{
  kvfpy_node_object *self = (kvfpy_node_object *)PyType_GenericAlloc(type, 0);
  if (self == NULL) {
    return NULL;
  }
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = KVF_OK;
  self->owner = getpid();
  Py_BEGIN_ALLOW_THREADS;
  status = kvf_node_open(config, &self->node, message);
  Py_END_ALLOW_THREADS;
  if (status != KVF_OK) {
    Py_DECREF((PyObject *)self);
    return kvfpy_raise_status(error, status, message);
  }
  return (PyObject *)self;
}

static PyObject *node_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
  static char *names[] = {"options", "identity", NULL};
  PyObject *options = NULL;
  PyObject *identity = NULL;
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O!O!:Node", names, &PyDict_Type, &options, &PyDict_Type,
                                   &identity)) {
    return NULL;
  }
  kvfpy_module_state *state = PyType_GetModuleState(type);
  if (state == NULL) {
    return NULL;
  }
  kvf_config config;
  kvf_config_init(&config);
  if (!kvfpy_set_all(state->error, &config, options, set_option) ||
      !kvfpy_set_all(state->error, &config, identity, set_identity)) {
    return NULL;
  }
  return open_node(type, state->error, &config);
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

static int to_region(PyObject *value, void *out)
{
  kvf_region *region = out;
  uint64_t base = 0;
  if (!PyArg_ParseTuple(
          value, "O&O&O&O&O&O&O&;a region is (base, stride_bytes, block_bytes, blocks, heads, heads_total, group)",
          kvfpy_to_u64, &base, kvfpy_to_u64, &region->stride_bytes, kvfpy_to_u32, &region->block_bytes, kvfpy_to_u32,
          &region->blocks, kvfpy_to_u32, &region->heads, kvfpy_to_u32, &region->heads_total, kvfpy_to_u32,
          &region->group)) {
    return 0;
  }
  region->base = (void *)(uintptr_t)base;
  region->memory = KVF_MEMORY_HOST;
  return 1;
}

typedef struct region_list {
  kvf_region *regions;
  size_t count;
} region_list;

static kvf_status call_register(kvf_node *node, void *arguments)
{
  const region_list *list = arguments;
  return kvf_node_register(node, list->regions, list->count);
}

static PyObject *node_register(kvfpy_node_object *self, PyObject *list)
{
  Py_ssize_t count = kvfpy_list_length(list);
  if (count < 0) {
    return NULL;
  }
  region_list arguments = {.count = (size_t)count};
  arguments.regions = calloc(arguments.count + 1, sizeof(*arguments.regions));
  bool parsed = arguments.regions != NULL;
  for (size_t i = 0; parsed && i < arguments.count; i++) {
    parsed = to_region(PyList_GetItem(list, (Py_ssize_t)i), &arguments.regions[i]) != 0;
  }
  PyObject *result = NULL;
  if (parsed) {
    result = kvfpy_call_or_raise(self, call_register, &arguments);
  } else if (arguments.regions == NULL) {
    result = PyErr_NoMemory();
  }
  free(arguments.regions);
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

/* ---- events and numbers ---- */

static PyObject *kvfpy_verdict_object(const kvf_verdict *verdict)
{
  return Py_BuildValue("(iiIIII)", (int)verdict->action, (int)verdict->status, verdict->keep_blocks,
                       verdict->keep_tokens, verdict->recompute_tokens, verdict->retry_after_ms);
}

static PyObject *event_payload(const kvf_event *event)
{
  switch (event->kind) {
    case KVF_EVENT_LEASE_ENDED:
      return PyLong_FromLong((long)event->u.lease_end);
    case KVF_EVENT_LOAD:
      return kvfpy_struct_object(&event->u.report, sizeof(event->u.report));
    case KVF_EVENT_VERDICT:
      return kvfpy_verdict_object(&event->u.verdict);
    case KVF_EVENT_QUIET:
      break;
  }
  return Py_NewRef(Py_None);
}

static PyObject *event_object(const void *item)
{
  const kvf_event *event = item;
  PyObject *payload = event_payload(event);
  if (payload == NULL) {
    return NULL;
  }
  return Py_BuildValue("(iKKN)", (int)event->kind, (unsigned long long)event->id, (unsigned long long)event->user,
                       payload);
}

typedef struct event_list {
  kvf_event events[POLL_EVENTS_MAX];
  size_t count;
} event_list;

static kvf_status call_poll(kvf_node *node, void *arguments)
{
  event_list *list = arguments;
  list->count = kvf_poll(node, list->events, POLL_EVENTS_MAX);
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
  return kvfpy_make_list(polled.events, sizeof(polled.events[0]), polled.count, event_object);
}

typedef struct stat_list {
  kvf_stat stats[KVF_STATS_MAX];
  size_t count;
} stat_list;

static kvf_status call_stats(kvf_node *node, void *arguments)
{
  stat_list *list = arguments;
  list->count = kvf_stats(node, list->stats, KVF_STATS_MAX);
  return KVF_OK;
}

static PyObject *stat_object(const void *item)
{
  const kvf_stat *stat = item;
  return Py_BuildValue("(ssKO)", stat->name, stat->reason, (unsigned long long)stat->value,
                       stat->gauge ? Py_True : Py_False);
}

static PyObject *kvfpy_node_stats(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  stat_list taken;
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call_stats, &taken, &status)) {
    return NULL;
  }
  return kvfpy_make_list(taken.stats, sizeof(taken.stats[0]), taken.count, stat_object);
}

typedef struct histogram_list {
  kvf_histogram histograms[KVF_HISTOGRAMS_MAX];
  size_t count;
} histogram_list;

static kvf_status call_histograms(kvf_node *node, void *arguments)
{
  histogram_list *list = arguments;
  list->count = kvf_histograms(node, list->histograms, KVF_HISTOGRAMS_MAX);
  return KVF_OK;
}

/* (bound, count, sum) of one bucket. */
static PyObject *bucket_object(const kvf_histogram *histogram, uint32_t bucket)
{
  return Py_BuildValue("(KKK)", (unsigned long long)histogram->bounds[bucket],
                       (unsigned long long)histogram->counts[bucket], (unsigned long long)histogram->sums[bucket]);
}

static PyObject *histogram_object(const void *item)
{
  const kvf_histogram *histogram = item;
  PyObject *buckets = PyList_New((Py_ssize_t)histogram->buckets);
  for (uint32_t i = 0; buckets != NULL && i < histogram->buckets; i++) {
    PyObject *bucket = bucket_object(histogram, i);
    if (bucket == NULL || PyList_SetItem(buckets, (Py_ssize_t)i, bucket) < 0) {
      Py_CLEAR(buckets);
    }
  }
  return buckets == NULL ? NULL : Py_BuildValue("(sN)", histogram->name, buckets);
}

static PyObject *kvfpy_node_histograms(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  histogram_list taken;
  kvf_status status = KVF_OK;
  if (!kvfpy_call_node(self, call_histograms, &taken, &status)) {
    return NULL;
  }
  return kvfpy_make_list(taken.histograms, sizeof(taken.histograms[0]), taken.count, histogram_object);
}

typedef struct peer_list {
  kvf_peer_stat peers[KVF_PEERS_LISTED_MAX];
  size_t count;
} peer_list;

static kvf_status call_peers(kvf_node *node, void *arguments)
{
  peer_list *list = arguments;
  list->count = kvf_peers_list(node, list->peers, KVF_PEERS_LISTED_MAX);
  return KVF_OK;
}

static bool kvfpy_append(PyObject *list, PyObject *object)
{
  bool appended = list != NULL && object != NULL && PyList_Append(list, object) == 0;
  Py_XDECREF(object);
  return appended;
}

/* [(name, breaker, cause, up), ...] */
static PyObject *paths_object(const kvf_peer_stat *peer)
{
  PyObject *list = PyList_New(0);
  for (uint32_t i = 0; i < peer->paths_count; i++) {
    const kvf_path_stat *path = &peer->paths[i];
    if (!kvfpy_append(list, Py_BuildValue("(sisO)", path->name, (int)path->breaker, kvf_status_name(path->cause),
                                          path->up ? Py_True : Py_False))) {
      Py_CLEAR(list);
      break;
    }
  }
  return list;
}

/* [(name, reason, value, is a gauge), ...], as kvfpy_node_stats() gives them, of what is not 0. */
static PyObject *peer_numbers(const kvf_peer_stat *peer)
{
  const kvf_stat numbers[] = {{"handshakes", "", peer->handshakes, false, {0}},
                              {"connection_failures", "", peer->connection_failures, false, {0}},
                              {"chunks", "", peer->chunks, false, {0}},
                              {"bytes", "", peer->bytes, false, {0}},
                              {"blocks", "", peer->blocks, false, {0}},
                              {"retries", "", peer->retries, false, {0}},
                              {"stalls", "", peer->stalls, false, {0}},
                              {"reads_in_flight", "", peer->reads_in_flight, true, {0}},
                              {"users", "", peer->users, true, {0}}};
  PyObject *list = PyList_New(0);
  bool good = list != NULL;
  for (size_t i = 0; good && i < sizeof(numbers) / sizeof(numbers[0]); i++) {
    good = (numbers[i].value == 0 && !numbers[i].gauge) || kvfpy_append(list, stat_object(&numbers[i]));
  }
  for (unsigned i = 0; good && kvf_status_at(i) != NULL; i++) {
    const kvf_status_info *info = kvf_status_at(i);
    const kvf_stat loads = {info->status == KVF_OK ? "loads_done" : "loads_failed",
                            info->status == KVF_OK ? "" : info->name,
                            peer->loads[i],
                            false,
                            {0}};
    good = loads.value == 0 || kvfpy_append(list, stat_object(&loads));
  }
  if (!good) {
    Py_CLEAR(list);
  }
  return list;
}

static PyObject *peer_object(const void *item)
{
  const kvf_peer_stat *peer = item;
  PyObject *paths = paths_object(peer);
  PyObject *numbers = paths != NULL ? peer_numbers(peer) : NULL;
  if (numbers == NULL) {
    Py_XDECREF(paths);
    return NULL;
  }
  const char *last = peer->last_failure == KVF_OK ? "" : kvf_status_name(peer->last_failure);
  return Py_BuildValue("(KssKNN)", (unsigned long long)peer->id, peer->address, last,
                       (unsigned long long)peer->last_failure_age_ms, paths, numbers);
}

static PyObject *kvfpy_node_peers(kvfpy_node_object *self, PyObject *unused)
{
  (void)unused;
  peer_list *taken = malloc(sizeof(*taken)); /* too large for a thread's stack */
  if (taken == NULL) {
    return PyErr_NoMemory();
  }
  kvf_status status = KVF_OK;
  PyObject *result = NULL;
  if (kvfpy_call_node(self, call_peers, taken, &status)) {
    result = kvfpy_make_list(taken->peers, sizeof(taken->peers[0]), taken->count, peer_object);
  }
  free(taken);
  return result;
}

/* ---- producer ---- */

typedef struct reservation {
  uint32_t blocks;
  uint64_t pool_blocks;
  kvf_lease lease;
} reservation;

static kvf_status call_lease_reserve(kvf_node *node, void *arguments)
{
  reservation *want = arguments;
  return kvf_lease_reserve(node, want->blocks, want->pool_blocks, &want->lease);
}

static PyObject *kvfpy_node_lease_reserve(kvfpy_node_object *self, PyObject *args)
{
  reservation want = {.blocks = 0};
  kvf_status status = KVF_OK;
  if (!PyArg_ParseTuple(args, "O&O&:lease_reserve", kvfpy_to_u32, &want.blocks, kvfpy_to_u64, &want.pool_blocks) ||
      !kvfpy_call_node(self, call_lease_reserve, &want, &status)) {
    return NULL;
  }
  return status == KVF_OK ? Py_BuildValue("(iy#K)", (int)status, (const char *)&want.lease,
                                          (Py_ssize_t)sizeof(want.lease), (unsigned long long)want.lease.id)
                          : Py_BuildValue("(iOi)", (int)status, Py_None, 0);
}

static kvf_status call_lease_release(kvf_node *node, void *item)
{
  return kvf_lease_release(node, *(const uint64_t *)item);
}

static PyObject *kvfpy_node_lease_release(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_lease_release, NULL};
  return kvfpy_node_batch(self, list, &kind);
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

static PyObject *kvfpy_node_ticket_make(kvfpy_node_object *self, PyObject *args)
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

typedef struct publication {
  kvf_lease lease;
  kvf_prompt prompt;
  kvfpy_block_table table;
  uint64_t user;
} publication;

static int to_publication(PyObject *value, void *out)
{
  publication *item = out;
  return kvfpy_is_tuple(value) && PyArg_ParseTuple(value, "O&O&O&O&;a publication is (lease, prompt, user, blocks)",
                                                   kvfpy_to_lease, &item->lease, kvfpy_to_prompt, &item->prompt,
                                                   kvfpy_to_u64, &item->user, kvfpy_to_block_table, &item->table);
}

static kvf_status call_lease_publish(kvf_node *node, void *item)
{
  const publication *order = item;
  const kvf_blocks blocks = kvfpy_block_table_view(&order->table);
  return kvf_lease_publish(node, &order->lease, &blocks, &order->prompt, order->user);
}

static void publication_clear(void *item)
{
  free(((publication *)item)->table.ids);
}

static PyObject *kvfpy_node_lease_publish(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(publication), to_publication, call_lease_publish, publication_clear};
  return kvfpy_node_batch(self, list, &kind);
}

static kvf_status call_lease_end(kvf_node *node, void *item)
{
  return kvf_lease_end(node, item);
}

static PyObject *kvfpy_node_lease_end(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(kvf_lease), kvfpy_to_lease, call_lease_end, NULL};
  return kvfpy_node_batch(self, list, &kind);
}

/* ---- consumer ---- */

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
  const kvfpy_module_state *state = PyType_GetModuleState(Py_TYPE((PyObject *)self));
  kvf_status status = KVF_OK;
  return state != NULL && kvfpy_call_node(self, call_request_options_init, out, &status) &&
         kvfpy_set_all(state->error, out, changes, set_request_option);
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

static PyObject *count_object(const void *item)
{
  return PyLong_FromUnsignedLong(*(const uint32_t *)item);
}

static PyObject *request_info_object(const kvf_request_info *info)
{
  PyObject *counts = kvfpy_make_list(info->counts, sizeof(info->counts[0]), info->groups, count_object);
  return counts == NULL ? NULL
                        : Py_BuildValue("(KINsI)", (unsigned long long)info->id, info->tokens, counts, info->peer,
                                        info->load_timeout_ms);
}

static PyObject *kvfpy_node_request_open(kvfpy_node_object *self, PyObject *args)
{
  request_order order = {.bytes = 0};
  Py_ssize_t bytes = 0;
  kvf_status status = KVF_OK;
  PyObject *options = NULL;
  if (!PyArg_ParseTuple(args, "s#O&O&O!:request_open", &order.ticket, &bytes, kvfpy_to_prompt, &order.prompt,
                        kvfpy_to_u64, &order.user, &PyDict_Type, &options) ||
      !read_request_options(self, options, &order.options)) {
    return NULL;
  }
  order.bytes = (size_t)bytes;
  if (!kvfpy_call_node(self, call_request_open, &order, &status)) {
    return NULL;
  }
  PyObject *info = status == KVF_OK ? request_info_object(&order.info) : Py_NewRef(Py_None);
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

static PyObject *kvfpy_node_request_refused(kvfpy_node_object *self, PyObject *args)
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
  return status == KVF_OK ? kvfpy_verdict_object(&refused.verdict) : kvfpy_node_raise(self, status, NULL);
}

static kvf_status call_request_begin(kvf_node *node, void *item)
{
  return kvf_request_begin(node, *(const uint64_t *)item);
}

static PyObject *kvfpy_node_request_begin(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_request_begin, NULL};
  return kvfpy_node_batch(self, list, &kind);
}

static kvf_status call_request_report(kvf_node *node, void *item)
{
  return kvf_request_report(node, item);
}

static PyObject *kvfpy_node_request_report(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(kvf_report), kvfpy_to_report, call_request_report, NULL};
  return kvfpy_node_batch(self, list, &kind);
}

static kvf_status call_request_cancel(kvf_node *node, void *item)
{
  return kvf_request_cancel(node, *(const uint64_t *)item);
}

static PyObject *kvfpy_node_request_cancel(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_request_cancel, NULL};
  return kvfpy_node_batch(self, list, &kind);
}

typedef struct load_order {
  kvf_load load;
  kvfpy_block_table table;
} load_order;

static int to_load_order(PyObject *value, void *out)
{
  load_order *order = out;
  kvf_load *load = &order->load;
  Py_ssize_t bytes = 0;
  if (!kvfpy_is_tuple(value) ||
      !PyArg_ParseTuple(value, "O&s#O&O&O&O&;a load is (request_id, ticket, prompt, timeout_ms, user, destination)",
                        kvfpy_to_u64, &load->request_id, &load->ticket, &bytes, kvfpy_to_prompt, &load->prompt,
                        kvfpy_to_u32, &load->timeout_ms, kvfpy_to_u64, &load->user, kvfpy_to_block_table,
                        &order->table)) {
    return 0;
  }
  load->ticket_bytes = (size_t)bytes;
  load->destination = kvfpy_block_table_view(&order->table);
  return 1;
}

static kvf_status call_load_start(kvf_node *node, void *item)
{
  return kvf_load_start(node, &((const load_order *)item)->load);
}

static void load_order_clear(void *item)
{
  free(((load_order *)item)->table.ids);
}

static PyObject *kvfpy_node_load_start(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(load_order), to_load_order, call_load_start, load_order_clear};
  return kvfpy_node_batch(self, list, &kind);
}

static kvf_status call_load_abort(kvf_node *node, void *item)
{
  return kvf_load_abort(node, *(const uint64_t *)item);
}

static PyObject *kvfpy_node_load_abort(kvfpy_node_object *self, PyObject *list)
{
  static const kvfpy_batch_kind kind = {sizeof(uint64_t), kvfpy_to_u64, call_load_abort, NULL};
  return kvfpy_node_batch(self, list, &kind);
}

/* ---- functions of the module ---- */

static PyObject *module_prompt_hash(PyObject *module, PyObject *args)
{
  const char *tokens = NULL;
  const char *salt = NULL;
  Py_ssize_t tokens_bytes = 0;
  Py_ssize_t salt_bytes = 0;
  if (!PyArg_ParseTuple(args, "y#y#:prompt_hash", &tokens, &tokens_bytes, &salt, &salt_bytes)) {
    return NULL;
  }
  const size_t count = (size_t)tokens_bytes / sizeof(uint32_t);
  if ((size_t)tokens_bytes % sizeof(uint32_t) != 0 || count > UINT32_MAX) {
    PyErr_SetString(PyExc_ValueError, "the token ids are not whole uint32s, or too many");
    return NULL;
  }
  const void *ids = tokens;
  kvf_prompt prompt;
  kvf_status status = kvf_prompt_hash(ids, (uint32_t)count, salt, (size_t)salt_bytes, &prompt);
  if (status != KVF_OK) {
    return kvfpy_raise_status(((kvfpy_module_state *)PyModule_GetState(module))->error, status, NULL);
  }
  return kvfpy_struct_object(&prompt, sizeof(prompt));
}

static PyObject *module_report(PyObject *module, PyObject *args)
{
  (void)module;
  kvf_report report = {0};
  uint32_t rank = 0;
  int status = 0;
  if (!PyArg_ParseTuple(args, "O&O&O&O&i:report", kvfpy_to_u64, &report.request_id, kvfpy_to_u32, &rank, kvfpy_to_u32,
                        &report.blocks, kvfpy_to_u32, &report.prefix, &status)) {
    return NULL;
  }
  if (rank >= KVF_RANKS_MAX) {
    return PyErr_Format(PyExc_ValueError, "a rank is less than %d", KVF_RANKS_MAX);
  }
  report.ranks_mask = UINT64_C(1) << rank;
  report.status = status;
  return kvfpy_struct_object(&report, sizeof(report));
}

static PyObject *module_report_merge(PyObject *module, PyObject *args)
{
  (void)module;
  kvf_report a;
  kvf_report b;
  if (!PyArg_ParseTuple(args, "O&O&:report_merge", kvfpy_to_report, &a, kvfpy_to_report, &b)) {
    return NULL;
  }
  const kvf_report merged = kvf_report_merge(a, b);
  return kvfpy_struct_object(&merged, sizeof(merged));
}

/* NULL with an exception set if `value` is no number. */
static const kvf_status_info *status_info(PyObject *value)
{
  long status = PyLong_AsLong(value);
  if (PyErr_Occurred() != NULL) {
    return NULL;
  }
  return kvf_status_describe(status >= INT_MIN && status <= INT_MAX ? (int)status : 1);
}

static PyObject *module_status_name(PyObject *module, PyObject *value)
{
  (void)module;
  const kvf_status_info *info = status_info(value);
  return info == NULL ? NULL : PyUnicode_FromString(info->name);
}

static PyObject *module_status_meaning(PyObject *module, PyObject *value)
{
  (void)module;
  const kvf_status_info *info = status_info(value);
  return info == NULL ? NULL : PyUnicode_FromString(info->meaning);
}

static PyObject *reason_object(const kvf_status_info *info)
{
  static const char *const lost[] = {"nothing", "block", "request", "peer", "engine", "call"};
  return Py_BuildValue("(ssOOOOs)", info->name, lost[info->lost], info->retry_here ? Py_True : Py_False,
                       info->retry_elsewhere ? Py_True : Py_False, info->recompute_safe ? Py_True : Py_False,
                       info->trips_breaker ? Py_True : Py_False, info->meaning);
}

static PyObject *module_reasons(PyObject *module, PyObject *unused)
{
  (void)module;
  (void)unused;
  PyObject *list = PyList_New(0);
  for (unsigned i = 0; list != NULL && kvf_status_at(i) != NULL; i++) {
    if (!kvfpy_append(list, reason_object(kvf_status_at(i)))) {
      Py_CLEAR(list);
    }
  }
  return list;
}

static PyObject *module_options(PyObject *module, PyObject *unused)
{
  (void)module;
  (void)unused;
  PyObject *list = PyList_New(0);
  const kvf_option_info *info = NULL;
  for (unsigned i = 0; list != NULL && (info = kvf_option_at(i)) != NULL; i++) {
    PyObject *item = Py_BuildValue("(sssss)", info->name, info->unit, info->initial, info->allowed, info->meaning);
    if (item == NULL || PyList_Append(list, item) < 0) {
      Py_CLEAR(list);
    }
    Py_XDECREF(item);
  }
  return list;
}

/* ---- the module ---- */

#define KVFPY_METHOD(name, function, flags) {name, (PyCFunction)(void (*)(void))(function), flags, NULL}
#define KVFPY_SLOT(id, function) {id, (void *)(uintptr_t)(function)}

static PyMethodDef node_methods[] = {
    KVFPY_METHOD("close", node_close, METH_NOARGS),
    KVFPY_METHOD("register", node_register, METH_O),
    KVFPY_METHOD("address", node_address, METH_NOARGS),
    KVFPY_METHOD("set_ranks", node_set_ranks, METH_O),
    KVFPY_METHOD("healthy", node_healthy, METH_NOARGS),
    KVFPY_METHOD("poll", node_poll, METH_NOARGS),
    KVFPY_METHOD("stats", kvfpy_node_stats, METH_NOARGS),
    KVFPY_METHOD("histograms", kvfpy_node_histograms, METH_NOARGS),
    KVFPY_METHOD("peers", kvfpy_node_peers, METH_NOARGS),
    KVFPY_METHOD("lease_reserve", kvfpy_node_lease_reserve, METH_VARARGS),
    KVFPY_METHOD("lease_release", kvfpy_node_lease_release, METH_O),
    KVFPY_METHOD("ticket_make", kvfpy_node_ticket_make, METH_VARARGS),
    KVFPY_METHOD("lease_publish", kvfpy_node_lease_publish, METH_O),
    KVFPY_METHOD("lease_end", kvfpy_node_lease_end, METH_O),
    KVFPY_METHOD("request_open", kvfpy_node_request_open, METH_VARARGS),
    KVFPY_METHOD("request_refused", kvfpy_node_request_refused, METH_VARARGS),
    KVFPY_METHOD("request_begin", kvfpy_node_request_begin, METH_O),
    KVFPY_METHOD("request_report", kvfpy_node_request_report, METH_O),
    KVFPY_METHOD("request_cancel", kvfpy_node_request_cancel, METH_O),
    KVFPY_METHOD("load_start", kvfpy_node_load_start, METH_O),
    KVFPY_METHOD("load_abort", kvfpy_node_load_abort, METH_O),
    {NULL, NULL, 0, NULL},
};

static PyMethodDef module_methods[] = {
    KVFPY_METHOD("prompt_hash", module_prompt_hash, METH_VARARGS),
    KVFPY_METHOD("report", module_report, METH_VARARGS),
    KVFPY_METHOD("report_merge", module_report_merge, METH_VARARGS),
    KVFPY_METHOD("status_name", module_status_name, METH_O),
    KVFPY_METHOD("status_meaning", module_status_meaning, METH_O),
    KVFPY_METHOD("reasons", module_reasons, METH_NOARGS),
    KVFPY_METHOD("options", module_options, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot node_slots[] = {
    KVFPY_SLOT(Py_tp_new, node_new),
    KVFPY_SLOT(Py_tp_dealloc, node_dealloc),
    {Py_tp_methods, node_methods},
    {0, NULL},
};

static PyType_Spec kvfpy_node_spec = {
    .name = "kvferry._kvferry.Node",
    .basicsize = sizeof(kvfpy_node_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = node_slots,
};

/* Every status by its name in capitals: LEASE_EXPIRED. */
static int add_statuses(PyObject *module)
{
  const kvf_status_info *info = NULL;
  for (unsigned i = 0; (info = kvf_status_at(i)) != NULL; i++) {
    char name[64] = "";
    for (size_t c = 0; c + 1 < sizeof(name) && info->name[c] != '\0'; c++) {
      name[c] = (char)toupper((unsigned char)info->name[c]);
    }
    if (PyModule_AddIntConstant(module, name, info->status) < 0) {
      return -1;
    }
  }
  return 0;
}

static int add_constants(PyObject *module)
{
  static const struct {
    const char *name;
    long value;
  } constants[] = {
      {"BLOCK_NONE", (long)KVF_BLOCK_NONE},
      {"EVENT_LEASE_ENDED", KVF_EVENT_LEASE_ENDED},
      {"EVENT_LOAD", KVF_EVENT_LOAD},
      {"EVENT_QUIET", KVF_EVENT_QUIET},
      {"EVENT_VERDICT", KVF_EVENT_VERDICT},
      {"LEASE_END_COMPLETED", KVF_LEASE_END_COMPLETED},
      {"LEASE_END_ABANDONED", KVF_LEASE_END_ABANDONED},
      {"LEASE_END_EXPIRED", KVF_LEASE_END_EXPIRED},
      {"LEASE_END_REVOKED", KVF_LEASE_END_REVOKED},
      {"BREAKER_CLOSED", KVF_BREAKER_CLOSED},
      {"BREAKER_HALF_OPEN", KVF_BREAKER_HALF_OPEN},
      {"BREAKER_OPEN", KVF_BREAKER_OPEN},
      {"ACTION_USE", KVF_ACTION_USE},
      {"ACTION_RECOMPUTE", KVF_ACTION_RECOMPUTE},
      {"ACTION_FAIL", KVF_ACTION_FAIL},
  };
  for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
    if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
      return -1;
    }
  }
  return PyModule_AddStringConstant(module, "VERSION", kvf_version());
}

static int module_exec(PyObject *module)
{
  kvfpy_module_state *state = PyModule_GetState(module);
  state->error = PyErr_NewExceptionWithDoc("kvferry.Error", "A call was refused; `status` says why.", NULL, NULL);
  if (state->error == NULL || PyModule_AddObjectRef(module, "Error", state->error) < 0) {
    return -1;
  }
  PyObject *type = PyType_FromModuleAndSpec(module, &kvfpy_node_spec, NULL);
  if (type == NULL) {
    return -1;
  }
  int failed = PyModule_AddType(module, (PyTypeObject *)type);
  Py_DECREF(type);
  return failed < 0 || add_statuses(module) < 0 || add_constants(module) < 0 ? -1 : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
  kvfpy_module_state *state = PyModule_GetState(module);
  Py_VISIT(state->error);
  return 0;
}

static int module_clear(PyObject *module)
{
  kvfpy_module_state *state = PyModule_GetState(module);
  Py_CLEAR(state->error);
  return 0;
}

static PyModuleDef_Slot module_slots[] = {
    KVFPY_SLOT(Py_mod_exec, module_exec),
    {0, NULL},
};

static struct PyModuleDef module_def = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "_kvferry",
    .m_size = sizeof(kvfpy_module_state),
    .m_methods = module_methods,
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
};

PyMODINIT_FUNC PyInit__kvferry(void);

PyMODINIT_FUNC PyInit__kvferry(void)
{
  return PyModuleDef_Init(&module_def);
}
