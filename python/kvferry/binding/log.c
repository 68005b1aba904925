/* The type LogQueue. */
#include "binding.h"

#include <string.h>

#define WAIT_MS 60000u

typedef struct log_object {
  PyObject ob_base;
  kvf_log_queue *queue;
} log_object;

kvf_log_queue *kvfpy_log_queue_of(PyObject *log)
{
  return ((log_object *)log)->queue;
}

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *keywords)
{
  static char *names[] = {NULL};
  const kvfpy_module_state *state = PyType_GetModuleState(type);
  if (state == NULL || !PyArg_ParseTupleAndKeywords(args, keywords, ":LogQueue", names)) {
    return NULL;
  }
  log_object *self = (log_object *)PyType_GenericAlloc(type, 0);
  if (self == NULL) {
    return NULL;
  }
  kvf_status status = kvf_log_queue_open(&self->queue);
  if (status != KVF_OK) {
    Py_DECREF((PyObject *)self);
    return kvfpy_raise_status(state->error, status, NULL);
  }
  return (PyObject *)self;
}

static void log_dealloc(PyObject *object)
{
  PyTypeObject *type = Py_TYPE(object);
  kvf_log_queue *queue = kvfpy_log_queue_of(object);
  Py_BEGIN_ALLOW_THREADS;
  kvf_log_queue_close(queue);
  Py_END_ALLOW_THREADS;
  PyObject_Free(object);
  Py_DECREF((PyObject *)type);
}

/* A line stays in the queue until this thread has the GIL: where that never comes, the library writes the line. */
static PyObject *log_next(log_object *self, PyObject *unused)
{
  char line[KVF_LOG_LINE_BYTES_MAX];
  kvf_log_level level = KVF_LOG_ERROR;
  bool has_line = false;
  (void)unused;
  while (!has_line) {
    Py_BEGIN_ALLOW_THREADS;
    has_line = kvf_log_queue_wait(self->queue, WAIT_MS);
    Py_END_ALLOW_THREADS;
    has_line = has_line && kvf_log_queue_take(self->queue, &level, line);
  }
  /* It may be cut anywhere. */
  return Py_BuildValue("(iN)", (int)level, PyUnicode_DecodeUTF8(line, (Py_ssize_t)strlen(line), "replace"));
}

static PyMethodDef log_methods[] = {
    KVFPY_METHOD("next", log_next, METH_NOARGS),
    {NULL, NULL, 0, NULL},
};

static PyType_Slot log_slots[] = {
    KVFPY_SLOT(Py_tp_new, log_new),
    KVFPY_SLOT(Py_tp_dealloc, log_dealloc),
    {Py_tp_methods, log_methods},
    {0, NULL},
};

PyType_Spec kvfpy_log_spec = {
    .name = "kvferry._kvferry.LogQueue",
    .basicsize = sizeof(log_object),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = log_slots,
};
