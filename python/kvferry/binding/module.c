/* The module: its functions, constants and state. */
#include "binding.h"

#include <ctype.h>
#include <string.h>

/* ---- functions ---- */

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

static PyObject *module_prompt_set_model(PyObject *module, PyObject *args)
{
  kvf_prompt prompt;
  const char *model = NULL;
  Py_ssize_t model_bytes = 0;
  if (!PyArg_ParseTuple(args, "O&y#:prompt_set_model", kvfpy_to_prompt, &prompt, &model, &model_bytes)) {
    return NULL;
  }
  kvf_status status = kvf_prompt_set_model(&prompt, model, (size_t)model_bytes);
  if (status != KVF_OK) {
    return kvfpy_raise_status(((kvfpy_module_state *)PyModule_GetState(module))->error, status, NULL);
  }
  return kvfpy_struct_object(&prompt, sizeof(prompt));
}

static PyObject *module_report(PyObject *module, PyObject *args)
{
  (void)module;
  kvf_report report = {0};
  int status = 0;
  if (!PyArg_ParseTuple(args, "O&O&O&O&i:report", kvfpy_to_u64, &report.request_id, kvfpy_to_rank, &report.ranks_mask,
                        kvfpy_to_u32, &report.blocks, kvfpy_to_u32, &report.prefix, &status)) {
    return NULL;
  }
  report.status = status;
  return kvfpy_struct_object(&report, sizeof(report));
}

/* What a peer says may be cut anywhere, and is anything. */
static PyObject *text_object(const char *text)
{
  return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "replace");
}

static PyObject *module_check_node(PyObject *module, PyObject *args)
{
  const char *address = NULL;
  PyObject *options = NULL;
  if (!PyArg_ParseTuple(args, "sO!:check_node", &address, &PyDict_Type, &options)) {
    return NULL;
  }
  kvf_config config;
  kvf_config_init(&config);
  if (!kvfpy_set_all(((kvfpy_module_state *)PyModule_GetState(module))->error, &config, options, kvfpy_set_option)) {
    return NULL;
  }
  kvf_check_result found;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = KVF_OK;
  Py_BEGIN_ALLOW_THREADS;
  status = kvf_check_node(&config, address, &found, message);
  Py_END_ALLOW_THREADS;
  return Py_BuildValue("iN{sssKsKsKsKsKsIsIsIsOsNss}", (int)status, text_object(message), "address", found.address,
                       "connect_ns", found.connect_ns, "handshake_ns", found.handshake_ns, "round_trip_ns",
                       found.round_trip_ns, "bytes", found.bytes, "bytes_per_s", found.bytes_per_s, "protocol_min",
                       found.protocol_min, "protocol_max", found.protocol_max, "own_protocol", found.own_protocol,
                       "encrypted", found.encrypted ? Py_True : Py_False, "version", text_object(found.version),
                       "transports", found.transports);
}

static PyObject *module_check_memory(PyObject *module, PyObject *args)
{
  (void)module;
  int kind = 0;
  const char *library = NULL;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = KVF_OK;
  if (!PyArg_ParseTuple(args, "is:check_memory", &kind, &library)) {
    return NULL;
  }
  Py_BEGIN_ALLOW_THREADS;
  status = kvf_check_memory((kvf_memory_kind)kind, library, message);
  Py_END_ALLOW_THREADS;
  return Py_BuildValue("iN", (int)status, text_object(message));
}

static PyObject *module_check_device(PyObject *module, PyObject *args)
{
  (void)module;
  int kind = 0;
  uint32_t index = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = KVF_OK;
  if (!PyArg_ParseTuple(args, "iO&:check_device", &kind, kvfpy_to_u32, &index)) {
    return NULL;
  }
  Py_BEGIN_ALLOW_THREADS;
  status = kvf_check_device((kvf_memory_kind)kind, index, message);
  Py_END_ALLOW_THREADS;
  return Py_BuildValue("iN", (int)status, text_object(message));
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

static PyObject *module_error_text(PyObject *module, PyObject *ignored)
{
  (void)module;
  (void)ignored;
  return text_object(kvf_error_text());
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
    if (!kvfpy_append(list,
                      Py_BuildValue("(sssss)", info->name, info->unit, info->initial, info->allowed, info->meaning))) {
      Py_CLEAR(list);
    }
  }
  return list;
}

/* ---- the module ---- */

