/* The driver's loader, on the fake driver. A process loads one: what another would find is tried in a child. */
#include "memory/cuda/driver.h"

#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "child_process.h"
#include "fake_cuda.h"
#include "test.h"

static char message[KVF_MESSAGE_BYTES_MAX];

static void expect_refused(const char *library, const char *wrong)
{
  const kvf_cuda *cuda = (const void *)8;
  assert_int_equal(kvf_cuda_load(library, &cuda, message), KVF_TRANSFER_SETUP);
  assert_null(cuda);
  assert_null(strchr(message, '\n'));
  assert_non_null(strstr(message, wrong));
  assert_non_null(strstr(message, "install NVIDIA's driver, give the container its GPUs, or set cuda_library"));
}

static const kvf_cuda *load(void)
{
  const kvf_cuda *cuda;
  assert_int_equal(kvf_cuda_load(FAKE_CUDA_LIBRARY, &cuda, message), KVF_OK);
  return cuda;
}

/* ---- first, while nothing is loaded ---- */

TEST(a_library_that_is_not_there_is_named)
{
  expect_refused("/nowhere/libcuda.so.1", "/nowhere/libcuda.so.1: cannot open shared object file");
}

TEST(a_library_that_is_not_cuda_is_named)
{
  expect_refused("libm.so.6", "libm.so.6: it has no cuInit");
}

TEST(long_names_leave_room_for_the_advice)
{
  char name[600];
  memset(name, 'x', sizeof(name) - 1);
  name[sizeof(name) - 1] = '\0';
  expect_refused(name, "xxx");
}

TEST(a_driver_that_does_not_begin_says_why)
{
  fake_cuda_fail("cuInit", KVF_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 0, 1);
  expect_refused(FAKE_CUDA_LIBRARY, "cuInit: CUDA_ERROR_SYSTEM_DRIVER_MISMATCH");
  fake_cuda_fail("cuInit", 12345, 0, 1);
  expect_refused(FAKE_CUDA_LIBRARY, "cuInit: an unknown error");
  fake_cuda_fail("cuDeviceGetUuid_v2", KVF_CUDA_ERROR_NOT_SUPPORTED, 0, 2);
  expect_refused(FAKE_CUDA_LIBRARY, "it shows this process no device");
}

/* ---- in a process of its own ---- */

/* What the child's call says, with an environment variable set; "!" before it: it was refused. */
static const char *said_with(const char *variable, const char *value, const char *mode)
{
  child_process child;
  assert_int_equal(setenv(variable, value, 1), 0);
  assert_true(child_start(&child, mode, SOCK_STREAM));
  assert_int_equal(unsetenv(variable), 0);
  assert_true(child_receive(child.channel, message, sizeof(message)));
  assert_int_equal(child_end(&child), 0);
  return message;
}

static int say(const char *library)
{
  const kvf_cuda *cuda;
  char text[KVF_MESSAGE_BYTES_MAX];
  char said[KVF_MESSAGE_BYTES_MAX + 1] = "";
  kvf_status status = kvf_cuda_load(library, &cuda, text);
  (void)snprintf(said, sizeof(said), "%s%s", status == KVF_OK ? "" : "!", text);
  return child_send(STDIN_FILENO, said, KVF_MESSAGE_BYTES_MAX) ? 0 : 1;
}

TEST(an_older_driver_has_no_batch_copies)
{
  const char *said = said_with("KVFERRY_FAKE_CUDA_VERSION", "12040", "named");
  assert_non_null(strstr(said, "CUDA 12.4 (no batch copies), 2 devices: 0 Fake GPU 0 GPU-fa4ecda0-"));
}

TEST(a_newer_driver_has_them)
{
  const char *said = said_with("KVFERRY_FAKE_CUDA_VERSION", "13050", "named");
  assert_non_null(strstr(said, "CUDA 13.5, 2 devices"));
}

TEST(a_driver_that_is_too_old_is_refused)
{
  const char *said = said_with("KVFERRY_FAKE_CUDA_VERSION", "11080", "named");
  assert_non_null(strstr(said, "the driver is for CUDA 11.8, and 12.0 or later is needed; install NVIDIA's driver"));
  assert_int_equal(said[0], '!');
}

