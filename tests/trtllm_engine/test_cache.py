"""The prefix tree, and KVCacheManagerV2: offers honoured late, in part or not at all, and paused requests."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import BLOCKS, SIZE, TOKENS, Make, all_is_back, ask, prompt
from .model import POISON, right_answer


def told(engine: Any, *kinds: str) -> list[Any]:
    return [call for call in engine.scheduler.calls if call[0] in kinds]


# ---- the tree ----


@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_blocks_are_used_again(make: Make, manager: str) -> None:
    engine = make("P", "empty", manager=manager)
    first = prompt(1, 16)
    answer = ask(engine, first, 6)
    longer = first + answer[:5]
    assert ask(engine, longer) == right_answer(longer, TOKENS)
    assert engine.counters[2].reused == 20, "a full block is reused, also of what was said"
    assert ask(engine, first) == right_answer(first, TOKENS)
    assert engine.counters[3].reused == 12, "the last token is always computed"
    assert engine.free_blocks == BLOCKS


@pytest.mark.parametrize("partial", [False, True])
def test_part_of_a_block_is_used_again(make: Make, partial: bool) -> None:
    engine = make("P", enable_partial_reuse=partial)
    ask(engine, prompt(1))
    near = prompt(1)[:14] + prompt(2)
    assert ask(engine, near) == right_answer(near, TOKENS)
    assert engine.counters[2].reused == (14 if partial else 12)
    assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert engine.free_blocks == BLOCKS


def test_with_partial_reuse_offers_stop(make: Make) -> None:
    source = make("P")
    near = prompt(1)[:6] + prompt(2)
    ask(source, near)
    engine = make("D", enable_partial_reuse=True)
    ask(engine, prompt(1))
    assert ask(engine, near) == right_answer(near, TOKENS)
    assert engine.counters[2].reused == 6 and engine.counters[2].matched == 0


def test_a_tree_gives_way_to_requests(make: Make) -> None:
    engine = make("P", blocks=12)
    for seed in range(6):
        assert ask(engine, prompt(seed)) == right_answer(prompt(seed), TOKENS)
    assert engine.free_blocks == 12


@pytest.mark.parametrize("identity", [{"cache_salt": "a"}, {"lora": 1}, {"multimodal": "an image"}], ids=str)
@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_the_tree_keeps_apart_what_is_not_the_same(make: Make, identity: dict, manager: str) -> None:
    engine = make("P", "empty", manager=manager)
    for each in (identity, {}, identity, {}):
        assert ask(engine, prompt(1), **each) == right_answer(prompt(1), TOKENS, **each)
    assert [engine.counters[i].reused for i in (1, 2, 3, 4)] == [0, 0, 16, 16]


def test_what_is_given_back_is_poison(make: Make) -> None:
    engine = make("P", enable_block_reuse=False)
    ask(engine, prompt(1))
    assert (engine.executors[0].cache.groups[0].memory == POISON).all()


def test_without_reuse_there_is_no_tree(make: Make) -> None:
    engine = make("P", enable_block_reuse=False)
    for _ in range(2):
        ask(engine, prompt(1))
    assert engine.counters[2].reused == 0


def test_blocks_that_are_saved_are_pinned(make: Make) -> None:
    engine = make("P", "lease")
    ask(engine, prompt(1))
    assert engine.pinned == [1] and engine.free_blocks == BLOCKS - 6
    all_is_back(engine)


def test_the_order_of_blocks_is_drawn_by_the_seed(make: Make) -> None:
    drawn = []
    for seed in (1, 2, 1):
        engine = make(str(seed), seed=seed)
        engine.submit(prompt(1), 2)
        engine.step()
        drawn.append(engine.executors[0].cache.ids(1))
        engine.close()
    assert drawn[0] == drawn[2] != drawn[1]


@pytest.mark.parametrize("manager", ["v1", "v2"])
def test_chunks_end_with_blocks(make: Make, manager: str) -> None:
    engine = make("P", "empty", manager=manager, chunk_tokens=6)
    ask(engine, prompt(1), 1)
    ask(engine, prompt(1)[:12] + prompt(2), 1)
    outputs = [call[1] for call in told(engine, "meta")]
    chunks = [(data.computed_position, data.num_scheduled_tokens)
              for output in outputs for data in output.new_requests + output.cached_requests]
    assert chunks == [(0, 4), (4, 4), (8, 4), (12, 6), (12, 4), (16, 4), (20, 4), (24, 6)]


# ---- V2 ----


@pytest.fixture
def target(make: Make) -> Any:
    ask(make("P", manager="v2"), prompt(1))

    def made(flags: str = "", **arguments: Any) -> Any:
        return make("D", flags, manager="v2", **{"seed": 3} | arguments)
    return made


def test_pages_come_by_chunks(target: Any) -> None:
    engine = target(chunk_tokens=8)
    ask(engine, prompt(2))
    assert len(told(engine, "alloc")[0][2][0]) == 2
    outputs = [call[1] for call in told(engine, "meta")]
    data = [(output.new_requests + output.cached_requests)[0] for output in outputs[:3]]
    assert [len(each.new_block_ids) for each in data] == [2, 2, 1]
    assert [(each.computed_position, each.num_scheduled_tokens) for each in data] == [(0, 8), (8, 8), (16, 2)]


@pytest.mark.parametrize("flags", ["", "async"])
def test_a_deferred_request_is_asked_once(target: Any, flags: str) -> None:
    engine = target(flags)
    engine.fault(defer={1: 3})
    assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert len(told(engine, "query")) == len(told(engine, "alloc")) == 1 and engine.counters[1].matched == 16


@pytest.mark.parametrize("flags", ["", "async"])
@pytest.mark.parametrize("blocks", [0, 2])
def test_an_offer_is_honoured_in_part(target: Any, flags: str, blocks: int) -> None:
    engine = target(flags)
    engine.fault(honour_blocks=blocks)
    assert ask(engine, prompt(1)) == right_answer(prompt(1), TOKENS)
    assert told(engine, "cancel_load") == [("cancel_load", 1, blocks * SIZE, 16)]
    assert engine.counters[1].matched == blocks * SIZE
    parked = [call for call in engine.workers[0].calls if call[0] == "get_finished" and call[3] == [1]]
    assert len(parked) == (1 if flags else 0), "an asynchronous one is parked even if nothing is taken"


@pytest.mark.parametrize("flags", ["", "async"])
def test_an_offer_s_beginning_that_another_request_has_committed(target: Any, flags: str) -> None:
    """The runtime counts it as loaded all the same."""
    engine = target(flags)
    engine.fault(overtakes=True)
    engine.submit(prompt(1), TOKENS)
    engine.fault(defer={1: 12})
    engine.step()
    engine.submit([*prompt(1)[:2 * SIZE], *prompt(2)[2 * SIZE:]], 1)
    engine.run()
    assert told(engine, "cancel_load")[0] == ("cancel_load", 1, 0, 2 * SIZE)
    assert engine.answers[1] == right_answer(prompt(1), TOKENS) and engine.free_blocks == BLOCKS


def test_an_offer_without_pages_is_given_up(target: Any) -> None:
    engine = target(chunk_tokens=8)
    engine.fault(held_blocks=BLOCKS - 3)
    engine.submit(prompt(1), 2)
    engine.step()
    assert told(engine, "cancel_load") == [("cancel_load", 1, 0, 16)]
    engine.fault(held_blocks=0)
    engine.run()
    assert engine.answers[1] == right_answer(prompt(1), 2) and engine.counters[1].matched == 0


def test_an_offer_of_a_cancelled_request_is_given_up(target: Any) -> None:
    engine = target()
    engine.submit(prompt(2), 6)
    engine.submit(prompt(1), 2)
    engine.fault(defer={2: 100})
    engine.step()
    engine.cancel(2)
    engine.run()
    assert engine.finished[2] == "cancelled" and told(engine, "cancel_load") == [("cancel_load", 2, 0, 16)]
    assert told(engine, "alloc")[0][1] == 1 and len(told(engine, "alloc")) == 1 and engine.free_blocks == BLOCKS


@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("how, kind", [("preempt", "finished"), ("rollback", "reset")])
@pytest.mark.parametrize("flags", ["", "async", "lease"])
def test_a_paused_request_runs_again(target: Any, loop: str, how: str, kind: str, flags: str) -> None:
    engine = target(flags, loop=loop, enable_block_reuse=False)
    engine.submit(prompt(1), 8)
    engine.run(lambda: len(engine.answers[1]) >= 3)
    before = engine.executors[0].cache.ids(1)
    engine.fault(pause={1: how})
    engine.run(lambda: bool(told(engine, kind)))
    engine.run()
    assert engine.answers[1] == right_answer(prompt(1), 8)
    assert len(told(engine, "query")) == 2, "once for each allocation"
    assert len(told(engine, kind)) == (1 if kind == "reset" else 2) and len(told(engine, "finished", "reset")) == 2
    assert told(engine, "alloc")[1][2] != before
    new = [data for call in told(engine, "meta") for data in call[1].new_requests]
    assert [len(data.new_tokens) for data in new] == [18, len(new[1].new_tokens)] and len(new[1].new_tokens) > 18
    assert new[1].new_block_ids == told(engine, "alloc")[1][2][0], "all of it is new"
    all_is_back(engine)


def test_v1_pauses_nobody(make: Make) -> None:
    engine = make("P")
    engine.submit(prompt(1), 8)
    engine.step()
    engine.fault(pause={1: "preempt"})
    with pytest.raises(Exception, match="GUARANTEED_NO_EVICT"):
        engine.step()


def test_blocks_that_have_slid_out_are_told_in_place(make: Make) -> None:
    engine = make("P", manager="v2", windows=(None, 6), chunk_tokens=8)
    ask(engine, prompt(1))
    full, window = told(engine, "finished")[0][2], engine.executors[0].cache
    assert -1 not in full and len(full) == 6 and window.free_blocks() == BLOCKS
    source = make("Q", manager="v2", windows=(6,), chunk_tokens=8)
    ask(source, prompt(1), 1)
    assert told(source, "finished")[0][2][:3] == [-1, -1, -1] and told(source, "finished")[0][2][3] != -1
    target = make("D", manager="v2", windows=(6,))
    ask(target, prompt(1), 1)
    assert target.counters[1].matched == 16 and told(target, "alloc")[0][2][0][:2] == [-1, -1]
