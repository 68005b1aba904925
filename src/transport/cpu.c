/* Whether the processor has instructions for AES, as x86-64 and arm64 say it. */
#include "transport/cpu.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

bool kvf_cpu_has_aes(void)
{
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") != 0 && __builtin_cpu_supports("pclmul") != 0;
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0;
#else
  return true;
#endif
}
