/* Where a producer's answers are copied to: the fence can tell of a copy at once, of the blocks only when UCX has sent
 * them. */
#include <stdlib.h>

#include "transport/ucx.h"

kvf_ucx_stage *kvf_ucx_stage_take(kvf_ucx *ucx)
{
  kvf_list *node = kvf_list_pop_front(&ucx->stages);
  if (node != NULL) {
    return KVF_CONTAINER_OF(node, kvf_ucx_stage, in_stages);
  }
  kvf_ucx_stage *stage = ucx->stages_count == KVF_UCX_STAGES_MAX ? NULL : malloc(sizeof(*stage));
  if (stage != NULL) {
    kvf_list_init(&stage->in_stages);
    ucx->stages_count++;
  }
  return stage;
}

void kvf_ucx_stage_give(kvf_ucx *ucx, kvf_ucx_stage *stage)
{
  kvf_list_push_back(ucx->stages.next, &stage->in_stages); /* as the first: it is in the processor's cache */
}

void kvf_ucx_stages_free(kvf_ucx *ucx)
{
  kvf_list *node;
  while ((node = kvf_list_pop_front(&ucx->stages)) != NULL) {
    free(KVF_CONTAINER_OF(node, kvf_ucx_stage, in_stages));
  }
  ucx->stages_count = 0;
}
