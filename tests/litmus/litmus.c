/* litmus: see litmus.h. */
#include <argp.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "litmus.h"

#define SKIPPED 77
#define ROUNDS_PER_LOOK 64
/* A run goes on past its time, up to this, until it has seen at least so many leases of each kind: a machine may give
 * two threads one processor for a while. */
#define SECONDS_MAX 120ul
#define LIVE_MIN 200
#define OVER_MIN 10

typedef struct litmus_mode {
  const char *name;
  litmus_copy_fn copy_and_sample;
  bool process;
  bool mapped; /* the fence table, by the reader */
  bool streams;
  bool handover;
} litmus_mode;

static const litmus_mode modes[] = {
    {.name = "threads", .copy_and_sample = litmus_copy_by_loads},
    {.name = "streams", .copy_and_sample = litmus_copy_by_loads, .streams = true},
    {.name = "handover", .copy_and_sample = litmus_copy_by_handover, .handover = true},
    {.name = "socket", .copy_and_sample = litmus_copy_by_socket},
    {.name = "processes", .copy_and_sample = litmus_copy_by_process, .process = true},
    {.name = "mapped", .copy_and_sample = litmus_copy_by_process, .process = true, .mapped = true},
};

typedef struct litmus_arguments {
  const litmus_mode *mode;
  bool is_planted;
  unsigned long seconds;
  unsigned long seed;
} litmus_arguments;

