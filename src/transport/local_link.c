/* Links of the local transport: a peer is checked, watched, given back. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/fence_memory.h"
#include "transport/local.h"
#include "transport/own_fds.h"
#include "transport/sums.h"

/* The link and its arrays in one allocation: layouts and bases first, since they are aligned alike. */
static kvf_local_link *link_alloc(const kvf_link_spec *spec)
{
  size_t count = (size_t)spec->remote_count + KVF_GROUPS_MAX;
  size_t bytes = sizeof(kvf_local_link) + count * (sizeof(kvf_region_layout) + sizeof(uint64_t));
  kvf_local_link *link = calloc(1, bytes + spec->description_bytes);
  if (link == NULL) {
    return NULL;
  }
  void *after = link + 1;
  link->remote = after;
  after = link->remote + count;
  link->bases = after;
  after = link->bases + count;
  link->description = after;
  return link;
}

kvf_status kvf_local_connect(kvf_transport *transport, const kvf_link_spec *spec, kvf_link **out)
{
  kvf_local *local = kvf_local_of(transport);
  *out = NULL;
  if (!kvf_link_spec_is_whole(spec)) {
    return KVF_TRANSFER_SETUP;
  }
  kvf_local_link *link = link_alloc(spec);
  if (link == NULL) {
    return KVF_NO_MEMORY;
  }
  link->base = (kvf_link){.transport = transport, .user = spec->user};
  link->refs = 1;
  link->state = KVF_LOCAL_CHECKING;
  link->peer = spec->peer;
  link->incarnation = spec->incarnation;
  link->pidfd = -1;
  link->regions_count = spec->remote_count;
  link->description_bytes = spec->description_bytes;
  memcpy(link->description, spec->description, spec->description_bytes);
  memcpy(link->remote, spec->remote, spec->remote_count * sizeof(*spec->remote));
  kvf_list_init(&link->in_links);
  kvf_list_init(&link->in_checks);
  kvf_list_init(&link->reads);

  (void)pthread_mutex_lock(&local->lock);
  kvf_list_push_back(&local->links, &link->in_links);
  kvf_list_push_back(&local->unchecked, &link->in_checks);
  if (local->memory != NULL) {
    link->memory = local->memory;
    link->memory->refs++;
  }
  kvf_local_wake_keeper(local);
  (void)pthread_mutex_unlock(&local->lock);
  *out = &link->base;
  return KVF_OK;
}

void kvf_local_disconnect(kvf_link *base)
{
  kvf_local_link *link = kvf_local_link_of(base);
  kvf_local *local = kvf_local_of(base->transport);
  (void)pthread_mutex_lock(&local->lock);
  link->disconnected = true;
  kvf_local_reads_end(local, link, KVF_CANCELLED);
  kvf_local_link_drop(local, link);
  (void)pthread_mutex_unlock(&local->lock);
}

void kvf_local_link_drop(kvf_local *local, kvf_local_link *link)
{
  link->refs--;
  if (link->refs == 0) {
    kvf_list_remove(&link->in_checks);
    kvf_list_push_back(&local->retired, &link->in_checks);
    kvf_local_wake_keeper(local);
  }
}

void kvf_local_link_free(kvf_local *local, kvf_local_link *link)
{
  kvf_local_check_abandon(link->check);
  if (link->pidfd >= 0) {
    /* Closing is not enough: a spawned child's copy would keep it watched, and name this link when the peer ends. */
    (void)epoll_ctl(local->epoll_fd, EPOLL_CTL_DEL, link->pidfd, NULL);
    kvf_own_fd_close(link->pidfd);
  }
  kvf_fence_table_close(link->fence, link->table_slots);
  (void)pthread_mutex_lock(&local->lock);
  kvf_list_remove(&link->in_links);
  if (link->memory != NULL) {
    kvf_local_memory_drop(link->memory);
  }
  (void)pthread_mutex_unlock(&local->lock);
  free(link);
}

