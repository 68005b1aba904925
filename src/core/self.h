/* What a node knows of itself, read by the machines that speak to other nodes. */
#ifndef KVF_CORE_SELF_H
#define KVF_CORE_SELF_H

#include "base/fence.h"
#include "base/log.h"
#include "core/entropy.h"
#include "wire/handshake_message.h"

typedef struct kvf_self {
  kvf_config config;
  kvf_incarnation incarnation;
  kvf_key key;
  uint8_t compat[KVF_HASH_BYTES]; /* kvf_self_compat() */
  kvf_entropy entropy;
  kvf_logger logger;
  /* What a consumer rank is told of this rank's memory; no regions before kvf_core_set_memory(). session_id is unused.
   */
  kvf_welcome welcome;
} kvf_self;

/* The hash of the identity fields, in whatever order they were set. */
KVF_MUST_USE kvf_status kvf_self_compat(const kvf_config *config, uint8_t out[KVF_HASH_BYTES]);

/* Whether a peer's identity fields are ours. If not, `difference` (KVF_MESSAGE_BYTES_MAX) names the first field. */
bool kvf_self_matches(const kvf_self *self, const kvf_identity_field *fields, uint32_t count, char *difference);

#endif
