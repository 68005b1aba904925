/* kvferry/address.h: where an engine listens that was not told, so that one configuration serves on any host.
 *
 * An address that others can reach is for engines that share a key: without one nothing here leads off loopback. It is
 * one address of this machine, never a wildcard, which would name no address to others and take connections from
 * everywhere. kvf_node_open() then says in one line at which address and interface it listens, and why.
 */
#ifndef KVFERRY_ADDRESS_H
#define KVFERRY_ADDRESS_H

#include "kvferry/config.h"

KVF_C_BEGIN

/* Completes the options key_file, listen and advertise of an engine's node from its environment, and notes why in
 * config->listen_source. To be called when all options have been set, before kvf_node_open(). `listen_is_given`:
 * whether somebody has set the option listen, which then stays as it is. Else `listen` becomes the first of these:
 *
 *   KVFERRY_LISTEN, of the same form as the option, with KVFERRY_ADVERTISE for the option advertise;
 *   127.0.0.1, where there is no key;
 *   VLLM_NIXL_SIDE_CHANNEL_HOST, which stacks set for each replica, if it is not a wildcard. Of the ports from
 *     VLLM_NIXL_SIDE_CHANNEL_PORT + index on, the first that is free is taken, or else any;
 *   the address that this machine shows to others by its default route, of IPv4, or where there is none of IPv6. Where
 *     there are both, config->listen_other becomes that of IPv6, unless `advertise` says what tickets name;
 *   127.0.0.1.
 *
 * KVFERRY_KEY_FILE is the key file where the option key_file is empty; an option advertise goes before the environment.
 * A variable that is empty counts as not set. `environment` is as unistd.h's environ: "NAME=VALUE" and a NULL at the
 * end; NULL: none. It must not change during the call. `index`: this is the engine's index-th node on its host; where
 * `listen` or `advertise` names one port, that is moved on by so many, since ranks cannot share one.
 *
 * Opens no connection and sends no packet; does not block. Any thread, with a config of its own.
 * KVF_INVALID: a variable or a moved port is not allowed, or KVFERRY_ADVERTISE is set alone; `message` (may be NULL)
 * names it for the person who set it, and the config is not to be used. */
KVF_API KVF_MUST_USE kvf_status kvf_address_choose(kvf_config *config, bool listen_is_given, uint32_t index,
                                                   char *const *environment, char message[KVF_MESSAGE_BYTES_MAX]);

KVF_C_END
#endif
