/* Addresses of a machine that the test makes up; what a real system says: tests/hosts. */
#include "transport/own_address.h"

#include "test.h"

#include <errno.h>
#include <ifaddrs.h>
#include <netinet/in.h>

#include "base/fence.h"
#include "transport/socket.h"

typedef struct made_up {
  char *interface;
  const char *address; /* NULL: none, as a link's own entry has */
  bool is_down;
} made_up;

static const made_up machine[] = {
    {"lo", "127.0.0.1", false},    {"lo", "::1", false},           {"eth0", NULL, false},
    {"eth0", "10.1.2.3", false},   {"eth0", "fd00::3", false},     {"eth0", "fe80::3", false},
    {"eth1", "fd01::1", false},    {"eth1", "fe80::4", false},     {"eth2", "10.9.0.1", false},
    {"eth2", "10.9.0.2", false},   {"eth3", "10.20.0.1", true},    {"eth4", "fe80::5", false},
    {"ib0", "192.168.4.1", false}, {"ib0:1", "192.168.4.1", false}};

#define ENTRIES (sizeof(machine) / sizeof(machine[0]))

static struct ifaddrs entries[ENTRIES];
static struct sockaddr_storage addresses[ENTRIES];
static const char *of_route; /* NULL: there is none */

int __wrap_getifaddrs(struct ifaddrs **first);
void __wrap_freeifaddrs(struct ifaddrs *first);
unsigned __wrap_if_nametoindex(const char *name);
int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes);
int __wrap_getsockname(int fd, struct sockaddr *out, socklen_t *bytes);

int __wrap_getifaddrs(struct ifaddrs **first)
{
  for (size_t i = 0; i < ENTRIES; i++) {
    kvf_address address;
    entries[i] = (struct ifaddrs){.ifa_name = machine[i].interface, .ifa_flags = machine[i].is_down ? 0 : IFF_UP};
    if (machine[i].address != NULL) {
      assert_int_equal(kvf_address_parse(machine[i].address, 0, &address), KVF_OK);
      (void)kvf_address_to_sockaddr(&address, &addresses[i]);
      entries[i].ifa_addr = (struct sockaddr *)&addresses[i];
    }
    entries[i].ifa_next = i + 1 < ENTRIES ? &entries[i + 1] : NULL;
  }
  *first = entries;
  return 0;
}

void __wrap_freeifaddrs(struct ifaddrs *first)
{
  assert_ptr_equal(first, entries);
}

unsigned __wrap_if_nametoindex(const char *name)
{
  for (unsigned i = 0; i < ENTRIES; i++) {
    if (strcmp(machine[i].interface, name) == 0) {
      return i + 1;
    }
  }
  return 0;
}

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t bytes)
{
  (void)fd;
  (void)bytes;
  kvf_address address;
  if (of_route == NULL) {
    errno = ENETUNREACH;
    return -1;
  }
  assert_int_equal(kvf_address_parse(of_route, 0, &address), KVF_OK);
  assert_int_equal(to->sa_family, kvf_address_is_v4(&address) ? AF_INET : AF_INET6);
  return 0;
}

int __wrap_getsockname(int fd, struct sockaddr *out, socklen_t *bytes)
{
  (void)fd;
  kvf_address address;
  struct sockaddr_storage storage;
  assert_int_equal(kvf_address_parse(of_route, 4711, &address), KVF_OK);
  *bytes = kvf_address_to_sockaddr(&address, &storage);
  memcpy(out, &storage, *bytes);
  return 0;
}

static void assert_found(const char *text, const char *expected)
{
  kvf_address address;
  char found[KVF_ADDRESS_TEXT_BYTES];
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  if (kvf_own_address_find(text, &address, message) != KVF_OK) {
    fail_msg("%s: %s", text, message);
  }
  kvf_address_format(&address, found);
  assert_string_equal(found, expected);
}

