/* The file of shared keys: what is a key, and who may read and write the file. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/key_file.h"
#include "test.h"

#define NAME "/tmp/key_file_test.XXXXXX" /* where another user may look for it */

static char path[] = NAME;

static void make_file(void)
{
  (void)snprintf(path, sizeof(path), NAME);
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  (void)close(fd);
}

static void remove_file(void)
{
  (void)unlink(path);
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
  assert_string_equal(message, "key_file /: not a regular file");
  assert_int_equal(count, 0);
}

/* ---- who may read and write it ---- */

/* NULL: it is taken, and nothing is said. */
static void assert_mode(mode_t mode, kvf_status expected, const char *said)
{
  kvf_key keys[KVF_KEYS_MAX] = {{.bytes = 0}};
  size_t count = 0;
  char message[KVF_MESSAGE_BYTES_MAX] = "?";
  uid_t me = geteuid();
  assert_int_equal(seteuid(getuid()), 0);
  assert_int_equal(chmod(path, mode), 0);
  assert_int_equal(seteuid(me), 0);
  assert_int_equal(kvf_key_file_read(path, keys, &count, message), expected);
  assert_int_equal(count, expected == KVF_OK ? 1 : 0);
  if (said == NULL) {
    assert_string_equal(message, "");
  } else {
    assert_non_null(strstr(message, path));
    assert_non_null(strstr(message, said));
  }
}

static void write_key(void)
{
  int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
  assert_int_equal(write(fd, "0123456789abcdef\n", 17), 17);
  assert_int_equal(close(fd), 0);
}

static void assert_users_modes(void)
{
  assert_mode(0600, KVF_OK, NULL);
  assert_mode(0400, KVF_OK, NULL);
  assert_mode(0640, KVF_INVALID, "others may read it (mode 0640): chmod 600 it");
  assert_mode(0604, KVF_INVALID, "others may read it (mode 0604): chmod 600 it");
  assert_mode(0620, KVF_INVALID, "others may write it (mode 0620): chmod 600 it");
  assert_mode(0666, KVF_INVALID, "others may write it (mode 0666): chmod 600 it");
}

static void assert_roots_modes(void)
{
  assert_mode(0444, KVF_OK, "all users may read it (mode 0444): chmod 600 it, in Kubernetes defaultMode: 0400");
  assert_mode(0644, KVF_OK, "all users may read it (mode 0644)");
  assert_mode(0662, KVF_INVALID, "others may write it");
  assert_mode(0666, KVF_INVALID, "others may write it");
}

SET_TEST(a_file_of_the_users_is_his_alone)
{
  const uid_t nobody = 65534;
  write_key();
  if (geteuid() != 0) {
    assert_users_modes();
    return;
  }
  assert_mode(0400, KVF_OK, NULL);
  assert_mode(0440, KVF_OK, NULL); /* as Kubernetes hands it to a group */
  assert_roots_modes();
  assert_int_equal(seteuid(nobody), 0);
  assert_roots_modes();
  assert_int_equal(seteuid(0), 0);
  assert_int_equal(chown(path, nobody, (gid_t)-1), 0);
  assert_mode(0600, KVF_INVALID, "it is another user's (65534): chown it to the one that runs the engine, or to root");
  assert_int_equal(seteuid(nobody), 0);
  assert_users_modes();
  assert_int_equal(seteuid(0), 0);
}

/* Kubernetes mounts a secret so. */
SET_TEST(a_link_to_it_will_do)
{
  char link[sizeof(path) + 8];
  kvf_key keys[KVF_KEYS_MAX];
  size_t count = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  write_key();
  (void)snprintf(link, sizeof(link), "%s.link", path);
  assert_int_equal(symlink(path, link), 0);
  assert_int_equal(kvf_key_file_read(link, keys, &count, message), KVF_OK);
  assert_int_equal(unlink(link), 0);
}

SET_TEST(nobody_is_waited_for_who_writes_to_a_fifo)
{
  kvf_key keys[KVF_KEYS_MAX];
  size_t count = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  assert_int_equal(unlink(path), 0);
  assert_int_equal(mkfifo(path, 0600), 0);
  (void)alarm(20);
  assert_int_equal(kvf_key_file_read(path, keys, &count, message), KVF_INVALID);
  (void)alarm(0);
  assert_non_null(strstr(message, "not a regular file"));
}

/* ---- copies ---- */

#define SECRET_BYTES 64

/* Made anew each time, in `to` alone. */
static void make_secret(uint8_t to[SECRET_BYTES])
{
  for (int i = 0; i < SECRET_BYTES; i++) {
    to[i] = (uint8_t)('A' + i * 7 % 26);
  }
}

/* NULL where a sanitizer has a heap of its own. */
static const uint8_t *find_heap(void)
{
  char line[256];
  uintptr_t from = 0;
  FILE *maps = fopen("/proc/self/maps", "re");
  assert_non_null(maps);
  while (fgets(line, sizeof(line), maps) != NULL) {
    if (strstr(line, "[heap]") != NULL) {
      from = strtoul(line, NULL, 16);
    }
  }
  (void)fclose(maps);
  return (const uint8_t *)from;
}

/* How often the second half is in the heap: the allocator writes into the first bytes of what it has got back. */
static unsigned count_copies(const uint8_t *heap)
{
  uint8_t secret[SECRET_BYTES];
  const uint8_t *end = (const uint8_t *)sbrk(0) - SECRET_BYTES;
  unsigned count = 0;
  make_secret(secret);
  for (const uint8_t *at = heap; heap != NULL && at < end; at++) {
    count += memcmp(at, secret + SECRET_BYTES / 2, SECRET_BYTES / 2) == 0;
  }
  kvf_forget(secret, sizeof(secret));
  return count;
}

SET_TEST(no_copy_of_it_is_left)
{
  uint8_t secret[SECRET_BYTES];
  kvf_key keys[KVF_KEYS_MAX];
  size_t count = 0;
  char message[KVF_MESSAGE_BYTES_MAX];
  const uint8_t *heap = find_heap();
  make_secret(secret);
  int fd = open(path, O_WRONLY | O_CLOEXEC);
  assert_int_equal(write(fd, secret, sizeof(secret)), sizeof(secret));
  assert_int_equal(close(fd), 0);
  assert_int_equal(kvf_key_file_read(path, keys, &count, message), KVF_OK);
  assert_memory_equal(keys[0].data, secret, sizeof(secret));
  kvf_forget(keys, sizeof(keys));
  kvf_forget(secret, sizeof(secret));
  assert_int_equal(count_copies(heap), 0);
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
