/* Scenes: see scene.h. */
#include "scene.h"

#define WORDS_MAX 24

typedef struct line {
  uint32_t count;
  char *word[WORDS_MAX];
} line;

static void say_unless_ok(kvf_status status)
{
  if (status != KVF_OK) {
    cluster_say("%s", kvf_status_name(status));
  }
}

/* ---- words ---- */

static const char *word_at(const line *at, uint32_t i)
{
  if (i >= at->count) {
    fail_msg("%s: too few words", at->word[0]);
  }
  return at->word[i];
}

static uint32_t number_at(const line *at, uint32_t i)
{
  return (uint32_t)strtoul(word_at(at, i), NULL, 0);
}

static cluster_node *node_of(const line *at, uint32_t i)
{
  const char *word = word_at(at, i);
  return word[0] == 'D' ? &c.d : &c.p[word[1] - '0'];
}

static uint32_t producer_at(const line *at, uint32_t i)
{
  return (uint32_t)(node_of(at, i) - c.p);
}

static kvf_ticket *ticket_at(const line *at, uint32_t i)
{
  return &c.tickets[word_at(at, i)[0] - 'A'];
}

static kvf_status status_at(const line *at, uint32_t i)
{
  const char *word = word_at(at, i);
  for (unsigned k = 0; kvf_status_at(k) != NULL; k++) {
    if (strcmp(kvf_status_at(k)->name, word) == 0) {
      return kvf_status_at(k)->status;
    }
  }
  fail_msg("no status: %s", word);
  return KVF_INVALID;
}

/* The value of NAME=VALUE; NULL: it is not there. */
static const char *value_of(const line *at, const char *name)
{
  const size_t length = strlen(name);
  for (uint32_t i = 1; i < at->count; i++) {
    if (strncmp(at->word[i], name, length) == 0 && at->word[i][length] == '=') {
      return at->word[i] + length + 1;
    }
  }
  return NULL;
}

/* ---- tickets and leases ---- */

static void do_ticket(const line *at)
{
  const bool is_named = at->count > 2;
  (void)cluster_ticket(is_named ? producer_at(at, 1) : 0, number_at(at, is_named ? 2 : 1));
}

/* Calls for the ranks that are named, or for all that hold the lease of this ticket. */
static void for_ranks(const line *at, kvf_status (*call)(uint32_t producer, const kvf_ticket *ticket))
{
  const kvf_ticket *ticket = ticket_at(at, 1);
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    bool is_meant = at->count == 2 && (!c.is_apart || memcmp(&ticket->rank[0].incarnation, &c.p[i].config.incarnation,
                                                             sizeof(kvf_incarnation)) == 0);
    for (uint32_t k = 2; k < at->count; k++) {
      is_meant = is_meant || producer_at(at, k) == i;
    }
    if (is_meant) {
      say_unless_ok(call(i, ticket));
    }
  }
}

static void do_publish(const line *at)
{
  for_ranks(at, cluster_publish);
}

static kvf_status end_lease(uint32_t producer, const kvf_ticket *ticket)
{
  return kvf_core_lease_end(c.p[producer].core, c.now_ns, &ticket->lease);
}

static void do_end(const line *at)
{
  for_ranks(at, end_lease);
}

