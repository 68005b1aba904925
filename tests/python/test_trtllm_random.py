"""TensorRT-LLM's adapter under random schedules, by seed: requests that come, go and wait, tickets that are found, forged,
late or another prompt's, leases that end on some ranks, blocks that are short. Whatever happens, the text is right, the ranks
meet, and all that was lent comes back.

KVFERRY_TEST_SEEDS says how many, KVFERRY_TEST_SEED from which on; a finding says its seed.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from trtllm_world import BLOCK_TOKENS, BLOCKS, World, offerable, right_answer

SEEDS = int(os.environ.get("KVFERRY_TEST_SEEDS", "80"))
FIRST_SEED = int(os.environ.get("KVFERRY_TEST_SEED", "1"))
SEEDS_OF_A_WORLD = 40
"""Engines are made anew after so many: that takes longer than a schedule."""
MOVES = 14
TTL_MS = 300
LOAD_TIMEOUT_MS = 250


class Schedule:
    """One seed's, on engines that have been through others."""

    def __init__(self, world: World, p: Any, d: Any, seed: int) -> None:
        self._world, self.p, self.d = world, p, d
        self._draw = random.Random(seed)
        self._prompts = [self._draw.choices(range(1000), k=self._draw.randrange(2, 60)) for _ in range(3)]
        self._prompts.append(self._prompts[0][:self._draw.randrange(1, len(self._prompts[0]) + 1)] +
                             self._draw.choices(range(1000), k=5))
        self._asked: dict[int, tuple[list[int], int]] = {}
        self._cancelled: set[int] = set()
        self.offerable = self.loaded = 0

    def run(self) -> None:
        moves: list[Callable[[], None]] = [self._serve] * 5 + [self._step] * 2 + [
            self._hand_over, self._deposit, self._ask, self._revoke, self._cancel, self._forge, self._disturb]
        for _ in range(MOVES):
            self._draw.choice(moves)()
        self.p.run()
        self.d.fault(chunk_tokens=None, held_blocks=0)
        self.d.run()
        for one, (tokens, count) in self._asked.items():
            if self.d.finished[one] == "length":
                assert self.d.answers[one] == right_answer(tokens, count)
            else:
                assert one in self._cancelled and self.d.finished[one] == "cancelled", self.d.finished[one]
            counters = self.d.counters.get(one)
            if counters is not None and self.d.finished[one] == "length":
                self.loaded += max(0, len(tokens) - counters.computed - counters.reused)

    def _prompt(self) -> list[int]:
        """One more, or one that was there before."""
        if self._draw.random() < 0.6:
            self._prompts.append(self._draw.choices(range(1000), k=self._draw.randrange(2, 60)))
            return self._prompts[-1]
        return self._draw.choice(self._prompts)

    def _serve(self) -> None:
        """As a router does; something else may come between."""
        tokens = self._prompt()
        self._hand_over(tokens)
        if self._draw.random() < 0.2:
            self._revoke()
        self._deposit(tokens)
        if self._draw.random() < 0.2:
            self._step()
        self._ask(tokens)

    def _hand_over(self, given: list[int] | None = None) -> None:
        self.p.submit(given or self._prompt(), 1)
        for _ in range(self._draw.randrange(6) if given is None else 6):
            self.p.step()

    def _deposit(self, given: list[int] | None = None) -> None:
        """The engine's request may come before the blocks are there, or never."""
        tokens = given or self._prompt()
        self.d.scheduler._deposit({"token_ids": tokens, "at": self._draw.choice([None, self._world.peer])}, 50,
                                  lambda tokens, reason: None)
        if self._draw.random() < 0.7:
            time.sleep(self._draw.choice([0.0, 0.001, 0.004]))

    def _ask(self, given: list[int] | None = None) -> None:
        tokens, count = given or self._prompt(), self._draw.randrange(1, 5)
        self.offerable += offerable(len(tokens))
        self._asked[self.d.submit(tokens, count)] = (tokens, count)

    def _step(self) -> None:
        for _ in range(self._draw.randrange(1, 5)):
            self.d.step()
        self.p.step()

    def _revoke(self) -> None:
        """On some of P's ranks."""
        leases = [lease.lease for lease in self.p.scheduler._producer._leases.values()]
        if leases:
            rank = self._draw.choice(self.p.workers)
            rank._side.node.lease_end([self._draw.choice(leases)])

    def _cancel(self) -> None:
        open_ones = [one for one in self._asked if one not in self.d.finished]
        if open_ones:
            self._cancelled.add(self._draw.choice(open_ones))
            self.d.cancel(max(self._cancelled & set(open_ones)))

    def _forge(self) -> None:
        self.d.scheduler._deposit({"ticket": "kvf5." + "A" * self._draw.randrange(200)}, 50, lambda tokens, reason: None)

    def _disturb(self) -> None:
        """Of D's engine."""
        one = max(self._asked, default=0)
        ways: list[Callable[[], None]] = [lambda: self.d.fault(chunk_tokens=self._draw.choice([BLOCK_TOKENS, 2 * BLOCK_TOKENS, None])),
                                          lambda: self.d.fault(held_blocks=self._draw.randrange(BLOCKS // 3))]
        if self.d.spec.manager == "v2":
            ways += [lambda: self.d.fault(defer={one: self._draw.randrange(1, 3)}),
                     lambda: self.d.fault(honour_blocks=self._draw.choice([None, 0, 1, 4]))]
        self._draw.choice(ways)()


def open_world(folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> tuple[World, Any, Any]:
    draw = random.Random(seed)
    world = World(folder, monkeypatch, draw.choice(["staged", "rewind"]))
    manager = draw.choice(["v1", "v2"])
    p = world.prefill({"lease_ttl_ms": TTL_MS}, ranks=draw.choice([1, 2, 4]), manager=manager, loop=draw.choice(["plain", "overlap"]),
                      chunk_tokens=draw.choice([None, 8]))
    d = world.decode({"staged_ttl_ms": TTL_MS, "load_timeout_ms": LOAD_TIMEOUT_MS,
                      "staging_bytes": draw.choice([10, 200]) * 2048 // draw.choice([1, 2])},
                     ranks=draw.choice([1, 2, 4]), manager=manager, loop=draw.choice(["plain", "overlap"]))
    return world, p, d


def test_random_schedules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offered = loaded = 0
    for first in range(FIRST_SEED, FIRST_SEED + SEEDS, SEEDS_OF_A_WORLD):
        world, p, d = open_world(tmp_path, monkeypatch, first)
        with closing(world):
            for seed in range(first, min(first + SEEDS_OF_A_WORLD, FIRST_SEED + SEEDS)):
                schedule = Schedule(world, p, d, seed)
                try:
                    schedule.run()
                except Exception as error:
                    raise AssertionError(f"seed {seed}, of the world of seed {first}: {world.loading}, P {p.spec}, D {d.spec}") from error
                offered += schedule.offerable
                loaded += schedule.loaded
            world.all_is_back(p, d)
    print(f"{SEEDS} schedules: {loaded} of {offered} tokens loaded")
    assert loaded > 0
