/* The Python binding: kvferry's C interface in batch-shaped calls. Its manual is _kvferry.pyi; here is what its files
 * share.
 *
 * Plain-data structs (kvf_lease, kvf_prompt, kvf_report) cross as bytes, block ids as one bytes object of native uint32
 * for each KV group, addresses as ints, and all else as objects with named fields (records.c). Every call into a node
 * runs without the GIL; the library never calls Python.
 *
 * NULL and false mean that an exception is set; so does 0 of a converter (kvfpy_to_*, PyArg_ParseTuple()'s "O&").
 */
#ifndef KVFPY_BINDING_H
#define KVFPY_BINDING_H

#ifndef Py_LIMITED_API
#define Py_LIMITED_API 0x030A0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "kvferry/kvferry.h"

#define KVFPY_METHOD(name, function, flags) {name, (PyCFunction)(void (*)(void))(function), flags, NULL}
#define KVFPY_SLOT(id, function) {id, (void *)(uintptr_t)(function)}

typedef enum kvfpy_record {
  KVFPY_EVENT,
  KVFPY_VERDICT,
  KVFPY_REQUEST_INFO,
  KVFPY_NUMBER,
  KVFPY_LINK,
  KVFPY_PEER,
  KVFPY_RECOVERY_EVENT,
  KVFPY_RECORDS
} kvfpy_record;

typedef struct kvfpy_module_state {
  PyObject *error;
  PyTypeObject *records[KVFPY_RECORDS];
  PyTypeObject *log_queue;
} kvfpy_module_state;

typedef struct kvfpy_node_object {
  PyObject ob_base;
  kvf_node *node;
  PyObject *log;  /* a LogQueue, which outlives the node; NULL: standard error */
  pid_t owner;    /* a forked child must leave its parent's node alone */
  unsigned calls; /* that run without the GIL: close() must not run beside them */
} kvfpy_node_object;

/* ---- call.c ---- */

const kvfpy_module_state *kvfpy_state_of(kvfpy_node_object *self);

/* Both return NULL. `message` may be NULL: kvf_error_text(), since the call has just failed. */
PyObject *kvfpy_raise_status(PyObject *error, kvf_status status, const char *message);
PyObject *kvfpy_node_raise(kvfpy_node_object *self, kvf_status status, const char *message);

typedef kvf_status (*kvfpy_node_call)(kvf_node *node, void *arguments);

/* Makes one call without the GIL. False, with an exception set, if the node cannot be used. */
bool kvfpy_call_node(kvfpy_node_object *self, kvfpy_node_call call, void *arguments, kvf_status *status);

/* One call that returns nothing, or raises. */
PyObject *kvfpy_call_or_raise(kvfpy_node_object *self, kvfpy_node_call call, void *arguments);

/* A batch: a list, each item parsed into a struct of item_bytes, then a call for each, then a list of statuses. */
typedef struct kvfpy_batch_kind {
  size_t item_bytes;
  int (*parse)(PyObject *value, void *item); /* a converter: 0 with an exception set on failure */
  kvf_status (*call)(kvf_node *node, void *item, const void *context);
  void (*clear)(void *item); /* NULL: an item owns nothing. Items that were not parsed are zero. */
} kvfpy_batch_kind;

PyObject *kvfpy_node_batch(kvfpy_node_object *self, PyObject *list, const kvfpy_batch_kind *kind, const void *context);

/* The batch of a method (list, after=None): `call` gets a kvfpy_point as its context. */
PyObject *kvfpy_node_batch_after(kvfpy_node_object *self, PyObject *args, const kvfpy_batch_kind *kind);

/* The batch of a call that takes an id. */
PyObject *kvfpy_node_ids(kvfpy_node_object *self, PyObject *list, kvf_status (*call)(kvf_node *node, uint64_t id));

/* ---- records.c ---- */

/* Makes the types, and puts them into the module. */
bool kvfpy_add_records(PyObject *module, kvfpy_module_state *state);

/* The fields by a format of Py_BuildValue() that makes a tuple. */
PyObject *kvfpy_record_object(const kvfpy_module_state *state, kvfpy_record kind, const char *format, ...);

/* One field of an object that comes from Python: the attribute `name`, by a converter to out + offset. */
typedef struct kvfpy_field {
  const char *name;
  int (*convert)(PyObject *value, void *out);
  size_t offset;
} kvfpy_field;

/* Reads fields up to one without a name; what it raises says `what` and which. A converter but for its arguments. */
int kvfpy_to_fields(PyObject *value, const char *what, const kvfpy_field *fields, void *out);

/* ---- convert.c ---- */

typedef PyObject *(*kvfpy_make_object)(const kvfpy_module_state *state, const void *item);

