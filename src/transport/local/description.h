/* What a rank tells about itself so that a process on the same host can read its memory: bytes for the handshake. */
#ifndef KVF_TRANSPORT_LOCAL_DESCRIPTION_H
#define KVF_TRANSPORT_LOCAL_DESCRIPTION_H

#include "transport/transport.h"

#define KVF_LOCAL_COOKIE_BYTES 32

/* Where a process lives. Two processes that agree on both fields name each other by the same process ids. A field that
 * the system does not tell is zero on both sides; the cookie decides anyway. */
typedef struct kvf_local_place {
  uint8_t boot[40]; /* text of the kernel's boot id */
  uint64_t pid_namespace;
} kvf_local_place;

/* As it travels: plain memory, since reader and writer run on one machine. Bases (uint64_t) of its regions, then of its
 * checksums, follow. */
typedef struct kvf_local_description {
  uint64_t magic;
  kvf_local_place place;
  kvf_incarnation incarnation;
  uint8_t cookie[KVF_LOCAL_COOKIE_BYTES]; /* what a reader finds at cookie_address, in this process only */
  uint64_t cookie_address;
  uint64_t table_address;
  uint32_t table_slots;
  uint32_t pid;
  uint32_t regions_count;
  uint32_t checksums_count; /* 0: it has no checksums, else the number of groups */
  uint32_t has_table_fd;
  uint32_t table_fd; /* the descriptor that the fence table's file has there */
} kvf_local_description;

#define KVF_LOCAL_MAGIC UINT64_C(0x336c61636f6c766b) /* "kvlocal3" */

/* This process' place. */
kvf_local_place kvf_local_place_here(void);

/* Writes the description and the bases of memory's regions and checksums. KVF_LIMIT: `capacity` is too small. */
KVF_MUST_USE kvf_status kvf_local_description_write(const kvf_local_description *head,
                                                    const kvf_transport_memory *memory, void *out, size_t capacity,
                                                    size_t *out_bytes);

/* Reads what a peer sent. It goes with `remote_count` layouts, which have passed kvf_layouts_check(); `bases` has room
 * for as many and KVF_GROUPS_MAX more, `checksums` gets the layouts of its checksums, head->checksums_count of them.
 * KVF_TRANSFER_SETUP: malformed, or of another place or incarnation; message (KVF_MESSAGE_BYTES_MAX) says what was
 * found. */
KVF_MUST_USE kvf_status kvf_local_description_read(const void *bytes, size_t bytes_count, const kvf_local_place *here,
                                                   const kvf_incarnation *incarnation, const kvf_region_layout *remote,
                                                   uint32_t remote_count, kvf_local_description *head, uint64_t *bases,
                                                   kvf_region_layout checksums[KVF_GROUPS_MAX], char *message);

#endif
