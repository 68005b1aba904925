/* kvferry/address.h: the default listen address of an engine, so that one configuration works on any host.
 *
 * Without a key the default is loopback. With a key it is one address of this machine that other hosts can reach. It is
 * never a wildcard: tickets could not name it, and it would accept connections from every network. kvf_node_open() logs
 * one line with the address, its interface, and the reason for it.
 */
#ifndef KVFERRY_ADDRESS_H
#define KVFERRY_ADDRESS_H

#include "kvferry/config.h"

KVF_C_BEGIN

/* Completes the options key_file, listen and advertise of an engine's node from its environment. Sets
 * config->listen_source to the origin of the address. Call it after all options are set, before kvf_node_open().
 *
 * `listen_is_given`: the option listen was set, and is kept. Else `listen` becomes the first of these that applies:
 *
 * - KVFERRY_LISTEN, in the form of the option; KVFERRY_ADVERTISE is then the option advertise.
 * - 127.0.0.1, if there is no key.
 * - VLLM_NIXL_SIDE_CHANNEL_HOST, if it is not a wildcard; stacks set it for each replica. The port is the first free
 *   one from VLLM_NIXL_SIDE_CHANNEL_PORT + index on, or else any.
 * - The machine's address on its default route: of IPv4, or without one of IPv6. If there are both, and `advertise` is
 *   empty, config->listen_other becomes the IPv6 address.
 * - 127.0.0.1.
 *
 * KVFERRY_KEY_FILE is the key file if the option key_file is empty. The option advertise takes precedence over the
 * environment. An empty variable counts as not set.
 *
 * `environment` has the form of unistd.h's environ: "NAME=VALUE" and a NULL at the end. NULL: no variables. It must not
 * change during the call. `index` is the number of this node among the engine's nodes on its host. If `listen` or
 * `advertise` names one port, `index` is added to it, because ranks cannot share a port.
 *
 * Opens no connection, sends no packet, does not block. Any thread, while no other thread uses `config`.
 * KVF_INVALID: a variable or a resulting port is not allowed, or KVFERRY_ADVERTISE is set alone. `message` (may be
 * NULL) then names it, for a person. Do not use the config after that. */
KVF_API KVF_MUST_USE kvf_status kvf_address_choose(kvf_config *config, bool listen_is_given, uint32_t index,
                                                   char *const *environment, char message[KVF_MESSAGE_BYTES_MAX]);

KVF_C_END
#endif