static uint64_t now_ms(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static bool is_wrong(const litmus_count *count)
{
  return count->foreign > 0 || count->torn > 0;
}

static bool has_seen_enough(const litmus_count *count, const litmus_mode *mode)
{
  return count->live >= LIVE_MIN && (mode->handover || count->over >= OVER_MIN);
}

/* With a planted bug, until it is found. */
static void read_on(litmus_reader *reader, const litmus_arguments *arguments)
{
  const uint64_t begin_ms = now_ms();
  uint64_t spent_ms = 0;
  bool done = false;
  while (!done && !is_wrong(&reader->count)) {
    for (int i = 0; i < ROUNDS_PER_LOOK; i++) {
      litmus_read(reader);
    }
    spent_ms = now_ms() - begin_ms;
    done = spent_ms >= SECONDS_MAX * 1000 || (spent_ms >= arguments->seconds * 1000 && !arguments->is_planted &&
                                              has_seen_enough(&reader->count, arguments->mode));
  }
  const litmus_count *count = &reader->count;
  (void)printf("%s: %llu rounds in %.1f s: %llu live, %llu over, %llu not published\n", arguments->mode->name,
               (unsigned long long)count->rounds, (double)spent_ms / 1000, (unsigned long long)count->live,
               (unsigned long long)count->over, (unsigned long long)count->early);
}

static void *produce(void *context)
{
  litmus_world *world = context;
  return litmus_produce(world) ? world : NULL;
}

static void await_producer(litmus_world *world)
{
  while (!atomic_load(&world->ready)) {
    (void)usleep(100);
  }
}

static bool run_threads(litmus_reader *reader, const litmus_arguments *arguments)
{
  pthread_t thread;
  if (pthread_create(&thread, NULL, produce, reader->world) != 0) {
    return false;
  }
  await_producer(reader->world);
  read_on(reader, arguments);
  atomic_store(&reader->world->stop, true);
  (void)pthread_join(thread, NULL);
  kvf_fence_table_close(reader->world->table, LITMUS_SLOTS);
  free(reader->world->blocks);
  return true;
}

static bool run_processes(litmus_reader *reader, const litmus_arguments *arguments)
{
  bool mapped = true;
  reader->producer = fork();
  if (reader->producer == 0) {
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    _exit(litmus_produce(reader->world) ? EXIT_SUCCESS : EXIT_FAILURE);
  }
  if (reader->producer < 0) {
    return false;
  }
  await_producer(reader->world);
  if (arguments->mode->mapped) {
    reader->fence =
        kvf_fence_table_map(reader->producer, (uint32_t)reader->world->table_fd, LITMUS_SLOTS, &litmus_incarnation);
    mapped = reader->fence != NULL;
  }
  if (mapped) {
    read_on(reader, arguments);
  }
  kvf_fence_table_close(reader->fence, LITMUS_SLOTS);
  (void)kill(reader->producer, SIGKILL);
  return waitpid(reader->producer, NULL, 0) == reader->producer && mapped;
}

static bool run(litmus_reader *reader, const litmus_arguments *arguments)
{
  void *shared = mmap(NULL, sizeof(litmus_world), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED || socketpair(AF_UNIX, SOCK_STREAM, 0, reader->pipe) != 0) {
    return false;
  }
  const int room = 2 * (int)sizeof(reader->copy);
  (void)setsockopt(reader->pipe[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof(room));
  reader->world = shared;
  reader->copy_and_sample = arguments->mode->copy_and_sample;
  reader->prng.state = arguments->seed;
  reader->world->seed = arguments->seed + 1;
  reader->world->streams = arguments->mode->streams;
  reader->world->handover = arguments->mode->handover;
  bool ran = arguments->mode->process ? run_processes(reader, arguments) : run_threads(reader, arguments);
  (void)close(reader->pipe[0]);
  (void)close(reader->pipe[1]);
  (void)munmap(shared, sizeof(litmus_world));
  return ran;
}

static int verdict(const litmus_reader *reader, const litmus_arguments *arguments)
{
  if (arguments->is_planted) {
    bool found = is_wrong(&reader->count);
    (void)printf("planted bug: %s\n", found ? "found" : "NOT FOUND");
    return found ? EXIT_SUCCESS : EXIT_FAILURE;
  }
  if (!is_wrong(&reader->count) && !has_seen_enough(&reader->count, arguments->mode)) {
    (void)printf("too few leases were read to tell\n");
    return EXIT_FAILURE;
  }
  return is_wrong(&reader->count) ? EXIT_FAILURE : EXIT_SUCCESS;
}

static error_t parse(int key, char *text, struct argp_state *state)
{
  litmus_arguments *arguments = state->input;
  switch (key) {
    case 'm':
      for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        arguments->mode = strcmp(modes[i].name, text) == 0 ? &modes[i] : arguments->mode;
      }
      break;
    case 'b':
      arguments->is_planted = true;
      break;
    case 's':
      arguments->seconds = strtoul(text, NULL, 10);
      break;
    case 'r':
      arguments->seed = strtoul(text, NULL, 10);
      break;
    case ARGP_KEY_END:
      if (arguments->mode == NULL) {
        argp_error(state, "--mode is missing, or none of those below --help names");
      }
      break;
    default:
      return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

static const struct argp_option options[] = {
    {.name = "mode", .key = 'm', .arg = "MODE", .doc = "threads, streams, handover, socket, processes or mapped"},
    {.name = "seconds", .key = 's', .arg = "N", .doc = "how long (4)"},
    {.name = "seed", .key = 'r', .arg = "N", .doc = "of how long leases live (the time)"},
    {.name = "planted", .key = 'b', .doc = "there is a planted bug (tests/mutants), which must be found"},
    {0},
};

int main(int count, char **words)
{
  static litmus_reader reader;
  static const struct argp parser = {
      .options = options, .parser = parse, .doc = "Litmus test of the fence: live after the copy means right bytes."};
  litmus_arguments arguments = {.seconds = 4, .seed = now_ms()};
  (void)argp_parse(&parser, count, words, 0, NULL, &arguments);
  if (arguments.mode->streams && !litmus_has_streams()) {
    (void)printf("no streaming stores on this processor\n");
    return SKIPPED;
  }
  if (!run(&reader, &arguments)) {
    (void)printf("no memory, thread or process\n");
    return EXIT_FAILURE;
  }
  return verdict(&reader, &arguments);
}
