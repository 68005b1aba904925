/* The control thread: its loop, its sockets, its clock. */
#include "runtime/control.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "memory/own_fds.h"
#include "runtime/control_socket.h"
#include "runtime/listener.h"
#include "transport/socket.h"
#include "transport/thread.h"

#define EVENTS_PER_TURN 64
#define ACCEPTS_PER_TURN 64
/* How long not to accept after the process has run out of descriptors. */
#define ACCEPT_PAUSE_NS (100 * KVF_NS_PER_MS)

/* epoll's data for what is not a connection; connection ids begin at 1. */
#define EPOLL_WAKE UINT64_MAX
#define EPOLL_LISTENER (UINT64_MAX - 1) /* the first one's; the second's is before it */
#define LISTENERS_MAX 2

struct kvf_control {
  kvf_node *node;
  pthread_t thread;
  bool started;
  atomic_bool stopping;
  int epoll_fd;
  int listeners[LISTENERS_MAX];
  uint64_t accept_after_ns;    /* 0: accepting */
  kvf_control_socket *sockets; /* by id; the thread's own */
};

static bool watch(const kvf_control *control, int fd, uint64_t id, uint32_t events, int operation)
{
  struct epoll_event event = {.events = events, .data = {.u64 = id}};
  return epoll_ctl(control->epoll_fd, operation, fd, &event) == 0;
}

static void unwatch(const kvf_control *control, int fd)
{
  (void)epoll_ctl(control->epoll_fd, EPOLL_CTL_DEL, fd, NULL); /* it may not be there any more */
}

/* EPOLLIN: for who wants to connect; 0: for nobody. */
static bool watch_listeners(const kvf_control *control, uint32_t events, int operation)
{
  bool is_watched = true;
  for (size_t i = 0; i < LISTENERS_MAX; i++) {
    is_watched = is_watched && (control->listeners[i] < 0 ||
                                watch(control, control->listeners[i], EPOLL_LISTENER - i, events, operation));
  }
  return is_watched;
}

