"""A run as a text that a person reads, and as JSON."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pd.table import table

from .clients import Outcome, Request
from .cluster import GIVEN_BACK
from .storm import Fault

LISTED_MAX = 20
LOADED_PERCENT_MIN = 50


@dataclass(frozen=True)
class Run:
    mix: str
    connector: str
    seed: int
    seconds: float
    requests: list[Request]
    faults: list[Fault]
    injected: dict[str, int]
    held: dict[str, dict[str, int]]
    """What engines still hold when all is quiet."""
    restarts: list[str]
    problems: list[str]
    counted: Mapping[str, int]

    def counts(self) -> dict[str, int]:
        found = Counter(request.outcome for request in self.requests)
        return {"requests": len(self.requests), **{outcome.value: found[outcome] for outcome in Outcome},
                "leaked": sum(sum(what.values()) for what in self.held.values()), "restarts": len(self.restarts)}

    def carried(self) -> dict[str, int]:
        """Blocks of prompts, in whole blocks: those that tickets could have brought, whatever was done to the engines."""
        possible = sum(request.blocks for request in self.requests)
        loaded = self.counted["kvferry_loaded_blocks_total"]
        return {"possible_blocks": possible, "loaded_blocks": loaded, "loaded_percent": 100 * loaded // max(possible, 1),
                "preemptions": self.counted["vllm:num_preemptions_total"], GIVEN_BACK: self.counted[GIVEN_BACK]}

    def said(self, outcome: Outcome) -> Counter[str]:
        return Counter(request.detail for request in self.requests if request.outcome is outcome)

    def retried(self) -> Counter[str]:
        return Counter(retry for request in self.requests for retry in request.retries)

    def faults_of(self) -> list[str]:
        """Why it is not good."""
        counts, carried = self.counts(), self.carried()
        found = [f"{counts[outcome.value]} {outcome.value.replace('_', ' ')}" for outcome in Outcome
                 if not outcome.good and counts[outcome.value]]
        found += [f"{name} still holds {what}" for name, what in self.held.items()]
        found += [f"started anew: {why}" for why in self.restarts] + self.problems
        if not counts[Outcome.RIGHT.value]:
            found.append("no answer was right")
        if self.connector == "kvferry" and carried["loaded_percent"] < LOADED_PERCENT_MIN * bool(carried["possible_blocks"]):
            found.append(f"only {carried['loaded_percent']} % was loaded of what tickets could bring")
        return found

    @property
    def good(self) -> bool:
        return not self.faults_of()


def recovery_s(requests: Iterable[Request], end_s: float) -> float | None:
    """From a fault's end to the first right answer to a request that was sent after it."""
    answered = [r.end_s - end_s for r in requests if r.begin_s >= end_s and r.outcome is Outcome.RIGHT]
    return min(answered, default=None)


def as_json(run: Run) -> dict[str, Any]:
    faults = [{"title": fault.episode.title, "engine": fault.episode.engine, "begin_s": round(fault.begin_s, 2),
               "end_s": round(fault.end_s, 2), "recovery_s": recovery_s(run.requests, fault.end_s)}
              for fault in run.faults if not fault.skipped]
    return {
        "mix": run.mix, "connector": run.connector, "seed": run.seed, "seconds": round(run.seconds, 1),
        **run.counts(), **run.carried(), "habits": Counter(request.habit for request in run.requests),
        "reasons": run.said(Outcome.TYPED_ERROR), "others": run.said(Outcome.OTHER), "retried": run.retried(),
        "held": run.held, "restarts_why": run.restarts, "problems": run.problems, "good": run.good,
        "injected": run.injected, "injected_total": sum(run.injected.values()), "faults": faults,
        "skipped": [f"{fault.episode.title}: {fault.skipped}" for fault in run.faults if fault.skipped],
        "not_right": [{"begin_s": round(r.begin_s, 2), "end_s": round(r.end_s, 2), "outcome": r.outcome.value,
                       "detail": r.detail} for r in run.requests if r.outcome is not Outcome.RIGHT],
    }


def faults_table(run: Run) -> str:
    rows = []
    done = [fault for fault in run.faults if not fault.skipped]
    for title in dict.fromkeys(fault.episode.title for fault in done):
        faults = [fault for fault in done if fault.episode.title == title]
        engines = Counter(fault.episode.engine for fault in faults)
        after = [recovery_s(run.requests, fault.end_s) for fault in faults]
        rows.append((title, " ".join(f"{name}×{times}" for name, times in sorted(engines.items())),
                     middle_and_longest([seconds for seconds in after if seconds is not None])))
    return table(("fault", "at", "right again after"), rows)


def middle_and_longest(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} s (at most {max(values):.1f})" if values else "-"


def details(run: Run) -> Iterable[str]:
    """Lines for what the tables have no room for."""
    for what, found in (("calls hit", run.injected), ("typed", run.said(Outcome.TYPED_ERROR)),
                        ("other error", run.said(Outcome.OTHER)), ("tried again by the client", run.retried())):
        yield from (f"{what}: {number} × {text}" for text, number in found.items())
    yield from (f"clients: {number} × {habit}" for habit, number in
                Counter(request.habit for request in run.requests if request.habit).items())
    bad = [r for r in run.requests if r.outcome in (Outcome.WRONG, Outcome.HUNG)]
    yield from (f"{r.outcome.value} at {r.begin_s:.1f}-{r.end_s:.1f} s: {r.detail}" for r in bad[:LISTED_MAX])
    yield from (f"left out: {fault.episode.title} at {fault.begin_s:.0f} s, {fault.skipped}"
                for fault in run.faults if fault.skipped)
    yield from (f"not good: {why}" for why in run.faults_of())


def text(run: Run) -> str:
    counts = {"connector": run.connector, "minutes": f"{run.seconds / 60:.1f}", **run.counts(),
              **(run.carried() if run.mix == "soak" else {})}
    summary = table([name.replace("_", " ") for name in counts], [[str(cell) for cell in counts.values()]])
    return "\n\n".join([summary, faults_table(run), "\n".join(details(run))])
