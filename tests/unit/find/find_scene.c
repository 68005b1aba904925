/* Scenes of finders: see find_scene.h. */
#include "find_scene.h"

#include "wire/find_message.h"

kvf_finder finders[1 + CLUSTER_PRODUCERS];

static kvf_finder *finder_of(const cluster_node *node)
{
  return &finders[node == &c.d ? 0 : 1 + (node - c.p)];
}

static void invite(cluster_node *node)
{
  kvf_finder_init(finder_of(node), node->core);
}

static kvf_find_key key_of(uint32_t blocks)
{
  return kvf_find_key_of_prompt(&(kvf_prompt){.tokens = blocks * CLUSTER_BLOCK_TOKENS});
}

static const kvf_mac *mac_at(uint32_t key)
{
  return &finders[1].guest.context->self.macs[key];
}

kvf_status find_start(uint32_t blocks, const char *at, uint32_t timeout_ms, uint64_t user, uint64_t *id)
{
  const kvf_find_key key = key_of(blocks);
  return kvf_finds_start(&finders[0].finds, c.now_ns, &key, at, timeout_ms, user, id);
}

size_t find_text(const kvf_ticket *ticket, char text[KVF_TICKET_BYTES_MAX])
{
  size_t bytes = 0;
  assert_int_equal(kvf_ticket_encode(ticket, mac_at(0), text, KVF_TICKET_BYTES_MAX, &bytes), KVF_OK);
  return bytes;
}

kvf_status find_offer(const cluster_node *node, const kvf_ticket *ticket, const char *text, size_t text_bytes)
{
  const kvf_find_key key = kvf_find_key_of_prompt(&ticket->prompt);
  return kvf_offers_add(&finder_of(node)->offers, c.now_ns, &ticket->lease, &key, text, text_bytes);
}

kvf_asker find_asker(uint8_t who, uint64_t find_id, uint32_t blocks, bool is_other_key)
{
  const kvf_find_key asked = key_of(blocks);
  kvf_asker asker = {.incarnation = {.bytes = {who}}, .find_id = find_id};
  assert_int_equal(kvf_find_key_seal(&asked, mac_at(is_other_key), asker.key), KVF_OK);
  return asker;
}

/* ---- commands ---- */

static void say_ticket(const char *text, size_t text_bytes)
{
  static char own[KVF_TICKET_BYTES_MAX];
  for (uint32_t i = 0; i < c.tickets_count; i++) {
    if (find_text(&c.tickets[i], own) == text_bytes && memcmp(own, text, text_bytes) == 0) {
      cluster_say("%c", (char)('A' + i));
    }
  }
}

static void do_offer(const scene_line *at)
{
  static char text[KVF_TICKET_BYTES_MAX];
  const size_t bytes = find_text(scene_ticket(at, 1), text);
  scene_say_unless_ok(find_offer(at->count > 2 ? scene_node(at, 2) : &c.p[0], scene_ticket(at, 1), text, bytes));
}

static void do_known(const scene_line *at)
{
  assert_int_equal(kvf_core_add_static(c.d.core, scene_word(at, 1), &scene_node(at, 2)->address), KVF_OK);
}

static void do_find(const scene_line *at)
{
  const char *timeout = scene_value(at, "timeout");
  const uint32_t user = scene_number(at, 1);
  uint64_t id = 0;
  const kvf_status status = find_start(scene_number(at, 2), scene_value(at, "at"),
                                       timeout == NULL ? 0 : (uint32_t)strtoul(timeout, NULL, 0), user, &id);
  assert_true((status == KVF_OK) == (id != 0));
  c.requests[user] = id;
  scene_say_unless_ok(status);
}

static void do_take(const scene_line *at)
{
  static char text[KVF_TICKET_BYTES_MAX];
  const size_t capacity = at->count > 2 ? find_text(&c.tickets[0], text) - 1 : sizeof(text);
  size_t bytes = 0;
  const kvf_status status =
      kvf_finds_take(&finders[0].finds, c.now_ns, c.requests[scene_number(at, 1)], text, capacity, &bytes);
  assert_true((status == KVF_OK) == (bytes != 0));
  scene_say_unless_ok(status);
  say_ticket(text, bytes);
}

static void do_ask(const scene_line *at)
{
  const kvf_asker asker = find_asker((uint8_t)scene_number(at, 1), scene_number(at, 2), scene_number(at, 3),
                                     scene_value(at, "key") != NULL);
  const kvf_offer *given = kvf_offers_take(&finders[1].offers, c.now_ns, &asker);
  if (given != NULL) {
    say_ticket(given->text, given->text_bytes);
  } else {
    cluster_say("none");
  }
}

static void do_found(const scene_line *at)
{
  static uint8_t body[KVF_FOUND_BYTES_MAX];
  static char text[KVF_TICKET_BYTES_MAX];
  const char *how = at->count > 2 ? at->word[2] : "";
  kvf_found found = {.id = scene_number(at, 1), .status = KVF_FOUND_TICKET, .text = text};
  size_t bytes = 0;
  found.text_bytes = find_text(&c.tickets[0], text);
  text[found.text_bytes / 2] ^= strcmp(how, "altered") == 0;
  assert_int_equal(kvf_found_encode(&found, body, sizeof(body), &bytes), KVF_OK);
  bytes = strcmp(how, "cut") == 0 ? 3 : bytes;
  kvf_core_on_frame(c.d.core, c.now_ns, c.wires[0].consumer_id, KVF_FRAME_FOUND, body, bytes);
}

static void do_finder(const scene_line *at)
{
  const cluster_node *node = scene_node(at, 1);
  kvf_stat stats[64];
  const size_t count = kvf_finder_stats(finder_of(node), stats, 63);
  stats[count] = (kvf_stat){.name = "finds_open", .reason = "", .value = HASH_CNT(by_id, finder_of(node)->finds.by_id)};
  kvf_core_check(node->core, true);
  for (uint32_t i = 2; i < at->count; i++) {
    for (size_t k = 0; k <= count; k++) {
      if (strcmp(stats[k].reason[0] == 0 ? stats[k].name : stats[k].reason, at->word[i]) == 0) {
        cluster_say("%llu", (unsigned long long)stats[k].value);
      }
    }
  }
}

static bool do_own(const scene_line *at)
{
  static const scene_command commands[] = {{"offer", do_offer},  {"known", do_known}, {"find", do_find},
                                           {"take", do_take},    {"ask", do_ask},     {"found", do_found},
                                           {"finder", do_finder}};
  if (!scene_call(commands, sizeof(commands) / sizeof(commands[0]), at)) {
    return false;
  }
  cluster_settle();
  return true;
}

__attribute__((constructor)) static void join_the_scenes(void)
{
  cluster_invite = invite;
  scene_own = do_own;
}
