/* The type Staging. */
#include "binding.h"

#include <stdlib.h>

typedef struct staging_object {
  PyObject ob_base;
  kvf_staging *staging; /* NULL: closed */
  size_t regions_count;
} staging_object;

static PyObject *open_staging(PyTypeObject *type, PyObject *error, const kvf_region *pool, size_t count,
                              uint32_t blocks, const char *library)
{
  staging_object *self = (staging_object *)PyType_GenericAlloc(type, 0);
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_status status = KVF_OK;
  if (self == NULL) {
    return NULL;
  }
  Py_BEGIN_ALLOW_THREADS;
  status = kvf_staging_open(pool, count, blocks, library, &self->staging, message);
  Py_END_ALLOW_THREADS;
  self->regions_count = count;
  if (status != KVF_OK) {
    Py_DECREF((PyObject *)self);
    return kvfpy_raise_status(error, status, message);
  }
  return (PyObject *)self;
}

static PyObject *staging_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
  static char *names[] = {"pool", "blocks", "cuda_library", NULL};
  PyObject *regions = NULL;
  uint32_t blocks = 0;
  const char *library = "";
  if (!PyArg_ParseTupleAndKeywords(args, keywords, "OO&|s:Staging", names, &regions, kvfpy_to_u32, &blocks, &library)) {
    return NULL;
  }
  size_t count = 0;
  kvf_region *pool = kvfpy_to_regions(regions, &count);
  if (pool == NULL) {
    return NULL;
  }
  const kvfpy_module_state *state = PyType_GetModuleState(type);
  PyObject *self = state == NULL ? NULL : open_staging(type, state->error, pool, count, blocks, library);
  free(pool);
  return self;
}

static void close_staging(staging_object *self)
{
  kvf_staging *staging = self->staging;
  self->staging = NULL;
  Py_BEGIN_ALLOW_THREADS;
  kvf_staging_close(staging);
  Py_END_ALLOW_THREADS;
}

static void staging_dealloc(PyObject *object)
{
  PyTypeObject *type = Py_TYPE(object);
  close_staging((staging_object *)object);
  PyObject_Free(object);
  Py_DECREF((PyObject *)type);
}

static PyObject *staging_close(staging_object *self, PyObject *unused)
{
  (void)unused;
  close_staging(self);
  Py_RETURN_NONE;
}

static bool is_open(staging_object *self)
{
  if (self->staging == NULL) {
    (void)kvfpy_raise_status(kvfpy_state_of_type((PyObject *)self)->error, KVF_CLOSED, "the staging is closed");
  }
  return self->staging != NULL;
}

static PyObject *region_object(const kvfpy_module_state *state, const void *item)
{
  const kvf_region *region = item;
  (void)state;
  return Py_BuildValue("(KKIIIIIiI)", (unsigned long long)(uintptr_t)region->base,
                       (unsigned long long)region->stride_bytes, region->block_bytes, region->blocks, region->heads,
                       region->heads_total, region->group, (int)region->memory, region->device);
}

static PyObject *staging_regions(staging_object *self, PyObject *unused)
{
  (void)unused;
  if (!is_open(self)) {
    return NULL;
  }
  kvf_region *regions = calloc(self->regions_count, sizeof(*regions));
  if (regions == NULL) {
    return PyErr_NoMemory();
  }
  kvf_staging_regions(self->staging, regions);
  PyObject *list = kvfpy_make_list(NULL, regions, sizeof(*regions), self->regions_count, region_object);
  free(regions);
  return list;
}

static PyObject *staging_copy(staging_object *self, PyObject *args)
{
  uint64_t number = 0;
  kvfpy_block_table from = {.groups = 0};
  kvfpy_block_table to = {.groups = 0};
  kvfpy_point on = {.is_given = false};
  kvf_status status = KVF_OK;
  PyObject *destination = NULL;
  PyObject *result = NULL;
  if (!is_open(self) || !PyArg_ParseTuple(args, "O&O&O|O&:copy", kvfpy_to_u64, &number, kvfpy_to_block_table, &from,
                                          &destination, kvfpy_to_point, &on)) {
    free(from.ids);
    return NULL;
  }
  if (kvfpy_to_block_table(destination, &to)) {
    const kvf_blocks source = kvfpy_block_table_view(&from);
    const kvf_blocks target = kvfpy_block_table_view(&to);
    Py_BEGIN_ALLOW_THREADS;
    status = kvf_staging_copy(self->staging, number, &source, &target, kvfpy_point_or_null(&on));
    Py_END_ALLOW_THREADS;
    result = PyLong_FromLong(status);
  }
  free(from.ids);
  free(to.ids);
  return result;
}

static PyObject *staging_copied(staging_object *self, PyObject *unused)
{
  (void)unused;
  return is_open(self) ? PyLong_FromUnsignedLongLong(kvf_staging_copied(self->staging)) : NULL;
}

static PyMethodDef staging_methods[] = {
    KVFPY_METHOD("close", staging_close, METH_NOARGS),
    KVFPY_METHOD("regions", staging_regions, METH_NOARGS),
    KVFPY_METHOD("copy", staging_copy, METH_VARARGS),
    KVFPY_METHOD("copied", staging_copied, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot staging_slots[] = {
    KVFPY_SLOT(Py_tp_new, staging_new),
    KVFPY_SLOT(Py_tp_dealloc, staging_dealloc),
    {Py_tp_methods, staging_methods},
    {0, NULL},
};

PyType_Spec kvfpy_staging_spec = {
    .name = "kvferry._kvferry.Staging",
    .basicsize = sizeof(staging_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = staging_slots,
};
