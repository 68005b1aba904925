/* Whether this is a build for a sanitizer: it slows everything down, and sees what it looks for in the first rounds. */
#ifndef KVF_TESTS_SANITIZER_H
#define KVF_TESTS_SANITIZER_H

#include <stdbool.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED true
#endif
#endif
#ifndef SANITIZED
#define SANITIZED false
#endif
#ifdef __SANITIZE_THREAD__
#define SANITIZED_THREADS true
#else
#define SANITIZED_THREADS false
#endif

#endif
