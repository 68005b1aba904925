/* Coverage marks: names of what went wrong, at the branches that deal with it, so that a set of test runs can be asked
 * which of them it has reached. The build option `marks` counts them; elsewhere KVF_MARK() is nothing.
 *
 * `if (table_is_full) { KVF_MARK(leases_full); return KVF_NO_LEASE; }`
 *
 * A name is in lower case and occurs once in src/. A mark is reported by what the tests link in
 * (tests/coverage/mark_report.c), and `./dev coverage` fails where one was not reached. */
#ifndef KVF_BASE_MARK_H
#define KVF_BASE_MARK_H

typedef struct kvf_mark {
  const char *file;
  const char *name;
  unsigned line;
  unsigned long count;
} kvf_mark;

#ifdef KVF_MARKS_BUILT
/* The section holds pointers, since compilers align larger objects as they like, which leaves gaps in an array. */
#define KVF_MARK(mark_name)                                                                               \
  do {                                                                                                    \
    static kvf_mark kvf_mark_here = {.file = __FILE__, .name = #mark_name, .line = __LINE__, .count = 0}; \
    static kvf_mark *kvf_mark_entry __attribute__((section("kvf_marks"), used)) = &kvf_mark_here;         \
    (void)__atomic_fetch_add(&kvf_mark_here.count, 1, __ATOMIC_RELAXED);                                  \
  } while (0)
#else
#define KVF_MARK(mark_name) ((void)0)
#endif

#endif
