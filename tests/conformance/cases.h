/* The cases of the suite; *state is the conformance_traits. */
#ifndef KVF_TESTS_CONFORMANCE_CASES_H
#define KVF_TESTS_CONFORMANCE_CASES_H

/* cases_data.c: the right bytes, at the right places, and no others. */
void single_block(void **state);
void random_blocks(void **state);
void regions_and_groups(void **state);
void heads_narrower(void **state);
void heads_wider(void **state);
void items_out_of_range(void **state);
void small_reads(void **state);
void parallel_reads(void **state);

/* cases_sums.c: bytes that are not those of the publication are told from those that are. */
void bytes_altered_after_publication(void **state);
void altered_and_mended(void **state);

/* cases_lease.c: no sample lies. */
void lease_not_published(void **state);
void lease_published_meanwhile(void **state);
void lease_unknown(void **state);
void lease_over(void **state);
void lease_of_other_blocks(void **state);
void sample_follows_last_byte(void **state);
void sample_follows_last_small_byte(void **state);

/* cases_quiet.c: every read ends, and then nothing writes. */
void cancel_at_random_times(void **state);
void cancel_of_unknown_reads(void **state);
void producer_stopped(void **state);
void producer_killed(void **state);
void disconnect_then_killed(void **state);
void disconnect_with_open_reads(void **state);
void producer_clears_memory(void **state);
void consumer_killed(void **state);
void consumer_stopped_then_killed(void **state);

/* cases_link.c: links to the right peers only, and nothing left behind. */
void descriptions_cut_short(void **state);
void descriptions_of_garbage(void **state);
void layouts_incompatible(void **state);
void incarnation_of_another(void **state);
void session_of_another(void **state);
void describe_without_room(void **state);
void memory_set_twice(void **state);
void nothing_left_behind(void **state);
void forked_child_keeps_nothing(void **state);

/* cases_fault.c: with a fault transport (fault_transport.h) around it. */
void fault_every_status(void **state);
void fault_at_random(void **state);
void fault_stalled_reads(void **state);
void fault_link_down_at_every_event(void **state);
void fault_in_every_operation(void **state);
void fault_late_news_of_links(void **state);

#endif
