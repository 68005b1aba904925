/* What other threads ask of a transport's data thread: commands in the order in which they came, and the wake-up. Used
 * by the transports whose state is one thread's (tcp, ucx).
 */
#ifndef KVF_TRANSPORT_COMMANDS_H
#define KVF_TRANSPORT_COMMANDS_H

#include <pthread.h>

#include "base/list.h"
#include "transport/transport.h"

/* `owner` is the transport's own structure. */
typedef struct kvf_command {
  kvf_list in_commands;
  void (*run)(void *owner, struct kvf_command *command);
} kvf_command;

typedef struct kvf_commands {
  int wake_fd; /* readable when the data thread is to wake up */
  pthread_mutex_t
      lock; /* guards what follows; never held during a system call that can wait, or a call of the host's */
  pthread_cond_t answered;
  kvf_list list;
  bool asleep; /* the data thread waits, or is about to */
  bool closing;
} kvf_commands;

void kvf_command_init(kvf_command *command, void (*run)(void *owner, kvf_command *command));
/* wake_fd is -1 if the system has no descriptor left (errno); kvf_commands_free() is to be called all the same. */
void kvf_commands_init(kvf_commands *commands);
void kvf_commands_free(kvf_commands *commands);

static inline void kvf_commands_lock(kvf_commands *commands)
{
  (void)pthread_mutex_lock(&commands->lock);
}
static inline void kvf_commands_unlock(kvf_commands *commands)
{
  (void)pthread_mutex_unlock(&commands->lock);
}

/* ---- any thread ---- */

/* With the lock. A command that waits already is not put twice. */
void kvf_commands_post(kvf_commands *commands, kvf_command *command);
/* Without the lock: has the data thread call what(owner, argument), and waits for what it returns. */
kvf_status kvf_commands_ask(kvf_commands *commands, kvf_status (*what)(void *owner, void *argument), void *argument);
/* Without the lock: the data thread is to end when it has run what was posted. */
void kvf_commands_stop(kvf_commands *commands);
/* Without the lock: the data thread is to look again at what it waits for; or only if there is something to run. */
void kvf_commands_wake(kvf_commands *commands, bool if_any);

/* ---- the data thread, without the lock ---- */

/* The next command, taken out; NULL: none waits. */
kvf_command *kvf_commands_next(kvf_commands *commands);
/* Runs all that wait. A command's time begins when it comes, not when the turn did: *now_ns is set for each. False:
 * none waited. */
bool kvf_commands_run(kvf_commands *commands, void *owner, uint64_t *now_ns);

typedef enum kvf_idleness {
  KVF_BUSY,   /* something waits to be run: look for events, but do not wait for them */
  KVF_IDLE,   /* what is posted from now on makes wake_fd readable */
  KVF_STOPPED /* idle, and kvf_commands_stop() has been called */
} kvf_idleness;

/* Before waiting for events, which kvf_commands_woken() must follow. */
kvf_idleness kvf_commands_rest(kvf_commands *commands);
void kvf_commands_woken(kvf_commands *commands);
/* wake_fd was readable. */
void kvf_commands_drain(kvf_commands *commands);

#endif