static void do_alter(const line *at)
{
  kvf_ticket *ticket = ticket_at(at, 1);
  const char *what = word_at(at, 2);
  const struct {
    const char *name;
    uint8_t *byte;
  } rows[] = {{"compat", &ticket->compat[0]},
              {"hash", &ticket->prompt.hash[0]},
              {"model", &ticket->prompt.model[0]},
              {"token", &ticket->lease.token[0]},
              {"incarnation", &ticket->rank[0].incarnation.bytes[0]},
              {"life", &ticket->rank[0].incarnation.bytes[1]},
              {"address", &ticket->rank[0].address.ip[0]},
              {"other", &ticket->rank[0].other.ip[0]}};
  for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
    *rows[i].byte ^= strcmp(what, rows[i].name) == 0 ? 1 : 0;
  }
  ticket->fields -= strcmp(what, "fields") == 0 ? 1 : 0;
  ticket->counts[0] -= strcmp(what, "counts") == 0 ? 1 : 0;
  ticket->ids[0] += strcmp(what, "block") == 0 ? 1 : 0;
  if (strcmp(what, "empty") == 0) {
    ticket->prompt.tokens = ticket->counts[0] = 0;
  } else if (strcmp(what, "slid") == 0) {
    ticket->ids[ticket->counts[0] - 1] = KVF_BLOCK_NONE;
  } else if (strcmp(what, "groups") == 0) {
    ticket->groups = 2;
    ticket->counts[1] = ticket->counts[0] /= 2;
  } else if (strcmp(what, "round") == 0) { /* its addresses the other way round */
    const kvf_address first = ticket->rank[0].address;
    ticket->rank[0].address = ticket->rank[0].other;
    ticket->rank[0].other = first;
  }
}

/* ---- requests ---- */

static void do_request(const line *at)
{
  const kvf_sources sources = cluster_sources(word_at(at, 2));
  kvf_request_options options = kvf_core_request_options(c.d.core, NULL);
  kvf_prompt prompt = sources.tickets[0]->prompt;
  const char *altered = value_of(at, "prompt");
  for (uint32_t i = 3; i < at->count; i++) {
    char name[64];
    (void)snprintf(name, sizeof(name), "%s", at->word[i]);
    char *value = strchr(name, '=');
    assert_non_null(value);
    *value++ = 0;
    if (strcmp(name, "name") == 0) {
      options.name = value_of(at, "name");
    } else if (strcmp(name, "keep_from") == 0) {
      options.keep_from_tokens = (uint32_t)strtoul(value, NULL, 0);
    } else if (altered == NULL) {
      assert_int_equal(kvf_request_options_set(&options, name, value, NULL), KVF_OK);
    }
  }
  prompt.hash[0] ^= altered != NULL && strcmp(altered, "hash") == 0;
  prompt.tokens += altered != NULL && strcmp(altered, "tokens") == 0;
  say_unless_ok(kvf_core_request_open(c.d.core, c.now_ns, &sources, &prompt, &options, number_at(at, 1),
                                      &c.requests[number_at(at, 1)], NULL));
}

static uint64_t request_at(const line *at)
{
  return number_at(at, 1) < CLUSTER_USERS ? c.requests[number_at(at, 1)] : number_at(at, 1);
}

static void do_begin(const line *at)
{
  say_unless_ok(kvf_core_request_begin(c.d.core, c.now_ns, request_at(at)));
}

static void do_wait(const line *at)
{
  say_unless_ok(kvf_core_request_wait(c.d.core, c.now_ns, request_at(at), at->word[0][0] == 'w'));
}

static void do_cancel(const line *at)
{
  const kvf_finish_kind kind = at->word[0][0] == 'd' ? KVF_FINISH_DETACHED : KVF_FINISH_ABORTED;
  say_unless_ok(kvf_core_request_cancel(c.d.core, c.now_ns, request_at(at), kind));
}

static void do_released(const line *at)
{
  say_unless_ok(kvf_core_request_released(c.d.core, c.now_ns, request_at(at), strtoull(word_at(at, 2), NULL, 0)));
}

static void do_stuck(const line *at)
{
  say_unless_ok(kvf_core_request_stuck(c.d.core, request_at(at)));
}

static void do_report(const line *at)
{
  const kvf_report report = {.request_id = request_at(at),
                             .ranks_mask = strtoull(word_at(at, 2), NULL, 0),
                             .status = status_at(at, 3),
                             .prefix = number_at(at, 4),
                             .blocks = at->count > 5 ? number_at(at, 5) : c.tickets[0].counts[0]};
  say_unless_ok(kvf_core_request_report(c.d.core, c.now_ns, &report));
}

