"""TensorRT-LLM's adapter on the engine model, over real nodes, in both of its ways to load."""

from __future__ import annotations

import ctypes
import threading
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kvferry import Node, Publication, Region, _kvferry
from kvferry.engine.config import ConfigError
from engines import Log, wait_until
from trtllm_world import ANSWER_TOKENS, BLOCK_TOKENS, BLOCKS, World, answer, import_adapter, loaded, names, offerable, prompt, right_answer

LENGTHS = (2, 4, 5, 9, 17, 30, 64)
SHAPES = [(1, 1, "plain"), (2, 2, "overlap"), (4, 4, "plain"), (1, 2, "overlap"), (4, 2, "plain"), (2, 4, "overlap")]


@pytest.fixture(params=["staged", "rewind"])
def world(closes: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    return closes(World(tmp_path, monkeypatch, request.param))


STAGED = pytest.mark.parametrize("world", ["staged"], indirect=True)
REWIND = pytest.mark.parametrize("world", ["rewind"], indirect=True)


def reasons(engine: Any, name: str = "not_loaded") -> dict[str, int]:
    return engine.scheduler._counters.take().get(name, {})


def is_parked(d: Any, asked: int) -> bool:
    manager = d.executors[0].manager
    return asked in manager.new_async_requests.loading | manager.pending_async_requests.loading


# ---- without faults ----

@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize(("p_ranks", "d_ranks", "loop"), SHAPES)
@pytest.mark.parametrize("chunk_tokens", [None, 8])
def test_all_that_can_be_offered_is_loaded(world: World, manager: str, p_ranks: int, d_ranks: int, loop: str,
                                           chunk_tokens: int | None) -> None:
    p = world.prefill(ranks=p_ranks, manager=manager, loop=loop, chunk_tokens=chunk_tokens)
    d = world.decode(ranks=d_ranks, manager=manager, loop=loop, chunk_tokens=chunk_tokens)
    for seed, length in enumerate(LENGTHS):
        tokens = prompt(seed, length)
        world.hand_over(p, tokens)
        if offerable(length):
            assert world.load(tokens) == (offerable(length), "")
        assert answer(d, tokens) == offerable(length)
    assert reasons(d) == {}
    world.all_is_back(p, d)


@pytest.mark.parametrize(("p_ranks", "d_ranks"), [(1, 1), (2, 2), (1, 2), (4, 2)])
def test_parts_that_all_ranks_have_are_loaded(world: World, p_ranks: int, d_ranks: int) -> None:
    """An index beside keys and values, the same on every rank."""
    p = world.prefill(ranks=p_ranks, manager="v2", has_index=True)
    d = world.decode(ranks=d_ranks, manager="v2", has_index=True)
    for seed in range(3):
        tokens = prompt(seed, 30)
        world.carry(p, tokens)
        assert answer(d, tokens) == offerable(30)
    world.all_is_back(p, d)


def test_equal_prompts_have_a_lease_each(world: World) -> None:
    p, d = world.prefill(), world.decode()
    tokens = prompt(1)
    for _ in range(2):
        world.hand_over(p, tokens)
    assert len(p.pinned) == 2
    for _ in range(2):
        assert world.load(tokens) == (offerable(18), "")
    asked = [d.submit(tokens, ANSWER_TOKENS) for _ in range(2)]
    d.run()
    assert [d.answers[one] for one in asked] == [right_answer(tokens, ANSWER_TOKENS)] * 2
    assert loaded(d, asked[0], tokens) == offerable(18)
    world.all_is_back(p, d)


def test_what_the_engine_has_cached_is_not_copied(world: World) -> None:
    """It has two of the blocks from another prompt."""
    p, d = world.prefill(), world.decode()
    tokens = prompt(1, 30)
    assert answer(d, tokens[:10] + prompt(2, 5)) == 0
    world.carry(p, tokens)
    asked = d.submit(tokens, ANSWER_TOKENS)
    d.run()
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS)
    assert d.counters[asked].reused == 8 and d.counters[asked].matched == offerable(30) - 8
    world.all_is_back(p, d)


