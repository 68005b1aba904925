/* Objects with named fields: those that go to Python, tuples by which they can be taken apart as well, and those that
 * come from it. */
#include "binding.h"

#include <stdarg.h>

#define FIELDS_MAX 9

static const struct {
  const char *name;
  const char *fields[FIELDS_MAX];
} records[KVFPY_RECORDS] = {
    [KVFPY_EVENT] = {"kvferry._kvferry.Event", {"kind", "id", "user", "cause", "report", "verdict"}},
    [KVFPY_VERDICT] = {"kvferry._kvferry.Verdict",
                       {"action", "status", "keep_blocks", "keep_tokens", "recompute_tokens", "retry_after_ms"}},
    [KVFPY_REQUEST_INFO] = {"kvferry._kvferry.RequestInfo",
                            {"id", "tokens", "counts", "peer", "load_timeout_ms", "attachment"}},
    [KVFPY_NUMBER] = {"kvferry._kvferry.Number", {"name", "reason", "value", "is_gauge"}},
    [KVFPY_LINK] = {"kvferry._kvferry.Link", {"name", "breaker", "cause", "is_up"}},
    [KVFPY_PEER] = {"kvferry._kvferry.Peer", {"id", "address", "failure", "failure_age_ms", "links", "numbers"}},
    [KVFPY_RECOVERY_EVENT] = {"kvferry._kvferry.RecoveryEvent",
                              {"kind", "status", "request_id", "user", "ranks_mask", "blockers", "confirmed_blocks",
                               "computed_tokens", "recompute_tokens"}},
};

static int fields_of(kvfpy_record kind)
{
  int count = 0;
  while (count < FIELDS_MAX && records[kind].fields[count] != NULL) {
    count++;
  }
  return count;
}

bool kvfpy_add_records(PyObject *module, kvfpy_module_state *state)
{
  for (int kind = 0; kind < KVFPY_RECORDS; kind++) {
    PyStructSequence_Field fields[FIELDS_MAX + 1] = {{NULL, NULL}};
    PyStructSequence_Desc desc = {.name = records[kind].name, .fields = fields, .n_in_sequence = fields_of(kind)};
    for (int i = 0; i < desc.n_in_sequence; i++) {
      fields[i].name = records[kind].fields[i];
    }
    state->records[kind] = PyStructSequence_NewType(&desc);
    if (state->records[kind] == NULL || PyModule_AddType(module, state->records[kind]) < 0) {
      return false;
    }
  }
  return true;
}

PyObject *kvfpy_record_object(const kvfpy_module_state *state, kvfpy_record kind, const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  PyObject *values = Py_VaBuildValue(format, arguments);
  va_end(arguments);
  PyObject *record = values != NULL ? PyStructSequence_New(state->records[kind]) : NULL;
  for (Py_ssize_t i = 0; record != NULL && i < fields_of(kind); i++) {
    PyStructSequence_SetItem(record, i, Py_NewRef(PyTuple_GetItem(values, i)));
  }
  Py_XDECREF(values);
  return record;
}

/* Says of which field the exception is. */
static void name_field(const char *what, const char *name)
{
  PyObject *type = NULL;
  PyObject *value = NULL;
  PyObject *trace = NULL;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  bool is_missing = PyErr_GivenExceptionMatches(type, PyExc_AttributeError) != 0;
  (void)PyErr_Format(is_missing ? PyExc_TypeError : type, "%s, %s: %S", what, name, value);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

int kvfpy_to_fields(PyObject *value, const char *what, const kvfpy_field *fields, void *out)
{
  for (const kvfpy_field *field = fields; field->name != NULL; field++) {
    PyObject *attribute = PyObject_GetAttrString(value, field->name);
    int converted = attribute != NULL && field->convert(attribute, (char *)out + field->offset);
    Py_XDECREF(attribute);
    if (!converted) {
      name_field(what, field->name);
      return 0;
    }
  }
  return 1;
}
