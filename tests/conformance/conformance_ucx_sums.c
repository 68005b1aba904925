/* And every other answer finds no room for a copy of its bytes, some of them after a while: they may be another lease's
 * by then, and the consumer is to look at the fence itself. */
#include "../with_ucx.h"
#include "node.h"
#include "suite.h"
#include "transport/ucx.h"

#define SLOW_ONE_OF 512
#define SLOW_US 100

kvf_ucx_stage *__real_kvf_ucx_stage_take(kvf_ucx *ucx);
kvf_ucx_stage *__wrap_kvf_ucx_stage_take(kvf_ucx *ucx);
kvf_ucx_stage *__wrap_kvf_ucx_stage_take(kvf_ucx *ucx)
{
  static unsigned taken; /* by the producer's data thread */
  taken++;
  if (taken % SLOW_ONE_OF == 0) {
    sleep_us(SLOW_US);
  }
  return taken % 2 == 0 ? NULL : __real_kvf_ucx_stage_take(ucx);
}

int main(int argc, char **argv)
{
  static const conformance_traits traits = {.ops = &kvf_transport_ucx, .is_slow = true, .has_sums = true};
  int skipped = with_ucx();
  return skipped != 0 ? skipped : conformance_main(&traits, argc, argv);
}
