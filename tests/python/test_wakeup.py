"""An idle engine is stepped when a rank has something to say, and seldom else."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from kvferry.engine import wakeup
from kvferry.engine.wakeup import Listener, Teller

SOON_S = 0.05
LIMIT_S = 10.0


class Rank:
    """What a teller wants of a node: a descriptor that each event makes readable, and that nobody reads."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)

    def fileno(self) -> int:
        return self._fd

    def has_event(self) -> None:
        os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        os.close(self._fd)


class Engine:
    def __init__(self, all_tell: bool = True, needed: Callable[[bool], bool] = lambda told: told) -> None:
        self.steps = 0
        self._stepped = threading.Event()
        self.ranks = [Rank(), Rank()]
        self.listener = Listener(needed, self._step)
        self.tellers = [Teller(rank, self.listener.address) for rank in self.ranks] if all_tell else []  # type: ignore[arg-type]
        self.listener.start(all_tell)

    def _step(self) -> None:
        self.steps += 1
        self._stepped.set()

    def wait(self, limit_s: float) -> bool:
        stepped = self._stepped.wait(limit_s)
        self._stepped.clear()
        return stepped

    def close(self) -> None:
        for teller in self.tellers:
            teller.close()
        self.listener.close()
        for rank in self.ranks:
            rank.close()


@pytest.fixture
def engine(closes: Callable[[Any], Any]) -> Callable[..., Engine]:
    return lambda **arguments: closes(Engine(**arguments))


def test_each_event_of_any_rank_causes_a_step(engine: Callable[..., Engine]) -> None:
    woken = engine()
    for rank in woken.ranks * 5:  # what nobody reads stays readable, and the next event is told all the same
        start_s = time.monotonic()
        rank.has_event()
        assert woken.wait(LIMIT_S)
        assert time.monotonic() - start_s < SOON_S
        time.sleep(2 * wakeup.PAUSE_S)


def test_without_an_event_there_is_no_step(engine: Callable[..., Engine]) -> None:
    woken = engine()
    assert not woken.wait(2 * wakeup.TICK_S + SOON_S)


def test_steps_that_nobody_needs_are_not_made(engine: Callable[..., Engine]) -> None:
    woken = engine(needed=lambda told: False)
    woken.ranks[0].has_event()
    assert not woken.wait(SOON_S)


def test_a_lost_message_costs_a_tick(engine: Callable[..., Engine]) -> None:
    woken = engine(needed=lambda told: not told)
    assert woken.wait(wakeup.TICK_S + 1)


def test_ranks_that_cannot_tell_are_asked(engine: Callable[..., Engine]) -> None:
    woken = engine(all_tell=False, needed=lambda told: True)
    assert woken.wait(wakeup.POLL_S + SOON_S)


def test_a_burst_causes_few_steps(engine: Callable[..., Engine]) -> None:
    woken = engine()
    start_s = time.monotonic()
    for _ in range(1000):
        woken.ranks[0].has_event()
    while woken.wait(SOON_S):
        pass
    assert 1 <= woken.steps <= (time.monotonic() - start_s) / wakeup.PAUSE_S


def test_nobody_listens() -> None:
    rank = Rank()
    with pytest.raises(OSError):
        Teller(rank, b"\0kvferry, and nobody listens")  # type: ignore[arg-type]
    rank.close()


def test_a_scheduler_side_that_has_gone_is_told_nothing(engine: Callable[..., Engine]) -> None:
    woken = engine()
    woken.listener.close()
    woken.ranks[0].has_event()
    time.sleep(SOON_S)
    woken.tellers[0].close()  # its thread has ended
    woken.tellers.remove(woken.tellers[0])
