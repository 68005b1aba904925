"""TensorRT-LLM's adapter on engines whose ranks are processes, over real transports: producers that die, stand still or come
again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trtllm_world
from engines import wait_until
from trtllm_world import World, offerable, prompt

TOKENS = 30
BOUND_S = 8.0
"""Of a request whose producer has failed: stall clocks and retries, and not the load's deadline of 30 s."""
answer = partial(trtllm_world.answer, limit_s=BOUND_S)


@pytest.fixture
def world(closes: Callable[[Any], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> World:
    return closes(World(tmp_path, monkeypatch, request.param))


def ranks_of(engine: Any) -> list[int]:
    return [handle._process.pid for handle in engine._ranks]


def is_gone(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def kill(p: Any, which: list[int]) -> None:
    pids = [ranks_of(p)[rank] for rank in which]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    wait_until("their end", lambda: all(map(is_gone, pids)))


def stop(p: Any, which: list[int]) -> None:
    for rank in which:
        os.kill(ranks_of(p)[rank], signal.SIGSTOP)


WAYS = [("staged", "tcp"), ("rewind", "local"), ("staged", "local"), ("rewind", "tcp")]
FAULTS: list[tuple[Callable[[Any, list[int]], None], list[int]]] = [(kill, [0, 1]), (stop, [1]), (kill, [0]), (kill, [1]), (stop, [0, 1])]
OFTEN = [(*WAYS[0], *FAULTS[0]), (*WAYS[1], *FAULTS[1]), (*WAYS[3], *FAULTS[1])]
"""To start the processes is what takes long: the other pairs are for ./dev test --deep."""


def rows() -> list[Any]:
    return [pytest.param(*way, *fault, id=f"{way[0]}-{way[1]}-{fault[0].__name__}-{fault[1]}",
                         marks=() if (*way, *fault) in OFTEN else pytest.mark.deep) for way in WAYS for fault in FAULTS]


@pytest.mark.parametrize(("world", "transport", "ranks"), [
    ("staged", "tcp", 2), *(pytest.param(*row, marks=pytest.mark.deep) for row in (
        ("rewind", "local", 2), ("staged", "local", 1), ("rewind", "tcp", 1), ("rewind", "tcp", 2),
        ("rewind", "local", 4), ("staged", "tcp", 4)))], indirect=["world"])
def test_processes_load(world: World, transport: str, ranks: int) -> None:
    p = world.prefill({"transports": transport}, processes=True, ranks=ranks)
    d = world.decode({"transports": transport}, processes=True, ranks=ranks, loop="overlap")
    for seed in range(3):
        world.carry(p, prompt(seed, TOKENS))
        assert answer(d, prompt(seed, TOKENS)) == offerable(TOKENS)


@pytest.mark.parametrize(("world", "transport", "fault", "which"), rows(), indirect=["world"])
def test_a_producer_that_fails(world: World, transport: str, fault: Callable[[Any, list[int]], None], which: list[int]) -> None:
    """Between the ticket and the load; then another prompt, of which it has none, and once more."""
    p = world.prefill({"transports": transport}, processes=True, ranks=2)
    d = world.decode({"transports": transport, "staged_ttl_ms": 2000}, processes=True, ranks=2)
    tokens = prompt(1, TOKENS)
    ticket = world.ticket(p, tokens)
    try:
        fault(p, which)
        start = time.monotonic()
        world.deposit(ticket, hold_ms=int(BOUND_S * 1000))
        loaded = answer(d, tokens)
        assert time.monotonic() - start < BOUND_S
        # What a process that stands still has in memory can be read by others on its host.
        assert loaded == 0 or (fault is stop and transport == "local" and loaded == offerable(TOKENS))
        assert answer(d, tokens[:20] + prompt(2, 9)) == 0
    finally:
        for pid in ranks_of(p):
            if not is_gone(pid):
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("world", ["rewind", pytest.param("staged", marks=pytest.mark.deep)], indirect=True)
def test_a_producer_that_comes_again(world: World) -> None:
    """Its successor, at the same address, knows nothing of the ticket."""
    p, d = world.prefill(processes=True), world.decode(processes=True)
    tokens = prompt(1, TOKENS)
    ticket = world.ticket(p, tokens)
    kill(p, [0])
    p = world.prefill(processes=True)
    world.hand_over(p, prompt(5, 60))
    world.deposit(ticket, hold_ms=int(BOUND_S * 1000))
    assert answer(d, tokens) == 0
    world.carry(p, prompt(2, TOKENS), hold_ms=int(BOUND_S * 1000))
    assert answer(d, prompt(2, TOKENS)) == offerable(TOKENS)