def test_several_at_once(world: World) -> None:
    p, d = world.prefill(ranks=2, loop="overlap"), world.decode(ranks=2, loop="overlap")
    prompts = [prompt(seed, 12 + seed) for seed in range(4)]
    for tokens in prompts:
        p.submit(tokens, 1)
    p.run()
    waiting = [threading.Thread(target=world.load, args=(tokens,)) for tokens in prompts]
    for one in waiting:
        one.start()
    for one in waiting:
        one.join()
    asked = [d.submit(tokens, ANSWER_TOKENS) for tokens in prompts]
    d.run()
    for one, tokens in zip(asked, prompts):
        assert d.answers[one] == right_answer(tokens, ANSWER_TOKENS)
        assert loaded(d, one, tokens) == offerable(len(tokens))
    world.all_is_back(p, d)


def test_requests_of_more_than_a_token_are_the_prefill_engines_own(world: World) -> None:
    p = world.prefill()
    asked = p.submit(prompt(1), 3)
    p.run()
    assert p.answers[asked] == right_answer(prompt(1), 3)
    assert p.pinned == [] and p.free_blocks == 64


# ---- tickets ----

def test_a_router_may_have_the_ticket(world: World) -> None:
    p, d = world.prefill(), world.decode()
    tokens = prompt(1)
    ticket = world.ticket(p, tokens)
    assert world.deposit(ticket) == (offerable(18), "")
    assert answer(d, tokens) == offerable(18)
    world.all_is_back(p, d)


def test_a_missing_ticket_costs_a_prefill(world: World) -> None:
    p, d = world.prefill(), world.decode()
    assert world.load(prompt(1), hold_ms=50)[0] == 0
    assert answer(d, prompt(1)) == 0
    world.all_is_back(p, d)


@pytest.mark.parametrize("change, reason", [
    (lambda ticket: ticket[:-1] + ("A" if ticket[-1] != "A" else "B"), "bad_ticket"), (lambda ticket: "kvf5.", "bad_ticket"),
    (lambda ticket: "", "bad_ticket"), (lambda ticket: "x" * 1000, "bad_ticket"),
    (lambda ticket: f"kvf5.AAAAAAAAAAA{ticket[16:]}", "other_key"), (lambda ticket: f"kvf6{ticket[4:]}", "incompatible")])
def test_a_ticket_that_is_not_good_is_refused(world: World, change: Any, reason: str) -> None:
    p, d = world.prefill(), world.decode()
    tokens = prompt(1)
    ticket = world.ticket(p, tokens)
    assert world.deposit(change(ticket)) == (0, reason)
    assert answer(d, tokens) == 0
    assert reasons(d) == {reason: 1}
    world.all_is_back(None, d)


def test_a_swapped_ticket_is_another_prompts(world: World) -> None:
    p, d = world.prefill(), world.decode({"staged_ttl_ms": 200})
    ticket = world.ticket(p, prompt(1))
    assert world.deposit(ticket) == (offerable(18), "")
    assert answer(d, prompt(2)) == 0
    world.all_is_back(p, d)
    assert reasons(d) == {"not_asked_for": 1}


def test_what_comes_late_is_not_used(world: World) -> None:
    """The engine has asked, and computes."""
    p, d = world.prefill(), world.decode({"staged_ttl_ms": 200})
    tokens = prompt(1)
    world.hand_over(p, tokens)
    asked = d.submit(tokens, ANSWER_TOKENS)
    d.step()
    assert world.load(tokens) == (offerable(18), "")
    d.run()
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS) and loaded(d, asked, tokens) == 0
    wait_until("the end of its time", lambda: reasons(d) == {"not_asked_for": 1})
    world.all_is_back(p, d)


@STAGED
def test_what_is_still_on_its_way_is_not_used(world: World) -> None:
    """No rank has heard of the load when the engine asks."""
    p, d = world.prefill(), world.decode({"staged_ttl_ms": 200})
    tokens = prompt(1)
    world.hand_over(p, tokens)
    with d.workers[0]._side._lock:
        found = threading.Thread(target=world.load, args=(tokens,))
        found.start()
        wait_until("the ticket", lambda: d.scheduler._consumer._by_prompt)
        assert d.scheduler.get_num_new_matched_tokens(_Request(tokens), 0) == (0, False)
    found.join()
    assert reasons(d).get("late") == 1
    assert answer(d, tokens) == offerable(18)
    world.all_is_back(p, d)


