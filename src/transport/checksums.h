/* Checksums of blocks (option `checksum`).
 *
 * For each KV group there is one region more, its checksums: a row for each block and in it, KV heads outermost like
 * everywhere, one checksum for each region of the group. So the checksums of any heads of any block are read like the
 * bytes that they are of: in the same chunk, under the same fence, into the reader's own rows, however either side
 * splits the heads. A sum covers one head of one block in one region, and is stored in little-endian order.
 *
 * Sums regions follow the others, in the order of their groups, each group having one.
 */
#ifndef KVF_TRANSPORT_CHECKSUMS_H
#define KVF_TRANSPORT_CHECKSUMS_H

#include "transport/transport.h"
#include "wire/pages.h"

/* What a consumer that has checksums logs of a producer that has none. */
#define KVF_NO_CHECKSUMS_LINE "it has no checksums (option checksum): its blocks are loaded without being verified"

/* The layouts of the checksums of a rank's regions, which are valid together. Returns how many: the number of groups,
 * or 0 if a row would be longer than a block can be. */
uint32_t kvf_checksums_layouts(const kvf_region_layout *regions, uint32_t count, kvf_region_layout out[KVF_GROUPS_MAX]);

/* Makes room for the checksums of these valid regions: *count regions at `out`, all zero, for kvf_checksums_close().
 * Pages that are not used cost nothing. KVF_LIMIT: see kvf_checksums_layouts(). KVF_NO_MEMORY. On failure *count is 0.
 */
KVF_MUST_USE kvf_status kvf_checksums_open(const kvf_region *regions, uint32_t regions_count,
                                           kvf_region out[KVF_GROUPS_MAX], uint32_t *count);
void kvf_checksums_close(kvf_region *checksums, uint32_t count);

/* Writes a block's row in `checksums`, which is its group's, from the block's bytes. Others may read the row meanwhile:
 * checksums that stay the same are not written. One writer a row. False: the memory's device has failed. */
KVF_MUST_USE bool kvf_checksums_make(const kvf_region *regions, uint32_t regions_count, const kvf_region *checksums,
                                     uint32_t block);

/* Of a read that has ended with KVF_OK, whose lease the sample says is live: counts how many of the chunk's leading
 * items have, at their local blocks, the bytes that their local checksums say (`verified`, which is 0), and
 * KVF_CHECKSUM if not all have. The chunk has been read whole; each region is a part, and the last `checksums_count`
 * are checksums. */
void kvf_checksums_judge(const kvf_chunk *chunk, uint32_t checksums_count, kvf_read_result *result);

#endif
