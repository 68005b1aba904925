/* What a server may answer to the core that has dialed it: well-formed frames, right or wrong as the tape says. Each
 * writes a body and returns its length; 0: there is nothing that could be said now. */
#ifndef KVF_TESTS_FUZZ_SERVER_FRAMES_H
#define KVF_TESTS_FUZZ_SERVER_FRAMES_H

#include "fuzz.h"
#include "wires.h"

#define SERVER_BODY_BYTES 16384

/* Right if the wire has the key. */
size_t server_challenge(fuzz_tape *tape, wire *from, const kvf_key *key, uint8_t body[SERVER_BODY_BYTES]);
size_t server_welcome(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES]);
size_t server_refused(fuzz_tape *tape, uint8_t body[SERVER_BODY_BYTES]);
/* Of these requests, each with a lease of the id `first_lease_id` plus its place. */
size_t server_states(fuzz_tape *tape, const uint64_t *request_ids, uint32_t count, uint64_t first_lease_id,
                     uint8_t body[SERVER_BODY_BYTES]);

#endif