class _Request:
    """As C++ shows one."""

    def __init__(self, tokens: list[int]) -> None:
        self.request_id, self.prompt_len, self._tokens = 77, len(tokens), tokens

    def get_tokens(self, beam: int) -> list[int]:
        return self._tokens


def test_a_ticket_of_a_vllm_engine_is_incompatible(world: World, log: Log, closes: Callable[[Any], Any]) -> None:
    d = world.decode()
    fields = {"config": "x", "dtype": "float32", "kv_dtype": "auto", "layers": "2", "kv_heads": "4", "head_size": "2", "layout": "LBHNC",
              "attention": "FLASH_ATTN"}  # as kvferry.vllm's identity.py names them
    other = closes(Node({"listen": "127.0.0.1:0", "ranks": "1", "block_tokens": str(BLOCK_TOKENS)}, fields))
    memory = (ctypes.c_uint8 * 4096)()
    other.register([Region(ctypes.addressof(memory), 64, 64, 64, 1, 1, 0)])
    other.set_ranks([other.address()])
    tokens = prompt(1)
    _, lease, _ = other.lease_reserve(4, 64)
    assert lease is not None
    _, ticket = other.ticket_make(lease, world.key(tokens), (array("I", range(4)).tobytes(),))
    assert ticket is not None
    assert world.deposit(ticket) == (0, "ticket_refused")
    line = 'ticket refused: incompatible: engine differs: producer has "(nothing)", consumer has "tensorrt-llm"'
    wait_until("D names the field", lambda: log.grep(line))  # by another thread than the one that answers
    assert answer(d, tokens) == 0


# ---- what cannot be loaded ----

def test_a_lease_that_has_ended_loads_nothing(world: World) -> None:
    p, d = world.prefill({"lease_ttl_ms": 150}), world.decode()
    tokens = prompt(1)
    ticket = world.ticket(p, tokens)
    time.sleep(0.4)
    world.all_is_back(p, None)
    world.hand_over(p, prompt(3, 60))  # in the same blocks
    if world.loading == "staged":
        assert world.deposit(ticket) == (0, "load_failed")
    else:
        world.deposit(ticket)
    assert answer(d, tokens) == 0
    world.all_is_back(None, d)


@STAGED
def test_a_full_staging_takes_what_fits(world: World) -> None:
    """Of three prompts of 4 blocks each it has room for one and a half."""
    p, d = world.prefill(), world.decode({"staging_bytes": 6 * BLOCK_TOKENS * 2 * 2 * 4 * 2 * 4})
    assert d.scheduler._consumer.blocks == 6
    for seed in range(3):
        world.hand_over(p, prompt(seed))
    assert world.load(prompt(0)) == (16, "")
    assert world.load(prompt(1)) == (8, "")
    assert world.load(prompt(2)) == (0, "staging_full")
    assert [answer(d, prompt(seed)) for seed in range(3)] == [16, 8, 0]
    assert reasons(d) == {"staging_full": 2}
    world.carry(p, prompt(4))
    assert answer(d, prompt(4)) == 16
    world.all_is_back(p, d)


@pytest.mark.parametrize("identity", [{"lora": 1}, {"multimodal": "an image"}])
def test_content_that_cannot_be_seen_has_no_ticket(world: World, identity: dict[str, Any]) -> None:
    p, d = world.prefill(), world.decode()
    tokens = prompt(1)
    p.submit(tokens, 1, **identity)
    p.run()
    assert p.pinned == [] and reasons(p, "no_tickets") == {"content_unseen": 1}
    world.carry(p, tokens)  # without it
    assert answer(d, tokens, **identity) == 0
    assert reasons(d) == {"content_unseen": 1}


def test_a_salt_that_cannot_be_seen_loads_nothing(world: World) -> None:
    """Of V1's requests C++ shows a number in its place."""
    p, d = world.prefill(), world.decode()
    world.carry(p, prompt(1))
    assert answer(d, prompt(1), cache_salt="mine") == 0
    assert reasons(d) == {"content_unseen": 1}


