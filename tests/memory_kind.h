/* Kinds of memory that nothing but their own operations can touch. One of the tests' own: a memfd, mapped as a region
 * to PROT_NONE, so that a stray read or write crashes, and once more for the operations and the test. Linked with
 * --wrap of kvf_memory_ops_of and kvf_memory_kind_name, a program has it beside the library's own. */
#ifndef KVF_TESTS_MEMORY_KIND_H
#define KVF_TESTS_MEMORY_KIND_H

#include <stdatomic.h>

#include "memory/memory.h"

#define TEST_MEMORY 7u       /* its kind's number; its name is "test" */
#define TEST_MEMORY_OTHER 8u /* "other": the same, but that no other process can read it */
#define TEST_MEMORY_DEVICES 2

/* As in a library that does not know the kind yet, until it is true again. */
extern atomic_bool test_memory_is_known;

/* While it is true each copy and checksum of its devices fails. */
extern atomic_bool test_memory_fails;

/* While it is true each read of an import of its stands still, as a device may; how many do. */
extern atomic_bool test_memory_stalls;
extern atomic_uint test_memory_stalled;

/* For a region's base: of TEST_MEMORY and TEST_MEMORY_OTHER, or of CUDA's device 0 (cuda_driver.h). Zeroed; never
 * NULL. */
void *test_memory_allocate(uint32_t kind, size_t bytes);
/* CUDA's, by cuda_driver_map(); the test itself reads and writes it by the two calls below alone. */
void *test_memory_map(size_t bytes);
/* Where the test itself reads and writes what lies at this address, which may also be the host's; NULL: in a real
 * device's memory, nowhere. */
uint8_t *test_memory_bytes(const void *address);
/* The same, in any memory: what lies there, into the host's memory; and from there. */
void test_memory_get(void *to, const void *address, size_t bytes);
void test_memory_put(void *address, const void *from, size_t bytes);
void test_memory_set(void *address, uint8_t value, size_t bytes);
bool test_memory_all_are(const void *address, uint8_t value, size_t bytes);
/* From here on its operations crash, too; CUDA's is freed. */
void test_memory_withdraw(void *base);
void test_memory_free(void *base);

/* What an ordering point's handle names. */
typedef struct test_event {
  atomic_bool complete;
  atomic_uint marks; /* that have been made, and not been given back */
  atomic_uint asked; /* how often */
} test_event;

kvf_ordering_point test_point(test_event *event);

/* Imports that have not been released, of this process. */
unsigned test_memory_imports(void);
/* Whether there are none left, soon. */
bool test_memory_is_released(void);

#endif
