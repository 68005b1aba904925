"""What goes wrong when: a plan made of the seed alone, the same for every connector."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass
from enum import Enum

from .injector import PER_MILLION, Rule

PRODUCERS = ("P1", "P2")
SENDER = ("P2",)
"""With our connector the only one that sends blocks: from P1 they are read."""
CONSUMER = "D"
LEAD_IN_S = 4.0
"""Before the first fault, and after the last one while requests still come."""
LEAD_OUT_S = 8.0
CALM_S = (1.0, 4.0)
CALM_WINDOW_S = (8.0, 12.0)
"""Once in a round of all faults."""
FAULT_S = (2.0, 6.0)
SHORT_PAUSE_S = (0.5, 1.5)
LONG_PAUSE_S = (4.0, 6.0)
"""Longer than a lease."""

READ_ERRORS = (errno.EFAULT, errno.EPERM, errno.ENOMEM, errno.ESRCH)
SOCKET_ERRORS = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT)
CONNECT_ERRORS = (errno.ECONNREFUSED, errno.ENETUNREACH, errno.ETIMEDOUT)
UCX_ERRORS = (3, 25, 80)
"""Input/output error, connection reset, endpoint timeout."""

READS = (("process_vm_readv", READ_ERRORS), ("recvmsg", SOCKET_ERRORS), ("ucp_get_nbx", UCX_ERRORS),
         ("ucp_request_check_status", UCX_ERRORS))
SENDS = (("sendmsg", SOCKET_ERRORS), ("ucp_am_send_nbx", UCX_ERRORS))
CONTROL = (("send", SOCKET_ERRORS), ("recv", SOCKET_ERRORS))
CONNECTS = (("connect", CONNECT_ERRORS),)
RATES = {"fail": (0.02, 0.8), "delay": (0.05, 0.5), "shorten": (0.1, 0.9), "flip": (0.05, 0.5)}
"""Shares of the calls."""
DELAYS_MS = (20, 1500)


class Act(Enum):
    INJECT = "inject"
    PAUSE = "pause"
    KILL = "kill"


@dataclass(frozen=True)
class Episode:
    """One fault, from begin_s to end_s after the start. A killed engine is started anew at end_s."""

    title: str
    act: Act
    engine: str
    begin_s: float
    end_s: float
    rules: tuple[Rule, ...] = ()


@dataclass(frozen=True)
class Draft:
    title: str
    act: Act
    engines: tuple[str, ...]
    seconds: tuple[float, float]
    calls: tuple[tuple[str, tuple[int, ...]], ...] = ()
    kind: str = ""

    @property
    def corrupts(self) -> bool:
        return self.kind == "flip"


def injected(title: str, engines: tuple[str, ...], calls: tuple[tuple[str, tuple[int, ...]], ...], kind: str) -> Draft:
    return Draft(title, Act.INJECT, engines, FAULT_S, calls, kind)


EVERYBODY = (*PRODUCERS, CONSUMER)
DRAFTS = (
    injected("reads fail", (CONSUMER,), READS, "fail"),
    injected("reads are slow", (CONSUMER,), READS, "delay"),
    injected("reads are short", (CONSUMER,), READS, "shorten"),
    injected("reads are corrupted", (CONSUMER,), READS, "flip"),
    injected("sends fail", SENDER, SENDS, "fail"),
    injected("sends are slow", SENDER, SENDS, "delay"),
    injected("sends are short", SENDER, SENDS, "shorten"),
    injected("control fails", EVERYBODY, CONTROL, "fail"),
    injected("control is slow", EVERYBODY, CONTROL, "delay"),
    injected("control is short", EVERYBODY, CONTROL, "shorten"),
    injected("connects fail", (CONSUMER,), CONNECTS + READS[1:2], "fail"),
    injected("connects are slow", (CONSUMER,), CONNECTS, "delay"),
    Draft("stopped", Act.PAUSE, EVERYBODY, SHORT_PAUSE_S),
    Draft("stopped for longer than a lease", Act.PAUSE, EVERYBODY, LONG_PAUSE_S),
    Draft("killed and started anew", Act.KILL, PRODUCERS, SHORT_PAUSE_S),
)


def plan(seed: int, seconds: float, corrupt: bool) -> list[Episode]:
    """Rounds of all faults in a random order, one at a time, with calm in between. Without `corrupt` there is calm
    where bytes would be corrupted."""
    rng = random.Random(seed)
    episodes: list[Episode] = []
    now_s = LEAD_IN_S
    while True:
        drafts = list(DRAFTS)
        rng.shuffle(drafts)
        for draft in drafts:
            episode = begin(draft, rng, now_s)
            if episode.end_s > seconds - LEAD_OUT_S:
                return episodes
            if corrupt or not draft.corrupts:
                episodes.append(episode)
            now_s = episode.end_s + rng.uniform(*CALM_S)
        now_s += rng.uniform(*CALM_WINDOW_S)


def begin(draft: Draft, rng: random.Random, now_s: float) -> Episode:
    end_s = now_s + rng.uniform(*draft.seconds)
    rules = tuple(rule_for(call, errors, draft.kind, rng) for call, errors in draft.calls)
    return Episode(draft.title, draft.act, rng.choice(draft.engines), now_s, end_s, rules)


def rule_for(call: str, errors: tuple[int, ...], kind: str, rng: random.Random) -> Rule:
    rate = rng.uniform(*RATES[kind])
    value = {"fail": rng.choice(errors), "delay": rng.randint(*DELAYS_MS)}.get(kind, 0)
    return Rule(call, kind, int(rate * PER_MILLION), value)
