/* The conformance suite: what transport/transport.h promises, checked on any transport. Runs all cases, or those whose
 * name contains argv[1]; the executable is also the other process that some cases need. */
#include "../sanitizer.h"
#include "../with_ucx.h"
#include "cases.h"
#include "fault_transport.h"
#include "pair.h"
#include "test.h"

#define CASE(name) {#name, name, NULL, NULL, (void *)traits}

/* Each is an executable of its own, which the build names. */
static const struct {
  const char *name;
  conformance_traits traits;
} suites[] = {
    {"local", {.ops = &kvf_transport_local, .reads_stopped_producer = true}},
    {"tcp", {.ops = &kvf_transport_tcp, .producer_checks_lease = true, .producer_checks_session = true}},
    {"local_sums", {.ops = &kvf_transport_local, .reads_stopped_producer = true, .has_sums = true}},
    {"tcp_sums",
     {.has_sums = true, .ops = &kvf_transport_tcp, .producer_checks_lease = true, .producer_checks_session = true}},
    {"tcp_tls",
     {.is_inside_tls = true,
      .ops = &kvf_transport_tcp,
      .producer_checks_lease = true,
      .producer_checks_session = true}},
    {"ucx", {.ops = &kvf_transport_ucx, .is_slow = true}},
    {"ucx_get", {.ops = &kvf_transport_ucx, .is_slow = true, .has_no_peers = true}},
    {"ucx_sums", {.ops = &kvf_transport_ucx, .is_slow = true, .has_sums = true}},
    {"fault_local", {.ops = &fault_transport_local, .reads_stopped_producer = true, .has_faults = true}},
    {"fault_tcp",
     {.ops = &fault_transport_tcp, .producer_checks_lease = true, .producer_checks_session = true, .has_faults = true}},
    {"fault_ucx", {.ops = &fault_transport_ucx, .is_slow = true, .has_faults = true}},
};

static const conformance_traits *traits_of(const char *name)
{
  size_t i = 0;
  while (strcmp(suites[i].name, name) != 0) {
    i++;
  }
  return &suites[i].traits;
}

int main(int argc, char **argv)
{
  const conformance_traits *traits = traits_of(CONFORMANCE_SUITE);
  bool has_ucx = strstr(CONFORMANCE_SUITE, "ucx") != NULL;
  /* UCX's own get reads the fence table as a network would, with no regard to who writes it. */
  bool races = SANITIZED_THREADS && strcmp(CONFORMANCE_SUITE, "ucx_get") == 0;
  int skipped = races ? WITHOUT_UCX : has_ucx ? with_ucx() : 0;
  if (skipped != 0) {
    return skipped;
  }
  const kvf_key key = {"the key of all of these processes", 33};
  node_has_sums = traits->has_sums;
  if (traits->is_inside_tls && kvf_tls_context_new(&key, 1, &node_tls.context) != KVF_OK) {
    return 1;
  }
  node_tls.on_loopback = traits->is_inside_tls;
  if (argc > 1 && strcmp(argv[1], "--producer") == 0) {
    return process_main(traits);
  }
  if (argc > 1 && strcmp(argv[1], "--consumer") == 0) {
    return consumer_main(traits);
  }
  char filter[64] = "*";
  if (argc > 1) {
    (void)snprintf(filter, sizeof(filter), "*%s*", argv[1]);
  }
  cmocka_set_test_filter(filter);
  const struct CMUnitTest reads[] = {
      CASE(single_block),
      CASE(random_blocks),
      CASE(regions_and_groups),
      CASE(heads_narrower),
      CASE(heads_wider),
      CASE(items_out_of_range),
      CASE(small_reads),
      CASE(parallel_reads),
      CASE(bytes_altered_after_publication),
      CASE(altered_and_mended),
      CASE(lease_not_published),
      CASE(lease_published_meanwhile),
      CASE(lease_unknown),
      CASE(lease_over),
      CASE(lease_of_other_blocks),
      CASE(sample_follows_last_byte),
      CASE(sample_follows_last_small_byte),
      CASE(cancel_at_random_times),
      CASE(cancel_of_unknown_reads),
  };
  const struct CMUnitTest peers[] = {
      CASE(producer_stopped),
      CASE(producer_killed),
      CASE(disconnect_then_killed),
      CASE(disconnect_with_open_reads),
      CASE(producer_clears_memory),
      CASE(consumer_killed),
      CASE(consumer_stopped_then_killed),
      CASE(descriptions_cut_short),
      CASE(descriptions_of_garbage),
      CASE(layouts_incompatible),
      CASE(incarnation_of_another),
      CASE(session_of_another),
      CASE(describe_without_room),
      CASE(memory_set_twice),
      CASE(nothing_left_behind),
      CASE(forked_child_keeps_nothing),
  };
  const struct CMUnitTest faults[] = {
      CASE(fault_every_status),       CASE(fault_at_random),
      CASE(fault_stalled_reads),      CASE(fault_link_down_at_every_event),
      CASE(fault_in_every_operation), CASE(fault_late_news_of_links),
  };
  int failed = cmocka_run_group_tests_name(traits->ops->name, reads, NULL, NULL);
  if (!traits->has_sums && !traits->has_no_peers) { /* sums are no matter of peers */
    failed += cmocka_run_group_tests_name("peers", peers, NULL, NULL);
  }
  if (traits->has_faults) {
    failed += cmocka_run_group_tests_name("faults", faults, NULL, NULL);
  }
  return failed;
}
