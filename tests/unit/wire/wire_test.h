/* What the tests of this folder share. */
#ifndef KVF_TESTS_WIRE_TEST_H
#define KVF_TESTS_WIRE_TEST_H

#include "kvferry/status.h"
#include "test.h"

/* Heap memory with not one byte to spare, so that the address sanitizer sees an access past the end. */
static inline void *exact_room(size_t bytes)
{
  void *room = malloc(bytes); /* NOLINT(clang-analyzer-optin.portability.UnixAPI): 0 bytes are meant */
  assert_true(room != NULL || bytes == 0);
  return room;
}

static inline void put(void *at, const void *data, size_t bytes)
{
  if (bytes > 0) {
    memcpy(at, data, bytes);
  }
}

static inline void *exact_copy(const void *data, size_t bytes)
{
  void *copy = exact_room(bytes);
  put(copy, data, bytes);
  return copy;
}

/* Different bytes for different seeds, none of them zero. */
static inline void fill(void *out, size_t bytes, uint8_t seed)
{
  for (size_t i = 0; i < bytes; i++) {
    ((uint8_t *)out)[i] = (uint8_t)((seed + i * 7) % 255 + 1);
  }
}

typedef kvf_status (*decode_fn)(const void *body, size_t body_bytes);

/* The whole body decodes; every part of it, and the body with one byte more, does not. */
static inline void check_length(decode_fn decode, const void *body, size_t body_bytes)
{
  for (size_t bytes = 0; bytes <= body_bytes + 1; bytes++) {
    uint8_t *copy = exact_room(bytes);
    put(copy, body, bytes < body_bytes ? bytes : body_bytes);
    if (bytes > body_bytes) {
      copy[body_bytes] = 0;
    }
    assert_int_equal(decode(copy, bytes), bytes == body_bytes ? KVF_OK : KVF_PROTOCOL);
    free(copy);
  }
}

/* Decodes kvf_NAME and throws it away. */
#define DECODER(name)                                                  \
  static kvf_status decode_##name(const void *body, size_t body_bytes) \
  {                                                                    \
    kvf_##name out;                                                    \
    return kvf_##name##_decode(body, body_bytes, &out);                \
  }

/* The message fits its named size exactly, and not one byte less. */
#define CHECK_CAPACITY(name, message, bytes_max)                                                \
  do {                                                                                          \
    uint8_t *room = malloc(bytes_max);                                                          \
    size_t written = 77;                                                                        \
    assert_int_equal(kvf_##name##_encode(message, room, (bytes_max) - 1, &written), KVF_LIMIT); \
    assert_int_equal(written, 77);                                                              \
    assert_int_equal(kvf_##name##_encode(message, room, bytes_max, &written), KVF_OK);          \
    assert_int_equal(written, bytes_max);                                                       \
    free(room);                                                                                 \
  } while (0)

/* A message without padding comes back as it was written. It has its named size, and no byte may be missing. It is left
 * in `body`, an array of that size. */
#define CHECK_ROUND_TRIP(name, message, body)                                                   \
  do {                                                                                          \
    kvf_##name back;                                                                            \
    size_t written_bytes = 0;                                                                   \
    CHECK_CAPACITY(name, message, sizeof(body));                                                \
    assert_int_equal(kvf_##name##_encode(message, body, sizeof(body), &written_bytes), KVF_OK); \
    check_length(decode_##name, body, sizeof(body));                                            \
    assert_int_equal(kvf_##name##_decode(body, sizeof(body), &back), KVF_OK);                   \
    assert_memory_equal(&back, message, sizeof(back));                                          \
  } while (0)

#endif
