#include "fault_transport.h"
#include "suite.h"

int main(int argc, char **argv)
{
  static const conformance_traits traits = {
      .ops = &fault_transport_local, .reads_stopped_producer = true, .has_faults = true};
  return conformance_main(&traits, argc, argv);
}
