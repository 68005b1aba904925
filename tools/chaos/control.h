/* The control file of libkvferry-chaos.so: one for each program under test, mapped by the injector in all its processes
 * and written by whoever runs the test (tools/dev/chaos/injector.py has the same layout in Python). Everything in it
 * may change at any time.
 */
#ifndef KVFERRY_CHAOS_CONTROL_H
#define KVFERRY_CHAOS_CONTROL_H

#include <stdatomic.h>
#include <stdint.h>

/* The environment variable with the file's path. Without it every call goes straight through. */
#define CHAOS_FILE_VARIABLE "KVFERRY_CHAOS_FILE"
#define CHAOS_MAGIC UINT64_C(0x534f41484346566b) /* "kVFCHAOS" */
#define CHAOS_VERSION 2u
#define CHAOS_PER_MILLION 1000000u

/* The calls that can be made to fail, by their place in the file. */
typedef enum chaos_call {
  CHAOS_PROCESS_VM_READV,
  CHAOS_SENDMSG,
  CHAOS_RECVMSG,
  CHAOS_SEND,
  CHAOS_RECV,
  CHAOS_CONNECT,
  CHAOS_UCP_GET_NBX,
  CHAOS_UCP_REQUEST_CHECK_STATUS,
  CHAOS_UCP_AM_SEND_NBX,
  CHAOS_CALLS
} chaos_call;

typedef enum chaos_kind {
  CHAOS_FAIL,    /* value: the errno, or for UCX the positive value of a ucs_status_t */
  CHAOS_DELAY,   /* value: milliseconds; then the call goes through */
  CHAOS_SHORTEN, /* fewer bytes than asked for, at least one */
  CHAOS_FLIP,    /* one byte of a received payload is not what was sent */
  CHAOS_KINDS
} chaos_kind;

/* A rule: the rate per million calls in the low half, the value in the high half. */
typedef _Atomic uint64_t chaos_rule;

typedef struct chaos_control {
  uint64_t magic;
  uint32_t version;
  uint32_t calls;      /* CHAOS_CALLS */
  uint32_t kinds;      /* CHAOS_KINDS */
  _Atomic uint32_t on; /* 0: no rule is looked at and nothing is counted */
  _Atomic uint64_t seed;
  uint64_t reserved[4];
  chaos_rule rules[CHAOS_CALLS][CHAOS_KINDS];
  _Atomic uint64_t injected[CHAOS_CALLS][CHAOS_KINDS];
} chaos_control;

_Static_assert(sizeof(chaos_control) == 64 + CHAOS_CALLS * (16 * CHAOS_KINDS), "no padding");

#endif
