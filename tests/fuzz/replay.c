/* Runs a target without libFuzzer, in any build: its seeds, and what becomes of them by changes of some bytes, always
 * the same; then every file that is named: one input, or the many of a `.hex`. `--write-seeds FOLDER` writes the seeds
 * there instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/prng.h"
#include "fuzz.h"

#define FILE_BYTES_MAX (1u << 20)
#define PATH_BYTES 4096

static unsigned inputs;

/* Memory with not one byte to spare, so that the address sanitizer sees an access past the end. */
static void run(const uint8_t *data, size_t bytes)
{
  fuzz_check(bytes <= FILE_BYTES_MAX);
  uint8_t *exact = malloc(bytes == 0 ? 1 : bytes);
  fuzz_check(exact != NULL);
  if (bytes > 0) {
    memcpy(exact, data, bytes);
  }
  fuzz_check(LLVMFuzzerTestOneInput(exact, bytes) == 0);
  free(exact);
  inputs++;
}

/* Changes the input in one to four places, with a taste for the values that limits are made of. It may grow by four. */
static size_t mutate(kvf_prng *prng, uint8_t *data, size_t bytes)
{
  static const uint8_t taste[] = {0, 1, 2, 0x3f, 0x40, 0x41, 0x7f, 0x80, 0xff};
  for (uint64_t changes = 1 + kvf_prng_below(prng, 4); changes > 0 && bytes > 0; changes--) {
    size_t at = (size_t)kvf_prng_below(prng, bytes);
    switch (kvf_prng_below(prng, 5)) {
      case 0:
        data[at] ^= (uint8_t)(1u << kvf_prng_below(prng, 8));
        break;
      case 1:
        data[at] = (uint8_t)kvf_prng_next(prng);
        break;
      case 2:
        bytes = kvf_prng_below(prng, 4) == 0 ? at : bytes;
        break;
      case 3:
        memmove(data + at + 1, data + at, bytes - at);
        bytes++;
        break;
      default:
        data[at] = taste[kvf_prng_below(prng, sizeof(taste))];
        break;
    }
  }
  return bytes;
}

static void run_seed(const fuzz_seed_out *seed)
{
  static uint8_t changed[FUZZ_SEED_BYTES_MAX + 4];
  kvf_prng prng = {20240607};
  run(seed->data, seed->bytes);
  for (unsigned i = 0; i < FUZZ_MUTATIONS; i++) {
    memcpy(changed, seed->data, seed->bytes);
    run(changed, mutate(&prng, changed, seed->bytes));
  }
}

/* The kept inputs of a target: each a line of hex digits. */
static void run_lines(FILE *file)
{
  static uint8_t data[FILE_BYTES_MAX];
  char *line = NULL;
  size_t room = 0;
  for (ssize_t chars; (chars = getline(&line, &room, file)) > 0;) {
    size_t bytes = (size_t)chars / 2;
    fuzz_check(chars % 2 == 1 && bytes <= sizeof(data));
    for (size_t i = 0; i < bytes; i++) {
      fuzz_check(sscanf(line + 2 * i, "%2hhx", &data[i]) == 1);
    }
    (void)fprintf(stderr, "%s", line); /* the last line says which one it was */
    run(data, bytes);
  }
  free(line);
}

static void run_file(const char *link_id)
{
  static uint8_t data[FILE_BYTES_MAX];
  FILE *file = fopen(link_id, "rb");
  if (file == NULL) {
    perror(link_id);
    exit(2);
  }
  const char *ending = strrchr(link_id, '.');
  if (ending != NULL && strcmp(ending, ".hex") == 0) {
    run_lines(file);
  } else {
    run(data, fread(data, 1, sizeof(data), file));
  }
  (void)fclose(file);
}

static void write_seed(const char *folder, unsigned i, const fuzz_seed_out *seed)
{
  char link_id[PATH_BYTES];
  fuzz_check(snprintf(link_id, sizeof(link_id), "%s/seed-%u", folder, i) < (int)sizeof(link_id));
  FILE *file = fopen(link_id, "wb");
  if (file == NULL || fwrite(seed->data, 1, seed->bytes, file) != seed->bytes || fclose(file) != 0) {
    perror(link_id);
    exit(2);
  }
}

int main(int argc, char **argv)
{
  static uint8_t room[FUZZ_SEED_BYTES_MAX];
  const char *folder = argc == 3 && strcmp(argv[1], "--write-seeds") == 0 ? argv[2] : NULL;
  fuzz_seed_out seed = {.data = room};
  for (unsigned i = 0; fuzz_seed(i, &seed); i++) {
    if (folder != NULL) {
      write_seed(folder, i, &seed);
    } else {
      run_seed(&seed);
    }
    seed.bytes = 0;
  }
  for (int i = 1; argv[i] != NULL && folder == NULL; i++) {
    run_file(argv[i]);
  }
  (void)fprintf(stderr, "%u inputs\n", inputs);
  return 0;
}
