#include "../with_ucx.h"
#include "fault_transport.h"
#include "suite.h"

int main(int argc, char **argv)
{
  static const conformance_traits traits = {.ops = &fault_transport_ucx, .is_slow = true, .has_faults = true};
  int skipped = with_ucx();
  return skipped != 0 ? skipped : conformance_main(&traits, argc, argv);
}
