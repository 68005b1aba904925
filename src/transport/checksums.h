/* Checksums of blocks (option `checksum`).
 *
 * Each KV group has one more region for its checksums, with a row for each block. A row has, for each part of the group
 * in their order, a checksum for each head that the rank has of the part. In a plan, the checksums of a part are their
 * own pair, with the part's layer, group and heads. So they are read like the part's bytes, in the same chunk, under
 * the same fence, into the reader's own rows, for any layers and heads of both sides. A sum covers one head of one
 * block in one part, and is stored in little-endian order.
 *
 * Sums regions follow the others, in the order of their groups. Pairs of sums follow the others too, a group's in one
 * run.
 *
 * A sum goes with a whole block, and a region's index names its part. So a part with several rows (whose blocks may be
 * cut), tokens that are dealt, and parts that share a region have no sums.
 */
#ifndef KVF_TRANSPORT_CHECKSUMS_H
#define KVF_TRANSPORT_CHECKSUMS_H

#include "plan/pages.h"
#include "transport/transport.h"

/* What a consumer that has checksums logs of a producer that has none. */
#define KVF_NO_CHECKSUMS_LINE "it has no checksums (option checksum): its blocks are loaded without being verified"

/* Where the checksums of a rank's pages lie. */
typedef struct kvf_checksums_layout {
  uint32_t count;                         /* of groups, and so of rows */
  uint32_t first_region;                  /* the number of the first group's region */
  kvf_region_layout rows[KVF_GROUPS_MAX]; /* of a region each */
  uint32_t offsets[KVF_REGIONS_MAX];      /* in a row: of the part that lies in the region of that index */
} kvf_checksums_layout;

/* Lays out the checksums of valid pages. KVF_INVALID: they are among those that have none. KVF_LIMIT: a row would be
 * longer than a block can be, or a region than KVF_REGION_BYTES_MAX. message (KVF_MESSAGE_BYTES_MAX) says which part
 * and why. */
KVF_MUST_USE kvf_status kvf_checksums_lay_out(const kvf_pages *pages, kvf_checksums_layout *out, char *message);

/* Adds to a plan the pairs of the checksums of its pairs, as many, and wants them. `pairs`, which is the plan's, has
 * room for them. */
void kvf_checksums_join(kvf_plan *plan, kvf_pair *pairs, const kvf_checksums_layout *local,
                        const kvf_checksums_layout *remote);

/* Makes room for checksums: layout->count regions at `out`, all zero, for kvf_checksums_close(). Pages that are not
 * used cost nothing. KVF_NO_MEMORY: none is left. */
KVF_MUST_USE kvf_status kvf_checksums_open(const kvf_checksums_layout *layout, kvf_region out[KVF_GROUPS_MAX]);
void kvf_checksums_close(kvf_region *checksums, uint32_t count);

/* Writes a block's row of checksums from the block's bytes. The plan is that of the rank's own pages, with checksums;
 * `regions` are these, and then the checksums. Others may read the row meanwhile: checksums that stay the same are not
 * written. One writer a row. False: the memory's device has failed. */
KVF_MUST_USE bool kvf_checksums_make(const kvf_plan *plan, const kvf_region *regions, uint32_t group, uint32_t block);

/* For a read that has ended with KVF_OK and a live sample. Compares the moved bytes of the chunk's items with their
 * local checksums. `verified`, which is 0, becomes the number of leading items that agree; if not all agree, the status
 * becomes KVF_CHECKSUM. The chunk has been read whole. If its selection has no checksums, the call has no effect. */
void kvf_checksums_judge(const kvf_chunk *chunk, kvf_read_result *result);

#endif
