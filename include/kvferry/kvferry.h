/* kvferry: carries KV-cache blocks from prefill to decode engines, and is never silently wrong.
 *
 * This header includes the whole interface. Read status.h and types.h for the words, node.h for how a node lives,
 * part.h for what its pages are, producer.h and consumer.h for what the two sides of a transfer do, recovery.h and
 * staging.h for engines without a way back from a failed load, check.h for what works between a machine and a node,
 * address.h for where an engine listens that was not told.
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

#define KVF_VERSION_TEXT "0.1.0"

/* The version of the library that is linked. Static memory; any thread. */
KVF_API const char *kvf_version(void);

KVF_C_END
#endif
