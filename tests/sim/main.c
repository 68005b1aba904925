/* kvferry-sim: see docs/simulation.md. */
#include <argp.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "child.h"
#include "pool.h"
#include "shrink.h"
#include "tape.h"

#define SHRINK_SECONDS 60
#define SHRINK_SECONDS_OF_FINDING 15
#define TRACE_BYTES_SHOWN 9000

enum { OPTION_SEED = 1000, OPTION_HASH, OPTION_JSON, OPTION_SEARCH, OPTION_STARTS, OPTION_MOST, OPTION_KEEP };

typedef struct arguments {
  uint64_t first;
  uint64_t count;
  unsigned seconds;
  unsigned jobs;
  bool trace;
  bool shrink;
  bool hash;
  bool search;
  const char *tape;
  const char *json;
  const char *keep;
  sim_search_task task;
} arguments;

static const struct argp_option options[] = {
    {"seeds", 's', "A..B|COUNT", 0, "these seeds, or so many fresh ones", 0},
    {"seconds", 't', "N", 0, "fresh seeds for so long (default 60)", 0},
    {"jobs", 'j', "N", 0, "processes (default: as many as cores)", 0},
    {"tape", 'f', "FILE", 0, "runs this saved tape", 0},
    {"trace", 'v', NULL, 0, "prints what happens (of one seed, or a tape)", 0},
    {"shrink", 'x', NULL, 0, "makes what --tape or --seeds A..A finds as small as it can, into --keep", 0},
    {"keep", OPTION_KEEP, "FILE", 0, "where a shrunk tape goes (default found.tape)", 0},
    {"hash", OPTION_HASH, NULL, 0, "prints the hash of all that happened, of each seed or of a tape", 0},
    {"json", OPTION_JSON, "FILE", 0, "writes the numbers to it", 0},
    {"search", OPTION_SEARCH, NULL, 0, "after how many seeds is something found?", 0},
    {"starts", OPTION_STARTS, "N", 0, "with --search: from how many seeds (default 5)", 0},
    {"most", OPTION_MOST, "N", 0, "with --search: seeds from each start (default 20000)", 0},
    {0},
};

static uint64_t fresh_seed(void)
{
  struct timespec now;
  (void)clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000 + (uint64_t)now.tv_nsec / 1000;
}

static uint64_t number(const char *text, const struct argp_state *state)
{
  char *end;
  errno = 0;
  uint64_t value = strtoull(text, &end, 10);
  if (errno != 0 || end == text || (*end != '\0' && *end != '.')) {
    argp_error(state, "'%s' is not a number", text);
  }
  return value;
}

static void set_seeds(arguments *out, const char *text, const struct argp_state *state)
{
  const char *dots = strstr(text, "..");
  if (dots == NULL) {
    out->count = number(text, state);
    return;
  }
  out->first = number(text, state);
  uint64_t last = number(dots + 2, state);
  if (last < out->first) {
    argp_error(state, "'%s': the first is not below the last", text);
  }
  out->count = last - out->first + 1;
}

static error_t set_option(int key, char *value, struct argp_state *state)
{
  arguments *out = state->input;
  switch (key) {
    case 's':
      set_seeds(out, value, state);
      break;
    case 't':
      out->seconds = (unsigned)number(value, state);
      break;
    case 'j':
      out->jobs = (unsigned)number(value, state);
      break;
    case 'f':
      out->tape = value;
      break;
    case 'v':
      out->trace = true;
      break;
    case 'x':
      out->shrink = true;
      break;
    case OPTION_SEARCH:
      out->search = true;
      break;
    case OPTION_HASH:
      out->hash = true;
      break;
    case OPTION_JSON:
      out->json = value;
      break;
    case OPTION_KEEP:
      out->keep = value;
      break;
    case OPTION_STARTS:
      out->task.starts = (unsigned)number(value, state);
      break;
    case OPTION_MOST:
      out->task.seeds_max = number(value, state);
      break;
    default:
      return ARGP_ERR_UNKNOWN;
  }
  return 0;
}

/* ---- one tape ---- */

static void print_finding(const kvf_sim_result *result)
{
  printf("%s: %s\n", result->promise, result->text);
}

/* The end of the trace: what led to the finding. */
static void print_trace(const uint8_t *tape, size_t bytes, long most)
{
  kvf_sim_result result;
  char line[1024];
  FILE *file = tmpfile();
  if (file == NULL) {
    return;
  }
  sim_child_run(tape, bytes, file, &result);
  (void)fseek(file, 0, SEEK_END);
  long end = ftell(file);
  if (most > 0 && end > most) {
    (void)fseek(file, end - most, SEEK_SET);
    printf("...\n");
    (void)fgets(line, sizeof(line), file);
  } else {
    (void)fseek(file, 0, SEEK_SET);
  }
  while (fgets(line, sizeof(line), file) != NULL) {
    (void)fputs(line, stdout);
  }
  (void)fclose(file);
}

static int run_tape(const arguments *given, uint8_t *tape, size_t bytes)
{
  kvf_sim_result result;
  sim_child_run(tape, bytes, NULL, &result);
  if (given->shrink && result.found) {
    char what[KVF_SIM_TEXT_BYTES + 16];
    sim_shrink(tape, &bytes, SHRINK_SECONDS, &result);
    (void)snprintf(what, sizeof(what), "%s: %s", result.promise, result.text);
    if (sim_tape_write(given->keep, tape, bytes, what)) {
      printf("%zu bytes: %s\n", bytes, given->keep);
    }
  }
  if (given->trace) {
    print_trace(tape, bytes, 0);
  }
  if (result.found) {
    print_finding(&result);
    return 1;
  }
  printf("nothing found: %" PRIu64 " events, %" PRIu32 " loads, hash %016" PRIx64 "\n", result.events, result.loads,
         result.hash);
  return 0;
}

