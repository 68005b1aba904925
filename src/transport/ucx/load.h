/* UCX, loaded when the first transport `ucx` of the process is opened, and for the rest of the process' life. */
#ifndef KVF_TRANSPORT_UCX_LOAD_H
#define KVF_TRANSPORT_UCX_LOAD_H

#include "kvferry/types.h"
#include "transport/ucx/api.h"

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

#endif
