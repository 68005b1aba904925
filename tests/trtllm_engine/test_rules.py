"""Each rule of TensorRT-LLM's that a connector can break, broken."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from . import collectives, names
from .collectives import CollectiveMismatch, LimitPassed, RankDied, RanksHang, RuleBroken
from .conftest import BLOCKS, SIZE, TOKENS, Make, ask, drain, prompt
from .model import right_answer


@pytest.fixture
def short_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "COLLECTIVE_LIMIT_S", 0.3)


# ---- offers ----


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("flags, failure, what", [
    ("last", RuleBroken, "the last token"),
    ("half", RuleBroken, "whole blocks"),
    ("nothing", RankDied, "asynchronous load of no tokens"),
])
def test_a_wrong_offer(make: Make, manager: str, flags: str, failure: type, what: str) -> None:
    source, target = make("P", manager=manager), make("D", flags, manager=manager)
    ask(source, prompt(1, 16))
    with pytest.raises(failure, match=what):
        ask(target, prompt(1, 16))


def test_a_bound_request_has_no_salt(make: Make) -> None:
    assert ask(make("D", "cache_salt", manager="v2"), prompt(1)) == right_answer(prompt(1), TOKENS)
    with pytest.raises(RankDied, match="no attribute 'cache_salt'"):
        ask(make("E", "cache_salt"), prompt(1))


# ---- loads ----


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("flags", ["lie", "lie+async"])
def test_loaded_without_bytes_is_wrong_text_and_spreads(make: Make, manager: str, flags: str) -> None:
    engine = make("D", flags, manager=manager)
    right = right_answer(prompt(1), TOKENS)
    assert ask(engine, prompt(1)) != right
    again = ask(engine, prompt(1))
    assert engine.counters[2].reused == 16 and engine.counters[2].matched == 0 and again != right
    assert ask(make("E", manager=manager, enable_block_reuse=False), prompt(2)) == right_answer(prompt(2), TOKENS)


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("good_blocks", [0, 2])
def test_a_failed_load_can_be_computed_instead(make: Make, monkeypatch: pytest.MonkeyPatch, manager: str,
                                               good_blocks: int) -> None:
    """By a wrapper around the manager's get_finished, which puts the request back, as a fork's manager does."""
    ask(make("P", manager=manager, ranks=2), prompt(1))
    kind = names.install(names.NEWEST).KvCacheConnectorManager
    poll = kind.get_finished

    def put_back(self: Any) -> list[Any]:
        known, saved = set(self.finished_async_loading_requests), poll(self)
        for each in set(self.finished_async_loading_requests) - known:
            self.finished_async_loading_requests[each].context_current_position = good_blocks * SIZE
        return saved

    engine = make("D", "lost+async" if good_blocks == 0 else "async", manager=manager, ranks=2)
    monkeypatch.setattr(kind, "get_finished", put_back)
    assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert (engine.counters[1].matched, engine.counters[1].computed) == (16, 18 - good_blocks * SIZE)


@pytest.mark.parametrize("flags", ["lost", "lost on 1", "foreign"])
def test_bytes_of_no_or_another_rank_are_wrong_text(make: Make, flags: str) -> None:
    source, target = make("P", ranks=2), make("D", flags, ranks=2)
    assert ask(source, prompt(1)) == right_answer(prompt(1), TOKENS) != ask(target, prompt(1))


def test_replicated_regions_are_carried_too(make: Make) -> None:
    engines = [make(flags, flags, manager="v2", has_index=True) for flags in ("P", "D", "unreplicated")]
    texts = [ask(engine, prompt(1)) for engine in engines]
    assert texts[0] == texts[1] == right_answer(prompt(1), TOKENS) != texts[2]


# ---- ids ----


@pytest.mark.parametrize("flags", ["unknown", "twice+async"])
def test_ids_that_are_not_there_are_a_key_error(make: Make, flags: str) -> None:
    ask(make("P"), prompt(1))
    with pytest.raises(RankDied, match="KeyError"):
        ask(make("D", flags), prompt(1))


# ---- ranks ----


def test_no_collective_in_a_constructor(make: Make) -> None:
    with pytest.raises(RuleBroken, match="constructor"):
        make("P", "constructor")


def test_a_collective_of_one_rank_when_it_starts(make: Make, short_limit: None) -> None:
    with pytest.raises(CollectiveMismatch, match="have not come"):
        make("P", "collective", ranks=2)


@pytest.mark.parametrize("processes", [False, True])
def test_a_collective_of_one_rank(make: Make, processes: bool) -> None:
    with pytest.raises(CollectiveMismatch, match="rank 0: allgather in trtllm_engine.toys.get_finished, rank 1: "):
        ask(make("P", "gather", ranks=2, processes=processes), prompt(1))


def test_the_same_collective_in_different_places(make: Make) -> None:
    with pytest.raises(CollectiveMismatch, match="toys.gather"):
        ask(make("P", "several", ranks=2), prompt(1))


def test_metadata_is_pickled(make: Make) -> None:
    with pytest.raises(RuleBroken, match="pickled"):
        ask(make("P", "pickle"), prompt(1))


@pytest.mark.parametrize("flags, processes", [("poll", False), ("start", False), ("poll", True)])
def test_one_rank_s_death_is_all_s_or_the_others_hang(make: Make, flags: str, processes: bool) -> None:
    with pytest.raises(RankDied, match="OSError") as died:
        ask(make("P", flags, ranks=2, processes=processes), prompt(1))
    assert died.value.rank == 1 and not isinstance(died.value, RanksHang)
    if not processes:
        with pytest.raises(RanksHang, match="rank 1 has died.*OSError"):
            ask(make("Q", flags, ranks=2, version=names.V1_2), prompt(1))


def test_an_exception_in_forward_ends_all_requests_of_the_rank(make: Make, short_limit: None) -> None:
    engine = make("P", "forward")
    asked = engine.submit(prompt(1), TOKENS)
    engine.run()
    assert engine.finished[asked] == "error: OSError: wait_for_save" and engine.free_blocks == BLOCKS
    with pytest.raises(RankDied, match="sampling failed"):
        ask(make("Q", "forward", loop="overlap"), prompt(1))
    with pytest.raises(CollectiveMismatch):  # the other rank does not know
        ask(make("R", "forward", ranks=2), prompt(1))


def test_a_rank_can_be_made_to_die_or_to_be_late(make: Make, short_limit: None) -> None:
    engine = make("P", ranks=2)
    engine.fault(1, die="as the test wants it")
    with pytest.raises(RankDied, match="as the test wants"):
        ask(engine, prompt(1))
    late = make("Q", ranks=2)
    late.fault(1, delay_s=0.05)
    assert ask(late, prompt(1)) == right_answer(prompt(1), TOKENS)
    late.fault(1, delay_s=2 * collectives.COLLECTIVE_LIMIT_S)
    with pytest.raises(CollectiveMismatch, match="ranks \\[1\\] have not come"):
        ask(late, prompt(2))


def test_a_process_can_be_killed(make: Make) -> None:
    engine = make("P", ranks=2, processes=True)
    assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
    engine.kill(1)
    with pytest.raises(RanksHang, match="rank 1 has died: its process is gone"):
        ask(engine, prompt(2))


# ---- cancel ----


def parked(make: Make, **arguments: object) -> object:
    """An engine with one request that loads, and in which another runs so that cancels are handled."""
    ask(make("P"), prompt(1))
    engine = make("D", "async", blocks=12, enable_block_reuse=False, **arguments)
    engine.submit(prompt(1), 3)
    engine.step()
    engine.cancel(1)
    engine.submit(prompt(2), 3)
    return engine


def test_blocks_freed_under_a_load_are_another_request_s(make: Make) -> None:
    engine = parked(make, version=names.V1_2, seed=5)
    engine.step()
    assert engine.finished == {1: "cancelled"}
    engine.submit(prompt(3), TOKENS)
    engine.run()
    assert engine.answers[3] != right_answer(prompt(3), TOKENS)


def test_the_newest_waits_for_the_load(make: Make) -> None:
    engine = parked(make, seed=5)
    engine.step()
    assert not engine.finished
    engine.submit(prompt(3), TOKENS)
    engine.run()
    assert engine.finished[1] == "cancelled" and engine.free_blocks == 12
    assert engine.answers[3] == right_answer(prompt(3), TOKENS)


def test_a_parked_request_alone_is_not_cancelled(make: Make) -> None:
    engine = make("D", "lie+async", version=names.V1_2)
    engine.submit(prompt(1), 3)
    engine.step()
    engine.cancel(1)
    engine.step()
    assert not engine.finished
    engine.run()
    assert engine.finished[1] == "cancelled"


@pytest.mark.parametrize("version, manager, told", [
    (names.V1_0, "v1", ["finished"]), (names.V1_2, "v1", []), (names.NEWEST, "v1", []), (names.NEWEST, "v2", ["reset"]),
    (dataclasses.replace(names.NEWEST, cancel_resets=False), "v2", [])], ids=str)
def test_what_is_told_of_a_cancelled_request(make: Make, version: names.Version, manager: str, told: list[str]) -> None:
    engine = make("D", version=version, manager=manager)
    engine.submit(prompt(1), 30)
    engine.step()
    engine.step()
    engine.cancel(1)
    engine.run()
    assert engine.finished[1] == "cancelled" and engine.free_blocks == BLOCKS
    assert [call[0] for call in engine.scheduler.calls if call[0] in ("finished", "reset")] == told


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("loop", ["plain", "overlap"])
def test_a_request_is_cancelled_between_chunks(make: Make, manager: str, loop: str) -> None:
    engine = make("D", manager=manager, loop=loop, chunk_tokens=4)
    engine.submit(prompt(1), 3)
    engine.step()
    engine.step()
    engine.cancel(1)
    engine.run()
    assert engine.finished == {1: "cancelled"} and engine.free_blocks == BLOCKS
    assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert engine.counters[2].reused in (8, 12), "what was computed can be used again"


def test_a_waiting_request_is_cancelled(make: Make) -> None:
    engine = make("D", max_batch_size=1)
    engine.submit(prompt(1), 3)
    engine.submit(prompt(2), 3)
    engine.step()
    engine.cancel(2)
    engine.run()
    assert engine.finished == {1: "length", 2: "cancelled"} and engine.answers[2] == []


# ---- the order of calls ----


def test_the_order_of_calls(make: Make) -> None:
    ask(make("P"), prompt(1))
    engine = make("D", "lease")
    engine.workers[0].calls.clear()
    ask(engine, prompt(1), 1)
    layers = [("layer", 0, 0), ("layer saved", 0, 0), ("layer", 0, 1), ("layer saved", 0, 1)]
    names_of = [call if call[0].startswith("layer") else call[0] for call in engine.scheduler.calls]
    assert names_of == ["query", "alloc", "meta", "start_load", *layers, "wait_for_save", "finished", "get_finished"]
    data = engine.scheduler.calls[2][1].new_requests[0]
    assert (data.computed_position, data.num_scheduled_tokens, data.new_tokens) == (0, 2, prompt(1))
    assert engine.scheduler.calls[-1][2:] == ([1], [])


def test_a_parked_request_is_in_no_scheduler_output(make: Make) -> None:
    ask(make("P"), prompt(1))
    engine = make("D", "async")
    engine.scheduler.calls.clear()
    ask(engine, prompt(1), 1)
    calls = engine.scheduler.calls
    assert [call[0] for call in calls[:5]] == ["query", "alloc", "meta", "start_load", "get_finished"]
    assert calls[2][1].new_requests == [] and calls[4][2:] == ([], [1])
    outputs = [call[1] for call in calls if call[0] == "meta"]
    assert len(outputs) == 2 and outputs[1].new_requests[0].computed_position == 16


def test_overlap_begins_before_results_are_handled(make: Make) -> None:
    engine = make("P", loop="overlap")
    asked = engine.submit(prompt(1), 3)
    engine.step()
    assert engine.answers[asked] == []
    engine.step()
    assert len(engine.answers[asked]) == 1 and engine.executors[0].active[0]._begun == 2
    engine.run()
    assert engine.answers[asked] == right_answer(prompt(1), 3)


# ---- start-up ----


@pytest.mark.parametrize("argument", [
    {"pipeline_parallel_size": 2}, {"context_parallel_size": 2}, {"max_beam_width": 2}, {"host_cache_size": 1 << 20},
    {"capacity_scheduler_policy": "MAX_UTILIZATION"}, {"enable_attention_dp": True}, {"windows": (None, 8)},
    {"manager": "v2", "version": names.V1_2}], ids=str)
def test_what_is_refused(make: Make, argument: dict) -> None:
    with pytest.raises(NotImplementedError):
        make("P", **argument)


def test_an_argument_that_nobody_has_is_a_type_error(make: Make) -> None:
    with pytest.raises(TypeError, match="kv_transfer_config"):
        make("P", kv_transfer_config=None)


def test_flat_callbacks_are_refused_with_several_groups(make: Make) -> None:
    with pytest.raises(NotImplementedError, match="several layer groups"):
        make("P", manager="v2", windows=(None, 8), scheduler_class="FlatScheduler")
    assert ask(make("Q", manager="v2", scheduler_class="FlatScheduler"), prompt(1)) == right_answer(prompt(1), TOKENS)


def test_an_abstract_method_is_missed(make: Make) -> None:
    with pytest.raises(TypeError, match="abstract"):
        make("P", worker_class="Unfinished")


@pytest.mark.parametrize("version", names.VERSIONS.values(), ids=list(names.VERSIONS))
def test_each_version_has_its_names(version: names.Version) -> None:
    module = names.install(version)
    for kind, mine, defaults in ((module.KvCacheConnectorWorker, version.worker, version.worker_defaults),
                                 (module.KvCacheConnectorScheduler, version.scheduler, version.scheduler_defaults)):
        assert set(kind.__abstractmethods__) == set(mine) and all(hasattr(kind, name) for name in defaults)
    assert hasattr(module.KvCacheConnectorScheduler, "request_reset") == (version is names.NEWEST)
    assert [field.name for field in dataclasses.fields(module.RequestData)] == list(version.fields)


def test_v1_gives_whoever_has_begun_what_it_was_promised(make: Make) -> None:
    """GUARANTEED_NO_EVICT: a test cannot take these blocks away, either."""
    engine = make("D", manager="v1")
    engine.submit(prompt(1), 20)
    engine.step()
    engine.fault(held_blocks=BLOCKS)
    engine.run()
    assert engine.answers[1] == right_answer(prompt(1), 20)
    drain(engine)


@pytest.mark.parametrize("loop", ["plain", "overlap"])
def test_prompts_in_chunks_do_not_keep_all_pages_from_each_other(make: Make, loop: str) -> None:
    """All have begun, and none has what it takes to end: one gives its pages up."""
    engine = make("D", manager="v2", loop=loop, chunk_tokens=2 * SIZE)
    asked = {engine.submit(prompt(number, BLOCKS // 4 * SIZE), 1): number for number in range(8)}
    engine.run(limit_s=5.0)
    for one, number in asked.items():
        assert engine.answers[one] == right_answer(prompt(number, BLOCKS // 4 * SIZE), 1)
    drain(engine)


def test_nothing_can_take_for_ever(make: Make) -> None:
    engine = make("D")
    engine.fault(held_blocks=BLOCKS)
    engine.submit(prompt(1), 3)
    with pytest.raises(LimitPassed):
        engine.run(limit_s=0.2)
    engine.fault(held_blocks=0)
    engine.run()
    drain(engine)
