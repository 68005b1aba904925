/* What the transport `local` says of a rank, there and back; and descriptions that lie. */
#include "transport/local/description.h"

#include "test.h"
#include "transport/checksums.h"

static const kvf_local_place here = {.boot = "some boot", .pid_namespace = 11};
static const kvf_incarnation incarnation = {{7}};
static const kvf_region regions[] = {
    {(void *)(uintptr_t)0x10000, 4096, 4096, 10, 1, 1, 0, KVF_MEMORY_HOST, 0},
    {(void *)(uintptr_t)0x90000, 512, 256, 10, 1, 1, 0, KVF_MEMORY_HOST, 0},
};
static const kvf_region_layout layouts[] = {{4096, 4096, 10, 1, 1, 0, 0}, {512, 256, 10, 1, 1, 0, 0}};

static kvf_local_description good_head(void)
{
  return (kvf_local_description){
      .magic = KVF_LOCAL_MAGIC,
      .place = here,
      .incarnation = incarnation,
      .cookie = {9, 8, 7},
      .cookie_address = 0x5000,
      .table_address = 0x6000,
      .table_slots = 100,
      .exports_address = 0x7000,
      .pid = 123,
      .regions_count = 2,
  };
}

static char message[KVF_MESSAGE_BYTES_MAX];

/* What travels, and what stays. */
typedef struct written {
  kvf_local_description head;
  uint8_t more[64];
  uint8_t exports[256];
} written;

static written write_with(const kvf_local_description *head, const kvf_transport_memory *memory)
{
  written out = {.head = *head};
  uint8_t *exports = NULL;
  size_t bytes = 0;
  assert_int_equal(kvf_local_export(memory, &exports, &bytes, message), KVF_OK);
  assert_true(bytes <= sizeof(out.exports));
  memcpy(out.exports, exports, bytes);
  out.head.exports_bytes = bytes;
  free(exports);
  return out;
}

static written write_head(const kvf_local_description *head)
{
  const kvf_transport_memory memory = {.regions = regions, .regions_count = 2};
  return write_with(head, &memory);
}

/* Reads so many bytes, and imports what they say is exported. */
static kvf_status read_back(const written *from, size_t count, kvf_local_description *head, kvf_memory_import *imports)
{
  kvf_region_layout all[2 + KVF_GROUPS_MAX] = {layouts[0], layouts[1]};
  const kvf_memory_devices devices = kvf_memory_devices_of(regions, 2);
  message[0] = '\0';
  const kvf_pages pages = {.regions = layouts, .regions_count = 2};
  kvf_checksums_layout checksums;
  assert_int_equal(kvf_checksums_lay_out(&pages, &checksums, message), KVF_OK);
  memcpy(all + 2, checksums.rows, sizeof(checksums.rows));
  kvf_status status =
      kvf_local_description_read(&from->head, count, &here, &incarnation, 2, checksums.count, head, message);
  const kvf_memory_exports exports = {from->exports, from->head.exports_bytes};
  return status != KVF_OK ? status : kvf_local_import(head, exports, all, &devices, imports, message);
}

static void assert_refused(const kvf_local_description *bad, const char *why)
{
  written out = write_head(bad);
  kvf_local_description head;
  kvf_memory_import imports[2 + KVF_GROUPS_MAX];
  assert_int_equal(read_back(&out, sizeof(out.head), &head, imports), KVF_TRANSFER_SETUP);
  if (strstr(message, why) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", message, why);
  }
}

TEST(what_is_written_is_read)
{
  const kvf_local_description good = good_head();
  written out = write_head(&good);
  kvf_local_description head;
  kvf_memory_import imports[2 + KVF_GROUPS_MAX] = {{0}};
  assert_int_equal(read_back(&out, sizeof(out.head), &head, imports), KVF_OK);
  assert_memory_equal(&head, &out.head, sizeof(good));
  assert_int_equal(imports[0].base, 0x10000);
  assert_int_equal(imports[1].base, 0x90000);
}

TEST(any_other_length_is_refused)
{
  const kvf_local_description good = good_head();
  written out = write_head(&good);
  kvf_local_description head;
  kvf_memory_import imports[2 + KVF_GROUPS_MAX] = {{0}};
  const uint64_t whole = out.head.exports_bytes;
  for (size_t count = 0; count < sizeof(good) + 20; count++) {
    kvf_status expected = count == sizeof(good) ? KVF_OK : KVF_TRANSFER_SETUP;
    assert_int_equal(read_back(&out, count, &head, imports), expected);
  }
  assert_int_equal(read_back(&out, sizeof(good) - 1, &head, imports), KVF_TRANSFER_SETUP);
  assert_string_equal(message, "its description has 159 bytes, not 160");
  for (out.head.exports_bytes = 0; out.head.exports_bytes < whole + 20; out.head.exports_bytes++) {
    kvf_status expected = out.head.exports_bytes == whole ? KVF_OK : KVF_TRANSFER_SETUP;
    assert_int_equal(read_back(&out, sizeof(good), &head, imports), expected);
  }
}

