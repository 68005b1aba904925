/* What the files of the request machine share: request.c (its life), request_ticket.c (which tickets it takes),
 * request_tell.c (what the producers' ranks hear). */
#ifndef KVF_CORE_REQUEST_INTERNAL_H
#define KVF_CORE_REQUEST_INTERNAL_H

#include "core/request.h"

/* Open at once, those included that only wait for producers to hear of their end. */
#define KVF_REQUESTS_MAX 65536

/* Puts the request on the list of every producer rank that has something to hear, and arms its next time. */
void kvf_request_tell(kvf_requests *requests, uint64_t now_ns, kvf_request *request);
void kvf_request_rearm(kvf_requests *requests, kvf_request *request);

/* From here the producer's ranks are told that the request is over. */
void kvf_request_finish(kvf_requests *requests, uint64_t now_ns, kvf_request *request, bool completed);
/* Those who have not answered must have let the lease run out by now. Frees the request once its verdict is taken. */
void kvf_request_give_up(kvf_requests *requests, uint64_t now_ns, kvf_request *request);
bool kvf_request_is_told(const kvf_request *request);
void kvf_request_free(kvf_requests *requests, uint64_t now_ns, kvf_request *request);

#endif
