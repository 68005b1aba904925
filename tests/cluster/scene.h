/* Scenes: what happens to a cluster, as text. A line is a command and, behind " > ", all that is done or said then; a
 * command that is refused says why first. Tickets are A to H, producer ranks P0 to P7, the consumer is D; `NODE` is D
 * or one of those. A command with "xN" behind it is given N times.
 *
 *   ticket [P] BLOCKS            publish A [P…]              end A [P]          of all ranks of its engine, or of P
 *   alter A WHAT                 a byte of compat, hash, model, token, incarnation, life, address, other; or
 *                                fields, counts, block, empty, slid, groups, round
 *   request N A,B [NAME=VALUE…]  options of a request, `prompt=hash` or `prompt=tokens`: of another prompt
 *   begin N, wait N, unwait N, cancel N, detach N, stuck N, released N MASK, report N MASK STATUS PREFIX [BLOCKS]
 *   load N A,B [timeout=MS] [want=0,2], abort N
 *   accept P, refuse P           the dial that waits; down P…, up P…: dials that do not wait
 *   cut P…, lose P…              both ends of its connection are closed, or D's alone;  restart P
 *   hold NODE, let NODE          what it sends
 *   link ID STATUS, linkdown ID STATUS, malformed ID
 *   done ID STATUS [VERIFIED], done P COUNT STATUS, progress ID
 *   clear NODE, memory NODE, move NODE           its memory goes, comes, or is another one
 *   know P                       D has the option peers, and starts
 *   garble NODE P, insecure NODE P               what comes over the connection to P, at this end of it
 *   +MS                          time goes by
 *   stats NODE NAME[.REASON]…, peers, log NODE [PART], fence A P, holds A, attachment N, event
 */
#ifndef KVF_TESTS_SCENE_H
#define KVF_TESTS_SCENE_H

#include "cluster.h"

#define SCENE_WORDS_MAX 24

/* A command and its words. */
typedef struct scene_line {
  uint32_t count;
  char *word[SCENE_WORDS_MAX];
} scene_line;

typedef struct scene_command {
  const char *name;
  void (*call)(const scene_line *at);
} scene_command;

/* Calls the one that the line names; false: none of them. */
bool scene_call(const scene_command *commands, size_t count, const scene_line *at);
/* Does what is a command of the test's own, whether or not a cluster is open, and only then returns true: it comes
 * first and settles by itself. NULL: there are none. */
extern bool (*scene_own)(const scene_line *at);

/* The i-th word, and what it stands for. There must be one. */
const char *scene_word(const scene_line *at, uint32_t i);
uint32_t scene_number(const scene_line *at, uint32_t i);
cluster_node *scene_node(const scene_line *at, uint32_t i);
kvf_ticket *scene_ticket(const scene_line *at, uint32_t i);
kvf_status scene_status(const scene_line *at, uint32_t i);
/* The value of NAME=VALUE; NULL: it is not there. */
const char *scene_value(const scene_line *at, const char *name);
void scene_say_unless_ok(kvf_status status);

/* Goes on with the cluster that is open. */
void scene(const char *text);

/* A test that is one scene, or begins with one. */
#define SCENE(name, options, text)     \
  TEST_WITH(name, NULL, cluster_close) \
  {                                    \
    cluster_open(options);             \
    scene(text);                       \
  }

#endif
