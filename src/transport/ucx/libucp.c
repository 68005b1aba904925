/* Finds libucp by its name, or beside the package, and gives the process its signal handlers back. */
#include "transport/ucx/libucp.h"

#include <dlfcn.h> /* dladdr() */
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/library.h"

#define SIGNALS_END 32 /* those that UCX may take are below the real-time ones */
#define REASON_BYTES 76
#define TRIED_BYTES 56

static const kvf_library_function functions[] = {
#define FUNCTION(symbol, field) {symbol, offsetof(kvf_ucx_api, field)}
    FUNCTION("ucp_get_version", get_version),
    FUNCTION("ucs_status_string", status_string),
    FUNCTION("ucp_config_read", config_read),
    FUNCTION("ucp_config_modify", config_modify),
    FUNCTION("ucp_config_release", config_release),
    FUNCTION("ucp_init_version", init_version),
    FUNCTION("ucp_cleanup", cleanup),
    FUNCTION("ucp_context_query", context_query),
    FUNCTION("ucp_worker_create", worker_create),
    FUNCTION("ucp_worker_destroy", worker_destroy),
    FUNCTION("ucp_worker_progress", worker_progress),
    FUNCTION("ucp_worker_get_efd", worker_get_efd),
    FUNCTION("ucp_worker_arm", worker_arm),
    FUNCTION("ucp_worker_get_address", worker_get_address),
    FUNCTION("ucp_worker_release_address", worker_release_address),
    FUNCTION("ucp_ep_create", ep_create),
    FUNCTION("ucp_ep_close_nbx", ep_close_nbx),
    FUNCTION("ucp_mem_map", mem_map),
    FUNCTION("ucp_mem_unmap", mem_unmap),
    FUNCTION("ucp_rkey_pack", rkey_pack),
    FUNCTION("ucp_rkey_buffer_release", rkey_buffer_release),
    FUNCTION("ucp_ep_rkey_unpack", ep_rkey_unpack),
    FUNCTION("ucp_rkey_destroy", rkey_destroy),
    FUNCTION("ucp_get_nbx", get_nbx),
    FUNCTION("ucp_request_free", request_free),
    FUNCTION("ucp_worker_set_am_recv_handler", worker_set_am_recv_handler),
    FUNCTION("ucp_am_send_nbx", am_send_nbx),
    FUNCTION("ucp_dt_create_generic", dt_create_generic),
    FUNCTION("ucp_dt_destroy", dt_destroy),
    FUNCTION("ucp_ep_print_info", ep_print_info),
#undef FUNCTION
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards what follows */
static kvf_ucx_api loaded;
static bool is_loaded;

/* ---- signals ---- */

static void signals_note(struct sigaction actions[SIGNALS_END])
{
  for (int i = 1; i < SIGNALS_END; i++) {
    if (sigaction(i, NULL, &actions[i]) != 0) {
      memset(&actions[i], 0, sizeof(actions[i]));
    }
  }
}

static void signals_restore(const struct sigaction actions[SIGNALS_END])
{
  for (int i = 1; i < SIGNALS_END; i++) {
    struct sigaction now;
    if (sigaction(i, NULL, &now) == 0 && now.sa_sigaction != actions[i].sa_sigaction) {
      (void)sigaction(i, &actions[i], NULL);
    }
  }
}

/* ---- one candidate ---- */

static bool load(const char *library, kvf_ucx_api *out, char reason[REASON_BYTES])
{
  if (!kvf_library_open(library, functions, sizeof(functions) / sizeof(functions[0]), out, reason, REASON_BYTES)) {
    return false;
  }
  out->get_version(&out->major, &out->minor, &out->release);
  if (out->major != KVF_UCX_MAJOR || out->minor < KVF_UCX_MINOR) {
    (void)snprintf(reason, REASON_BYTES, "it is UCX %u.%u, and %d.%d or later is needed", out->major, out->minor,
                   KVF_UCX_MAJOR, KVF_UCX_MINOR);
    return false;
  }
  return true;
}

/* ---- what to try ---- */

static bool link_beside(char out[PATH_MAX])
{
  Dl_info info;
  static const char here = 0;
  if (dladdr(&here, &info) == 0 || info.dli_fname == NULL) {
    return false;
  }
  const char *slash = strrchr(info.dli_fname, '/');
  if (slash == NULL) {
    return false;
  }
  int used = snprintf(out, PATH_MAX, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname, KVF_UCX_LIBRARY_BESIDE);
  return used > 0 && used < PATH_MAX;
}

static bool load_any(const char *library, kvf_ucx_api *out, char *message)
{
  char reason[REASON_BYTES];
  char beside[PATH_MAX] = "";
  bool named = library[0] != '\0';
  if (load(named ? library : KVF_UCX_LIBRARY, out, reason)) {
    return true;
  }
  if (!named && link_beside(beside)) {
    char other[REASON_BYTES];
    if (load(beside, out, other)) {
      return true;
    }
  }
  (void)snprintf(message, KVF_MESSAGE_BYTES_MAX,
                 "UCX cannot be loaded: %.*s: %s%s; install libucx0 (Debian) or libucx-cu12 (PyPI), or set ucx_library",
                 TRIED_BYTES, named ? library : KVF_UCX_LIBRARY, reason,
                 beside[0] != '\0' ? " (nor is it beside kvferry)" : "");
  return false;
}

kvf_status kvf_ucx_load(const char *library, const kvf_ucx_api **out, char *message)
{
  struct sigaction actions[SIGNALS_END];
  *out = NULL;
  (void)pthread_mutex_lock(&lock);
  if (!is_loaded) {
    const bool signals_wanted = getenv("UCX_HANDLE_ERRORS") != NULL;
    signals_note(actions);
    is_loaded = load_any(library, &loaded, message);
    if (!signals_wanted) {
      signals_restore(actions);
    }
  }
  bool good = is_loaded;
  (void)pthread_mutex_unlock(&lock);
  if (!good) {
    return KVF_TRANSFER_SETUP;
  }
  *out = &loaded;
  return KVF_OK;
}

/* ---- what it can do ---- */

/* The transports of UCX whose hardware reads memory, as UCX names them. */
static const char *const reading[] = {"rc_verbs/", "rc_mlx5/", "dc_mlx5/", "gga_mlx5/", "ugni_rdma/"};

bool kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep)
{
  char *text = NULL;
  size_t bytes = 0;
  bool found = false;
  FILE *stream = open_memstream(&text, &bytes);
  if (stream == NULL) {
    return false;
  }
  api->ep_print_info(ep, stream); /* in all versions the only thing that tells */
  if (fclose(stream) == 0) {
    for (size_t i = 0; !found && i < sizeof(reading) / sizeof(reading[0]); i++) {
      found = strstr(text, reading[i]) != NULL;
    }
  }
  free(text);
  return found;
}
