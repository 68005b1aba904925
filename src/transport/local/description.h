/* What a rank tells about itself so that a process on the same host can read its memory: bytes for the handshake. */
#ifndef KVF_TRANSPORT_LOCAL_DESCRIPTION_H
#define KVF_TRANSPORT_LOCAL_DESCRIPTION_H

#include "memory/memory.h"
#include "transport/transport.h"

#define KVF_LOCAL_COOKIE_BYTES 32

/* Where a process lives. Two processes that agree on both fields name each other by the same process ids. A field that
 * the system does not tell is zero on both sides; the cookie decides anyway. */
typedef struct kvf_local_place {
  uint8_t boot[40]; /* text of the kernel's boot id */
  uint64_t pid_namespace;
} kvf_local_place;

/* The form that travels: plain memory, because reader and writer run on one machine. The exports of its regions, then
 * of its checksums, stay in its own memory, for processes that can read it. Each export is its number of bytes
 * (uint32_t), then these bytes. */
typedef struct kvf_local_description {
  uint64_t magic;
  kvf_local_place place;
  kvf_incarnation incarnation;
  uint8_t cookie[KVF_LOCAL_COOKIE_BYTES]; /* what a reader finds at cookie_address, in this process only */
  uint64_t cookie_address;
  uint64_t table_address;
  uint64_t exports_address;
  uint64_t exports_bytes;
  uint32_t table_slots;
  uint32_t pid;
  uint32_t regions_count;
  uint32_t checksums_count; /* 0: it has no checksums, else the number of groups */
  uint32_t has_table_fd;
  uint32_t table_fd; /* the descriptor that the fence table's file has there */
} kvf_local_description;

#define KVF_LOCAL_MAGIC UINT64_C(0x356c61636f6c766b) /* "kvlocal5" */

/* This process' place. */
kvf_local_place kvf_local_place_here(void);

#define KVF_LOCAL_EXPORTS_BYTES_MAX \
  ((KVF_REGIONS_MAX + KVF_GROUPS_MAX) * (sizeof(uint32_t) + KVF_MEMORY_EXPORT_BYTES_MAX))

/* Exports memory's regions and checksums for the description. *out is the caller's, for kvf_local_unexport().
 * KVF_TRANSFER_SETUP: one cannot be read by others, as the message (KVF_MESSAGE_BYTES_MAX) says. KVF_NO_MEMORY. */
KVF_MUST_USE kvf_status kvf_local_export(const kvf_transport_memory *memory, uint8_t **out, size_t *bytes,
                                         char *message);

/* Takes back what the same regions and checksums have exported, and frees it. NULL is allowed. */
void kvf_local_unexport(const kvf_region *regions, uint32_t count, uint8_t *exports, size_t bytes);

/* Reads what a peer sent. It is of that many regions and, if it has them, checksums. KVF_TRANSFER_SETUP: malformed, or
 * of another place or incarnation; message (KVF_MESSAGE_BYTES_MAX) says what was found. */
KVF_MUST_USE kvf_status kvf_local_description_read(const void *bytes, size_t bytes_count, const kvf_local_place *here,
                                                   const kvf_incarnation *incarnation, uint32_t regions,
                                                   uint32_t checksums, kvf_local_description *head, char *message);

/* Imports the exports of a description that has been read, for these devices. There are as many as `remote` has
 * layouts, of regions and then of checksums. May wait for the peer. On failure no import is left. KVF_TRANSFER_SETUP:
 * the message names the export and the reason. */
KVF_MUST_USE kvf_status kvf_local_import(const kvf_local_description *head, kvf_memory_exports exports,
                                         const kvf_region_layout *remote, const kvf_memory_devices *devices,
                                         kvf_memory_import *out, char *message);

#endif