kvf_status kvf_control_open(kvf_node *node, kvf_control **out, char *message)
{
  kvf_control *control = calloc(1, sizeof(*control));
  *out = NULL;
  if (control == NULL) {
    return KVF_NO_MEMORY;
  }
  control->node = node;
  control->listeners[0] = -1;
  control->listeners[1] = -1;
  control->epoll_fd = KVF_OWN_FD(epoll_create1(EPOLL_CLOEXEC));
  control->node->clock.wake_fd = KVF_OWN_FD(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  kvf_status status = KVF_OK;
  if (control->epoll_fd < 0 || control->node->clock.wake_fd < 0) {
    status = kvf_fail(KVF_SYSTEM, message, "no file descriptor left (ulimit -n)");
  } else if (node->config.listen[0] != '\0') {
    status = kvf_listener_open(node, &control->listeners[0], &control->listeners[1], message);
  }
  if (status == KVF_OK && (!watch(control, control->node->clock.wake_fd, EPOLL_WAKE, EPOLLIN, EPOLL_CTL_ADD) ||
                           !watch_listeners(control, EPOLLIN, EPOLL_CTL_ADD))) {
    status = kvf_fail(KVF_SYSTEM, message, "the system does not watch one more descriptor: %s%s", strerror(errno),
                      errno == ENOSPC ? " (fs.epoll.max_user_watches)" : "");
  }
  if (status != KVF_OK) {
    kvf_control_close(control);
    return status;
  }
  *out = control;
  return KVF_OK;
}

static kvf_control_socket *find_socket(kvf_control *control, uint64_t conn_id)
{
  kvf_control_socket *socket;
  HASH_FIND(by_id, control->sockets, &conn_id, sizeof(conn_id), socket);
  return socket;
}

static kvf_control_socket *add_socket(kvf_control *control, uint64_t conn_id, int fd, const kvf_address *peer,
                                      bool connecting)
{
  kvf_control_socket *socket = kvf_control_socket_new(conn_id, fd, connecting);
  if (socket == NULL) {
    kvf_own_fd_close(fd);
    return NULL;
  }
  const kvf_tls_use *tls = &control->node->tls;
  if (kvf_tls_is_due(tls, peer) && kvf_control_socket_secure(socket, tls->context) != KVF_OK) {
    kvf_control_socket_free(socket);
    return NULL;
  }
  socket->writable_wanted = connecting;
  if (!watch(control, fd, conn_id, connecting ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_ADD)) {
    kvf_control_socket_free(socket);
    return NULL;
  }
  HASH_ADD(by_id, control->sockets, conn_id, sizeof(conn_id), socket);
  if (socket->by_id.tbl == NULL) {
    unwatch(control, fd);
    kvf_control_socket_free(socket);
    return NULL;
  }
  return socket;
}

static void remove_socket(kvf_control *control, kvf_control_socket *socket)
{
  HASH_DELETE(by_id, control->sockets, socket);
  unwatch(control, socket->fd);
  kvf_control_socket_free(socket);
}

/* Closes it and tells the core, unless the core has let go of it first. */
static void close_socket(kvf_control *control, kvf_control_socket *socket)
{
  kvf_node *node = control->node;
  uint64_t now_ns = kvf_node_enter(node);
  if (socket->connecting) {
    kvf_core_on_dialed(node->core, now_ns, socket->conn_id, KVF_PEER_DOWN);
  } else {
    if (socket->unread) {
      kvf_core_on_unread(node->core, now_ns, socket->conn_id);
    }
    if (kvf_control_socket_why(socket)[0] != '\0') {
      kvf_core_on_insecure(node->core, now_ns, socket->conn_id, kvf_control_socket_why(socket));
    }
    kvf_core_on_closed(node->core, now_ns, socket->conn_id);
  }
  kvf_node_leave(node, now_ns);
  if (!socket->connecting) {
    remove_socket(control, socket);
  }
  /* else: the core hangs up on a failed dial, which removes it */
}

/* ---- what the core wants of us ---- */

/* What this process lacks says nothing about the peer. */
static kvf_status dial_status(int error)
{
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM ? KVF_NO_MEMORY : KVF_PEER_DOWN;
}

static void dial(kvf_control *control, const kvf_dial *dial)
{
  kvf_node *node = control->node;
  int fd = kvf_socket_connect(&dial->address, node->config.handshake_timeout_ms, 0);
  kvf_status status = fd >= 0 ? KVF_NO_MEMORY : dial_status(errno);
  if (fd >= 0 && add_socket(control, dial->conn_id, fd, &dial->address, true) != NULL) {
    return;
  }
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_on_dialed(node->core, now_ns, dial->conn_id, status);
  kvf_node_leave(node, now_ns);
}

/* Called under the node's lock. */
static void take_output(void *context, const kvf_core_output *output)
{
  kvf_control *control = context;
  kvf_control_socket *socket = find_socket(control, output->conn_id);
  if (socket == NULL) {
    return; /* a dial that was given up before it began, or that failed at once */
  }
  kvf_status status = kvf_control_socket_queue(socket, output->data, output->bytes);
  if (status != KVF_OK) {
    socket->broken = true;
    socket->unread = status == KVF_LIMIT;
  }
  if (output->hang_up) {
    socket->let_go = true;
  }
}

static void flush_socket(kvf_control *control, kvf_control_socket *socket)
{
  if (socket->connecting && !socket->let_go) {
    return;
  }
  if (!socket->connecting && kvf_control_socket_flush(socket) != KVF_OK) {
    socket->broken = true;
  }
  if (socket->let_go) {
    remove_socket(control, socket); /* a last word that the kernel did not take at once is not worth waiting for */
    return;
  }
  if (socket->broken) {
    close_socket(control, socket);
    return;
  }
  bool unsent = kvf_control_socket_waits_to_send(socket);
  if (unsent != socket->writable_wanted) {
    socket->writable_wanted = unsent;
    if (!watch(control, socket->fd, socket->conn_id, unsent ? EPOLLIN | EPOLLOUT : EPOLLIN, EPOLL_CTL_MOD)) {
      close_socket(control, socket);
    }
  }
}

static void flush_all(kvf_control *control)
{
  kvf_control_socket *socket;
  kvf_control_socket *next;
  HASH_ITER(by_id, control->sockets, socket, next)
  {
    if (socket->let_go || socket->broken || kvf_control_socket_has_unsent(socket)) {
      flush_socket(control, socket);
    }
  }
}

/* Under the node's lock, after the output has been taken: starts the waiting dials that the core has not given up
 * meanwhile. A connection that the core does not know would never be closed. */
static void take_dials(kvf_node *node, kvf_list *dials)
{
  kvf_list *link;
  while ((link = kvf_list_pop_front(&node->dials)) != NULL) {
    kvf_dial *entry = KVF_CONTAINER_OF(link, kvf_dial, link);
    if (kvf_core_has_conn(node->core, entry->conn_id)) {
      kvf_list_push_back(dials, link);
    } else {
      free(entry);
    }
  }
}

/* Ticks the core and does what it wants. Returns when to do so again. */
static uint64_t serve_core(kvf_control *control)
{
  kvf_node *node = control->node;
  kvf_list dials;
  kvf_list *link;
  kvf_list_init(&dials);
  uint64_t now_ns = kvf_node_enter(node);
  if (now_ns >= kvf_core_next_deadline(node->core)) {
    kvf_core_tick(node->core, now_ns);
  }
  node->clock.armed_ns = 0; /* no wake-ups by our own leave */
  kvf_node_leave(node, now_ns);

  now_ns = kvf_node_enter(node);
  kvf_core_take_output(node->core, take_output, control);
  take_dials(node, &dials);
  uint64_t deadline_ns = kvf_core_next_deadline(node->core);
  if (now_ns < node->clock.light_sleep_ns) {
    deadline_ns = kvf_time_min(deadline_ns, kvf_time_add(now_ns, KVF_LIGHT_SLEEP_NS));
  }
  node->clock.armed_ns = deadline_ns;
  (void)pthread_mutex_unlock(&node->lock);

  while ((link = kvf_list_pop_front(&dials)) != NULL) {
    kvf_dial *entry = KVF_CONTAINER_OF(link, kvf_dial, link);
    dial(control, entry);
    free(entry);
  }
  flush_all(control);
  return deadline_ns;
}

/* ---- what the network brings ---- */

/* For what will not be better at once. */
static void pause_accepting(kvf_control *control, const char *why)
{
  kvf_node_log(control->node, KVF_LOG_ERROR, why);
  (void)watch_listeners(control, 0, EPOLL_CTL_MOD); /* where it fails, the same happens again */
  control->accept_after_ns = kvf_clock_now() + ACCEPT_PAUSE_NS;
}

static void count_reset(kvf_node *node, const kvf_address *from)
{
  uint64_t now_ns = kvf_node_enter(node);
  kvf_core_on_reset(node->core, now_ns, from);
  kvf_node_leave(node, now_ns);
}

static void accept_all(kvf_control *control, int listener)
{
  kvf_node *node = control->node;
  for (int i = 0; i < ACCEPTS_PER_TURN; i++) {
    kvf_address from;
    uint64_t conn_id;
    int fd = kvf_socket_accept(listener, &from);
    if (fd < 0 && errno == ECONNABORTED) {
      count_reset(node, &from);
      continue;
    }
    if (fd < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
        pause_accepting(control, "cannot accept connections: out of descriptors or memory");
      }
      return;
    }
    uint64_t now_ns;
    if (!kvf_node_enter_fresh(node, &now_ns)) {
      kvf_own_fd_close(fd);
      pause_accepting(control, "connection closed: the system gives no random numbers");
      return;
    }
    kvf_status status = kvf_core_on_accepted(node->core, now_ns, from, &conn_id);
    kvf_node_leave(node, now_ns);
    if (status != KVF_OK) {
      kvf_own_fd_close(fd);
    } else if (add_socket(control, conn_id, fd, &from, false) == NULL) {
      now_ns = kvf_node_enter(node);
      kvf_core_on_closed(node->core, now_ns, conn_id);
      kvf_node_leave(node, now_ns);
      pause_accepting(control, "connection closed: out of memory, or of descriptors that may be watched");
      return;
    }
  }
}

