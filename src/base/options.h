/* The option table behind kvferry/config.h. kvf_config_init(), kvf_config_set(), kvf_config_identity() and
 * kvf_option_at() are declared there. */
#ifndef KVF_BASE_OPTIONS_H
#define KVF_BASE_OPTIONS_H

#include "base/log.h"
#include "kvferry/config.h"

/* Whether the text has several colons outside of brackets: an IPv6 address, or network, without a port. */
bool kvf_is_bare_ipv6(const char *text);

/* `listen` without its range, which is up to *last; 0: it has none. */
void kvf_listen_split(const char *listen, char first[KVF_HOST_BYTES_MAX], uint16_t *last);

/* Reads "PORT" or "PORT-PORT", KVF_LISTEN_PORTS_MAX ports at most. False: it is of no such form; both are unchanged. */
bool kvf_ports_parse(const char *text, uint16_t *first, uint16_t *last);

/* What the option group_block_tokens says, by group. How many groups; 0: none, or it is not of that form. */
uint32_t kvf_group_tokens_parse(const char *text, uint32_t out[KVF_GROUPS_MAX]);

#define KVF_STATIC_PEERS_MAX 64 /* names in the option peers */

/* Takes the next address of `peers` from *rest. False: there is none, or it is too long. */
bool kvf_peer_names_next(const char **rest, char address[KVF_HOST_BYTES_MAX]);

/* Converts a caller's configuration, of any version, to this library's. KVF_INVALID: kvf_config_init() was not called.
 */
KVF_MUST_USE kvf_status kvf_config_copy(const kvf_config *config, kvf_config *out);

/* Warns of options that were set and have no effect any more. */
void kvf_config_log_gone(const kvf_config *config, const kvf_logger *logger);

/* Checks a whole configuration: every option once more (the struct is the caller's memory), and those that depend on
 * each other. KVF_INVALID: `message` (KVF_MESSAGE_BYTES_MAX bytes, may be NULL) names options, values and what is
 * allowed. Whether addresses and files are usable shows only when they are used. */
KVF_MUST_USE kvf_status kvf_config_check(const kvf_config *config, char *message);

#endif