TEST(what_is_no_description_is_refused)
{
  kvf_local_description bad = good_head();
  bad.magic++;
  assert_refused(&bad, "not one of this transport");
  bad = good_head();
  bad.regions_count = 1;
  assert_refused(&bad, "not one of this transport");
  bad = good_head();
  bad.checksums_count = 1; /* and yet no longer than without */
  assert_refused(&bad, "is not of 3 regions");
}

TEST(checksums_are_told_too)
{
  kvf_local_description head = good_head();
  kvf_memory_import imports[2 + KVF_GROUPS_MAX] = {{0}};
  kvf_region rows[] = {{.base = (void *)(uintptr_t)0x700000}};
  const kvf_transport_memory memory = {
      .regions = regions, .regions_count = 2, .checksums_count = 1, .checksums = rows, .checksums_read = rows};
  head.checksums_count = 1;
  written out = write_with(&head, &memory);
  kvf_local_description back;
  assert_int_equal(read_back(&out, sizeof(out.head), &back, imports), KVF_OK);
  assert_int_equal(back.checksums_count, 1);
  assert_int_equal(imports[2].base, 0x700000);

  rows[0].base = (void *)(uintptr_t)(INT64_MAX - 7);
  out = write_with(&head, &memory);
  assert_int_equal(read_back(&out, sizeof(out.head), &back, imports), KVF_TRANSFER_SETUP);
  assert_non_null(strstr(message, "checksums"));
  head.checksums_count = 2; /* and yet there is one group */
  out = write_with(&head, &memory);
  assert_int_equal(read_back(&out, sizeof(out.head), &back, imports), KVF_TRANSFER_SETUP);
  head.checksums_count = 0; /* and yet as long as with them */
  out = write_with(&head, &memory);
  assert_int_equal(read_back(&out, sizeof(out.head), &back, imports), KVF_TRANSFER_SETUP);
}

TEST(other_places_are_refused)
{
  kvf_local_description bad = good_head();
  bad.place.boot[2] = 'x';
  assert_refused(&bad, "another host");
  bad = good_head();
  bad.place.pid_namespace++;
  assert_refused(&bad, "process-id namespace");
  bad = good_head();
  bad.incarnation.bytes[15]++;
  assert_refused(&bad, "another incarnation");
}

TEST(impossible_values_are_refused)
{
  kvf_local_description bad = good_head();
  bad.pid = 0;
  assert_refused(&bad, "0 is no process id");
  bad = good_head();
  bad.pid = UINT32_C(1) << 31;
  assert_refused(&bad, "is no process id");
  bad = good_head();
  bad.cookie_address = 0;
  assert_refused(&bad, "its description has an impossible address");
  bad = good_head();
  bad.cookie_address = UINT64_MAX - 5;
  assert_refused(&bad, "its description has an impossible address");
  bad = good_head();
  bad.table_address = INT64_MAX - 100;
  assert_refused(&bad, "its description has an impossible address");
}

TEST(impossible_regions_are_refused)
{
  const kvf_local_description good = good_head();
  written out = write_head(&good);
  kvf_local_description head;
  kvf_memory_import imports[2 + KVF_GROUPS_MAX];
  const uint64_t last = (uint64_t)INT64_MAX - (9 * 512 + 256);
  memcpy(out.exports + out.head.exports_bytes - 8, &last, 8);
  assert_int_equal(read_back(&out, sizeof(out.head), &head, imports), KVF_OK);
  const uint64_t past = last + 1;
  memcpy(out.exports + out.head.exports_bytes - 8, &past, 8);
  assert_int_equal(read_back(&out, sizeof(out.head), &head, imports), KVF_TRANSFER_SETUP);
  assert_string_equal(message, "its region 1 cannot be read: its address is impossible");
}

TEST(this_place_is_always_the_same)
{
  const kvf_local_place first = kvf_local_place_here();
  const kvf_local_place second = kvf_local_place_here();
  assert_memory_equal(&first, &second, sizeof(first));
}
