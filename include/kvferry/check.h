/* kvferry/check.h: tests of this machine, and of the connection to a node. For a person, before engines depend on them.
 *
 * The check of a node opens its own connection to the node's control address, with the key and TLS of an engine. It
 * reads no block and makes no lease, and the node does not count it among its consumers.
 *
 * kvf_check_node() measures that connection in the caller's thread. It is the only function that waits for a peer, so
 * do not call it from an engine thread.
 */
#ifndef KVFERRY_CHECK_H
#define KVFERRY_CHECK_H

#include "kvferry/config.h"

KVF_C_BEGIN

#define KVF_CHECK_TEXT_BYTES_MAX 128

typedef struct kvf_check_result {
  char address[KVF_HOST_BYTES_MAX]; /* the resolved address of HOST, with the port */
  uint64_t connect_ns;              /* 0: no connection */
  uint64_t handshake_ns;            /* from the connection to the node's WELCOME; 0: there was none */
  uint64_t round_trip_ns;           /* the shortest of a few, with the time of both sides' threads */
  uint64_t bytes;                   /* test bytes that the node sent; 0: its limit per second was used up */
  uint64_t bytes_per_s;
  uint32_t protocol_min; /* versions of the node: a handshake needs a common version */
  uint32_t protocol_max;
  uint32_t own_protocol;                     /* this library's version */
  uint32_t encrypted;                        /* 1: inside TLS 1.3 */
  char version[KVF_CHECK_TEXT_BYTES_MAX];    /* kvf_version() of the node */
  char transports[KVF_CHECK_TEXT_BYTES_MAX]; /* the node's: "local,tcp"; "": it has registered no memory */
  uint64_t reserved[4];
} kvf_check_result;

/* Checks the node at `address` (HOST:PORT; HOST may be a name). Of `config` it uses key_file, tls and
 * handshake_timeout_ms. Blocks at most three times handshake_timeout_ms plus a second, and the time that the system
 * needs to resolve a name. *out is always set: after a failure it has the results so far. `message` then names the
 * problem. Any thread.
 *
 * - KVF_INVALID: the address or the key file is not usable, or TLS is on without a key.
 * - KVF_PEER_DOWN: no connection, or it was closed.
 * - KVF_HANDSHAKE_REFUSED: another key, or only one side uses TLS.
 * - KVF_HANDSHAKE_TIMEOUT: connected, but no answer.
 * - KVF_INCOMPATIBLE: no common version.
 * - KVF_PROTOCOL: not a kvferry node.
 * - KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_check_node(const kvf_config *config, const char *address, kvf_check_result *out,
                                               char message[KVF_MESSAGE_BYTES_MAX]);

/* Finds and loads the driver of a kind of memory, for the rest of the process' life. `library`: as the option
 * cuda_library, "" for the usual one. If the process has loaded one already, that one is used. May take a second. On
 * KVF_OK `message` names the driver and its devices, else the problem and its remedy. Any thread.
 * KVF_TRANSFER_SETUP: this process cannot use memory of the kind. KVF_INVALID: the library does not know the kind. */
KVF_API KVF_MUST_USE kvf_status kvf_check_memory(kvf_memory_kind kind, const char *library,
                                                 char message[KVF_MESSAGE_BYTES_MAX]);

/* Tests the index-th device that kvf_check_memory() finds. `message` becomes one line with four results:
 *
 * - the way in which its memory is shared with other processes;
 * - the number of other devices whose memory it can read directly;
 * - whether network cards reach its memory;
 * - whether it runs the library's kernels.
 *
 * The first three are the driver's answers; no other process is tried. The kernels are run. If this process has no
 * context on the device, the call makes one: this takes a second and some hundred MB of the device's memory. Any
 * thread.
 *
 * - KVF_TRANSFER_SETUP: the device exports no handles for memory as most engines allocate it. Then the transport local
 *   will be left out.
 * - KVF_TRANSFER_FAILED, KVF_NO_MEMORY: it does not run the kernels; the line ends with the error. Copies replace them,
 *   which is slower.
 * - KVF_NOT_FOUND: there are no more devices, or the kind has none.
 * - KVF_INVALID: the library does not know the kind. */
KVF_API KVF_MUST_USE kvf_status kvf_check_device(kvf_memory_kind kind, uint32_t index,
                                                 char message[KVF_MESSAGE_BYTES_MAX]);

KVF_C_END
#endif
