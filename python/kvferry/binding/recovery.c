/* The type Recovery. Its calls are short: they keep the GIL, which also keeps threads apart. */
#include "binding.h"

#include <stdlib.h>

typedef struct recovery_object {
  PyObject ob_base;
  kvf_recovery *recovery;
} recovery_object;

/* ---- the table's life ---- */

static bool read_pools(PyObject *pools, kvf_recovery_options *options)
{
  size_t count = 0;
  uint32_t *blocks = kvfpy_to_items(pools, sizeof(*blocks), kvfpy_to_u32, &count);
  if (blocks == NULL) {
    return false;
  }
  options->groups = (uint32_t)(count <= KVF_GROUPS_MAX ? count : 0); /* 0: KVF_INVALID */
  for (uint32_t i = 0; i < options->groups; i++) {
    options->pool_blocks[i] = blocks[i];
  }
  free(blocks);
  return true;
}

static PyObject *recovery_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
  static char *names[] = {"ranks", "block_tokens", "requests_max", "recompute_max_tokens", "pool_blocks", NULL};
  PyObject *pools = NULL;
  kvf_recovery_options options = {.groups = 0};
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "O&O&O&O&O:Recovery", names, kvfpy_to_u32, &options.ranks,
                                   kvfpy_to_u32, &options.block_tokens, kvfpy_to_u32, &options.requests_max,
                                   kvfpy_to_u32, &options.recompute_max_tokens, &pools) ||
      !read_pools(pools, &options)) {
    return NULL;
  }
  const kvfpy_module_state *state = PyType_GetModuleState(type);
  recovery_object *self = state == NULL ? NULL : (recovery_object *)PyType_GenericAlloc(type, 0);
  if (self == NULL) {
    return NULL;
  }
  kvf_status status = kvf_recovery_open(&options, &self->recovery);
  if (status != KVF_OK) {
    Py_DECREF((PyObject *)self);
    return kvfpy_raise_status(state->error, status, NULL);
  }
  return (PyObject *)self;
}

static void recovery_dealloc(PyObject *object)
{
  PyTypeObject *type = Py_TYPE(object);
  kvf_recovery_close(((recovery_object *)object)->recovery);
  PyObject_Free(object);
  Py_DECREF((PyObject *)type);
}

/* ---- requests, and what ranks found ---- */

static PyObject *recovery_admit(recovery_object *self, PyObject *args)
{
  kvf_recovery_request request = {.blockers = 0};
  kvfpy_block_table table = {.groups = 0};
  if (!PyArg_ParseTuple(args, "O&O&O&O&O&O&:admit", kvfpy_to_u64, &request.request_id, kvfpy_to_u64, &request.user,
                        kvfpy_to_u32, &request.local_prefix_tokens, kvfpy_to_u32, &request.tokens, kvfpy_to_u32,
                        &request.prompt_tokens, kvfpy_to_block_table, &table)) {
    free(table.ids);
    return NULL;
  }
  request.blocks = kvfpy_block_table_view(&table);
  kvf_status status = kvf_recovery_admit(self->recovery, &request);
  free(table.ids);
  return PyLong_FromLong(status);
}

static PyObject *recovery_end(recovery_object *self, PyObject *value)
{
  uint64_t id = 0;
  return kvfpy_to_u64(value, &id) ? PyLong_FromLong(kvf_recovery_end(self->recovery, id)) : NULL;
}

static PyObject *recovery_report(recovery_object *self, PyObject *value)
{
  kvf_report report;
  return kvfpy_to_report(value, &report) ? PyLong_FromLong(kvf_recovery_report(self->recovery, &report)) : NULL;
}

static PyObject *recovery_released(recovery_object *self, PyObject *args)
{
  uint64_t id = 0;
  uint64_t mask = 0;
  return PyArg_ParseTuple(args, "O&O&:released", kvfpy_to_u64, &id, kvfpy_to_rank, &mask)
             ? PyLong_FromLong(kvf_recovery_released(self->recovery, id, mask))
             : NULL;
}

/* ---- what to do ---- */

static PyObject *event_object(const kvfpy_module_state *state, const kvf_recovery_event *event)
{
  return kvfpy_record_object(state, KVFPY_RECOVERY_EVENT, "(iiKKKIIII)", (int)event->kind, (int)event->status,
                             (unsigned long long)event->request_id, (unsigned long long)event->user,
                             (unsigned long long)event->ranks_mask, event->blockers, event->confirmed_blocks,
                             event->computed_tokens, event->recompute_tokens);
}

static PyObject *recovery_events(recovery_object *self, PyObject *unused)
{
  kvf_recovery_event event;
  PyObject *list = PyList_New(0);
  (void)unused;
  while (list != NULL && kvf_recovery_next_event(self->recovery, &event)) {
    if (!kvfpy_append(list, event_object(kvfpy_state_of_type((PyObject *)self), &event))) {
      Py_CLEAR(list);
    }
  }
  return list;
}

static PyObject *recovery_open(recovery_object *self, PyObject *unused)
{
  kvf_recovery_stats stats;
  (void)unused;
  kvf_recovery_get_stats(self->recovery, &stats);
  return PyLong_FromUnsignedLong(stats.open);
}

static PyMethodDef recovery_methods[] = {
    KVFPY_METHOD("admit", recovery_admit, METH_VARARGS),
    KVFPY_METHOD("end", recovery_end, METH_O),
    KVFPY_METHOD("report", recovery_report, METH_O),
    KVFPY_METHOD("released", recovery_released, METH_VARARGS),
    KVFPY_METHOD("events", recovery_events, METH_NOARGS),
    KVFPY_METHOD("open", recovery_open, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot recovery_slots[] = {
    KVFPY_SLOT(Py_tp_new, recovery_new),
    KVFPY_SLOT(Py_tp_dealloc, recovery_dealloc),
    {Py_tp_methods, recovery_methods},
    {0, NULL},
};

PyType_Spec kvfpy_recovery_spec = {
    .name = "kvferry._kvferry.Recovery",
    .basicsize = sizeof(recovery_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = recovery_slots,
};
