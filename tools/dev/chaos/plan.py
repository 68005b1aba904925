"""What goes wrong when: a plan made of the seed and of what a mix may do, the same for every connector."""

from __future__ import annotations

import errno
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .injector import PER_MILLION, Rule

PRODUCERS = ("P1", "P2")
CONSUMER = "D"
EVERYBODY = (*PRODUCERS, CONSUMER)
SENDER = ("P2",)
"""With our connector the only one that sends blocks: from P1 they are read."""
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

SOCKET_ERRORS = (errno.ECONNRESET, errno.EPIPE, errno.ETIMEDOUT)
UCX_ERRORS = (3, 25, 80)
"""Input/output error, connection reset, endpoint timeout."""
Calls = Sequence[tuple[str, tuple[int, ...]]]
"""Names, and the errors that each may fail with."""
RECEIVES = (("recvmsg", SOCKET_ERRORS),)
READS = (("process_vm_readv", (errno.EFAULT, errno.EPERM, errno.ENOMEM, errno.ESRCH)), *RECEIVES,
         ("ucp_get_nbx", UCX_ERRORS), ("ucp_request_check_status", UCX_ERRORS))
SENDS = (("sendmsg", SOCKET_ERRORS), ("ucp_am_send_nbx", UCX_ERRORS))
CONTROL = (("send", SOCKET_ERRORS), ("recv", SOCKET_ERRORS))
CONNECTS = (("connect", (errno.ECONNREFUSED, errno.ENETUNREACH, errno.ETIMEDOUT)),)
RATES = {"fail": (0.02, 0.8), "delay": (0.05, 0.5), "shorten": (0.1, 0.9), "flip": (0.05, 0.5)}
"""Shares of the calls."""
DELAYS_MS = (20, 1500)


@dataclass(frozen=True)
class Episode:
    """One fault, from begin_s to end_s after the start. An engine that was ended is started anew at end_s."""

    title: str
    kind: str
    """"pause", "kill", "stop" (SIGTERM), "update", "extend", or what the injector does: then with its rules."""
    engine: str
    begin_s: float
    end_s: float
    rules: tuple[Rule, ...] = ()


class Draft(NamedTuple):
    title: str
    kind: str
    engines: tuple[str, ...]
    calls: Calls = ()
    seconds: tuple[float, float] = FAULT_S


CALLS_FAIL = (
    Draft("reads fail", "fail", (CONSUMER,), READS),
    Draft("reads are slow", "delay", (CONSUMER,), READS),
    Draft("reads are short", "shorten", (CONSUMER,), READS),
    Draft("reads are corrupted", "flip", (CONSUMER,), READS),
    Draft("sends fail", "fail", SENDER, SENDS),
    Draft("sends are slow", "delay", SENDER, SENDS),
    Draft("sends are short", "shorten", SENDER, SENDS),
    Draft("control fails", "fail", EVERYBODY, CONTROL),
    Draft("control is slow", "delay", EVERYBODY, CONTROL),
    Draft("control is short", "shorten", EVERYBODY, CONTROL),
    Draft("connects fail", "fail", (CONSUMER,), CONNECTS + RECEIVES),
    Draft("connects are slow", "delay", (CONSUMER,), CONNECTS),
)
STANDS_STILL = (
    Draft("stopped", "pause", EVERYBODY, seconds=SHORT_PAUSE_S),
    Draft("stopped for longer than a lease", "pause", EVERYBODY, seconds=LONG_PAUSE_S),
)
P_KILLED = Draft("killed and started anew", "kill", PRODUCERS, seconds=SHORT_PAUSE_S)
ENGINES_END = (P_KILLED, P_KILLED._replace(engines=(CONSUMER,)),
               Draft("ended and started anew", "stop", EVERYBODY, seconds=SHORT_PAUSE_S))
NEW_WEIGHTS = Draft("new weights", "update", ("all",))
EXTENSION_WRITES = Draft("new weights by a worker's extension", "extend", ("all",))


def plan(drafts_of_a_round: Sequence[Draft], seed: int, seconds: float) -> list[Episode]:
    """Rounds of all faults in a random order, one at a time, with calm in between."""
    rng = random.Random(seed)
    episodes: list[Episode] = []
    now_s = LEAD_IN_S
    while True:
        drafts = list(drafts_of_a_round)
        rng.shuffle(drafts)
        for draft in drafts:
            end_s = now_s + rng.uniform(*draft.seconds)
            rules = tuple(rule_for(call, errors, draft.kind, rng) for call, errors in draft.calls)
            if end_s > seconds - LEAD_OUT_S:
                return episodes
            episodes.append(Episode(draft.title, draft.kind, rng.choice(draft.engines), now_s, end_s, rules))
            now_s = end_s + rng.uniform(*CALM_S)
        now_s += rng.uniform(*CALM_WINDOW_S)


def rule_for(call: str, errors: tuple[int, ...], kind: str, rng: random.Random) -> Rule:
    """Draws a value of each kind, so that a seed means the same plan whatever the kind."""
    rate = rng.uniform(*RATES[kind])
    value = {"fail": rng.choice(errors), "delay": rng.randint(*DELAYS_MS)}.get(kind, 0)
    return Rule(call, kind, int(rate * PER_MILLION), value)
