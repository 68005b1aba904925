/* UCX, loaded when the first transport `ucx` of the process is opened, and for the rest of the process' life. */
#ifndef KVF_TRANSPORT_UCX_LIBUCP_H
#define KVF_TRANSPORT_UCX_LIBUCP_H

#include "kvferry/types.h"
#include "transport/ucx/ucx_api.h"

/* Debian's package has it, and the installed system's loader knows where. */
#define KVF_UCX_LIBRARY "libucp.so.0"
/* PyPI's has it beside our own package: relative to the folder that this library is in. */
#define KVF_UCX_LIBRARY_BESIDE "../libucx/lib/libucp.so.0"

/* `library`: a path, or a name for the system's loader; "": KVF_UCX_LIBRARY, or else the one beside. The first that is
 * loaded, whoever asks, serves the whole process: two would not know of each other's hooks. Its symbols stay its own,
 * since another copy of UCX may be in the process, and the signal handlers that it sets up are taken back unless
 * $UCX_HANDLE_ERRORS asks for them: SIGSEGV, SIGHUP and so on are the engine's.
 * Any thread, preferably one with signals blocked, which UCX's own threads then have too. KVF_TRANSFER_SETUP: message
 * (KVF_MESSAGE_BYTES_MAX), one line, says what was tried, what was wrong with it, and what to install. */
KVF_MUST_USE kvf_status kvf_ucx_load(const char *library, const kvf_ucx_api **out, char *message);

/* Whether the endpoint's network reads memory by itself: then gets are UCX's own, else messages.
 *
 * Where a network cannot read memory by itself (TCP), UCX's get is a message that the peer's UCX answers, and those
 * answers do not bear that the one who asked goes away: UCX ends the producer's whole process, since the function that
 * sends them (ucp_progress_get_reply) hands errors up to one that knows none, or since an answer that still waits is
 * given up with fields that were never set (ucp_request_memory_dereg). The first was seen with 1.13 and 1.22, the
 * second with 1.13. Active messages of ours do the same work in a part of UCX that deals with failed peers.
 */
bool kvf_ucx_path_reads_memory(const kvf_ucx_api *api, kvf_ucp_ep ep);

#endif