static void on_connected(kvf_control *control, kvf_control_socket *socket)
{
  kvf_node *node = control->node;
  uint64_t now_ns;
  kvf_status status = kvf_socket_error(socket->fd) == 0 ? KVF_OK : KVF_PEER_DOWN;
  if (!kvf_node_enter_fresh(node, &now_ns)) {
    now_ns = kvf_node_enter(node);
    status = KVF_NO_MEMORY; /* of which the peer is innocent, too */
  }
  kvf_core_on_dialed(node->core, now_ns, socket->conn_id, status);
  kvf_node_leave(node, now_ns);
  if (status == KVF_OK) {
    socket->connecting = false;
  } else {
    unwatch(control, socket->fd); /* the core has hung up: see take_output() */
  }
}

/* Gives the core the whole frames that have come. */
static kvf_status deliver_frames(kvf_control *control, kvf_control_socket *socket)
{
  kvf_node *node = control->node;
  kvf_status status;
  do {
    kvf_frame_type type;
    const uint8_t *body;
    size_t body_bytes;
    uint64_t now_ns = kvf_node_enter(node);
    status =
        kvf_control_socket_frame(socket, kvf_core_frame_limit(node->core, socket->conn_id), &type, &body, &body_bytes);
    if (status == KVF_OK) {
      kvf_core_on_frame(node->core, now_ns, socket->conn_id, type, body, body_bytes);
      kvf_control_socket_drop_frame(socket, body_bytes);
    } else if (status == KVF_PROTOCOL && kvf_control_socket_why(socket)[0] != '\0') {
      kvf_core_on_insecure(node->core, now_ns, socket->conn_id, kvf_control_socket_why(socket));
    } else if (status == KVF_PROTOCOL) {
      kvf_core_on_malformed(node->core, now_ns, socket->conn_id);
    }
    kvf_node_leave(node, now_ns);
  } while (status == KVF_OK);
  return status == KVF_NOT_FOUND || status == KVF_PROTOCOL ? KVF_OK : status;
}

