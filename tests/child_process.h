/* This very program, once more, in a process of its own that can be stopped and killed: it is started with `mode` as
 * its one argument, and its standard input is the other end of `channel`. */
#ifndef KVF_TESTS_CHILD_PROCESS_H
#define KVF_TESTS_CHILD_PROCESS_H

#include <sys/types.h>

#include "kvferry/types.h"

typedef struct child_process {
  pid_t pid;
  int channel;
} child_process;

/* `socket_type`: SOCK_STREAM or SOCK_SEQPACKET. False: it was not started, and nothing is left of it. */
KVF_MUST_USE bool child_start(child_process *child, const char *mode, int socket_type);
/* Begun by no fork handler, with copies of all descriptors, and without a channel: it waits for its end. */
child_process child_idle(void);
/* SIGSTOP; returns when it stands still. */
KVF_MUST_USE bool child_stop(const child_process *child);
KVF_MUST_USE bool child_continue(const child_process *child);
/* Closes the channel, by which a child of these tests ends, and waits until it has. Returns its wait status. */
int child_end(const child_process *child);
/* SIGKILL; whether that is what has ended it. */
KVF_MUST_USE bool child_kill(const child_process *child);

/* ---- at either end of the channel. False: the other side has gone. ---- */

KVF_MUST_USE bool child_send(int channel, const void *data, size_t bytes);
KVF_MUST_USE bool child_receive(int channel, void *data, size_t bytes);

#endif