/* Which requests have one attachment: they have one number. */
static void do_attachment(const line *at)
{
  cluster_say("%u", (uint32_t)kvf_core_request_attachment(c.d.core, request_at(at)));
}

/* ---- loads ---- */

static void do_load(const line *at)
{
  const kvf_sources sources = cluster_sources(word_at(at, 2));
  kvf_load_params load = cluster_load_params(sources.tickets[0], number_at(at, 1));
  const char *timeout = value_of(at, "timeout");
  const char *want = value_of(at, "want");
  load.name = value_of(at, "name");
  uint32_t ids[CLUSTER_GROUPS * CLUSTER_BLOCKS];
  load.timeout_ms = timeout == NULL ? 0 : (uint32_t)strtoul(timeout, NULL, 0);
  if (want != NULL) {
    memset(ids, 0xff, sizeof(ids));
    for (char *next; *want != 0; want = *next == ',' ? next + 1 : next) {
      const uint32_t position = (uint32_t)strtoul(want, &next, 0);
      ids[position] = load.destination.ids[position];
    }
    load.destination.ids = ids;
  }
  say_unless_ok(kvf_core_load_start(c.d.core, c.now_ns, &sources, &load, 0));
}

static void do_abort(const line *at)
{
  say_unless_ok(kvf_core_load_abort(c.d.core, c.now_ns, number_at(at, 1)));
}

static void do_done(const line *at)
{
  if (at->word[1][0] == 'P') {
    const uint32_t wanted = number_at(at, 2);
    const uint32_t done = cluster_end_reads(producer_at(at, 1), wanted, status_at(at, 3));
    if (done < wanted) {
      cluster_say("%u reads", done);
    }
    return;
  }
  const uint64_t id = number_at(at, 1);
  for (uint32_t i = 0; i < c.reads_count; i++) {
    if (c.reads[i].transfer.id == id) {
      c.verified = at->count > 3 ? number_at(at, 3) : 0;
      cluster_end_read(i, status_at(at, 2));
      c.verified = 0;
      return;
    }
  }
  kvf_core_on_read_done(c.d.core, c.now_ns, id, status_at(at, 2), 0, NULL, 0, &(kvf_read_work){0}); /* nobody's */
}

static void do_progress(const line *at)
{
  kvf_core_on_read_progress(c.d.core, c.now_ns, number_at(at, 1));
}

static void do_link(const line *at)
{
  kvf_core_on_link(c.d.core, c.now_ns, number_at(at, 1), status_at(at, 2));
}

static void do_linkdown(const line *at)
{
  kvf_core_on_link_down(c.d.core, c.now_ns, number_at(at, 1), status_at(at, 2));
}

static void do_malformed(const line *at)
{
  kvf_core_on_link_malformed(c.d.core, c.now_ns, number_at(at, 1));
}

static void do_holds(const line *at)
{
  const kvf_ticket *ticket = ticket_at(at, 1);
  uint32_t count = 0;
  for (uint32_t position = 0; position < ticket->counts[0]; position++) {
    count += cluster_holds(ticket, 0, position);
  }
  cluster_say("%u", count);
}

/* ---- connections and memory ---- */

static void do_accept(const line *at)
{
  cluster_dial(producer_at(at, 1), at->word[0][0] == 'a' ? KVF_OK : KVF_PEER_DOWN);
}

static void do_down(const line *at)
{
  for (uint32_t i = 1; i < at->count; i++) {
    c.wires[producer_at(at, i)].is_down = at->word[0][0] == 'd';
  }
}

static void do_cut(const line *at)
{
  for (uint32_t i = 1; i < at->count; i++) {
    cluster_cut(producer_at(at, i), at->word[0][0] == 'c');
  }
}

static void do_restart(const line *at)
{
  cluster_restart(producer_at(at, 1));
}

static void do_hold(const line *at)
{
  node_of(at, 1)->is_held = at->word[0][0] == 'h';
}