def test_a_salt_that_can_be_seen_is_of_the_prompt(world: World) -> None:
    """KVCacheManagerV2 shows the whole request."""
    p, d = world.prefill(manager="v2"), world.decode(manager="v2")
    tokens = prompt(1)
    p.submit(tokens, 1, cache_salt="mine")
    p.run()
    ticket = world.find(world.router("v2"), world.key(tokens, "mine"))
    assert ticket is not None and world.deposit(ticket) == (offerable(18), "")
    assert answer(d, tokens) == 0
    assert answer(d, tokens, cache_salt="mine") == offerable(18)


# ---- requests that end, wait, or begin again ----

@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("steps", range(5))
def test_a_cancelled_request_leaves_nothing(world: World, manager: str, steps: int) -> None:
    p, d = world.prefill(manager=manager), world.decode({"staged_ttl_ms": 200}, manager=manager)
    tokens = prompt(1, 30)
    world.carry(p, tokens)
    asked = d.submit(tokens, ANSWER_TOKENS)
    for _ in range(steps):
        d.step()
    d.cancel(asked)
    other = d.submit(prompt(2), ANSWER_TOKENS)
    d.run()
    assert d.answers[other] == right_answer(prompt(2), ANSWER_TOKENS)
    assert d.finished[asked] in ("cancelled", "length")
    world.all_is_back(p, d)


@pytest.mark.parametrize("steps", range(4))
def test_a_cancelled_prompt_has_no_lease(world: World, steps: int) -> None:
    """Its blocks are given to others without a word."""
    p, d = world.prefill(chunk_tokens=8, loop="overlap"), world.decode()
    tokens = prompt(1, 30)
    asked = p.submit(tokens, 1)
    for _ in range(steps):
        p.step()
    p.cancel(asked)
    p.submit(prompt(2, 60), 3)
    p.run()
    there, _ = world.load(tokens, hold_ms=100)
    assert there in (0, offerable(30))
    assert answer(d, tokens) == there
    world.all_is_back(p, d)


@pytest.mark.parametrize("how", ["preempt", "rollback"])
@pytest.mark.parametrize("steps", range(1, 4))
def test_a_paused_request_is_right(world: World, how: str, steps: int) -> None:
    p, d = world.prefill(manager="v2"), world.decode(manager="v2", chunk_tokens=8)
    tokens = prompt(1, 30)
    world.carry(p, tokens)
    asked = d.submit(tokens, ANSWER_TOKENS)
    for _ in range(steps):
        d.step()
    while is_parked(d, asked):
        d.step()
    d.fault(pause={asked: how})
    d.run()
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS)
    world.all_is_back(p, d)


@pytest.mark.parametrize("honoured", [0, 1, 3])
def test_an_offer_that_is_taken_in_part_or_later(world: World, honoured: int) -> None:
    p, d = world.prefill(manager="v2"), world.decode(manager="v2")
    tokens = prompt(1, 30)
    world.carry(p, tokens)
    asked = d.submit(tokens, ANSWER_TOKENS)
    d.fault(defer={asked: 2}, honour_blocks=honoured)
    d.run()
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS)
    assert loaded(d, asked, tokens) <= honoured * BLOCK_TOKENS
    world.all_is_back(p, d)


@pytest.mark.parametrize("shared", [1, 2, 7])
def test_the_beginning_of_an_offer_that_another_request_has_computed(world: World, shared: int) -> None:
    """Its blocks are both requests' from then on, and nobody writes them again."""
    p, d = world.prefill(manager="v2"), world.decode(manager="v2")
    tokens = prompt(1, 30)
    world.carry(p, tokens)
    d.fault(overtakes=True)
    asked = d.submit(tokens, ANSWER_TOKENS)
    d.fault(defer={asked: 12})
    d.step()
    other = d.submit([*tokens[:shared * BLOCK_TOKENS], *prompt(2, 30)[shared * BLOCK_TOKENS:]], ANSWER_TOKENS)
    d.run()
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS) and d.finished[other] == "length"
    world.all_is_back(p, d)


@pytest.mark.parametrize("start, end, left", [
    (0, 4, range(8, 16)), (8, 12, range(12, 16)), (0, 12, range(12, 16)), (12, 20, range(8, 12)), (9, 16, range(8, 12)), (8, 16, range(8, 8)),
    (0, 99, range(8, 8)), (16, 20, range(8, 16)), (12, 12, range(8, 16)), (10, 12, None), (8, 10, None)])
