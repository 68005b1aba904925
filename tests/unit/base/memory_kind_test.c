/* Each kind of memory has a name, and numbers that are none are "unknown". */
#include "kvferry/types.h"
#include "test.h"

TEST(kinds_have_names)
{
  assert_string_equal(kvf_memory_kind_name(KVF_MEMORY_HOST), "host");
  assert_string_equal(kvf_memory_kind_name(KVF_MEMORY_CUDA), "cuda");
  assert_string_equal(kvf_memory_kind_name(-1), "unknown");
  assert_string_equal(kvf_memory_kind_name(KVF_MEMORY_KINDS_MAX), "unknown");
}
