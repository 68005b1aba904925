"""The test's end of an agent."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network import Host

AGENT = Path(__file__).with_name("agent.py")
numbers = itertools.count(1)


class Refused(Exception):
    """The engine did not start; says why."""


@dataclass(frozen=True)
class Load:
    action: str
    reason: str
    keep: int
    seconds: float
    """From its start to its verdict."""
    at: float
    """When its verdict came, on the monotonic clock."""


@dataclass(frozen=True)
class Offer:
    """Blocks under a lease, and the ticket: all that a consumer is told."""

    ticket: str
    lease: int
    blocks: list[int]
    prompt: int
    producer: int
    """The seed of its memory: what right bytes are."""


@dataclass(frozen=True)
class Started:
    request: int
    offer: Offer
    target: list[int]
    at: float


class Remote:
    """An engine on a host. It starts by itself: the first question waits for it."""

    LIMIT_S = 35.0
    """Longer than the longest load."""

    def __init__(self, host: Host, options: dict[str, str], env: dict[str, str] | None = None) -> None:
        self.seed = next(numbers)
        self.host = host
        self._process = host.start(sys.executable, str(AGENT), str(self.seed), json.dumps(options),
                                   stdin=subprocess.PIPE, env=env)
        self.pid = self._process.pid
        self._is_up = False

    def wait(self) -> None:
        """Until it has started. Refused: it has not."""
        if not self._is_up:
            self._read("start")
            self._is_up = True

    def _read(self, what: str) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"{self.host.name} ended: {what}"
        answer = json.loads(line)
        if "refused" in answer:
            raise Refused(answer["refused"])
        assert "failed" not in answer, f"{self.host.name}: {what}: {answer['failed']}"
        return answer["answer"]

    def ask(self, what: str, **arguments: Any) -> Any:
        self.wait()
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([what, arguments]) + "\n")
        return self._read(what)

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def close(self) -> None:
        """However it stands."""
        self._process.kill()
        self._process.communicate()

    # ---- as a producer ----

    def offer(self, count: int, first: int = 0) -> Offer:
        blocks, prompt = list(range(first, first + count)), next(numbers)
        answer = self.ask("offer", blocks=blocks, prompt=prompt)
        return Offer(answer["ticket"], answer["lease"], blocks, prompt, self.seed)

    # ---- as a consumer ----

    def start(self, offer: Offer) -> Started:
        target = list(reversed(offer.blocks))
        at = time.monotonic()
        return Started(self.ask("start", ticket=offer.ticket, blocks=target, prompt=offer.prompt), offer, target, at)

    def finish(self, started: Started) -> Load:
        """Waits for its end. What counts as loaded has to be right."""
        offer = started.offer
        end = self.ask("finish", request=started.request, source=offer.blocks, target=started.target,
                       seed=offer.producer, limit_s=self.LIMIT_S)
        assert not end["wrong"], f"wrong bytes in blocks {end['wrong']} of {end['keep']} ({end['reason']})"
        return Load(end["action"], end["reason"], end["keep"], end["at"] - started.at, end["at"])

    def load(self, offer: Offer) -> Load:
        return self.finish(self.start(offer))

    def until_midway(self, blocks: int, limit_s: float = 10.0) -> None:
        """Waits until that many more blocks have come than now."""
        end, goal = time.monotonic() + limit_s, self.ask("stat", name="blocks_loaded") + blocks
        while self.ask("stat", name="blocks_loaded") < goal:
            assert time.monotonic() < end, "the load does not get on"
