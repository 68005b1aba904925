/* Saved tapes: hexadecimal digits in lines; lines that begin with '#' say what the tape is for. */
#ifndef KVF_SIM_TAPE_FILE_H
#define KVF_SIM_TAPE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SIM_TAPE_FILE_BYTES 4096 /* of a tape */

/* False, with a message on standard error, if the file cannot be read or is no tape. */
bool sim_tape_read(const char *path, uint8_t data[SIM_TAPE_FILE_BYTES], size_t *bytes);
/* `what` is the comment. */
bool sim_tape_write(const char *path, const uint8_t *data, size_t bytes, const char *what);

#endif
