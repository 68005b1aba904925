/* Two processes: one publishes the blocks of a prompt, the other loads them, and tries again when they are gone.
 *
 *   cc two_nodes.c $(pkg-config --cflags --libs kvferry) -o two_nodes && ./two_nodes
 */
#define _POSIX_C_SOURCE 200809L /* fdopen(), also with -std=c17 */
#include <kvferry/kvferry.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { POOL_BLOCKS = 8, BLOCK_BYTES = 4096, BLOCK_TOKENS = 16, BLOCKS = 4, TOKENS = BLOCKS * BLOCK_TOKENS };

static unsigned char pool[POOL_BLOCKS][BLOCK_BYTES]; /* one layer's KV memory; after fork() each process has its own */
static const uint32_t counts[] = {BLOCKS};           /* one KV group */

static void must(kvf_status status, const char *what)
{
  if (status != KVF_OK) {
    (void)fprintf(stderr, "%s: %s: %s\n", what, kvf_status_name(status), kvf_error_text());
    exit(1);
  }
}

/* A node that is both: the control node of its engine, and its only rank. */
static kvf_node *open_node(void)
{
  char message[KVF_MESSAGE_BYTES_MAX];
  kvf_config config;
  kvf_node *node = NULL;
  kvf_config_init(&config);
  must(kvf_config_set(&config, "block_tokens", "16", message), message);
  must(kvf_config_identity(&config, "model", "example"), "identity"); /* nodes of another one are refused */
  must(kvf_node_open(&config, &node, message), message);
  const kvf_region region = {.base = pool,
                             .stride_bytes = BLOCK_BYTES,
                             .block_bytes = BLOCK_BYTES,
                             .blocks = POOL_BLOCKS,
                             .heads = 1,
                             .heads_total = 1};
  must(kvf_node_register(node, &region, 1), "register");
  return node;
}

/* The next event. An engine would call kvf_node_poll() once a step instead. */
static kvf_event next_event(kvf_node *node)
{
  kvf_event event;
  while (kvf_node_poll(node, &event, 1) == 0) {
    struct pollfd wait = {.fd = kvf_node_event_fd(node), .events = POLLIN};
    (void)poll(&wait, 1, 1000);
  }
  return event;
}

/* ---- the prefill process ---- */

static int publish(const kvf_prompt *prompt, FILE *to_decode)
{
  static const uint32_t ids[BLOCKS] = {1, 3, 5, 7};
  static char ticket[KVF_TICKET_BYTES_MAX];
  const kvf_blocks blocks = {.ids = ids, .counts = counts, .groups = 1};
  kvf_node *node = open_node();
  unsigned char record[KVF_ADDRESS_BYTES_MAX];
  size_t bytes = 0;
  must(kvf_node_address(node, record, sizeof(record), &bytes), "address"); /* tickets say where the ranks are */
  must(kvf_node_set_ranks(node, record, &bytes, 1), "set_ranks");
  for (int i = 0; i < BLOCKS; i++) {
    memset(pool[ids[i]], 'A' + i, BLOCK_BYTES);
  }
  kvf_lease lease;
  must(kvf_lease_reserve_blocks(node, &blocks, POOL_BLOCKS, &lease), "reserve");
  must(kvf_ticket_make(node, &lease, &blocks, prompt, ticket, sizeof(ticket), &bytes), "ticket");
  must(kvf_lease_publish(node, &lease, &blocks, prompt, NULL, 0),
       "publish");                                        /* until the lease ends we leave them alone */
  (void)fprintf(to_decode, "%.*s\n", (int)bytes, ticket); /* an engine sends it with the request */
  (void)fflush(to_decode);

  const kvf_event event = next_event(node); /* nothing else can come: KVF_EVENT_LEASE_ENDED */
  must(kvf_lease_release(node, event.id), "release");
  memset(pool, 'x', sizeof(pool));
  printf("prefill: the lease has ended, %s\n", event.u.lease_end == KVF_LEASE_END_COMPLETED ? "completed" : "in vain");
  (void)fclose(to_decode);
  int decode_failed = 1;
  (void)wait(&decode_failed);
  kvf_node_close(node);
  return decode_failed == 0 ? 0 : 1;
}

/* ---- the decode process ---- */

static kvf_verdict load(kvf_node *node, const kvf_prompt *prompt, const char *ticket)
{
  static const uint32_t ids[BLOCKS] = {0, 1, 2, 3};
  kvf_request_info info;
  must(kvf_request_open(node, ticket, strlen(ticket), prompt, NULL, 0, &info), "open");
  const kvf_load_params load = {.request_id = info.id,
                                .ticket = ticket,
                                .ticket_bytes = strlen(ticket),
                                .prompt = *prompt,
                                .destination = {.ids = ids, .counts = counts, .groups = 1}};
  must(kvf_request_begin(node, info.id), "begin");
  must(kvf_load_start(node, &load), "load");
  kvf_verdict verdict = {0};
  bool released = false;
  while (!released) { /* by the load's deadline, for any behaviour of the other process */
    const kvf_event event = next_event(node);
    if (event.kind == KVF_EVENT_LOAD) {
      (void)kvf_request_report(node, &event.u.report); /* what this rank found, to the control node */
    } else if (event.kind == KVF_EVENT_RELEASED) {
      (void)kvf_request_released(node, event.id, 1); /* and that it writes no more */
    } else if (event.kind == KVF_EVENT_VERDICT) {
      verdict = event.u.verdict;
    } else {
      released = true; /* KVF_EVENT_REQUEST_RELEASED: the blocks are ours again */
    }
  }
  return verdict;
}

static int consume(const kvf_prompt *prompt, FILE *from_prefill)
{
  static char ticket[KVF_TICKET_BYTES_MAX + 2];
  kvf_node *node = open_node();
  if (fgets(ticket, sizeof(ticket), from_prefill) == NULL) {
    return 1;
  }
  ticket[strcspn(ticket, "\n")] = '\0';
  for (int round = 0; round < 2; round++) {
    const kvf_verdict verdict = load(node, prompt, ticket);
    if (verdict.action == KVF_ACTION_USE) {
      printf("decode: %u tokens loaded: %c %c %c %c\n", verdict.keep_tokens, pool[0][0], pool[1][0], pool[2][0],
             pool[3][BLOCK_BYTES - 1]);
    } else {
      printf("decode: %s, %u tokens to compute\n", kvf_status_name(verdict.status), verdict.recompute_tokens);
    }
    (void)fgetc(from_prefill); /* end of file: the lease has ended, and the blocks have been overwritten */
  }
  kvf_node_close(node);
  return 0;
}

int main(void)
{
  uint32_t tokens[TOKENS];
  for (uint32_t i = 0; i < TOKENS; i++) {
    tokens[i] = 1000 + i;
  }
  kvf_prompt prompt;
  must(kvf_prompt_hash(tokens, TOKENS, NULL, 0, &prompt), "prompt_hash");
  int ends[2];
  if (pipe(ends) != 0) {
    return 1;
  }
  const pid_t child = fork(); /* before any node is open: a child must not use its parent's */
  const bool decodes = child == 0;
  (void)close(ends[decodes ? 1 : 0]);
  return decodes ? consume(&prompt, fdopen(ends[0], "r")) : publish(&prompt, fdopen(ends[1], "w"));
}
