#include <unistd.h>

#include "runtime/key_file.h"
#include "test.h"

static char path[] = "key_file_test.XXXXXX";

static int make_file(void **state)
{
  (void)state;
  (void)snprintf(path, sizeof(path), "key_file_test.XXXXXX");
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
  return 0;
}

static int remove_file(void **state)
{
  (void)state;
  (void)unlink(path);
  return 0;
}

#define SET_TEST(name) TEST_WITH(name, make_file, remove_file)

static kvf_status read_of(const void *content, size_t bytes, kvf_key keys[KVF_KEYS_MAX], size_t *count, char *message)
{
  FILE *file = fopen(path, "wbe");
  assert_non_null(file);
  assert_int_equal(fwrite(content, 1, bytes, file), bytes);
  assert_int_equal(fclose(file), 0);
  memset(keys, 0, KVF_KEYS_MAX * sizeof(*keys));
  *count = 0;
  return kvf_key_file_read(path, keys, count, message);
}

static void assert_key(const char *content, size_t bytes, size_t key_bytes)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_key keys[KVF_KEYS_MAX];
  size_t count;
  assert_int_equal(read_of(content, bytes, keys, &count, message), KVF_OK);
  assert_int_equal(count, 1);
  assert_int_equal(keys[0].bytes, key_bytes);
  assert_int_equal(keys[1].bytes, 0);
  assert_memory_equal(keys[0].data, content, key_bytes);
}

static void assert_refused_for(const char *why, const char *content, size_t bytes)
{
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  kvf_key keys[KVF_KEYS_MAX];
  size_t count;
  assert_int_equal(read_of(content, bytes, keys, &count, message), KVF_INVALID);
  assert_int_equal(count, 0);
  assert_int_equal(keys[0].bytes, 0);
  assert_non_null(strstr(message, path));
  assert_non_null(strstr(message, why));
}

static void assert_refused(const char *content, size_t bytes)
{
  assert_refused_for("16 to 256 bytes", content, bytes);
}

SET_TEST(key_is_the_lines_bytes)
{
  assert_key("0123456789abcdef", 16, 16);
  assert_key("\0\1\2\3\4\5\6\7\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8", 16, 16); /* any bytes */
  assert_key("  0123456789abcdef", 18, 18);                               /* white space before it is the key's */
}

/* Editors and `openssl rand -hex 32 > key` put it there; two nodes must not differ by it. */
SET_TEST(white_space_at_the_end_is_not)
{
  assert_key("0123456789abcdef\n", 17, 16);
  assert_key("0123456789abcdef \t\r\n\n", 21, 16);
  assert_refused("0123456789abcde \n", 17);
}

SET_TEST(length_is_bounded)
{
  char content[KVF_KEY_BYTES_MAX + 100];
  memset(content, 'k', sizeof(content));
  assert_refused(content, 0);
  assert_refused(content, KVF_KEY_BYTES_MIN - 1);
  assert_key(content, KVF_KEY_BYTES_MIN, KVF_KEY_BYTES_MIN);
  assert_key(content, KVF_KEY_BYTES_MAX, KVF_KEY_BYTES_MAX);
  assert_refused(content, KVF_KEY_BYTES_MAX + 1);
  assert_refused(content, KVF_KEY_BYTES_MAX + 2);
  assert_refused(content, sizeof(content));
}

SET_TEST(a_second_key_may_follow)
{
  static const char *const texts[] = {"the first key is ours\nthe second is taken as well",
                                      "\n  \nthe first key is ours\r\n\r\nthe second is taken as well \n\n"};
  for (size_t i = 0; i < 2; i++) {
    char message[KVF_MESSAGE_BYTES_MAX] = "";
    kvf_key keys[KVF_KEYS_MAX];
    size_t count;
    assert_int_equal(read_of(texts[i], strlen(texts[i]), keys, &count, message), KVF_OK);
    assert_int_equal(count, 2);
    assert_int_equal(keys[0].bytes, strlen("the first key is ours"));
    assert_memory_equal(keys[0].data, "the first key is ours", keys[0].bytes);
    assert_int_equal(keys[1].bytes, strlen("the second is taken as well"));
    assert_memory_equal(keys[1].data, "the second is taken as well", keys[1].bytes);
  }
  assert_refused("0123456789abcdef\nshort", 22);
  assert_refused("\n \n", 3);
  assert_refused_for("more than two keys", "0123456789abcdef\n0123456789abcdef\n0123456789abcdef", 50);
}

TEST(unreadable_files_are_named)
{
  kvf_key keys[KVF_KEYS_MAX] = {{.bytes = 0}};
  size_t count = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(kvf_key_file_read("/nonexistent/key", keys, &count, message), KVF_INVALID);
  assert_string_equal(message, "key_file /nonexistent/key: No such file or directory");
  assert_int_equal(kvf_key_file_read("/", keys, &count, message), KVF_INVALID);
  assert_non_null(strstr(message, "key_file /: cannot be read"));
  assert_int_equal(count, 0);
}

TEST(messages_are_bounded)
{
  kvf_key keys[KVF_KEYS_MAX] = {{.bytes = 0}};
  size_t count = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  char name[1024];
  memset(name, 'n', sizeof(name));
  name[sizeof(name) - 1] = '\0';
  assert_int_equal(kvf_key_file_read(name, keys, &count, message), KVF_INVALID);
  assert_non_null(memchr(message, 0, sizeof(message)));
}
