"""What clients got, and how it counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from pd import web

TYPED = "kv_transfer_error"
CLOCK_S = 0.5
"""By so much a time limit may be measured short."""


class Outcome(Enum):
    RIGHT = "right"
    TYPED_ERROR = "typed_errors"
    WRONG = "wrong"
    HUNG = "hung"
    OTHER = "other_errors"


@dataclass(frozen=True)
class Request:
    """Seconds after the start. `retries`: answers that named no transfer, upon which the client tried again."""

    begin_s: float
    end_s: float
    outcome: Outcome
    detail: str = ""
    retries: tuple[str, ...] = ()


def judge(answer: web.Answer, expected: Sequence[int], limit_s: float) -> tuple[Outcome, str]:
    """The outcome of one answer, and for those that are not right what was wrong."""
    if answer.status == web.NO_ANSWER:
        late = answer.seconds >= limit_s - CLOCK_S
        return (Outcome.HUNG, f"no answer in {limit_s:.0f} s") if late else (Outcome.OTHER, answer.error)
    if answer.seconds > limit_s + CLOCK_S:
        return Outcome.HUNG, f"answered after {answer.seconds:.0f} s"
    if answer.status == 200:
        tokens = token_ids(answer.body)
        return (Outcome.RIGHT, "") if tokens == list(expected) else (Outcome.WRONG, f"tokens {tokens}")
    error = answer.body.get("error")
    if isinstance(error, dict) and error.get("type") == TYPED and error.get("reason"):
        return Outcome.TYPED_ERROR, str(error["reason"])
    return Outcome.OTHER, f"{answer.status} {str(error or answer.body)[:200]}"


def token_ids(body: dict[str, object]) -> list[int] | None:
    choices = body.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
        return None
    return choices[0].get("token_ids")


@dataclass
class Tally:
    """Of a whole run."""

    requests: int = 0
    by_outcome: Counter[Outcome] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    others: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    wrongs: list[Request] = field(default_factory=list)
    hungs: list[Request] = field(default_factory=list)


def count(requests: Sequence[Request]) -> Tally:
    tally = Tally(len(requests))
    lists = {Outcome.WRONG: tally.wrongs, Outcome.HUNG: tally.hungs}
    names = {Outcome.TYPED_ERROR: tally.reasons, Outcome.OTHER: tally.others}
    for request in requests:
        tally.by_outcome[request.outcome] += 1
        tally.retried.update(request.retries)
        if request.outcome in lists:
            lists[request.outcome].append(request)
        if request.outcome in names:
            names[request.outcome][request.detail] += 1
    return tally


def recovery_s(requests: Sequence[Request], end_s: float) -> float | None:
    """From a fault's end to the first right answer to a request that was sent after it."""
    answered = [r.end_s - end_s for r in requests if r.begin_s >= end_s and r.outcome is Outcome.RIGHT]
    return min(answered, default=None)


def middle(values: Sequence[float]) -> float:
    """The median."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
