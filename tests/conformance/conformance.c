/* The conformance suite: what transport/transport.h promises, checked on any transport. Runs all cases, or those whose
 * name contains argv[1]; the executable is also the other process that some cases need. */
#include "../cuda_driver.h"
#include "../memory_kind.h"
#include "../sanitizer.h"
#include "../with_ucx.h"
#include "fault_transport.h"
#include "pair.h"
#include "test.h"

/* Each is an executable of its own, which the build names. */
static const struct {
  const char *name;
  conformance_traits traits;
} suites[] = {
    {"local", {.ops = &kvf_transport_local, .reads_stopped_producer = true}},
    {"tcp", {.ops = &kvf_transport_tcp, .producer_checks_lease = true, .producer_checks_session = true}},
    {"local_checksums", {.ops = &kvf_transport_local, .reads_stopped_producer = true, .has_checksums = true}},
    {"tcp_checksums",
     {.has_checksums = true,
      .ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true}},
    {"local_memory",
     {.ops = &kvf_transport_local,
      .reads_stopped_producer = true,
      .producer_memory = TEST_MEMORY,
      .consumer_memory = TEST_MEMORY}},
    {"local_memory_out", {.ops = &kvf_transport_local, .reads_stopped_producer = true, .producer_memory = TEST_MEMORY}},
    {"local_memory_in", {.ops = &kvf_transport_local, .reads_stopped_producer = true, .consumer_memory = TEST_MEMORY}},
    {"local_memory_checksums",
     {.ops = &kvf_transport_local,
      .reads_stopped_producer = true,
      .has_checksums = true,
      .producer_memory = TEST_MEMORY,
      .consumer_memory = TEST_MEMORY}},
    {"tcp_memory",
     {.ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true,
      .producer_memory = TEST_MEMORY,
      .consumer_memory = TEST_MEMORY}},
    {"tcp_memory_checksums",
     {.ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true,
      .has_checksums = true,
      .producer_memory = TEST_MEMORY,
      .consumer_memory = TEST_MEMORY}},
    {"tcp_memory_tls",
     {.ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true,
      .is_inside_tls = true,
      .has_no_peers = true,
      .producer_memory = TEST_MEMORY}},
    {"local_cuda",
     {.is_slow = true,
      .ops = &kvf_transport_local,
      .reads_stopped_producer = true,
      .producer_memory = KVF_MEMORY_CUDA,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"local_cuda_out",
     {.is_slow = true,
      .ops = &kvf_transport_local,
      .reads_stopped_producer = true,
      .producer_memory = KVF_MEMORY_CUDA}},
    {"local_cuda_in",
     {.is_slow = true,
      .ops = &kvf_transport_local,
      .reads_stopped_producer = true,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"local_cuda_checksums",
     {.is_slow = true,
      .ops = &kvf_transport_local,
      .reads_stopped_producer = true,
      .has_checksums = true,
      .producer_memory = KVF_MEMORY_CUDA,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"tcp_cuda",
     {.is_slow = true,
      .ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true,
      .producer_memory = KVF_MEMORY_CUDA,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"tcp_cuda_checksums",
     {.is_slow = true,
      .ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true,
      .has_checksums = true,
      .producer_memory = KVF_MEMORY_CUDA,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"tcp_tls",
     {.is_inside_tls = true,
      .ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true}},
    {"ucx", {.ops = &kvf_transport_ucx, .is_slow = true}},
    {"ucx_get", {.ops = &kvf_transport_ucx, .is_slow = true, .has_no_peers = true}},
    {"ucx_checksums", {.ops = &kvf_transport_ucx, .is_slow = true, .has_checksums = true}},
    {"ucx_rdma", {.ops = &kvf_transport_ucx, .is_slow = true, .reads_stopped_producer = true}},
    {"ucx_cuda",
     {.ops = &kvf_transport_ucx,
      .is_slow = true,
      .reads_stopped_producer = true,
      .producer_memory = KVF_MEMORY_CUDA,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"ucx_cuda_out",
     {.ops = &kvf_transport_ucx, .is_slow = true, .reads_stopped_producer = true, .producer_memory = KVF_MEMORY_CUDA}},
    {"ucx_cuda_in",
     {.ops = &kvf_transport_ucx, .is_slow = true, .reads_stopped_producer = true, .consumer_memory = KVF_MEMORY_CUDA}},
    {"ucx_cuda_checksums",
     {.ops = &kvf_transport_ucx,
      .is_slow = true,
      .reads_stopped_producer = true,
      .has_checksums = true,
      .producer_memory = KVF_MEMORY_CUDA,
      .consumer_memory = KVF_MEMORY_CUDA}},
    {"fault_local", {.ops = &fault_transport_local, .reads_stopped_producer = true, .has_faults = true}},
    {"fault_tcp",
     {.ops = &fault_transport_tcp, .producer_checks_lease = true, .producer_checks_session = true, .has_faults = true}},
    {"fault_ucx", {.ops = &fault_transport_ucx, .is_slow = true, .has_faults = true}},
};

const conformance_traits *traits;

static const conformance_traits *suite(void)
{
  size_t i = 0;
  while (strcmp(suites[i].name, CONFORMANCE_SUITE) != 0) {
    i++;
  }
  return &suites[i].traits;
}

/* Sums are no matter of peers. */
bool suite_has_peers(void)
{
  return !suite()->has_checksums && !suite()->has_no_peers;
}

bool suite_has_faults(void)
{
  return suite()->has_faults;
}

#ifdef FAKE_UCP_LIBRARY
#include "fake_ucp.h"

/* Loads the fake, which then serves the whole process. */
static int with_any_ucx(void)
{
  const kvf_ucx_api *api;
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = kvf_ucx_load(FAKE_UCP_LIBRARY, &api, message);
  if (status != KVF_OK) {
    print_error("%s\n", message);
  }
  return status == KVF_OK ? 0 : 1;
}

static unsigned violations(void)
{
  return fake_ucp_violations();
}
#else
static int with_any_ucx(void)
{
  return with_ucx();
}

static unsigned violations(void)
{
  return 0;
}
#endif

int main(int argc, char **argv)
{
  traits = suite();
  bool has_ucx = strstr(CONFORMANCE_SUITE, "ucx") != NULL;
  /* UCX's own get reads the fence table as a network would, with no regard to who writes it. */
  bool races = SANITIZED_THREADS && strcmp(CONFORMANCE_SUITE, "ucx_get") == 0;
  int skipped = races ? WITHOUT_UCX : has_ucx ? with_any_ucx() : 0;
  if (skipped != 0) {
    return skipped;
  }
  const kvf_key key = {"the key of all of these processes", 33};
  node_has_checksums = traits->has_checksums;
  if (traits->is_inside_tls && kvf_tls_context_new(&key, 1, &node_tls.context) != KVF_OK) {
    return 1;
  }
  node_tls.on_loopback = traits->is_inside_tls;
  char message[KVF_MESSAGE_BYTES_MAX];
  if (strstr(CONFORMANCE_SUITE, "cuda") != NULL && kvf_memory_cuda.open(cuda_driver_library(), message) != KVF_OK) {
    print_error("%s\n", message);
    return 1;
  }
  if (argc > 1 && strcmp(argv[1], "--producer") == 0) {
    return process_main();
  }
  if (argc > 1 && strcmp(argv[1], "--consumer") == 0) {
    return consumer_main();
  }
  const int failed = test_run(argc > 1 ? argv[1] : NULL);
  return failed != 0 || violations() == 0 ? failed : 1;
}