def test_what_is_left_of_an_offer(world: World, start: int, end: int, left: range | None) -> None:
    from kvferry.trtllm.loader import what_is_left
    if left is None:
        with pytest.raises(ValueError, match="cannot load the tokens 8 to 16"):
            what_is_left(range(8, 16), start, end, 4)
    else:
        assert what_is_left(range(8, 16), start, end, 4) == left


# ---- loads that fail under way ----

def leases(p: Any) -> list[bytes]:
    return [lease.lease for lease in p.scheduler._producer._leases.values()]


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("revoked", [(0, 1), (1,)])
def test_a_lease_that_ends_before_the_load(world: World, manager: str, loop: str, revoked: tuple[int, ...]) -> None:
    """On all of P's ranks, or on one: then the other parts arrive, and nothing is used."""
    p = world.prefill(ranks=2, manager=manager, loop=loop)
    d = world.decode(ranks=2, manager=manager, loop=loop)
    tokens = prompt(1, 30)
    ticket = world.ticket(p, tokens, manager)
    for rank in revoked:
        p.workers[rank]._side.node.lease_end(leases(p))
    world.deposit(ticket)
    assert answer(d, tokens) == 0
    assert answer(d, tokens[:20] + prompt(2, 9)) == 0  # what the engine has cached is right, too
    world.all_is_back(p if revoked == (0, 1) else None, d)


