/* What happened, as a hash and, if wanted, as text. */
#include "world.h"

#include <inttypes.h>

static void mix(sim_world *world, uint64_t value)
{
  uint64_t hash = world->result->hash ^ value;
  hash *= UINT64_C(0x9e3779b97f4a7c15);
  world->result->hash = hash ^ (hash >> 29);
}

static void print_node(const sim_world *world, uint32_t index)
{
  if (index >= SIM_NODES_MAX) {
    (void)fprintf(world->trace, "%-8s", "");
    return;
  }
  uint32_t engine = index / SIM_NODES_EACH;
  uint32_t rank = index % SIM_NODES_EACH;
  const char *side = engine < world->producers ? "P" : "D";
  if (rank < SIM_RANKS_MAX) {
    (void)fprintf(world->trace, "%s%" PRIu32 ".%-5" PRIu32, side, engine, rank);
  } else {
    (void)fprintf(world->trace, "%s%" PRIu32 ".%-5s", side, engine, "ctl");
  }
}

static void print_what(FILE *out, const char *what, const uint64_t values[3])
{
  uint32_t next = 0;
  for (const char *at = what; *at != '\0'; at++) {
    if (*at == '%' && next < 3) {
      (void)fprintf(out, "%" PRIu64, values[next++]);
    } else if (*at == '$' && next < 3) {
      (void)fputs(kvf_status_name((int)(int64_t)values[next++]), out);
    } else {
      (void)fputc(*at, out);
    }
  }
  (void)fputc('\n', out);
}

void sim_note(sim_world *world, uint32_t node, const char *what, uint64_t a, uint64_t b, uint64_t c)
{
  uint64_t text = 0;
  for (const char *at = what; *at != '\0'; at++) {
    text = text * 31 + (uint8_t)*at;
  }
  mix(world, world->now_ns);
  mix(world, text + node);
  mix(world, a);
  mix(world, b + (c << 32));
  if (world->trace != NULL) {
    const uint64_t values[3] = {a, b, c};
    (void)fprintf(world->trace, "%10.3f ms  ", (double)world->now_ns / (double)SIM_MS);
    print_node(world, node);
    print_what(world->trace, what, values);
  }
}

void sim_log_line(void *context, kvf_log_level level, const char *line)
{
  const sim_world *world = context;
  (void)level;
  if (world->trace != NULL) {
    (void)fprintf(world->trace, "%10.3f ms            log: %s\n", (double)world->now_ns / (double)SIM_MS, line);
  }
}