TEST(a_driver_without_devices_is_refused)
{
  const char *said = said_with("KVFERRY_FAKE_CUDA_DEVICES", "", "named");
  assert_non_null(strstr(said, "cuInit: CUDA_ERROR_NO_DEVICE; "));
  assert_int_equal(said[0], '!');
}

TEST(many_devices_are_not_all_named)
{
  const char *said = said_with("KVFERRY_FAKE_CUDA_DEVICES", "7,6,5,4,3,2,1,0", "named");
  assert_non_null(strstr(said, "8 devices: 0 Fake GPU 7 GPU-fa4ecda0-0000-0000-0000-000000000007, 1 Fake GPU 6 "));
  assert_string_equal(said + strlen(said) - 5, ", ...");
}

/* By the name that the system's loader knows. */
TEST(the_driver_of_the_system_is_found)
{
  char folder[] = "/tmp/kvferry-cuda-XXXXXX";
  char link[64];
  assert_non_null(mkdtemp(folder));
  (void)snprintf(link, sizeof(link), "%s/libcuda.so.1", folder);
  assert_int_equal(symlink(FAKE_CUDA_LIBRARY, link), 0);
  const char *said = said_with("LD_LIBRARY_PATH", folder, "unnamed");
  assert_int_equal(unlink(link), 0);
  assert_int_equal(rmdir(folder), 0);
  assert_non_null(strstr(said, "CUDA 12.8, 2 devices: 0 Fake GPU 0 "));
}

/* ---- once it is loaded ---- */

static void *load_in_thread(void *out)
{
  char own[KVF_MESSAGE_BYTES_MAX];
  const kvf_cuda **cuda = out;
  return kvf_cuda_load(FAKE_CUDA_LIBRARY, cuda, own) == KVF_OK ? out : NULL;
}

TEST(it_is_loaded_once_for_all)
{
  pthread_t threads[4];
  const kvf_cuda *found[4];
  for (size_t i = 0; i < 4; i++) {
    assert_int_equal(pthread_create(&threads[i], NULL, load_in_thread, (void *)&found[i]), 0);
  }
  for (size_t i = 0; i < 4; i++) {
    void *good = NULL;
    assert_int_equal(pthread_join(threads[i], &good), 0);
    assert_non_null(good);
    assert_ptr_equal(found[i], found[0]);
  }
  const uint64_t begun = fake_cuda_calls("cuInit");
  const kvf_cuda *cuda;
  assert_int_equal(kvf_cuda_load("/nowhere/libcuda.so.1", &cuda, message), KVF_OK); /* it serves the process */
  assert_ptr_equal(cuda, found[0]);
  assert_int_equal(fake_cuda_calls("cuInit"), begun);
  assert_non_null(cuda->api.memcpy_batch_async);
  assert_int_equal(cuda->version, KVF_CUDA_VERSION_BATCH);
}

TEST(a_device_is_found_by_its_uuid)
{
  const kvf_cuda *cuda = load();
  char text[KVF_CUDA_UUID_BYTES];
  assert_int_equal(cuda->devices_count, 2);
  for (uint32_t i = 0; i < 2; i++) {
    const kvf_cu_uuid uuid = cuda->devices[i].uuid;
    assert_ptr_equal(kvf_cuda_device_of(cuda, &uuid), &cuda->devices[i]);
    assert_int_equal(cuda->devices[i].ordinal, i);
  }
  kvf_cu_uuid other = cuda->devices[1].uuid;
  other.bytes[15]++;
  assert_null(kvf_cuda_device_of(cuda, &other));
  kvf_cuda_write_uuid(&cuda->devices[1].uuid, text);
  assert_string_equal(text, "GPU-fa4ecda0-0000-0000-0000-000000000001");
}