/* A list with an object for each of `count` items. */
PyObject *kvfpy_make_list(const kvfpy_module_state *state, const void *items, size_t item_bytes, size_t count,
                          kvfpy_make_object make);

/* Takes `object` over. Either may be NULL, with an exception set: false. */
bool kvfpy_append(PyObject *list, PyObject *object);

PyObject *kvfpy_struct_object(const void *data, size_t bytes);
PyObject *kvfpy_verdict_object(const kvfpy_module_state *state, const kvf_verdict *verdict);

/* The length of a list, -1 with an exception set if it is none. */
Py_ssize_t kvfpy_list_length(PyObject *list);

int kvfpy_to_u32(PyObject *value, void *out);
int kvfpy_to_u64(PyObject *value, void *out);
int kvfpy_to_address(PyObject *value, void *out); /* to a void * */
int kvfpy_to_memory(PyObject *value, void *out);  /* to a kvf_memory_kind, known or not */
int kvfpy_to_lease(PyObject *value, void *out);
int kvfpy_to_prompt(PyObject *value, void *out);
int kvfpy_to_report(PyObject *value, void *out);
int kvfpy_to_rank(PyObject *value, void *out); /* to a mask with its bit */

/* A ticket's text, borrowed from a str. */
typedef struct kvfpy_text {
  const char *text;
  size_t bytes;
} kvfpy_text;

int kvfpy_to_text(PyObject *value, void *out);

/* An ordering point, or none. */
typedef struct kvfpy_point {
  kvf_ordering_point point;
  bool is_given;
} kvfpy_point;

/* A converter, from None or an object with the point's fields. */
int kvfpy_to_point(PyObject *value, void *out);

/* For a call: NULL if there is none. */
const kvf_ordering_point *kvfpy_point_or_null(const kvfpy_point *point);

typedef struct kvfpy_block_table {
  uint32_t *ids; /* owned */
  uint32_t counts[KVF_GROUPS_MAX];
  uint32_t groups;
} kvfpy_block_table;

kvf_blocks kvfpy_block_table_view(const kvfpy_block_table *table);

/* A converter, from a tuple of bytes, one for each group. On success out->ids is the caller's to free. */
int kvfpy_to_block_table(PyObject *groups, void *out);

/* Sets one field of a kvf_config or kvf_request_options. */
typedef bool (*kvfpy_set_field)(PyObject *error, void *fields, const char *name, const char *value);

/* All of a dict's names and values. */
bool kvfpy_set_all(PyObject *error, void *fields, PyObject *values, kvfpy_set_field set);

/* An array from a list, each item by a converter: the caller's to free. NULL, with an exception set. */
void *kvfpy_to_items(PyObject *list, size_t item_bytes, int (*convert)(PyObject *value, void *out), size_t *count);
kvf_region *kvfpy_to_regions(PyObject *list, size_t *count);

/* ---- types that are no nodes ---- */

extern PyType_Spec kvfpy_log_spec;
extern PyType_Spec kvfpy_staging_spec;
extern PyType_Spec kvfpy_recovery_spec;

/* The module's state, for methods of a type of its. */
const kvfpy_module_state *kvfpy_state_of_type(PyObject *object);

/* Of a LogQueue. */
kvf_log_queue *kvfpy_log_queue_of(PyObject *log);

/* ---- node.c: the type ---- */

/* A kvfpy_set_field of a kvf_config. */
bool kvfpy_set_option(PyObject *error, void *config, const char *name, const char *value);

extern PyType_Spec kvfpy_node_spec;

/* ---- stats.c, producer.c, finding.c, consumer.c: methods of the type ---- */

PyObject *kvfpy_node_stats(kvfpy_node_object *self, PyObject *unused);
PyObject *kvfpy_node_histograms(kvfpy_node_object *self, PyObject *unused);
PyObject *kvfpy_node_peers(kvfpy_node_object *self, PyObject *unused);

PyObject *kvfpy_node_lease_reserve(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_lease_reserve_blocks(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_lease_release(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_lease_ended(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_ticket_make(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_lease_publish(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_lease_end(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_leases_end_lingering(kvfpy_node_object *self, PyObject *unused);
PyObject *kvfpy_node_ticket_offer(kvfpy_node_object *self, PyObject *text);

PyObject *kvfpy_node_ticket_find(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_ticket_take(kvfpy_node_object *self, PyObject *find_id);
PyObject *kvfpy_node_ticket_prompt(kvfpy_node_object *self, PyObject *text);

PyObject *kvfpy_node_request_open(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_request_refused(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_request_wait(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_request_begin(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_report(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_released(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_request_stuck(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_cancel(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_detach(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_load_start(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_load_abort(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_load_stuck(kvfpy_node_object *self, PyObject *list);

#endif
