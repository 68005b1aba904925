/* The library's own descriptors, which a child of fork() does not keep: a copy would hold a dead process' connections
 * and its port. Close-on-exec is not enough, since a child may never call exec(). Other ways to make a process
 * (vfork(), posix_spawn(), clone()) are expected to call exec() soon. Any thread. Do not call these functions under a
 * lock that others wait for. During fork() no descriptor is made or closed, and fork() of a large process takes long.
 */
#ifndef KVF_MEMORY_OWN_FDS_H
#define KVF_MEMORY_OWN_FDS_H

#define KVF_OWN_FDS_MAX (1 << 20) /* descriptors are below it; the kernel's own limit unless it was raised */

/* A call that makes a descriptor, and its result: -1 with errno where there is none. No fork() falls in between, so the
 * call must not wait for anything. */
#define KVF_OWN_FD(call) (kvf_own_fds_begin(), kvf_own_fds_end(call))

void kvf_own_fds_begin(void);
int kvf_own_fds_end(int fd);

/* As close(); -1 is allowed. */
void kvf_own_fd_close(int fd);

#endif
