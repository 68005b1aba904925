/* Makes a tape from a seed, and reads and writes tapes as text. */
#include "tape.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/prng.h"

void sim_tape_of_seed(uint64_t seed, uint8_t data[SIM_TAPE_BYTES])
{
  kvf_prng prng = {.state = seed};
  for (size_t at = 0; at < SIM_TAPE_BYTES; at += sizeof(uint64_t)) {
    uint64_t word = kvf_prng_next(&prng);
    for (size_t i = 0; i < sizeof(word); i++) {
      data[at + i] = (uint8_t)(word >> (8 * i));
    }
  }
}

/* ---- files ---- */

#define BYTES_PER_LINE 40

static int digit(char c)
{
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool read_line(const char *line, uint8_t *data, size_t *bytes)
{
  const char *at = line;
  while (line[0] != '#' && digit(at[0]) >= 0 && digit(at[1]) >= 0 && *bytes < SIM_TAPE_FILE_BYTES) {
    data[(*bytes)++] = (uint8_t)(digit(at[0]) * 16 + digit(at[1]));
    at += 2;
  }
  return line[0] == '#' || *at == '\n' || *at == '\0';
}

bool sim_tape_read(const char *link_id, uint8_t data[SIM_TAPE_FILE_BYTES], size_t *bytes)
{
  char line[512];
  bool good = true;
  FILE *file = fopen(link_id, "r");
  if (file == NULL) {
    (void)fprintf(stderr, "%s: %s\n", link_id, strerror(errno));
    return false;
  }
  *bytes = 0;
  while (good && fgets(line, sizeof(line), file) != NULL) {
    good = read_line(line, data, bytes);
  }
  (void)fclose(file);
  if (!good) {
    (void)fprintf(stderr, "%s: not a tape: lines of pairs of hexadecimal digits, or of '# text'\n", link_id);
  }
  return good;
}

bool sim_tape_write(const char *link_id, const uint8_t *data, size_t bytes, const char *what)
{
  FILE *file = fopen(link_id, "w");
  if (file == NULL) {
    (void)fprintf(stderr, "%s: %s\n", link_id, strerror(errno));
    return false;
  }
  (void)fprintf(file, "# %s\n", what);
  for (size_t i = 0; i < bytes; i++) {
    (void)fprintf(file, "%02x%s", data[i], i % BYTES_PER_LINE == BYTES_PER_LINE - 1 || i + 1 == bytes ? "\n" : "");
  }
  return fclose(file) == 0;
}
