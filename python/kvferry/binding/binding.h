/* The Python binding: kvferry's C interface in batch-shaped calls. Its manual is _kvferry.pyi; here is what its files
 * share.
 *
 * Plain-data structs (kvf_lease, kvf_prompt, kvf_report) cross as bytes, block ids as one bytes object of native uint32
 * for each KV group, addresses as ints. Every call into a node runs without the GIL; the library never calls Python.
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

typedef struct kvfpy_module_state {
  PyObject *error;
} kvfpy_module_state;

typedef struct kvfpy_node_object {
  PyObject ob_base;
  kvf_node *node;
  pid_t owner;    /* a forked child must leave its parent's node alone */
  unsigned calls; /* that run without the GIL: close() must not run beside them */
} kvfpy_node_object;

/* ---- call.c ---- */

/* Both return NULL. `message` may be NULL: the status's own meaning. */
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
  kvfpy_node_call call;
  void (*clear)(void *item); /* NULL: an item owns nothing. Items that were not parsed are zero. */
} kvfpy_batch_kind;

PyObject *kvfpy_node_batch(kvfpy_node_object *self, PyObject *list, const kvfpy_batch_kind *kind);

/* ---- convert.c ---- */

typedef PyObject *(*kvfpy_make_object)(const void *item);

/* A list with an object for each of `count` items. */
PyObject *kvfpy_make_list(const void *items, size_t item_bytes, size_t count, kvfpy_make_object make);

/* Takes `object` over. Either may be NULL, with an exception set: false. */
bool kvfpy_append(PyObject *list, PyObject *object);

PyObject *kvfpy_struct_object(const void *data, size_t bytes);
PyObject *kvfpy_verdict_object(const kvf_verdict *verdict);

/* The length of a list, -1 with an exception set if it is none. */
Py_ssize_t kvfpy_list_length(PyObject *list);
bool kvfpy_is_tuple(PyObject *value);

int kvfpy_to_u32(PyObject *value, void *out);
int kvfpy_to_u64(PyObject *value, void *out);
int kvfpy_to_lease(PyObject *value, void *out);
int kvfpy_to_prompt(PyObject *value, void *out);
int kvfpy_to_report(PyObject *value, void *out);

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

/* ---- node.c: the type ---- */

/* A kvfpy_set_field of a kvf_config. */
bool kvfpy_set_option(PyObject *error, void *config, const char *name, const char *value);

extern PyType_Spec kvfpy_node_spec;

/* ---- stats.c, producer.c, consumer.c: methods of the type ---- */

PyObject *kvfpy_node_stats(kvfpy_node_object *self, PyObject *unused);
PyObject *kvfpy_node_histograms(kvfpy_node_object *self, PyObject *unused);
PyObject *kvfpy_node_peers(kvfpy_node_object *self, PyObject *unused);

PyObject *kvfpy_node_lease_reserve(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_lease_release(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_ticket_make(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_lease_publish(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_lease_end(kvfpy_node_object *self, PyObject *list);

PyObject *kvfpy_node_request_open(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_request_refused(kvfpy_node_object *self, PyObject *args);
PyObject *kvfpy_node_request_begin(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_report(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_cancel(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_request_detach(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_load_start(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_load_abort(kvfpy_node_object *self, PyObject *list);
PyObject *kvfpy_node_load_stuck(kvfpy_node_object *self, PyObject *list);

#endif
