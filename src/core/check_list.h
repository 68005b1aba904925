/* What the checks of the machines (kvf_core_check()) have in common. */
#ifndef KVF_CORE_CHECK_LIST_H
#define KVF_CORE_CHECK_LIST_H

#include <assert.h>
#include <stdint.h>

#include "base/list.h"

/* How many nodes the list has, whose neighbours point to each other. */
static inline uint32_t kvf_check_list(const kvf_list *list)
{
  uint32_t count = 0;
  for (const kvf_list *node = list->next; node != list; node = node->next, count++) {
    assert(node->next->prev == node && node->prev->next == node);
  }
  return count;
}

#endif
