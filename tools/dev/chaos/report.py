"""A run as tables that a person reads, and as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pd.table import table

from .schedule import Episode
from .storm import Happened
from .tally import Outcome, Request, Tally, count, middle, recovery_s

LISTED_MAX = 20
NOTICED_WITHIN_S = 2.0
"""After a fault's end: what D notices later is counted for none."""


@dataclass(frozen=True)
class Fault:
    episode: Episode
    begin_s: float
    end_s: float
    detection_s: float | None
    recovery_s: float | None


@dataclass(frozen=True)
class Run:
    connector: str
    seed: int
    checksum: bool
    seconds: float
    requests: list[Request]
    faults: list[Fault]
    skipped: list[Happened]
    injected: dict[str, int]
    leaked_blocks: int
    d_restarts: list[str]
    library_detections: int
    library_detection_s: float
    problems: list[str]

    @property
    def tally(self) -> Tally:
        return count(self.requests)

    @property
    def good(self) -> bool:
        found = self.tally.by_outcome
        bad = found[Outcome.WRONG] or found[Outcome.HUNG] or found[Outcome.OTHER]
        spoilt = bad or self.leaked_blocks or self.d_restarts or self.problems
        return not spoilt and found[Outcome.RIGHT] > 0 and sum(self.injected.values()) > 0


def faults_of(happened: Sequence[Happened], requests: Sequence[Request],
              noticed_s: Callable[[float, float], float | None]) -> list[Fault]:
    done = [one for one in happened if not one.skipped]
    return [Fault(one.episode, one.begin_s, one.end_s, noticed_s(one.begin_s, one.end_s + NOTICED_WITHIN_S),
                  recovery_s(requests, one.end_s)) for one in done]


def as_json(run: Run) -> dict[str, Any]:
    tally = run.tally
    return {
        "connector": run.connector, "seed": run.seed, "checksum": run.checksum, "seconds": round(run.seconds, 1),
        "requests": tally.requests, **{outcome.value: tally.by_outcome[outcome] for outcome in Outcome},
        "leaked_blocks": run.leaked_blocks, "d_restarts": len(run.d_restarts), "d_restarts_why": run.d_restarts,
        "problems": run.problems, "reasons": dict(tally.reasons), "others": dict(tally.others),
        "retried": dict(tally.retried),
        "injected": run.injected, "injected_total": sum(run.injected.values()),
        "skipped": [f"{one.episode.title}: {one.skipped}" for one in run.skipped],
        "library_detections": run.library_detections, "library_detection_s": round(run.library_detection_s, 3),
        "faults": [{"title": fault.episode.title, "engine": fault.episode.engine, "begin_s": round(fault.begin_s, 2),
                    "end_s": round(fault.end_s, 2), "detection_s": rounded(fault.detection_s),
                    "recovery_s": rounded(fault.recovery_s)} for fault in run.faults],
        "not_right": [{"begin_s": round(r.begin_s, 2), "end_s": round(r.end_s, 2), "outcome": r.outcome.value,
                       "detail": r.detail} for r in run.requests if r.outcome is not Outcome.RIGHT],
    }


def rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def seconds(values: Sequence[float]) -> str:
    """The median and the longest."""
    return f"{middle(values):.1f} s (at most {max(values):.1f})" if values else "-"


def faults_table(run: Run) -> str:
    titles = list(dict.fromkeys(fault.episode.title for fault in run.faults))
    rows = []
    for title in titles:
        faults = [fault for fault in run.faults if fault.episode.title == title]
        noticed = [fault.detection_s for fault in faults if fault.detection_s is not None]
        recovered = [fault.recovery_s for fault in faults if fault.recovery_s is not None]
        engines = Counter(fault.episode.engine for fault in faults)
        rows.append((title, " ".join(f"{name}×{times}" for name, times in sorted(engines.items())),
                     f"{len(noticed)} of {len(faults)}", seconds(noticed), seconds(recovered)))
    return table(("fault", "at", "noticed", "noticed after", "right again after"), rows)


def injected_table(run: Run) -> str:
    rows = [(*name.split(), str(number)) for name, number in run.injected.items()]
    return table(("call", "what happened to it", "times"), [(call, kind, times) for call, kind, times in rows])


def summary_table(runs: Sequence[Run]) -> str:
    rows = []
    for run in runs:
        tally = run.tally
        mean_s = run.library_detection_s / run.library_detections if run.library_detections else None
        rows.append((run.connector, f"{run.seconds / 60:.1f}", str(len(run.faults)), str(sum(run.injected.values())),
                     str(tally.requests), *(str(tally.by_outcome[outcome]) for outcome in Outcome),
                     str(run.leaked_blocks), str(len(run.d_restarts)),
                     "-" if mean_s is None else f"{mean_s * 1000:.0f} ms"))
    return table(("connector", "minutes", "faults", "calls hit", "requests", "right", "typed errors", "wrong", "hung",
                  "other", "leaked blocks", "D restarts", "failed loads given up after"), rows)


def details(run: Run) -> list[str]:
    """Lines for what the tables have no room for."""
    tally = run.tally
    lines = [f"typed: {number} × {reason}" for reason, number in tally.reasons.most_common()]
    lines += [f"other error: {number} × {text}" for text, number in tally.others.most_common(8)]
    lines += [f"tried again by the client: {number} × {text}" for text, number in tally.retried.most_common(8)]
    lines += [f"{r.outcome.value} at {r.begin_s:.1f}-{r.end_s:.1f} s: {r.detail}"
              for r in (tally.wrongs + tally.hungs)[:LISTED_MAX]]
    lines += [f"left out: {one.episode.title} at {one.begin_s:.0f} s, {one.skipped}" for one in run.skipped]
    lines += [f"D started anew at {why}" for why in run.d_restarts] + run.problems
    return lines


def text(run: Run) -> str:
    parts = [summary_table([run]), faults_table(run), injected_table(run), "\n".join(details(run))]
    return "\n\n".join(part for part in parts if part)
