"""Takes turns: a few rounds of each implementation, in random order, again and again, so that what the machine does
meanwhile hits all alike."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .blocks import MIB, Memory, Shape
from .pair import Implementation, Pair, PeerError

SESSIONS = 3
TURNS_MIN = 5  # of a session
TURNS_MAX = 40
TURN_S = 0.02  # of one implementation: small shapes are read several times in it
ROUNDS_MAX = 50
WARM_BYTES_MAX = 100 * MIB  # larger shapes need no round to warm up


@dataclass
class Samples:
    """What one implementation did with one shape."""

    shape: Shape
    ns: list[int] = field(default_factory=list)
    cpu_s: float = 0.0
    cpu_rounds: int = 0
    rounds: int = 1  # of one turn
    round_s: float = 0.0


def warm_up(shape: Shape) -> int:
    return 1 if shape.bytes <= WARM_BYTES_MAX else 0


def first(pair: Pair, memory: Memory, shape: Shape) -> Samples:
    """Connects, checks what is copied, and finds out how long a round takes."""
    pair.resume()
    pair.begin(shape)
    memory.clear(shape)
    pair.run(0, 1)
    if not memory.is_copied(shape):
        raise PeerError(f"{pair.what.path} {pair.what.name}: {shape.name}: the copy is wrong")
    samples = Samples(shape)
    samples.round_s = min(pair.run(1, 2)) / 1e9
    samples.rounds = max(1, min(ROUNDS_MAX, int(TURN_S / samples.round_s)))
    pair.pause()
    return samples


def turn(pair: Pair, samples: Samples) -> None:
    pair.resume()
    before_s = pair.cpu_s()
    samples.ns += pair.run(warm_up(samples.shape), samples.rounds)
    samples.cpu_s += pair.cpu_s() - before_s
    samples.cpu_rounds += warm_up(samples.shape) + samples.rounds
    pair.pause()


def end(pair: Pair) -> None:
    pair.resume()
    pair.end()
    pair.pause()


class Field:
    """All implementations that are at work, and how far they are."""

    def __init__(self, memory: Memory, seed: int, say: Callable[[str], None], show: Callable[[str], None]):
        self.memory = memory
        self.random = random.Random(seed)
        self.say = say
        self.show = show
        self.pairs: list[Pair] = []

    def add(self, what: Implementation, logs: Path) -> None:
        try:
            self.pairs.append(Pair(what, self.memory, logs))
        except PeerError as error:
            self.say(f"left out: {error}")
            return
        self.pairs[-1].pause()

    def leave_out(self, pair: Pair, error: PeerError) -> None:
        self.say(f"left out from here on: {error}")
        self.pairs.remove(pair)
        pair.close()

    def each(self, pairs: list[Pair], act: Callable[[Pair], None]) -> None:
        """Those that fail are left out."""
        for pair in list(pairs):
            try:
                act(pair)
            except PeerError as error:
                pairs.remove(pair)
                self.leave_out(pair, error)

    def measure(self, shape: Shape, limit_s: float, wanted: Callable[[Pair], bool]) -> dict[Pair, Samples]:
        """Connects anew several times: how threads and sockets happened to fall can last as long as a connection."""
        self.memory.choose(shape)
        samples: dict[Pair, Samples] = {}
        pairs = [pair for pair in self.pairs if wanted(pair)]
        sessions = SESSIONS if shape.bytes <= WARM_BYTES_MAX else 1
        for session in range(sessions):
            self.session(shape, limit_s / sessions, pairs, samples, f"{shape.name}, {session + 1} of {sessions}")
        return {pair: samples[pair] for pair in self.pairs if pair in pairs and samples[pair].ns}

    def session(self, shape: Shape, limit_s: float, pairs: list[Pair], samples: dict[Pair, Samples], what: str) -> None:
        def begin(pair: Pair) -> None:
            self.show(f"{what}: {pair.what.path} {pair.what.name}")
            rounds = first(pair, self.memory, shape)
            samples.setdefault(pair, rounds).rounds = rounds.rounds

        self.each(pairs, begin)
        turn_s = sum(samples[pair].round_s * (samples[pair].rounds + warm_up(shape)) for pair in pairs)
        turns = max(TURNS_MIN, min(TURNS_MAX, int(limit_s / max(turn_s, 1e-9))))
        start = time.monotonic()
        for i in range(turns):
            self.random.shuffle(pairs)
            self.each(pairs, lambda pair: turn(pair, samples[pair]))
            self.show(f"{what}: turn {i + 1} of {turns}, {time.monotonic() - start:.0f} s")
        self.each(pairs, end)

    def close(self) -> None:
        for pair in self.pairs:
            pair.close()
