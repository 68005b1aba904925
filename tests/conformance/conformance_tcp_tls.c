#include "suite.h"

int main(int argc, char **argv)
{
  static const conformance_traits traits = {
      .is_inside_tls = true, .ops = &kvf_transport_tcp, .producer_checks_lease = true, .producer_checks_session = true};
  return conformance_main(&traits, argc, argv);
}
