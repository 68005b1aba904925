/* Parses numbers and ranges into a bitmap. */
#include "base/cpu_list.h"

/* Moves *text behind a number. False: there is none that is allowed. */
static bool take_number(const char **text, unsigned *out)
{
  const char *from = *text;
  *out = 0;
  for (; **text >= '0' && **text <= '9'; ++*text) {
    *out = *out * 10 + (unsigned)(**text - '0');
    if (*out >= KVF_CPU_LIST_MAX) {
      return false;
    }
  }
  return *text != from;
}

bool kvf_cpu_list_parse(const char *text, kvf_cpu_list *out)
{
  *out = (kvf_cpu_list){0};
  for (;;) {
    unsigned first = 0;
    if (!take_number(&text, &first)) {
      return false;
    }
    unsigned last = first;
    if (*text == '-') {
      text++;
      if (!take_number(&text, &last) || last < first) {
        return false;
      }
    }
    for (unsigned i = first; i <= last; i++) {
      kvf_bitmap_set(out->words, i);
    }
    if (*text != ',') {
      return *text == '\0';
    }
    text++;
  }
}