static void do_memory(const line *at)
{
  cluster_node *node = node_of(at, 1);
  if (at->word[0][1] != 'e' && !cluster_clear_memory(node)) { /* not "memory" */
    cluster_say("not yet");
  }
  if (at->word[0][0] == 'm') {
    cluster_set_memory(node);
  }
}

static void do_know(const line *at)
{
  assert_int_equal(kvf_core_add_known(c.d.core, "p:80", &node_of(at, 1)->address), KVF_OK);
  kvf_core_start(c.d.core, c.now_ns);
}

static uint64_t conn_of(const line *at)
{
  const cluster_wire *wire = &c.wires[producer_at(at, 2)];
  return node_of(at, 1) == &c.d ? wire->consumer_id : wire->producer_id;
}

static void do_garble(const line *at)
{
  kvf_core_on_malformed(node_of(at, 1)->core, c.now_ns, conn_of(at));
}

static void do_insecure(const line *at)
{
  kvf_core_on_insecure(node_of(at, 1)->core, c.now_ns, conn_of(at), "it has another key");
}

/* ---- what can be asked ---- */

static void do_stats(const line *at)
{
  for (uint32_t i = 2; i < at->count; i++) {
    char name[64];
    (void)snprintf(name, sizeof(name), "%s", at->word[i]);
    char *reason = strchr(name, '.');
    if (reason != NULL) {
      *reason++ = 0;
    }
    cluster_say("%llu", (unsigned long long)cluster_stat(node_of(at, 1), name, reason == NULL ? "" : reason));
  }
}

static void say_peer(const kvf_peer_stat *peer)
{
  static const char *const breakers[] = {"", "half-open ", "open "};
  char text[256];
  size_t used = (size_t)snprintf(text, sizeof(text), "%s x%u", peer->address, peer->users);
  for (uint32_t i = 0; i < c.producer.ranks; i++) {
    char address[KVF_ADDRESS_TEXT_BYTES];
    kvf_address_format(&c.p[i].address, address);
    if (strcmp(address, peer->address) == 0) {
      used = (size_t)snprintf(text, sizeof(text), "P%u x%u", i, peer->users);
    }
  }
  for (uint32_t i = 0; i < peer->links_count; i++) {
    const kvf_link_stat *link = &peer->links[i];
    used += (size_t)snprintf(text + used, sizeof(text) - used, " %s%s", link->up ? "+" : "-", link->name);
    if (link->breaker != KVF_BREAKER_CLOSED) {
      used += (size_t)snprintf(text + used, sizeof(text) - used, "(%s%s)", breakers[link->breaker],
                               kvf_status_name(link->cause));
    }
  }
  cluster_say("%s%s%s", text, peer->gone == KVF_OK ? "" : " ", peer->gone == KVF_OK ? "" : kvf_status_name(peer->gone));
}

static void do_peers(const line *at)
{
  static kvf_peer_stat peers[KVF_PEERS_LISTED_MAX];
  (void)at;
  const size_t count = kvf_core_peers(c.d.core, c.now_ns, peers, KVF_PEERS_LISTED_MAX);
  for (size_t i = 0; i < count; i++) {
    say_peer(&peers[i]);
  }
}

/* By its ticket's letter: the id is any number. */
static void name_lease(char *text, uint32_t ticket)
{
  char id[32];
  (void)snprintf(id, sizeof(id), "lease %llu", (unsigned long long)c.tickets[ticket].lease.id);
  char *at = strstr(text, id);
  if (at != NULL && c.tickets[ticket].lease.id != 0) {
    const char *rest = at + strlen(id);
    at[strlen("lease ")] = (char)('A' + ticket);
    memmove(at + strlen("lease A"), rest, strlen(rest) + 1);
  }
}

/* And those lines are forgotten. */
static void do_log(const line *at)
{
  char text[KVF_LOG_LINE_BYTES_MAX];
  cluster_node *node = node_of(at, 1);
  (void)snprintf(text, sizeof(text), "%s", cluster_log(node, at->count > 2 ? at->word[2] : ""));
  for (uint32_t i = 0; i < sizeof(c.tickets) / sizeof(c.tickets[0]); i++) {
    name_lease(text, i);
  }
  cluster_say("%s", text);
  node->log_lines = 0;
}

