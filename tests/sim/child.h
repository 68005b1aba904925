/* Runs in processes of their own, so that a crash of the code under test is a finding and not the end. */
#ifndef KVF_SIM_CHILD_H
#define KVF_SIM_CHILD_H

#include "sim.h"

/* From here this process may run for seconds, far longer than a run needs; then it dies of it. */
void sim_child_limit_run(void);

/* Zeroed memory that children share with their parent; NULL if there is none. */
void *sim_shared(size_t bytes);

/* One run. A crash, or a run that does not end, is a finding of P6. */
void sim_child_run(const uint8_t *tape, size_t bytes, FILE *trace, kvf_sim_result *result);

/* Turns the way in which a child ended into a finding; false if it ended well. */
bool sim_child_crash(int wait_status, kvf_sim_result *result);

#endif
