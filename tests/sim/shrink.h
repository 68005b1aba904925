/* Makes a tape that finds something as short and as benign as it can, as long as it finds the same kind of thing. */
#ifndef KVF_SIM_SHRINK_H
#define KVF_SIM_SHRINK_H

#include "sim.h"

/* Changes `tape` and *bytes in place, for `seconds` at most. `result` is what the last good run found. */
void sim_shrink(uint8_t *tape, size_t *bytes, unsigned seconds, kvf_sim_result *result);

#endif
