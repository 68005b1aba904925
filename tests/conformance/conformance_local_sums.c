#include "suite.h"

int main(int argc, char **argv)
{
  static const conformance_traits traits = {
      .ops = &kvf_transport_local, .reads_stopped_producer = true, .has_sums = true};
  return conformance_main(&traits, argc, argv);
}
