/* kvferry: carries KV-cache blocks from prefill to decode engines, and is never silently wrong.
 *
 * Begin with docs/c-guide.md: it explains one program piece by piece. 26 functions suffice:
 *
 *   any engine   kvf_config_init, _set, _identity; kvf_node_open, _register, _poll, _event_fd, _close; kvf_prompt_hash;
 *                kvf_status_name, _describe; kvf_error_text
 *   P (prefill)  kvf_node_address, _set_ranks; kvf_lease_reserve_blocks, _publish, _end, _ended; kvf_ticket_make
 *   D (decode)   kvf_request_open, _begin; kvf_load_start; kvf_request_report, _released, _cancel; kvf_load_abort
 *
 * This header includes the whole interface:
 *
 * - status.h, types.h: statuses and common types.
 * - config.h: options of a node; address.h: the default listen address.
 * - node.h: a node's life, memory and events; part.h: the layout of its memory.
 * - producer.h, consumer.h: the two sides of a transfer.
 * - recovery.h, staging.h: engines that cannot rewind a request after a failed load.
 * - check.h: a test of this machine, or of the connection to a node; stats.h: counters.
 */
#ifndef KVFERRY_KVFERRY_H
#define KVFERRY_KVFERRY_H

#include "kvferry/address.h"
#include "kvferry/check.h"
#include "kvferry/config.h"
#include "kvferry/consumer.h"
#include "kvferry/node.h"
#include "kvferry/part.h"
#include "kvferry/producer.h"
#include "kvferry/recovery.h"
#include "kvferry/staging.h"
#include "kvferry/stats.h"
#include "kvferry/status.h"
#include "kvferry/types.h"

KVF_C_BEGIN

/* The version of these headers. A program runs with every later library of the same SONAME (libkvferry.so.0), without
 * being compiled again. A release that breaks this rule gets a new SONAME. */
#define KVF_VERSION_MAJOR 0
#define KVF_VERSION_MINOR 1
#define KVF_VERSION_PATCH 0
/* For #if: 1.2.3 is 0x010203. */
#define KVF_VERSION_NUM (KVF_VERSION_MAJOR * 0x10000 + KVF_VERSION_MINOR * 0x100 + KVF_VERSION_PATCH)
#define KVF_TEXT_OF_(number) #number
#define KVF_TEXT_OF(number) KVF_TEXT_OF_(number)
#define KVF_VERSION_TEXT \
  KVF_TEXT_OF(KVF_VERSION_MAJOR) "." KVF_TEXT_OF(KVF_VERSION_MINOR) "." KVF_TEXT_OF(KVF_VERSION_PATCH)

/* The version of the linked library, as text: "0.1.0". Static memory; any thread. */
KVF_API const char *kvf_version(void);

KVF_C_END
#endif