TEST(a_context_is_retained_and_released)
{
  const kvf_cuda *cuda = load();
  kvf_cu_context first;
  kvf_cu_context second;
  assert_int_equal(kvf_cuda_context_retain(cuda, &cuda->devices[0], &first, message), KVF_OK);
  assert_int_equal(kvf_cuda_context_retain(cuda, &cuda->devices[0], &second, message), KVF_OK);
  assert_ptr_equal(first, second); /* the engine's, too */
  assert_int_equal(fake_cuda_count().contexts, 2);
  kvf_cuda_context_release(cuda, &cuda->devices[0]);
  kvf_cuda_context_release(cuda, &cuda->devices[0]);
  assert_int_equal(fake_cuda_count().contexts, 0);
  fake_cuda_fail("cuDevicePrimaryCtxRetain", KVF_CUDA_ERROR_OUT_OF_MEMORY, 0, 1);
  assert_int_equal(kvf_cuda_context_retain(cuda, &cuda->devices[1], &first, message), KVF_NO_MEMORY);
  assert_null(first);
  assert_string_equal(message, "device 1 (Fake GPU 1) has no context for this process: CUDA_ERROR_OUT_OF_MEMORY");
}

static kvf_cu_context current(void)
{
  kvf_cu_context found = (kvf_cu_context)(uintptr_t)8;
  assert_int_equal(cuCtxGetCurrent(&found), KVF_CUDA_SUCCESS);
  return found;
}

TEST(the_engines_current_context_stays)
{
  const kvf_cuda *cuda = load();
  kvf_cu_context ours;
  kvf_cu_context engines;
  kvf_cuda_stay stay;
  assert_null(current()); /* by all that the tests before have done */
  assert_int_equal(kvf_cuda_context_retain(cuda, &cuda->devices[0], &ours, message), KVF_OK);
  assert_null(current());
  assert_int_equal(kvf_cuda_context_retain(cuda, &cuda->devices[1], &engines, message), KVF_OK);
  assert_int_equal(cuda->api.ctx_push_current(engines), KVF_CUDA_SUCCESS);
  assert_int_equal(kvf_cuda_enter(cuda, ours, &stay), KVF_OK);
  assert_ptr_equal(current(), ours);
  kvf_cuda_leave(&stay);
  assert_ptr_equal(current(), engines);
  static const char *const calls[] = {"cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode"};
  for (size_t i = 0; i < 2; i++) {
    fake_cuda_fail(calls[i], KVF_CUDA_ERROR_INVALID_CONTEXT, 0, 1);
    assert_int_equal(kvf_cuda_enter(cuda, ours, &stay), KVF_TRANSFER_FAILED);
    assert_ptr_equal(current(), engines);
  }
  assert_int_equal(cuda->api.ctx_pop_current(&engines), KVF_CUDA_SUCCESS);
  kvf_cuda_context_release(cuda, &cuda->devices[0]);
  kvf_cuda_context_release(cuda, &cuda->devices[1]);
}

TEST(what_errors_mean)
{
  const kvf_cuda *cuda = load();
  assert_int_equal(kvf_cuda_status(KVF_CUDA_SUCCESS), KVF_OK);
  assert_int_equal(kvf_cuda_status(KVF_CUDA_ERROR_OUT_OF_MEMORY), KVF_NO_MEMORY);
  assert_int_equal(kvf_cuda_status(KVF_CUDA_ERROR_ILLEGAL_ADDRESS), KVF_TRANSFER_FAILED);
  assert_true(kvf_cuda_is_sticky(KVF_CUDA_ERROR_ILLEGAL_ADDRESS));
  assert_true(kvf_cuda_is_sticky(KVF_CUDA_ERROR_LAUNCH_FAILED));
  assert_false(kvf_cuda_is_sticky(KVF_CUDA_ERROR_NOT_READY));
  assert_false(kvf_cuda_is_sticky(KVF_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED));
  assert_false(kvf_cuda_is_sticky(KVF_CUDA_ERROR_OUT_OF_MEMORY));
  assert_string_equal(kvf_cuda_error_name(cuda, KVF_CUDA_ERROR_NOT_READY), "CUDA_ERROR_NOT_READY");
  assert_string_equal(kvf_cuda_error_name(cuda, 12345), "an unknown error");
}

int main(int argc, char **argv)
{
  if (argc > 1 && strcmp(argv[1], "named") == 0) {
    return say(FAKE_CUDA_LIBRARY);
  }
  if (argc > 1 && strcmp(argv[1], "unnamed") == 0) {
    return say("");
  }
  return test_run(argc > 1 ? argv[1] : NULL);
}
