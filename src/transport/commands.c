/* Commands in a list under a lock, and an eventfd that is written to only while the data thread sleeps. */
#include "transport/commands.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include "memory/own_fds.h"
#include "transport/thread.h"

void kvf_command_init(kvf_command *command, void (*run)(void *owner, kvf_command *command))
{
  kvf_list_init(&command->in_commands);
  command->run = run;
}

void kvf_commands_init(kvf_commands *commands)
{
  *commands = (kvf_commands){.wake_fd = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK))};
  kvf_list_init(&commands->list);
  (void)pthread_mutex_init(&commands->lock, NULL);
  (void)pthread_cond_init(&commands->answered, NULL);
}

void kvf_commands_free(kvf_commands *commands)
{
  kvf_own_fd_close(commands->wake_fd);
  (void)pthread_cond_destroy(&commands->answered);
  (void)pthread_mutex_destroy(&commands->lock);
}

/* ---- any thread ---- */

static void wake(kvf_commands *commands)
{
  if (commands->asleep) {
    commands->asleep = false;
    uint64_t one = 1;
    ssize_t written = write(commands->wake_fd, &one, sizeof(one));
    (void)written; /* it can fail only when it is full of wakes */
  }
}

void kvf_commands_post(kvf_commands *commands, kvf_command *command)
{
  kvf_list_ensure_back(&commands->list, &command->in_commands);
  wake(commands);
}

typedef struct question {
  kvf_command command;
  kvf_commands *commands;
  kvf_status (*what)(void *owner, void *argument);
  void *argument;
  kvf_status status;
  bool is_answered; /* with the lock */
} question;

static void answer(void *owner, kvf_command *command)
{
  question *asked = KVF_CONTAINER_OF(command, question, command);
  kvf_commands *commands = asked->commands;
  asked->status = asked->what(owner, asked->argument);
  kvf_commands_lock(commands);
  asked->is_answered = true;
  (void)pthread_cond_broadcast(&commands->answered);
  kvf_commands_unlock(commands);
}

kvf_status kvf_commands_ask(kvf_commands *commands, kvf_status (*what)(void *owner, void *argument), void *argument)
{
  question asked = {.commands = commands, .what = what, .argument = argument};
  kvf_command_init(&asked.command, answer);
  kvf_commands_lock(commands);
  kvf_commands_post(commands, &asked.command);
  while (!asked.is_answered) {
    (void)pthread_cond_wait(&commands->answered, &commands->lock);
  }
  kvf_commands_unlock(commands);
  return asked.status;
}

void kvf_commands_stop(kvf_commands *commands)
{
  kvf_commands_lock(commands);
  commands->closing = true;
  wake(commands);
  kvf_commands_unlock(commands);
}

void kvf_commands_wake(kvf_commands *commands, bool if_any)
{
  kvf_commands_lock(commands);
  if (!if_any || !kvf_list_is_empty(&commands->list)) {
    wake(commands);
  }
  kvf_commands_unlock(commands);
}

/* ---- the data thread ---- */

kvf_command *kvf_commands_next(kvf_commands *commands)
{
  kvf_commands_lock(commands);
  kvf_list *node = kvf_list_pop_front(&commands->list);
  kvf_commands_unlock(commands);
  return node == NULL ? NULL : KVF_CONTAINER_OF(node, kvf_command, in_commands);
}

bool kvf_commands_run(kvf_commands *commands, void *owner, uint64_t *now_ns)
{
  kvf_command *command;
  bool ran = false;
  while ((command = kvf_commands_next(commands)) != NULL) {
    *now_ns = kvf_clock_now();
    command->run(owner, command);
    ran = true;
  }
  return ran;
}

kvf_idleness kvf_commands_rest(kvf_commands *commands)
{
  kvf_commands_lock(commands);
  bool idle = kvf_list_is_empty(&commands->list);
  kvf_idleness found = !idle ? KVF_BUSY : commands->closing ? KVF_STOPPED : KVF_IDLE;
  commands->asleep = idle;
  kvf_commands_unlock(commands);
  return found;
}

void kvf_commands_woken(kvf_commands *commands)
{
  kvf_commands_lock(commands);
  commands->asleep = false;
  kvf_commands_unlock(commands);
}

void kvf_commands_drain(kvf_commands *commands)
{
  uint64_t wakes;
  ssize_t got = read(commands->wake_fd, &wakes, sizeof(wakes));
  (void)got;
}