/* What the fence table of P says of the ticket's slot. */
static void do_fence(const line *at)
{
  const kvf_lease *lease = &ticket_at(at, 1)->lease;
  const uint64_t word = node_of(at, 2)->table[lease->slot].word;
  cluster_say("%s", word == kvf_fence_word_live(lease->id)    ? "live"
                    : word == kvf_fence_word_ended(lease->id) ? "ended"
                                                              : "another");
}

static void do_event(const line *at)
{
  (void)at;
  const uint32_t held = c.held;
  c.held &= ~(uint32_t)CLUSTER_EVENTS;
  cluster_settle();
  c.held = held;
}

/* ---- the text ---- */

static void do_line(const line *at)
{
  static const struct {
    const char *name;
    void (*call)(const line *at);
  } commands[] = {{"ticket", do_ticket},   {"publish", do_publish},   {"end", do_end},
                  {"alter", do_alter},     {"request", do_request},   {"begin", do_begin},
                  {"wait", do_wait},       {"unwait", do_wait},       {"cancel", do_cancel},
                  {"detach", do_cancel},   {"stuck", do_stuck},       {"released", do_released},
                  {"report", do_report},   {"load", do_load},         {"abort", do_abort},
                  {"accept", do_accept},   {"refuse", do_accept},     {"down", do_down},
                  {"up", do_down},         {"cut", do_cut},           {"lose", do_cut},
                  {"restart", do_restart}, {"hold", do_hold},         {"let", do_hold},
                  {"link", do_link},       {"linkdown", do_linkdown}, {"malformed", do_malformed},
                  {"done", do_done},       {"progress", do_progress}, {"clear", do_memory},
                  {"memory", do_memory},   {"move", do_memory},       {"know", do_know},
                  {"garble", do_garble},   {"insecure", do_insecure}, {"stats", do_stats},
                  {"peers", do_peers},     {"log", do_log},           {"holds", do_holds},
                  {"event", do_event},     {"fence", do_fence},       {"attachment", do_attachment}};
  for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
    if (strcmp(at->word[0], commands[i].name) == 0) {
      commands[i].call(at);
      cluster_settle();
      return;
    }
  }
  if (at->word[0][0] != '+') {
    fail_msg("no command: %s", at->word[0]);
  }
  cluster_advance(strtoull(at->word[0] + 1, NULL, 0));
}

static void do_text(char *command)
{
  line at = {.count = 0};
  uint32_t times = 1;
  char *rest = command;
  for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
    assert_true(at.count < WORDS_MAX);
    at.word[at.count++] = word;
  }
  if (at.count == 0) {
    return;
  }
  if (at.count > 1 && at.word[at.count - 1][0] == 'x') {
    times = (uint32_t)strtoul(at.word[--at.count] + 1, NULL, 0);
  }
  for (; times > 0; times--) {
    do_line(&at);
  }
}

void scene(const char *text)
{
  static char actual[65536];
  size_t used = 0;
  for (const char *next = text; *next != 0;) {
    char command[512];
    const char *end = strchr(next, '\n');
    assert_non_null(end);
    const char *said = strstr(next, " >");
    const size_t bytes = (size_t)((said != NULL && said < end ? said : end) - next);
    assert_true(bytes < sizeof(command));
    memcpy(command, next, bytes);
    command[bytes] = 0;
    used += (size_t)snprintf(actual + used, sizeof(actual) - used, "%s", command);
    do_text(command);
    const char *done = cluster_said();
    used += (size_t)snprintf(actual + used, sizeof(actual) - used, "%s%s\n", done[0] == 0 ? "" : " > ", done);
    assert_true(used < sizeof(actual));
    next = end + 1;
  }
  assert_string_equal(actual, text);
}
