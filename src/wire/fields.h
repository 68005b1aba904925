/* How the library's own types are written inside messages, tickets and records. */
#ifndef KVF_WIRE_FIELDS_H
#define KVF_WIRE_FIELDS_H

#include "base/fence.h"
#include "wire/address.h"
#include "wire/cursor.h"

#define KVF_INCARNATION_FIELD_BYTES KVF_INCARNATION_BYTES
#define KVF_ADDRESS_FIELD_BYTES 18
#define KVF_LEASE_FIELD_BYTES 28

void kvf_put_incarnation(kvf_encoder *encoder, const kvf_incarnation *incarnation);
void kvf_get_incarnation(kvf_decoder *decoder, kvf_incarnation *out);

void kvf_put_address(kvf_encoder *encoder, const kvf_address *address);
void kvf_get_address(kvf_decoder *decoder, kvf_address *out);

/* An id over KVF_LEASE_ID_MAX fails. */
void kvf_put_lease(kvf_encoder *encoder, const kvf_lease *lease);
void kvf_get_lease(kvf_decoder *decoder, kvf_lease *out);
bool kvf_lease_is_valid(const kvf_lease *lease);

/* Text: a length byte, then the bytes. `room` is the size of the char array, its terminating zero included (at most
 * 256). Writing ends at the first zero, or at room - 1. Reading fails on text that does not fit or that has control
 * characters, and terminates what it reads. */
void kvf_put_text(kvf_encoder *encoder, const char *text, size_t room);
void kvf_get_text(kvf_decoder *decoder, char *out, size_t room);

/* Whether the char array is terminated and has no control characters (UTF-8 is fine). */
bool kvf_text_is_valid(const char *text, size_t room);

#endif