/* What has been accepted, and is not closed at once, begins to count for more. */
static void hear(kvf_control *control, kvf_control_socket *socket)
{
  if (!socket->heard) {
    kvf_node *node = control->node;
    uint64_t now_ns = kvf_node_enter(node);
    kvf_core_on_heard(node->core, socket->conn_id);
    kvf_node_leave(node, now_ns);
    socket->heard = true;
  }
}

static void on_socket_event(kvf_control *control, kvf_control_socket *socket, uint32_t events)
{
  if (socket->connecting) {
    on_connected(control, socket);
    return;
  }
  kvf_status status = KVF_OK;
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) {
    do {
      status = kvf_control_socket_fill(socket);
      if (status == KVF_OK || status == KVF_NOT_FOUND) {
        hear(control, socket);
      }
      if (status == KVF_OK) {
        status = deliver_frames(control, socket);
      }
    } while (status == KVF_OK && kvf_control_socket_holds_more(socket));
    status = status == KVF_NOT_FOUND ? KVF_OK : status;
  }
  if (status != KVF_OK) {
    close_socket(control, socket);
  }
}

static int timeout_ms(const kvf_control *control, uint64_t deadline_ns)
{
  if (control->accept_after_ns != 0) {
    deadline_ns = kvf_time_min(deadline_ns, control->accept_after_ns);
  }
  return kvf_thread_wait_ms(kvf_clock_now(), deadline_ns);
}

static void on_wake(kvf_control *control)
{
  uint64_t count;
  ssize_t got = read(control->node->clock.wake_fd, &count, sizeof(count));
  (void)got; /* nothing there: somebody was faster */
}

static void resume_accepting(kvf_control *control)
{
  uint64_t now_ns = kvf_clock_now();
  if (control->accept_after_ns != 0 && now_ns >= control->accept_after_ns) {
    bool resumed = watch_listeners(control, EPOLLIN, EPOLL_CTL_MOD);
    control->accept_after_ns = resumed ? 0 : now_ns + ACCEPT_PAUSE_NS;
  }
}

static void *run(void *context)
{
  kvf_control *control = context;
  struct epoll_event events[EVENTS_PER_TURN];
  while (!atomic_load(&control->stopping)) {
    uint64_t deadline_ns = serve_core(control);
    int count = epoll_wait(control->epoll_fd, events, EVENTS_PER_TURN, timeout_ms(control, deadline_ns));
    for (int i = 0; i < count; i++) {
      if (events[i].data.u64 == EPOLL_WAKE) {
        on_wake(control);
      } else if (events[i].data.u64 > EPOLL_LISTENER - LISTENERS_MAX) {
        accept_all(control, control->listeners[EPOLL_LISTENER - events[i].data.u64]);
      } else {
        kvf_control_socket *socket = find_socket(control, events[i].data.u64);
        if (socket != NULL) {
          on_socket_event(control, socket, events[i].events);
        }
      }
    }
    resume_accepting(control);
  }
  return NULL;
}

kvf_status kvf_control_start(kvf_control *control)
{
  control->started = kvf_thread_start(&control->thread, "kvf-control", run, control, &control->node->cpus) == 0;
  return control->started ? KVF_OK : KVF_SYSTEM;
}

void kvf_control_stop(kvf_control *control)
{
  if (control->started) {
    control->started = false;
    atomic_store(&control->stopping, true);
    kvf_node_wake(control->node);
    (void)pthread_join(control->thread, NULL);
  }
  kvf_control_socket *socket;
  kvf_control_socket *next;
  HASH_ITER(by_id, control->sockets, socket, next)
  {
    remove_socket(control, socket);
  }
  for (size_t i = 0; i < LISTENERS_MAX; i++) {
    if (control->listeners[i] >= 0) {
      kvf_socket_close(control->listeners[i]);
      control->listeners[i] = -1;
    }
  }
}

void kvf_control_close(kvf_control *control)
{
  if (control == NULL) {
    return;
  }
  kvf_control_stop(control);
  kvf_own_fd_close(control->node->clock.wake_fd);
  control->node->clock.wake_fd = -1;
  kvf_own_fd_close(control->epoll_fd);
  free(control);
}