@REWIND
def test_a_lease_that_is_lost_between_its_offer_and_the_blocks(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine keeps the request waiting all the same."""
    p, d = world.prefill(ranks=2), world.decode(ranks=2)
    tokens = prompt(1, 30)
    ticket = world.ticket(p, tokens)
    for worker in p.workers:
        worker._side.node.lease_end(leases(p))
    consumer = d.scheduler._consumer
    place, tell, said = d.scheduler.update_state_after_alloc, consumer.on_event, []

    def place_late(request: Any, block_ids: Any) -> None:
        wait_until("the verdict", lambda: said)
        for event in said:
            tell(event)
        assert not consumer._remote
        place(request, block_ids)

    monkeypatch.setattr(consumer, "on_event", said.append)
    monkeypatch.setattr(d.scheduler, "update_state_after_alloc", place_late)
    world.deposit(ticket)
    assert answer(d, tokens) == 0
    monkeypatch.setattr(consumer, "on_event", tell)
    world.all_is_back(p, d)


@pytest.mark.parametrize("local", [0, 8])
def test_what_is_good_of_a_load_is_kept(world: World, local: int) -> None:
    """Its lease ends after the first chunk, of two blocks; some of the prompt the engine may have by itself."""
    p, d = world.prefill(), world.decode({"chunk_bytes": 4096, "transports": "tcp", "tcp_streams": 1})
    tokens = prompt(1, 60)
    if local:
        answer(d, tokens[:local + 1] + prompt(2, 5))
    ticket = world.ticket(p, tokens)
    node = p.workers[0]._side.node
    ending = threading.Thread(target=lambda: (time.sleep(0.002), node.lease_end(leases(p))))
    ending.start()
    world.deposit(ticket)
    there = answer(d, tokens)
    ending.join()
    assert there % BLOCK_TOKENS == 0
    world.all_is_back(p, d)


class Unpublished:
    """A lease of the prefill engine's that no rank has published: who loads it is told to ask again."""

    def __init__(self, p: Any, key: bytes, positions: int, manager: str = "v1") -> None:
        self._rank = p.workers[0]._side.node
        node = p.scheduler._node
        status, self._lease, _ = node.lease_reserve(positions, BLOCKS)
        assert status == _kvferry.OK and self._lease is not None
        self._key, self._blocks = key, (array("I", range(positions)).tobytes(),)
        status, ticket = node.ticket_make(self._lease, key, self._blocks)
        assert ticket is not None
        self.ticket = ticket

    def publish(self) -> None:
        assert self._rank.lease_publish([Publication(self._lease, self._key, 0, self._blocks)]) == [_kvferry.OK]


@pytest.mark.parametrize("manager", ["v1", "v2"])
@pytest.mark.parametrize("loop", ["plain", "overlap"])
@pytest.mark.parametrize("local", [0, 8])
def test_a_load_that_fails_under_way(world: World, manager: str, loop: str, local: int) -> None:
    """On the second rank alone: the other part arrives. What the engine had by itself it keeps."""
    p = world.prefill(ranks=2, manager=manager)
    d = world.decode({"load_timeout_ms": 400}, ranks=2, manager=manager, loop=loop)
    tokens = prompt(1, 30)
    if local:
        answer(d, tokens[:local + 1] + prompt(2, 5))
    lease = Unpublished(p, world.key(tokens), offerable(30) // BLOCK_TOKENS, manager)
    lease.publish()
    world.deposit(lease.ticket)
    asked = d.submit(tokens, ANSWER_TOKENS)
    d.run()
    assert d.answers[asked] == right_answer(tokens, ANSWER_TOKENS)
    assert d.counters[asked].reused == local and loaded(d, asked, tokens) == 0
    assert answer(d, tokens[:20] + prompt(3, 9)) == 0  # what it has cached since is right, too
    world.all_is_back(None, d)


@REWIND
@pytest.mark.parametrize("version", [names.NEWEST, names.V1_0], ids=["newest", "1.0"])
def test_a_request_cancelled_under_way(world: World, monkeypatch: pytest.MonkeyPatch, version: Any) -> None:
    """Its blocks are nobody else's before its load has ended. The old version asks before it gives them back; this way to
    load is not for it, since some between the two do not ask."""
    p, d = world.prefill(), None
    tokens = prompt(1, 30)
    lease = Unpublished(p, world.key(tokens), offerable(30) // BLOCK_TOKENS)
    import_adapter(version)
    monkeypatch.setattr("kvferry.trtllm.worker.check_version", lambda config: None)
    d = world.decode({"load_timeout_ms": 1500}, version=version)
    world.deposit(lease.ticket)
    asked = d.submit(tokens, ANSWER_TOKENS)
    d.step()
    d.step()
    assert is_parked(d, asked)
    d.cancel(asked)
    first = d.submit(prompt(9), ANSWER_TOKENS)  # with which cancels are looked at
    d.run(lambda: first in d.finished)
    others = [d.submit(prompt(seed, 70), 8) for seed in range(2, 5)]
    d.step()
    d.step()
    lease.publish()
    time.sleep(0.1)
    d.run()
    assert d.finished[asked] == "cancelled"
    for one, seed in zip(others, range(2, 5)):
        assert d.answers[one] == right_answer(prompt(seed, 70), 8)
    world.all_is_back(None, d)


@REWIND
def test_more_loads_than_a_rank_takes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others' requests go back at once."""
    p = world.prefill(ranks=2)
    monkeypatch.setattr("kvferry.trtllm.rewind.REQUESTS_MAX", 1)
    d = world.decode(ranks=2)
    prompts = [prompt(seed, 30) for seed in range(3)]
    for tokens in prompts:
        world.carry(p, tokens)
    asked = [d.submit(tokens, ANSWER_TOKENS) for tokens in prompts]
    d.run()
    assert [d.answers[one] for one in asked] == [right_answer(tokens, ANSWER_TOKENS) for tokens in prompts]
    assert sorted(loaded(d, one, tokens) for one, tokens in zip(asked, prompts)) == [0, 0, offerable(30)]
    world.all_is_back(p, d)


@pytest.mark.parametrize("version", [names.V1_0, names.V1_2], ids=["1.0", "1.2"])
def test_versions_that_do_not_keep_blocks(world: World, version: Any) -> None:
    """A prefill engine's blocks may be another request's while its lease lives; so may those of a cancelled load."""
    with pytest.raises(ConfigError, match="needs a TensorRT-LLM that keeps the blocks of a finished request"):
        world.prefill(version=version)
    if world.loading == "rewind":
        with pytest.raises(ConfigError, match="needs a TensorRT-LLM that keeps the blocks of a cancelled request"):
            world.decode(version=version)


@STAGED
@pytest.mark.parametrize("version", [names.V1_0, names.V1_2], ids=["1.0", "1.2"])
def test_old_versions_decode(world: World, version: Any) -> None:
    """A P of today, a D of then; one version at a time is in a process."""
    p = world.prefill()
    tokens = prompt(1, 30)
    ticket = world.ticket(p, tokens)
    d = world.decode(version=version)
    assert world.deposit(ticket) == (offerable(30), "")
    assert answer(d, tokens) == offerable(30)
