#include "../with_ucx.h"
#include "suite.h"
#include "transport/ucx.h"

int main(int argc, char **argv)
{
  static const conformance_traits traits = {.ops = &kvf_transport_ucx, .is_slow = true, .has_sums = true};
  int skipped = with_ucx();
  return skipped != 0 ? skipped : conformance_main(&traits, argc, argv);
}
