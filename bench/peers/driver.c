/* The line protocol, for implementations that are driven from C. */
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "peer.h"

#define FIXED_ARGUMENTS 7 /* program, role, variant, three descriptors, size of a pool */
#define ROUNDS_MAX 100000

void bench_give_up(const char *format, ...)
{
  va_list arguments;
  va_start(arguments, format);
  (void)vfprintf(stderr, format, arguments);
  va_end(arguments);
  (void)fputc('\n', stderr);
  exit(1);
}

uint32_t peer_segments(const peer_shape *shape)
{
  return shape->layers * shape->blocks;
}

size_t peer_segment_at(const peer_shape *shape, const uint32_t *ids, uint32_t i)
{
  size_t layer = i % shape->layers;
  size_t block = ids[i / shape->layers];
  return (layer * shape->pool_blocks + block) * shape->block_bytes;
}

const char *peer_option(const peer_job *job, const char *name, const char *otherwise)
{
  size_t length = strlen(name);
  for (int i = 0; i < job->options_count; i++) {
    if (strncmp(job->options[i], name, length) == 0 && job->options[i][length] == '=') {
      return job->options[i] + length + 1;
    }
  }
  return otherwise;
}

static void *map(const char *descriptor, size_t bytes)
{
  void *memory =
      mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, (int)strtol(descriptor, NULL, 10), 0);
  bench_must(memory != MAP_FAILED, "cannot map a pool");
  return memory;
}

static const char *read_shape(peer_job *job, const char *text)
{
  char *at = NULL;
  uint32_t *fields[] = {&job->shape.layers, &job->shape.blocks, &job->shape.block_bytes, &job->shape.pool_blocks,
                        &job->parts};
  for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
    *fields[i] = (uint32_t)strtoul(text, &at, 10);
    text = at;
  }
  const peer_shape *shape = &job->shape;
  bench_must(shape->layers > 0 && shape->blocks > 0 && shape->blocks <= PEER_BLOCKS_MAX &&
                 (size_t)shape->layers * shape->pool_blocks * shape->block_bytes <= job->pool_bytes,
             "a shape that does not fit the pool");
  bench_must(job->parts >= 1 && job->parts <= PEER_PARTS_MAX && shape->blocks % job->parts == 0,
             "parts that are not of one size");
  return *text == ' ' ? text + 1 : text;
}

static void read_well(const peer_driver *driver, const peer_job *job)
{
  const char *reason = driver->read_once(job);
  bench_must(reason == NULL, reason);
}

static void step(const peer_driver *driver, const peer_job *job)
{
  driver->step(job);
}

static void run(const peer_driver *driver, const peer_job *job, unsigned long rounds,
                void (*round)(const peer_driver *driver, const peer_job *job))
{
  static uint64_t ns[ROUNDS_MAX];
  bench_must(rounds <= ROUNDS_MAX, "too many rounds");
  for (unsigned long i = 0; i < rounds; i++) {
    uint64_t begin_ns = bench_now_ns();
    round(driver, job);
    ns[i] = bench_now_ns() - begin_ns;
  }
  (void)printf("ns");
  for (unsigned long i = 0; i < rounds; i++) {
    (void)printf(" %llu", (unsigned long long)ns[i]);
  }
  (void)printf("\n");
}

static void watch(const peer_driver *driver, const peer_job *job, unsigned long limit_ms)
{
  uint64_t end_ns = bench_now_ns() + limit_ms * 1000000;
  while (bench_now_ns() < end_ns) {
    const char *reason = driver->read_once(job);
    if (reason != NULL) {
      (void)printf("failed %llu %s\n", (unsigned long long)bench_now_ns(), reason);
      return;
    }
  }
  (void)printf("fine\n");
}

/* What only a consumer does. */
static void obey_reader(const peer_driver *driver, const peer_job *job, const char *line)
{
  char *at = NULL;
  unsigned long count = strtoul(line + strcspn(line, " "), &at, 10);
  if (strncmp(line, "run ", 4) == 0) {
    for (unsigned long i = 0; i < count; i++) {
      read_well(driver, job);
    }
    run(driver, job, strtoul(at, NULL, 10), read_well);
  } else if (strncmp(line, "watch ", 6) == 0) {
    watch(driver, job, count);
  } else if (strncmp(line, "start ", 6) == 0 && driver->start != NULL) {
    for (unsigned long i = 0; i < count; i++) {
      driver->start(job);
    }
    (void)printf("done\n");
  } else if (strncmp(line, "step ", 5) == 0 && driver->step != NULL) {
    run(driver, job, count, step);
  } else {
    bench_give_up("a line that is no command");
  }
}

static void obey(const peer_driver *driver, peer_job *job, bool holds, const char *line)
{
  if (strncmp(line, "begin ", 6) == 0) {
    const char *offer = read_shape(job, line + 6);
    if (holds) {
      job->part = (uint32_t)strtoul(offer, NULL, 10);
      bench_must(job->part < job->parts, "a part that is none");
      (void)printf("offer ");
      driver->hold(job, stdout);
      (void)printf("\n");
    } else {
      driver->read(job, offer);
      (void)printf("done\n");
    }
  } else if (strcmp(line, "end") == 0) {
    (holds ? driver->hold_end : driver->read_end)(job);
    (void)printf("done\n");
  } else if (strcmp(line, "version") == 0) {
    (void)printf("version ");
    driver->version(job, stdout);
    (void)printf("\n");
  } else {
    bench_must(!holds, "a line that is no command");
    obey_reader(driver, job, line);
  }
  (void)fflush(stdout);
}

int peer_main(int argc, char **argv, const peer_driver *driver)
{
  peer_job job = {0};
  bench_must(argc >= FIXED_ARGUMENTS, "arguments: hold|read VARIANT SOURCE_FD DESTINATION_FD PLAN_FD POOL_BYTES …");
  (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
  bool holds = strcmp(argv[1], "hold") == 0;
  job.variant = argv[2];
  job.pool_bytes = strtoull(argv[6], NULL, 10);
  job.source = map(argv[3], job.pool_bytes);
  job.destination = map(argv[4], job.pool_bytes);
  job.remote_ids = map(argv[5], sizeof(uint32_t) * 2 * PEER_BLOCKS_MAX);
  job.local_ids = job.remote_ids + PEER_BLOCKS_MAX;
  job.options_count = argc - FIXED_ARGUMENTS;
  job.options = argv + FIXED_ARGUMENTS;
  char *line = NULL;
  size_t capacity = 0;
  ssize_t length;
  while ((length = getline(&line, &capacity, stdin)) > 0) {
    line[line[length - 1] == '\n' ? length - 1 : length] = '\0';
    obey(driver, &job, holds, line);
  }
  free(line);
  return 0;
}