/* Blocks are verified if both sides have checksums. */
static void agree_on_sums(kvf_local *local, kvf_local_link *link)
{
  if (link->memory->given.sums_count == 0) {
    link->sums_count = 0;
  }
  if (link->memory->given.sums_count > 0 && link->sums_count == 0) {
    kvf_local_log(local, KVF_LOG_WARN, &link->peer, KVF_NO_SUMS_LINE);
  }
}

static kvf_status begin_check(kvf_local *local, kvf_local_link *link, char *message)
{
  if (link->memory == NULL) {
    return kvf_fail(KVF_TRANSFER_SETUP, message, "no memory is registered here");
  }
  kvf_local_description description;
  kvf_region_layout *sums = link->remote + link->regions_count;
  kvf_status status = kvf_layouts_check(link->memory->regions, link->memory->given.regions_count, link->remote,
                                        link->regions_count, message);
  if (status != KVF_OK) {
    return status;
  }
  status = kvf_local_description_read(link->description, link->description_bytes, &local->place, &link->incarnation,
                                      link->remote, link->regions_count, &description, link->bases, sums, message);
  if (status != KVF_OK) {
    return status;
  }
  link->pid = (pid_t)description.pid;
  link->table = description.table_address;
  link->table_slots = description.table_slots;
  link->sums_count = description.sums_count;
  return kvf_local_check_start(&description, local->wake_fd, &local->cpus, &link->check, message);
}

static void report_check(kvf_local *local, kvf_local_link *link, kvf_status status, const char *message)
{
  (void)pthread_mutex_lock(&local->lock);
  link->state = status == KVF_OK ? KVF_LOCAL_UP : KVF_LOCAL_DOWN;
  link->failure = status;
  bool wanted = !link->disconnected;
  (void)pthread_mutex_unlock(&local->lock);
  if (!wanted) {
    return;
  }
  if (status != KVF_OK) {
    kvf_local_log(local, KVF_LOG_WARN, &link->peer, "%s", message);
  }
  local->host.link_up(local->host.context, &link->base, status);
}

kvf_status kvf_local_link_begin_check(kvf_local *local, kvf_local_link *link)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_status status = begin_check(local, link, message);
  if (status != KVF_OK && status != KVF_LIMIT) {
    report_check(local, link, status, message);
  }
  return status;
}

void kvf_local_link_end_check(kvf_local *local, kvf_local_link *link)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  struct epoll_event event = {.events = EPOLLIN, .data = {.ptr = link}};
  kvf_status status = kvf_local_check_take(link->check, &link->pidfd, &link->fence, message);
  link->check = NULL;
  if (status == KVF_OK && epoll_ctl(local->epoll_fd, EPOLL_CTL_ADD, link->pidfd, &event) != 0) {
    status = kvf_fail(KVF_TRANSFER_SETUP, message, "process %d cannot be watched: %s", (int)link->pid, strerror(errno));
  }
  if (status == KVF_OK) {
    agree_on_sums(local, link);
  }
  report_check(local, link, status, message);
}

/* Without the lock, the link held. Only the first failure counts. `format` is given the process. */
static void link_fail(kvf_local *local, kvf_local_link *link, kvf_status status, const char *format)
{
  (void)pthread_mutex_lock(&local->lock);
  bool first = link->state == KVF_LOCAL_UP;
  if (first) {
    link->state = KVF_LOCAL_DOWN;
    link->failure = status;
    kvf_local_reads_end(local, link, status);
  }
  bool wanted = first && !link->disconnected;
  (void)pthread_mutex_unlock(&local->lock);
  if (wanted) {
    kvf_local_log(local, KVF_LOG_WARN, &link->peer, format, (int)link->pid);
    local->host.link_down(local->host.context, &link->base, status);
  }
}

void kvf_local_link_died(kvf_local *local, kvf_local_link *link)
{
  (void)epoll_ctl(local->epoll_fd, EPOLL_CTL_DEL, link->pidfd, NULL);
  link_fail(local, link, KVF_PEER_DOWN, "process %d has ended");
}

void kvf_local_link_unreadable(kvf_local *local, kvf_local_link *link, kvf_status status)
{
  link_fail(local, link, status, "memory of process %d cannot be read any more");
}
