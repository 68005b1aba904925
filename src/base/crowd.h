/* Connections by the host that they come from, to choose the one that makes room when there are too many. While there
 * are free places, one host may take them all. When there are none, the host with most connections gives one up, so
 * that no host keeps others out. In that host, the stage that most of its connections have reached is chosen, and the
 * oldest connection in that stage. So a client that opens many connections without going on cannot keep out another
 * client behind its address.
 *
 * Finding a host, or the victim, looks at each host once. Not for use by several threads at once. A crowd points into
 * itself: it must not be moved once it is initialised.
 */
#ifndef KVF_BASE_CROWD_H
#define KVF_BASE_CROWD_H

#include <stdint.h>

#include "base/list.h"
#include "kvferry/status.h"

/* A name for it, as kvf_address_host() gives one. */
typedef struct kvf_host {
  uint8_t bytes[16];
} kvf_host;

/* How far a connection has come. */
typedef enum kvf_crowd_stage {
  KVF_CROWD_SILENT, /* it has said nothing */
  KVF_CROWD_HEARD,
  KVF_CROWD_KNOWN, /* by what it says it has the key: it has only to prove it */
  KVF_CROWD_STAGES
} kvf_crowd_stage;

/* Of one host. */
typedef struct kvf_crowd_group {
  kvf_list in_crowd;
  kvf_host host;
  uint32_t count;
  uint32_t counts[KVF_CROWD_STAGES];
  kvf_list members[KVF_CROWD_STAGES]; /* oldest first */
} kvf_crowd_group;

/* Lives in a connection. */
typedef struct kvf_crowd_member {
  kvf_list in_group;
  kvf_crowd_group *group; /* NULL: it is in no crowd */
  kvf_crowd_stage stage;
  uint64_t turn; /* grows with each that joins or moves */
} kvf_crowd_member;

typedef struct kvf_crowd {
  kvf_list groups;
  uint32_t count; /* of members */
  uint64_t turns;
} kvf_crowd;

void kvf_crowd_init(kvf_crowd *crowd);

/* `member` is in no crowd: all zeros, or it has left. Joins as the newest, SILENT. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_crowd_join(kvf_crowd *crowd, kvf_crowd_member *member, const kvf_host *host);
/* Nothing happens if it is in no crowd. */
void kvf_crowd_leave(kvf_crowd *crowd, kvf_crowd_member *member);
/* It has come so far, and is the newest there: also if it has been there already. */
void kvf_crowd_move(kvf_crowd *crowd, kvf_crowd_member *member, kvf_crowd_stage stage);

/* Who is to make room; between hosts that have as many, the oldest. NULL: nobody is there. */
kvf_crowd_member *kvf_crowd_victim(const kvf_crowd *crowd);

#endif
