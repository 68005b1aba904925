/* UCX, loaded when the first transport `ucx` of the process is opened, and for the rest of the process' life. */
#ifndef KVF_TRANSPORT_UCX_LIBUCP_H
#define KVF_TRANSPORT_UCX_LIBUCP_H

#include "kvferry/types.h"
#include "transport/ucx/ucx_api.h"

/* Debian's package has it, and the installed system's loader knows where. */
#define KVF_UCX_LIBRARY "libucp.so.0"
/* PyPI's has it beside our own package: relative to the folder that this library is in. */
#define KVF_UCX_LIBRARY_BESIDE "../libucx/lib/libucp.so.0"

/* `library`: a path, or a name for the system's loader; "": KVF_UCX_LIBRARY, or else the one beside. The first one that
 * is loaded serves the whole process, for all callers: two would not know of each other's hooks. Its symbols stay
 * local, because another copy of UCX may be in the process. Its signal handlers are removed, unless $UCX_HANDLE_ERRORS
 * asks for them: SIGSEGV, SIGHUP and so on belong to the engine. Any thread, preferably one with signals blocked: UCX's
 * own threads inherit that. KVF_TRANSFER_SETUP: message (KVF_MESSAGE_BYTES_MAX) is one line with the library that was
 * tried, the problem, and the package to install. */
KVF_MUST_USE kvf_status kvf_ucx_load(const char *library, const kvf_ucx_api **out, char *message);

/* True if the endpoint's network reads memory by itself: then gets are UCX's own, else messages.
 *
 * If a network cannot read memory by itself (TCP), UCX's get is a message that the peer's UCX answers. If the consumer
 * goes away during such an answer, UCX ends the producer's whole process. Two causes were seen. The sending function
 * (ucp_progress_get_reply) passes errors to a caller that does not handle them (1.13 and 1.22). Or a waiting answer is
 * given up with fields that were never set (ucp_request_memory_dereg, 1.13). Our active messages do the same work in a
 * part of UCX that handles failed peers. */
bool kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep);

#endif
