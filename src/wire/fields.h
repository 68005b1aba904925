/* How the library's own types are written inside messages, tickets and records. */
#ifndef KVF_WIRE_FIELDS_H
#define KVF_WIRE_FIELDS_H

#include "base/fence.h"
#include "wire/address.h"
#include "wire/codec.h"

#define KVF_INCARNATION_FIELD_BYTES KVF_INCARNATION_BYTES
#define KVF_ADDRESS_FIELD_BYTES 18
#define KVF_LEASE_FIELD_BYTES 28

void kvf_code_incarnation(kvf_codec *codec, kvf_incarnation *incarnation);
void kvf_code_address(kvf_codec *codec, kvf_address *address);

/* An id over KVF_LEASE_ID_MAX fails. */
void kvf_code_lease(kvf_codec *codec, kvf_lease *lease);
bool kvf_lease_is_valid(const kvf_lease *lease);

/* Text: a length byte, then the bytes. `room` is the size of the char array, its terminating zero included (at most
 * 256). Writing ends at the first zero, or at room - 1. Reading fails on text that does not fit or that has control
 * characters, and terminates what it reads. */
void kvf_code_text(kvf_codec *codec, char *text, size_t room);

/* Whether the char array is terminated and has no control characters (UTF-8 is fine). */
bool kvf_text_is_valid(const char *text, size_t room);

#endif
