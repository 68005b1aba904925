/* The calls of the system's that the library's transports and control connections make. */
#include <errno.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "draw.h"
#include "real.h"

/* Shorter pieces than this are frames, fences, handshakes: only KV blocks are corrupted. */
#define PAYLOAD_BYTES_MIN 1024u
#define IOVECS_MAX 1024u
#define THREAD_NAME_BYTES 16

/* Sockets are those of the library's threads only: the engine's own, and those of its API server, are left alone. */
static bool is_a_thread_of_ours(void)
{
  char name[THREAD_NAME_BYTES] = "";
  (void)prctl(PR_GET_NAME, name, 0, 0, 0);
  return strncmp(name, "kvf-", 4) == 0;
}

static bool socket_is_on(void)
{
  return chaos_is_on() && is_a_thread_of_ours();
}

static size_t bytes_in(const struct iovec *iov, size_t count)
{
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += iov[i].iov_len;
  }
  return bytes;
}

/* At least one, and fewer than `bytes`, which are more than one. */
static size_t shorter(size_t bytes, uint64_t entropy)
{
  return 1 + (size_t)(entropy % (bytes - 1));
}

/* Where the fault says so: the beginning of `iov`, in `out`. Returns how many of `out` there are; 0: it is not to be
 * shortened. */
static size_t shorten(chaos_call call, const chaos_fault *fault, const struct iovec *iov, size_t count,
                      struct iovec out[IOVECS_MAX])
{
  size_t bytes = bytes_in(iov, count);
  if (fault->kind != CHAOS_SHORTEN || bytes < 2) {
    return 0;
  }
  size_t left = shorter(bytes, fault->entropy);
  size_t kept = 0;
  for (size_t i = 0; i < count && kept < IOVECS_MAX && left > 0; i++) {
    out[kept] = iov[i];
    if (out[kept].iov_len > left) {
      out[kept].iov_len = left;
    }
    left -= out[kept].iov_len;
    kept++;
  }
  chaos_count(call, CHAOS_SHORTEN);
  return kept;
}

/* Where the fault says so: changes one of the bytes that came, if it is a payload's. */
static void flip(chaos_call call, const chaos_fault *fault, const struct iovec *iov, size_t count, ssize_t got)
{
  if (fault->kind != CHAOS_FLIP || got <= 0) {
    return;
  }
  size_t bytes = bytes_in(iov, count);
  if (bytes == 0) {
    return;
  }
  size_t place = fault->entropy % ((size_t)got < bytes ? (size_t)got : bytes);
  size_t i = 0;
  while (place >= iov[i].iov_len) {
    place -= iov[i++].iov_len;
  }
  if (iov[i].iov_len >= PAYLOAD_BYTES_MIN) {
    ((uint8_t *)iov[i].iov_base)[place] ^= (uint8_t)(1u << (fault->entropy >> 32) % 8);
    chaos_count(call, CHAOS_FLIP);
  }
}

/* True: the call fails, and errno says how. */
static bool goes_wrong(chaos_call call, chaos_fault *fault)
{
  if (!chaos_goes_wrong(call, fault)) {
    return false;
  }
  errno = (int)fault->value;
  return true;
}

CHAOS_INTERPOSED ssize_t process_vm_readv(pid_t pid, const struct iovec *local, unsigned long locals,
                                          const struct iovec *remote, unsigned long remotes, unsigned long flags)
{
  CHAOS_REAL(process_vm_readv, NULL);
  chaos_fault fault;
  struct iovec cut[IOVECS_MAX];
  if (!chaos_is_on()) {
    return real(pid, local, locals, remote, remotes, flags);
  }
  if (goes_wrong(CHAOS_PROCESS_VM_READV, &fault)) {
    return -1;
  }
  size_t kept = shorten(CHAOS_PROCESS_VM_READV, &fault, local, locals, cut);
  if (kept > 0) {
    return real(pid, cut, kept, remote, remotes, flags);
  }
  ssize_t got = real(pid, local, locals, remote, remotes, flags);
  flip(CHAOS_PROCESS_VM_READV, &fault, local, locals, got);
  return got;
}

CHAOS_INTERPOSED ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
  CHAOS_REAL(sendmsg, NULL);
  chaos_fault fault;
  struct iovec cut[IOVECS_MAX];
  if (!socket_is_on()) {
    return real(fd, message, flags);
  }
  if (goes_wrong(CHAOS_SENDMSG, &fault)) {
    return -1;
  }
  struct msghdr shortened = *message;
  size_t kept = shorten(CHAOS_SENDMSG, &fault, message->msg_iov, message->msg_iovlen, cut);
  if (kept > 0) {
    shortened.msg_iov = cut;
    shortened.msg_iovlen = kept;
  }
  return real(fd, &shortened, flags);
}

CHAOS_INTERPOSED ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
  CHAOS_REAL(recvmsg, NULL);
  chaos_fault fault;
  struct iovec cut[IOVECS_MAX];
  if (!socket_is_on()) {
    return real(fd, message, flags);
  }
  if (goes_wrong(CHAOS_RECVMSG, &fault)) {
    return -1;
  }
  struct iovec *iov = message->msg_iov;
  size_t count = message->msg_iovlen;
  size_t kept = shorten(CHAOS_RECVMSG, &fault, iov, count, cut);
  if (kept > 0) {
    message->msg_iov = cut;
    message->msg_iovlen = kept;
  }
  ssize_t got = real(fd, message, flags);
  message->msg_iov = iov;
  message->msg_iovlen = count;
  flip(CHAOS_RECVMSG, &fault, iov, count < 1 ? count : 1, got); /* behind the blocks there may be a frame */
  return got;
}

/* How many bytes to ask for. */
static size_t wanted(chaos_call call, const chaos_fault *fault, size_t bytes)
{
  if (fault->kind != CHAOS_SHORTEN || bytes < 2) {
    return bytes;
  }
  chaos_count(call, CHAOS_SHORTEN);
  return shorter(bytes, fault->entropy);
}

CHAOS_INTERPOSED ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
  CHAOS_REAL(send, NULL);
  chaos_fault fault;
  if (!socket_is_on()) {
    return real(fd, data, bytes, flags);
  }
  return goes_wrong(CHAOS_SEND, &fault) ? -1 : real(fd, data, wanted(CHAOS_SEND, &fault, bytes), flags);
}

CHAOS_INTERPOSED ssize_t recv(int fd, void *data, size_t bytes, int flags)
{
  CHAOS_REAL(recv, NULL);
  chaos_fault fault;
  if (!socket_is_on()) {
    return real(fd, data, bytes, flags);
  }
  return goes_wrong(CHAOS_RECV, &fault) ? -1 : real(fd, data, wanted(CHAOS_RECV, &fault, bytes), flags);
}

/* The C library declares its address as a union of pointers. */
CHAOS_INTERPOSED int connect(int fd, __CONST_SOCKADDR_ARG address, socklen_t bytes)
{
  CHAOS_REAL(connect, NULL);
  chaos_fault fault;
  if (!socket_is_on()) {
    return real(fd, address, bytes);
  }
  return goes_wrong(CHAOS_CONNECT, &fault) ? -1 : real(fd, address, bytes);
}
