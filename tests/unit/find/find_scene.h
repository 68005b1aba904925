/* Scenes of a cluster whose nodes have a finder each. A key is that of the prompt that cluster_ticket() makes tickets
 * of so many blocks for. What tests/cluster/scene.h does not say:
 *
 *   offer A [NODE]                        the ticket, at P0
 *   known NAME P                          D has the option peers, and does not start
 *   find N BLOCKS [at=NAME] [timeout=MS], take N [short]
 *   found ID [altered|cut]                P0 answers with A, whoever asked
 *   ask WHO ID BLOCKS [key=1]             of P0 itself: a find of the consumer WHO, sealed with P0's other key
 *   finder NODE NAME…                     names, or reasons, of kvf_finder_stats(); finds_open
 */
#ifndef KVF_TESTS_FIND_SCENE_H
#define KVF_TESTS_FIND_SCENE_H

#include "find/finder.h"
#include "scene.h"

/* Of D, P0 and so on. */
extern kvf_finder finders[1 + CLUSTER_PRODUCERS];

/* D knows P0 by an option, asks who it is, and connects to it. */
#define CONNECTED                           \
  "know P0 > dial P0\n"                     \
  "accept P0 > dial P0; D hangs up on P0\n" \
  "accept P0\n"

/* Another ticket for the same prompt as A. */
#define OFFER_B \
  "ticket 4\n"  \
  "publish B\n" \
  "offer B\n"

kvf_status find_start(uint32_t blocks, const char *at, uint32_t timeout_ms, uint64_t user, uint64_t *id);
/* The text of a ticket of P0. Returns its bytes. */
size_t find_text(const kvf_ticket *ticket, char text[KVF_TICKET_BYTES_MAX]);
/* At this node, under the key of its prompt. */
kvf_status find_offer(const cluster_node *node, const kvf_ticket *ticket, const char *text, size_t text_bytes);
/* Its key is sealed with P0's key, or with the other one. */
kvf_asker find_asker(uint8_t who, uint64_t find_id, uint32_t blocks, bool is_other_key);

#endif
