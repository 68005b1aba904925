/* Links that have a part in each of three rails: when they are up, and where their reads go. */
#include "scene.h"

#define RAILS                                                                                          \
  "rails=3 offers=local exact_inline_bytes=0 exact_chunk_bytes=2 backoff_min_ms=10 backoff_max_ms=10 " \
  "breaker_cooldown_max_ms=60000 breaker_cooldown_ms=60000 hold=links,reads,cancels published "

/* ---- a link comes up, and goes ---- */

SCENE(a_link_is_up_when_its_last_part_is, RAILS "chunks_in_flight=1",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok\n"
      "link 1 ok\n"
      "link 1 ok > read 1 of P0 over 1 rail 1: 0\n")

SCENE(a_part_that_does_not_come_up_fails_the_link_once, RAILS,
      "load 1 A > open 1 P0 local\n"
      "link 1 ok\n"
      "link 1 transfer_failed > close 1; load 1: transfer_failed 0/4; load 1 released\n"
      "link 1 peer_down\n"
      "link 1 ok\n"
      "linkdown 1 peer_down\n"
      "stats D peer_failures > 1\n")

SCENE(a_part_that_goes_down_before_all_are_up_fails_the_link, RAILS,
      "load 1 A > open 1 P0 local\n"
      "link 1 ok x2\n"
      "linkdown 1 transfer_failed > close 1; load 1: transfer_failed 0/4; load 1 released\n"
      "link 1 ok\n"
      "stats D peer_failures > 1\n")

SCENE(the_first_part_that_goes_down_ends_the_link, RAILS "chunks_in_flight=1",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok x3 > read 1 of P0 over 1 rail 1: 0\n"
      "linkdown 1 transfer_failed > close 1\n"
      "linkdown 1 peer_down\n"
      "stats D peer_failures > 1\n")

SCENE(each_try_counts_its_own_parts, RAILS "chunks_in_flight=1",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok x2\n"
      "link 1 handshake_timeout > close 1; open 2 P0 local\n"
      "link 2 ok x2\n"
      "link 2 ok > read 1 of P0 over 2 rail 1: 0\n")

SCENE(links_do_not_mix, RAILS "ranks=2 heads=2 chunks_in_flight=1",
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "link 1 ok x2\n"
      "link 2 ok x3 > read 1 of P1 over 2 rail 0: 0\n"
      "link 1 ok > read 2 of P0 over 1 rail 1: 0\n")

/* ---- where reads go ---- */

SCENE(a_read_goes_where_the_fewest_are, RAILS "chunks_in_flight=5 blocks=12",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok x3 > read 1 of P0 over 1 rail 1: 0; read 2 of P0 over 1 rail 2: 1; read 3 of P0 over 1 rail 0: 2; "
      "read 4 of P0 over 1 rail 1: 3; read 5 of P0 over 1 rail 2: 4\n"
      "done 3 ok > read 6 of P0 over 1 rail 0: 5\n"
      "done 1 ok > read 7 of P0 over 1 rail 1: 6\n"
      "done 6 ok > read 8 of P0 over 1 rail 0: 7\n"
      "done 2 ok > read 9 of P0 over 1 rail 2: 8\n")

SCENE(rails_have_the_reads_of_all_links, RAILS "chunks_in_flight=1 ranks=2 heads=2",
      "load 1 A > open 1 P0 local; open 2 P1 local\n"
      "link 1 ok x3 > read 1 of P0 over 1 rail 1: 0\n"
      "link 2 ok x3 > read 2 of P1 over 2 rail 0: 0\n"
      "load 2 A > read 3 of P0 over 1 rail 2: 0; read 4 of P1 over 2 rail 0: 0\n")

SCENE(a_cancel_reaches_the_read_s_rail, RAILS "chunks_in_flight=3",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok x3 > read 1 of P0 over 1 rail 1: 0; read 2 of P0 over 1 rail 2: 1; read 3 of P0 over 1 rail 0: 2\n"
      "abort 1 > cancel 1,2,3; load 1: aborted 0/4\n"
      "done P0 3 cancelled > load 1 released\n")

/* Those that have one read at a time use all rails. */
SCENE(sessions_begin_with_different_rails, RAILS "chunks_in_flight=1 blocks=1",
      "load 1 A > open 1 P0 local\n"
      "link 1 ok x3 > read 1 of P0 over 1 rail 1: 0\n"
      "done 1 ok > load 1: ok 1/1; load 1 released\n"
      "load 2 A > read 2 of P0 over 1 rail 1: 0\n"
      "done 2 ok > load 2: ok 1/1; load 2 released\n"
      "cut P0 > close 1\n"
      "load 3 A > open 2 P0 local\n"
      "link 2 ok x3 > read 3 of P0 over 2 rail 0: 0\n"
      "done 3 ok > load 3: ok 1/1; load 3 released\n"
      "cut P0 > close 2\n"
      "load 4 A > open 3 P0 local\n"
      "link 3 ok x3 > read 4 of P0 over 3 rail 2: 0\n"
      "done 4 ok > load 4: ok 1/1; load 4 released\n")