static int run_tape_file(const arguments *given)
{
  uint8_t tape[SIM_TAPE_FILE_BYTES];
  size_t bytes;
  return sim_tape_read(given->tape, tape, &bytes) ? run_tape(given, tape, bytes) : 2;
}

static int run_one_seed(const arguments *given)
{
  uint8_t tape[SIM_TAPE_FILE_BYTES] = {0};
  sim_tape_of_seed(given->first, tape);
  return run_tape(given, tape, SIM_TAPE_BYTES);
}

/* A run that found something may have ended before its hash was made. */
static bool print_hash(const char *name, const uint8_t *tape, size_t bytes)
{
  kvf_sim_result result;
  sim_child_run(tape, bytes, NULL, &result);
  printf("%s %016" PRIx64 "%s%s\n", name, result.hash, result.found ? " " : "", result.promise);
  return !result.found;
}

static int print_hashes(const arguments *given)
{
  uint8_t tape[SIM_TAPE_FILE_BYTES];
  bool good = true;
  if (given->tape != NULL) {
    size_t bytes;
    return sim_tape_read(given->tape, tape, &bytes) ? !print_hash(given->tape, tape, bytes) : 2;
  }
  for (uint64_t i = 0; i < given->count; i++) {
    char name[24];
    (void)snprintf(name, sizeof(name), "%" PRIu64, given->first + i);
    sim_tape_of_seed(given->first + i, tape);
    good = print_hash(name, tape, SIM_TAPE_BYTES) && good;
  }
  return good ? 0 : 1;
}

/* ---- many seeds ---- */

static void explain(const char *program, const sim_finding *finding)
{
  uint8_t tape[SIM_TAPE_FILE_BYTES];
  size_t bytes = SIM_TAPE_BYTES;
  kvf_sim_result result = finding->result;
  sim_tape_of_seed(finding->seed, tape);
  sim_shrink(tape, &bytes, SHRINK_SECONDS_OF_FINDING, &result);
  printf("\nseed %" PRIu64 ", shrunk to %zu bytes:\n", finding->seed, bytes);
  print_trace(tape, bytes, TRACE_BYTES_SHOWN);
  print_finding(&result);
  printf("replay: %s --seeds %" PRIu64 "..%" PRIu64 " --trace   (and --shrink, to keep its tape)\n", program,
         finding->seed, finding->seed);
}

static bool write_json(const char *link_id, const sim_pool_outcome *outcome)
{
  FILE *file = fopen(link_id, "w");
  if (file == NULL) {
    (void)fprintf(stderr, "%s: %s\n", link_id, strerror(errno));
    return false;
  }
  (void)fprintf(file, "{\"seeds\": %" PRIu64 ", \"findings\": %" PRIu32 ", \"seconds\": %.1f}\n", outcome->seeds,
                outcome->findings_count, outcome->seconds);
  return fclose(file) == 0;
}

static int run_seeds(const char *program, const arguments *given)
{
  static sim_pool_outcome outcome;
  sim_pool_task task = {.first = given->first,
                        .count = given->count,
                        .seconds = given->seconds,
                        .jobs = given->jobs,
                        .progress = isatty(STDERR_FILENO) == 1};
  printf("seeds from %" PRIu64 ", %u processes\n", task.first, task.jobs);
  if (!sim_pool_run(&task, &outcome)) {
    return 2;
  }
  printf("%" PRIu64 " seeds in %.1f s, %.1f loads a seed, %.1f requests used what they loaded: %" PRIu32 " findings\n",
         outcome.seeds, outcome.seconds, (double)outcome.loads / (double)(outcome.seeds + (outcome.seeds == 0)),
         (double)outcome.used / (double)(outcome.seeds + (outcome.seeds == 0)), outcome.findings_count);
  for (uint32_t i = 0; i < outcome.findings_count; i++) {
    printf("  seed %" PRIu64 ": %s: %s\n", outcome.findings[i].seed, outcome.findings[i].result.promise,
           outcome.findings[i].result.text);
  }
  if (outcome.findings_count > 0) {
    explain(program, &outcome.findings[0]);
  }
  if (given->json != NULL && !write_json(given->json, &outcome)) {
    return 2;
  }
  return outcome.findings_count == 0 ? 0 : 1;
}

int main(int argc, char **argv)
{
  const struct argp parser = {.options = options,
                              .parser = set_option,
                              .doc = "Simulated clusters of kvferry, with every fault there is: docs/simulation.md"};
  arguments given = {.first = fresh_seed(),
                     .jobs = (unsigned)sysconf(_SC_NPROCESSORS_ONLN),
                     .keep = "found.tape",
                     .task = {.starts = 5, .seeds_max = 20000}};
  if (argp_parse(&parser, argc, argv, 0, NULL, &given) != 0) {
    return 2;
  }
  if (given.search) {
    given.task.first = given.count == 0 ? 1 : given.first;
    given.task.jobs = given.jobs;
    return sim_search_run(&given.task);
  }
  if (given.hash) {
    return print_hashes(&given);
  }
  if (given.tape != NULL) {
    return run_tape_file(&given);
  }
  if (given.count == 1) {
    return run_one_seed(&given);
  }
  if (given.count == 0) {
    given.count = UINT64_MAX;
    given.seconds = given.seconds == 0 ? 60 : given.seconds;
  }
  return run_seeds(argv[0], &given);
}
