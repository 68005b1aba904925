/* The conformance suite: what transport/transport.h promises, checked on any transport. Runs all cases, or those whose
 * name contains argv[1]; the executable is also the other process that some cases need. */
#include "conformance.h"
#include "../cuda_driver.h"
#include "../memory_kind.h"
#include "../sides/faults.h"
#include "transport/ucx/libucp.h"

/* Whether the name of the suite, which is an executable of its own, contains this. */
static bool is(const char *part)
{
  return strstr(CONFORMANCE_SUITE, part) != NULL;
}

/* Local, tcp or ucx; as it is, or with the fault transport around it. */
static const kvf_transport_ops *transport(void)
{
  static const kvf_transport_ops *const ops[][3] = {
      {&kvf_transport_local, &kvf_transport_tcp, &kvf_transport_ucx},
      {&fault_transport_local, &fault_transport_tcp, &fault_transport_ucx},
  };
  return ops[is("fault")][is("tcp") ? 1 : is("ucx") ? 2 : 0];
}

conformance_traits suite_traits(void)
{
  return (conformance_traits){
      .producer_checks = is("tcp"),
      .reads_stopped_producer = is("local") || is("ucx_rdma") || is("ucx_cuda"),
      /* UCX's messages: the producer may send what it has, and only the look after it tells. */
      .looks_first = !is("ucx") || is("ucx_get") || is("ucx_rdma") || is("ucx_cuda"),
      .is_slow = is("ucx") || is("cuda"),
      /* Sums are no matter of peers. */
      .has_peers = !is("checksums") && !is("ucx_get") && !is("memory_tls"),
      .has_faults = is("fault"),
  };
}

/* `in`: into such memory, out of the host's; `out`: the other way. */
static void choose_memory(void)
{
  const uint32_t kind = is("cuda") ? KVF_MEMORY_CUDA : is("memory") ? TEST_MEMORY : KVF_MEMORY_HOST;
  under_test.producer_memory = is("_in") ? KVF_MEMORY_HOST : kind;
  under_test.consumer_memory = is("_out") || is("tls") ? KVF_MEMORY_HOST : kind;
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
  /* UCX's own get reads the fence table as a network would, with no regard to who writes it. */
  bool races = SANITIZED_THREADS && is("ucx_get");
  int skipped = races ? WITHOUT_UCX : is("ucx") ? with_any_ucx() : 0;
  if (skipped != 0) {
    return skipped;
  }
  const kvf_key key = {"the key of all of these processes", 33};
  under_test.ops = transport();
  under_test.has_checksums = is("checksums");
  choose_memory();
  if (is("tls") && kvf_tls_context_new(&key, 1, &under_test.tls.context) != KVF_OK) {
    return 1;
  }
  under_test.tls.on_loopback = is("tls");
  char message[KVF_MESSAGE_BYTES_MAX];
  if (is("cuda") && kvf_memory_cuda.open(cuda_driver_library(), message) != KVF_OK) {
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
