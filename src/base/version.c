#include "kvferry/kvferry.h"

const char *kvf_version(void)
{
  return KVF_VERSION_TEXT;
}
