/* The version that the library was built as. */
#include "kvferry/kvferry.h"

const char *kvf_version(void)
{
  return KVF_VERSION_TEXT;
}
