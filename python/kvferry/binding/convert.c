/* Between Python's objects and the library's structs. */
#include "binding.h"

#include <stdlib.h>
#include <string.h>

PyObject *kvfpy_make_list(const kvfpy_module_state *state, const void *items, size_t item_bytes, size_t count,
                          kvfpy_make_object make)
{
  PyObject *list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list != NULL && i < count; i++) {
    PyObject *object = make(state, (const char *)items + i * item_bytes);
    if (object == NULL || PyList_SetItem(list, (Py_ssize_t)i, object) < 0) {
      Py_CLEAR(list);
    }
  }
  return list;
}

bool kvfpy_append(PyObject *list, PyObject *object)
{
  bool appended = list != NULL && object != NULL && PyList_Append(list, object) == 0;
  Py_XDECREF(object);
  return appended;
}

PyObject *kvfpy_struct_object(const void *data, size_t bytes)
{
  return PyBytes_FromStringAndSize(data, (Py_ssize_t)bytes);
}

PyObject *kvfpy_verdict_object(const kvfpy_module_state *state, const kvf_verdict *verdict)
{
  return kvfpy_record_object(state, KVFPY_VERDICT, "(iiIIII)", (int)verdict->action, (int)verdict->status,
                             verdict->keep_blocks, verdict->keep_tokens, verdict->recompute_tokens,
                             verdict->retry_after_ms);
}

Py_ssize_t kvfpy_list_length(PyObject *list)
{
  if (!PyList_Check(list)) {
    PyErr_SetString(PyExc_TypeError, "a batch is a list");
    return -1;
  }
  return PyList_Size(list);
}

void *kvfpy_to_items(PyObject *list, size_t item_bytes, int (*convert)(PyObject *value, void *out), size_t *count)
{
  Py_ssize_t length = kvfpy_list_length(list);
  if (length < 0) {
    return NULL;
  }
  char *items = calloc((size_t)length + 1, item_bytes);
  if (items == NULL) {
    return PyErr_NoMemory();
  }
  for (Py_ssize_t i = 0; i < length; i++) {
    if (!convert(PyList_GetItem(list, i), items + (size_t)i * item_bytes)) {
      free(items);
      return NULL;
    }
  }
  *count = (size_t)length;
  return items;
}

int kvfpy_to_u32(PyObject *value, void *out)
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

int kvfpy_to_u64(PyObject *value, void *out)
{
  unsigned long long number = PyLong_AsUnsignedLongLong(value);
  if (PyErr_Occurred() != NULL) {
    return 0;
  }
  *(uint64_t *)out = number;
  return 1;
}

int kvfpy_to_address(PyObject *value, void *out)
{
  uint64_t address = 0;
  int converted = kvfpy_to_u64(value, &address);
  *(void **)out = (void *)(uintptr_t)address;
  return converted;
}

int kvfpy_to_memory(PyObject *value, void *out)
{
  uint32_t kind = 0;
  int converted = kvfpy_to_u32(value, &kind);
  *(kvf_memory_kind *)out = (kvf_memory_kind)kind;
  return converted;
}

int kvfpy_to_point(PyObject *value, void *out)
{
  static const kvfpy_field fields[] = {{"memory", kvfpy_to_memory, offsetof(kvf_ordering_point, memory)},
                                       {"device", kvfpy_to_u32, offsetof(kvf_ordering_point, device)},
                                       {"handle", kvfpy_to_address, offsetof(kvf_ordering_point, handle)},
                                       {NULL, NULL, 0}};
  kvfpy_point *point = out;
  point->is_given = value != Py_None;
  return point->is_given ? kvfpy_to_fields(value, "an ordering point", fields, &point->point) : 1;
}

const kvf_ordering_point *kvfpy_point_or_null(const kvfpy_point *point)
{
  return point->is_given ? &point->point : NULL;
}

static int to_region(PyObject *value, void *out)
{
  static const kvfpy_field fields[] = {{"base", kvfpy_to_address, offsetof(kvf_region, base)},
                                       {"stride_bytes", kvfpy_to_u64, offsetof(kvf_region, stride_bytes)},
                                       {"block_bytes", kvfpy_to_u32, offsetof(kvf_region, block_bytes)},
                                       {"blocks", kvfpy_to_u32, offsetof(kvf_region, blocks)},
                                       {"heads", kvfpy_to_u32, offsetof(kvf_region, heads)},
                                       {"heads_total", kvfpy_to_u32, offsetof(kvf_region, heads_total)},
                                       {"group", kvfpy_to_u32, offsetof(kvf_region, group)},
                                       {"memory", kvfpy_to_memory, offsetof(kvf_region, memory)},
                                       {"device", kvfpy_to_u32, offsetof(kvf_region, device)},
                                       {NULL, NULL, 0}};
  return kvfpy_to_fields(value, "a region", fields, out);
}

kvf_region *kvfpy_to_regions(PyObject *list, size_t *count)
{
  return kvfpy_to_items(list, sizeof(kvf_region), to_region, count);
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

int kvfpy_to_lease(PyObject *value, void *out)
{
  return to_struct(value, out, sizeof(kvf_lease), "lease");
}

int kvfpy_to_prompt(PyObject *value, void *out)
{
  return to_struct(value, out, sizeof(kvf_prompt), "prompt");
}

int kvfpy_to_report(PyObject *value, void *out)
{
  return to_struct(value, out, sizeof(kvf_report), "report");
}

int kvfpy_to_text(PyObject *value, void *out)
{
  kvfpy_text *text = out;
  Py_ssize_t bytes = 0;
  text->text = PyUnicode_AsUTF8AndSize(value, &bytes);
  text->bytes = (size_t)bytes;
  return text->text != NULL;
}

int kvfpy_to_rank(PyObject *value, void *out)
{
  uint32_t rank = 0;
  if (!kvfpy_to_u32(value, &rank)) {
    return 0;
  }
  if (rank >= KVF_RANKS_MAX) {
    (void)PyErr_Format(PyExc_ValueError, "a rank is less than %d", KVF_RANKS_MAX);
    return 0;
  }
  *(uint64_t *)out = UINT64_C(1) << rank;
  return 1;
}

kvf_blocks kvfpy_block_table_view(const kvfpy_block_table *table)
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

int kvfpy_to_block_table(PyObject *groups, void *out)
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

/* C would cut it at a NUL. */
static const char *whole_text(PyObject *value)
{
  Py_ssize_t bytes = 0;
  const char *text = PyUnicode_AsUTF8AndSize(value, &bytes);
  if (text != NULL && strlen(text) != (size_t)bytes) {
    PyErr_SetString(PyExc_ValueError, "an option's name or value has a NUL");
    return NULL;
  }
  return text;
}

bool kvfpy_set_all(PyObject *error, void *fields, PyObject *values, kvfpy_set_field set)
{
  PyObject *name = NULL;
  PyObject *value = NULL;
  Py_ssize_t position = 0;
  while (PyDict_Next(values, &position, &name, &value)) {
    const char *name_text = whole_text(name);
    const char *value_text = name_text != NULL ? whole_text(value) : NULL;
    if (value_text == NULL || !set(error, fields, name_text, value_text)) {
      return false;
    }
  }
  return true;
}