static void assert_not_found(const char *text, const char *said)
{
  kvf_address address = {.port = 7};
  char message[KVF_MESSAGE_BYTES_MAX] = "";
  assert_int_equal(kvf_own_address_find(text, &address, message), KVF_INVALID);
  assert_int_equal(address.port, 7);
  if (strstr(message, said) == NULL) {
    fail_msg("\"%s\" does not say \"%s\"", message, said);
  }
}

TEST(addresses_are_themselves)
{
  assert_found("192.0.2.1:80", "192.0.2.1:80"); /* whether this machine has it shows when it listens */
  assert_found("fd00::1", "[fd00::1]:0");
  assert_found("[fd00::1]:80", "[fd00::1]:80");
}

TEST(an_interface_stands_for_its_address)
{
  assert_found("lo", "127.0.0.1:0");
  assert_found("eth0", "10.1.2.3:0"); /* IPv4 goes first */
  assert_found("eth0:7000", "10.1.2.3:7000");
  assert_found("eth1", "[fd01::1]:0");
  assert_not_found("eth2", "several addresses there, name one: 10.9.0.1 (eth2), 10.9.0.2 (eth2)");
  assert_not_found("eth3", "that interface is down, or has no address; this machine has: 127.0.0.1 (lo), ::1 (lo), ");
  assert_not_found("eth4", "that interface is down, or has no address");
}

TEST(a_network_stands_for_the_one_address_in_it)
{
  assert_found("127.0.0.0/8", "127.0.0.1:0");
  assert_found("10.1.0.0/16:7000", "10.1.2.3:7000");
  assert_found("10.1.2.3/32", "10.1.2.3:0");
  assert_found("10.0.128.0/15", "10.1.2.3:0");     /* 10.0 and 10.1 */
  assert_found("192.168.4.0/24", "192.168.4.1:0"); /* one address, on two names */
  assert_found("fd00::/16", "[fd00::3]:0");
  assert_found("[fd01::/16]:7000", "[fd01::1]:7000");
  assert_not_found("10.0.0.0/8",
                   "several addresses there, name one: 10.1.2.3 (eth0), 10.9.0.1 (eth2), 10.9.0.2 (eth2)");
  assert_not_found("fd00::/15", "several addresses there, name one: fd00::3 (eth0), fd01::1 (eth1)");
  assert_not_found("10.2.0.0/15", "no address of this machine is in that network; this machine has: 127.0.0.1 (lo)");
  assert_not_found("fe80::/10", "no address of this machine is in that network");
  assert_not_found("0.0.0.0/0", "several");
}

TEST(what_is_no_network_is_refused)
{
  static const char *const bad[] = {"10.0.0.0/33", "fd00::/129", "eth0/8", "10.0.0.0:80/8", "/8", "10.0.0/8"};
  for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
    assert_not_found(bad[i], "is no network");
  }
}

TEST(interfaces_of_addresses)
{
  kvf_address address;
  char name[IF_NAMESIZE];
  assert_int_equal(kvf_address_parse("10.9.0.2:80", 0, &address), KVF_OK);
  kvf_own_address_interface(&address, name);
  assert_string_equal(name, "eth2");
  assert_int_equal(kvf_address_parse("10.9.0.3", 0, &address), KVF_OK);
  kvf_own_address_interface(&address, name);
  assert_string_equal(name, "");
}

TEST(the_address_of_the_default_route)
{
  static const char *const none[] = {"127.0.0.1", "::1", "fe80::1", "0.0.0.0", "::"};
  kvf_address address;
  char found[KVF_ADDRESS_TEXT_BYTES];
  of_route = "10.1.2.3";
  assert_true(kvf_own_address_of_route(true, &address));
  kvf_address_format(&address, found);
  assert_string_equal(found, "10.1.2.3:0");
  of_route = "fd00::3";
  assert_true(kvf_own_address_of_route(false, &address));
  kvf_address_format(&address, found);
  assert_string_equal(found, "[fd00::3]:0");
  of_route = NULL;
  assert_false(kvf_own_address_of_route(true, &address));
  for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
    of_route = none[i];
    assert_false(kvf_own_address_of_route(strchr(none[i], '.') != NULL, &address));
  }
}