static PyMethodDef module_methods[] = {
    KVFPY_METHOD("prompt_hash", module_prompt_hash, METH_VARARGS),
    KVFPY_METHOD("prompt_set_model", module_prompt_set_model, METH_VARARGS),
    KVFPY_METHOD("check_node", module_check_node, METH_VARARGS),
    KVFPY_METHOD("check_memory", module_check_memory, METH_VARARGS),
    KVFPY_METHOD("check_device", module_check_device, METH_VARARGS),
    KVFPY_METHOD("report", module_report, METH_VARARGS),
    KVFPY_METHOD("status_name", module_status_name, METH_O),
    KVFPY_METHOD("status_meaning", module_status_meaning, METH_O),
    KVFPY_METHOD("error_text", module_error_text, METH_NOARGS),
    KVFPY_METHOD("reasons", module_reasons, METH_NOARGS),
    KVFPY_METHOD("options", module_options, METH_NOARGS),
    {NULL, NULL, 0, NULL},
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
      {"BLOCKS_PER_LEASE_MAX", KVF_BLOCKS_PER_LEASE_MAX},
      {"GROUPS_MAX", KVF_GROUPS_MAX},
      {"MEMORY_HOST", KVF_MEMORY_HOST},
      {"MEMORY_CUDA", KVF_MEMORY_CUDA},
      {"EVENT_LEASE_ENDED", KVF_EVENT_LEASE_ENDED},
      {"EVENT_LOAD", KVF_EVENT_LOAD},
      {"EVENT_RELEASED", KVF_EVENT_RELEASED},
      {"EVENT_VERDICT", KVF_EVENT_VERDICT},
      {"EVENT_REQUEST_RELEASED", KVF_EVENT_REQUEST_RELEASED},
      {"EVENT_REQUEST_STUCK", KVF_EVENT_REQUEST_STUCK},
      {"EVENT_TICKET", KVF_EVENT_TICKET},
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
      {"PART_KV", KVF_PART_KV},
      {"PART_KEYS", KVF_PART_KEYS},
      {"PART_VALUES", KVF_PART_VALUES},
      {"PART_LATENT", KVF_PART_LATENT},
      {"PART_INDEX", KVF_PART_INDEX},
      {"PART_STATE", KVF_PART_STATE},
      {"PART_CONVOLUTION", KVF_PART_CONVOLUTION},
      {"RECOVERY_READY", KVF_RECOVERY_READY},
      {"RECOVERY_REWIND", KVF_RECOVERY_REWIND},
      {"RECOVERY_TERMINATE", KVF_RECOVERY_TERMINATE},
      {"RECOVERY_ABORT", KVF_RECOVERY_ABORT},
      {"RECOVERY_RELEASE", KVF_RECOVERY_RELEASE},
  };
  for (size_t i = 0; i < sizeof(constants) / sizeof(constants[0]); i++) {
    if (PyModule_AddIntConstant(module, constants[i].name, constants[i].value) < 0) {
      return -1;
    }
  }
  return PyModule_AddStringConstant(module, "VERSION", kvf_version());
}

/* `kept`: NULL, or where a reference is left. */
static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **kept)
{
  PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
  if (type == NULL) {
    return -1;
  }
  int failed = PyModule_AddType(module, (PyTypeObject *)type);
  if (kept != NULL) {
    *kept = (PyTypeObject *)Py_NewRef(type);
  }
  Py_DECREF(type);
  return failed;
}

static int module_exec(PyObject *module)
{
  kvfpy_module_state *state = PyModule_GetState(module);
  state->error = PyErr_NewExceptionWithDoc("kvferry.Error", "A call was refused; `status` says why.", NULL, NULL);
  if (state->error == NULL || PyModule_AddObjectRef(module, "Error", state->error) < 0 ||
      !kvfpy_add_records(module, state)) {
    return -1;
  }
  return add_type(module, &kvfpy_log_spec, &state->log_queue) < 0 || add_type(module, &kvfpy_node_spec, NULL) < 0 ||
                 add_type(module, &kvfpy_staging_spec, NULL) < 0 || add_type(module, &kvfpy_recovery_spec, NULL) < 0 ||
                 add_statuses(module) < 0 || add_constants(module) < 0
             ? -1
             : 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
  kvfpy_module_state *state = PyModule_GetState(module);
  Py_VISIT(state->error);
  Py_VISIT(state->log_queue);
  for (int kind = 0; kind < KVFPY_RECORDS; kind++) {
    Py_VISIT(state->records[kind]);
  }
  return 0;
}

static int module_clear(PyObject *module)
{
  kvfpy_module_state *state = PyModule_GetState(module);
  Py_CLEAR(state->error);
  Py_CLEAR(state->log_queue);
  for (int kind = 0; kind < KVFPY_RECORDS; kind++) {
    Py_CLEAR(state->records[kind]);
  }
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
