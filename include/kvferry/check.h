/* kvferry/check.h: what works on this machine, and between it and a node: for people, before engines depend on it.
 *
 * The check of a node is a connection of its own to the node's control address, as engines make it: same key, same TLS.
 * It reads no block, makes no lease, and the node does not count it among its consumers. What is measured is that
 * connection, in the caller's thread, for which kvf_check_node() is the one call that waits for a peer: not for an
 * engine's threads.
 */
#ifndef KVFERRY_CHECK_H
#define KVFERRY_CHECK_H

#include "kvferry/config.h"

KVF_C_BEGIN

#define KVF_CHECK_TEXT_BYTES_MAX 128

typedef struct kvf_check_result {
  char address[KVF_HOST_BYTES_MAX]; /* that HOST was resolved to, with the port */
  uint64_t connect_ns;              /* 0: nobody was reached */
  uint64_t handshake_ns;            /* from there to the node's WELCOME; 0: it did not come to that */
  uint64_t round_trip_ns;           /* the shortest of a few, both sides' threads included */
  uint64_t bytes;                   /* that the node made up; 0: it had given others what it gives in a second */
  uint64_t bytes_per_s;
  uint32_t protocol_min; /* what the node speaks: there is no handshake without a version in common */
  uint32_t protocol_max;
  uint32_t own_protocol;                     /* what this library speaks */
  uint32_t encrypted;                        /* 1: inside TLS 1.3 */
  char version[KVF_CHECK_TEXT_BYTES_MAX];    /* kvf_version() of the node */
  char transports[KVF_CHECK_TEXT_BYTES_MAX]; /* that the node offers: "local,tcp"; "": it has registered no memory */
  uint64_t reserved[4];
} kvf_check_result;

/* Checks the node at `address` (HOST:PORT; HOST may be a name). Of `config` it uses key_file, tls and
 * handshake_timeout_ms. Blocks: at most three times handshake_timeout_ms and a second, and as long as the system takes
 * for a name. *out is always set, to what was found before a failure; `message` then says what is wrong. Any thread.
 * KVF_INVALID: the address, the key file, or TLS without a key. KVF_PEER_DOWN: nobody answers, or not any more.
 * KVF_HANDSHAKE_REFUSED: another key, or only one side speaks TLS. KVF_HANDSHAKE_TIMEOUT: who is there is silent.
 * KVF_INCOMPATIBLE: no version in common. KVF_PROTOCOL: not a kvferry node. KVF_NO_MEMORY. */
KVF_API KVF_MUST_USE kvf_status kvf_check_node(const kvf_config *config, const char *address, kvf_check_result *out,
                                               char message[KVF_MESSAGE_BYTES_MAX]);

/* Looks for what a kind of memory needs, and loads it, for the rest of the process' life. `library`: as the option
 * cuda_library, "" for the usual one; if the process has loaded one, that one counts. May take a second. `message` says
 * on KVF_OK what was found (which driver, which devices), else what is wrong and what to do. Any thread.
 * KVF_TRANSFER_SETUP: memory of the kind cannot be used in this process. KVF_INVALID: the library knows no such kind.
 */
KVF_API KVF_MUST_USE kvf_status kvf_check_memory(kvf_memory_kind kind, const char *library,
                                                 char message[KVF_MESSAGE_BYTES_MAX]);

/* What the index-th device that kvf_check_memory() finds can do: how its memory is given to other processes, how many
 * other devices it reads by itself, whether network cards reach it, and whether it runs the library's kernels. It is
 * one line in `message`. The driver says it, but the kernels are tried: where this process has no context on the
 * device, one is made for the call, which takes a second and some hundred MB of the device's memory. No other process
 * is tried. Any thread. KVF_TRANSFER_SETUP: it gives no handles of memory as most engines allocate it, so that the
 * transport local will be left out. KVF_TRANSFER_FAILED, KVF_NO_MEMORY: it does not run the kernels, by the error that
 * the line ends with: copies take their place, which is slower. KVF_NOT_FOUND: there are no more, or the kind has no
 * devices. KVF_INVALID: the library knows no such kind. */
KVF_API KVF_MUST_USE kvf_status kvf_check_device(kvf_memory_kind kind, uint32_t index,
                                                 char message[KVF_MESSAGE_BYTES_MAX]);

KVF_C_END
#endif
