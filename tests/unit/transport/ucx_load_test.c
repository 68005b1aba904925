/* What is said where UCX cannot be loaded, and whose signal handlers the process has where it can. */
#include "test.h"
#include "transport/ucx/libucp.h"

#include <signal.h>

/* One line that names what was tried, what was wrong, and what to do. */
static void expect_refused(const char *library, const char *wrong)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  const kvf_ucx_api *api = (const void *)8;
  assert_int_equal(kvf_ucx_load(library, &api, message), KVF_TRANSFER_SETUP);
  assert_null(api);
  assert_null(strchr(message, '\n'));
  assert_non_null(strstr(message, library));
  assert_non_null(strstr(message, wrong));
  assert_non_null(strstr(message, "install libucx0 (Debian) or libucx-cu12 (PyPI), or set ucx_library"));
}

TEST(a_library_that_is_not_there_is_named)
{
  expect_refused("/nowhere/libucp.so.0", "cannot open shared object file");
}

TEST(a_library_that_is_not_ucx_is_named)
{
  expect_refused("libm.so.6", "it has no ucp_get_version");
}

TEST(long_names_leave_room_for_the_advice)
{
  char name[600];
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  const kvf_ucx_api *api;
  memset(name, 'x', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  assert_int_equal(kvf_ucx_load(name, &api, message), KVF_TRANSFER_SETUP);
  assert_non_null(strstr(message, "or set ucx_library"));
}

static void on_signal(int number)
{
  (void)number;
}

/* UCX takes SIGSEGV, SIGHUP and others for itself when it is loaded. */
TEST(the_engines_signal_handlers_stay)
{
  const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP};
  const char *library = getenv("KVFERRY_TEST_UCX_LIBRARY");
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  const kvf_ucx_api *api;
  struct sigaction action = {.sa_handler = on_signal};
  for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
    assert_int_equal(sigaction(signals[i], &action, NULL), 0);
  }
  if (kvf_ucx_load(library == NULL ? "" : library, &api, message) != KVF_OK) {
    print_message("%s\n", message);
    skip();
  }
  for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
    assert_int_equal(sigaction(signals[i], NULL, &action), 0);
    assert_ptr_equal(action.sa_handler, on_signal);
  }
  assert_int_equal(api->major, KVF_UCX_MAJOR);
  assert_true(api->minor >= KVF_UCX_MINOR);
  assert_non_null(api->status_string(KVF_UCS_ERR_UNREACHABLE));
  assert_int_equal(kvf_ucx_load("/nowhere/libucp.so.0", &api, message), KVF_OK); /* one for all */
}
