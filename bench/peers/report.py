"""From times to rows, tables and what was to be reached. Rows have the form of ./dev bench's, and `variant` and `version`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pd.table import table

Row = dict[str, Any]
GB_PER_S = "GB/s"
US = "us"
S_PER_GB = "s/GB"
MS = "ms"
PERCENT = "% of a core"
OF_LOAD = "% of the load"
EXTRAS = {
    "first-load": "first load of 64x16KiB, connecting included, µs",
    "kill": "from a producer's death to the load's failure, ms",
    "stop": "from a producer's standstill to the load's failure, ms",
    "partition": "from a partition (both ways, or either) to the load's failure, ms",
    "idle": "connected, nothing to do: % of a core (the busier side)",
    "fence": "looks at the fence, 64x1MiB: % of the load, at most",
    "first-load-known": "the first load where the consumer knew the producer's address (option peers), µs",
    "first-load-key": "the first load between nodes that have a key, µs",
    "key": "how much longer loads of 64x1MiB take with a key: % of the load",
    "producers-1": "1024x16KiB from one producer, GB/s",
    "producers-8": "the same blocks from 8 producers at once, GB/s",
    "producers-64": "the same blocks from 64 producers at once, GB/s",
    "step-0": "an engine step's look, no load in flight, µs",
    "step-100": "the same with 100 loads in flight, µs",
    "step-1000": "the same with 1000 loads in flight, µs",
}


def quantiles(samples: Sequence[float], more_is_better: bool) -> tuple[float, float]:
    """The median and the bad tail: 99 of 100 are better."""
    ordered = sorted(samples, reverse=more_is_better)
    return ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]


def make_row(case: str, who: Row, unit: str, median: float, p99: float, runs: int) -> Row:
    numbers = {"median": float(f"{median:.4g}"), "p99": float(f"{p99:.4g}")}
    return {"case": case, "impl": who["impl"], "unit": unit, **numbers, "runs": runs, **who}


def rows_of(path: str, shape: str, size: int, single: bool, who: Row, ns: Sequence[int], cpu_s_per_round: float) -> list[Row]:
    """Speed as ./dev bench says it (a single block by its time), then the time of a load, then what it costs."""
    case = f"{path}/{shape}"
    times = [time / 1e3 for time in ns]
    speeds = [size / time for time in ns]
    rows = []
    if not single:
        rows.append(make_row(case, who, GB_PER_S, *quantiles(speeds, True), len(ns)))
    rows.append(make_row(case if single else f"{case}/latency", who, US, *quantiles(times, False), len(ns)))
    cost = cpu_s_per_round / size * 1e9
    rows.append(make_row(f"{case}/cpu", who, S_PER_GB, cost, cost, len(ns)))
    return rows


def label(row: Row) -> str:
    """What tells the implementations of one path apart."""
    return row["variant"] or row["impl"]


def ratio(ours: Row, theirs: Row) -> float:
    """How many times as good kvferry is: above 1 is better, whatever the unit."""
    better, worse = (ours, theirs) if ours["unit"] == GB_PER_S else (theirs, ours)
    return better["median"] / worse["median"] if worse["median"] else float("inf")


def number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def cell(row: Row, ours: Row | None, tail: bool) -> str:
    if row.get("undetected"):
        return f"none in {number(row['median'])}"
    text = number(row["median"]) + (f"/{number(row['p99'])}" if tail else "")
    return text if ours is None or ours is row else f"{text} ({ratio(ours, row):.2f})"


def tables(rows: Sequence[Row]) -> Iterable[str]:
    """For each path: speeds, times and costs, kvferry first, beside the others with kvferry's ratio to them; then the rest."""
    yield "In brackets: how many times as good kvferry's median is (above 1: kvferry is better)."
    for path in dict.fromkeys(row["case"].split("/")[0] for row in rows):
        here = [row for row in rows if row["case"].split("/")[0] == path and not is_extra(row)]
        for what, tail, wanted in (
            ("speed, GB/s (one block: µs)", False, lambda row: row["case"].count("/") == 1),
            ("time of a load, µs, p50/p99", True, lambda row: row["unit"] == US),
            ("CPU of both processes, s/GB", False, lambda row: row["unit"] == S_PER_GB),
        ):
            chosen = [row for row in here if wanted(row)]
            if chosen:
                yield f"\n{path}: {what}\n{one_table(chosen, tail)}"
    for name, what in EXTRAS.items():
        lines = [
            [f"{row['case'].split('/')[0]} {label(row)}", cell(row, None, row["p99"] != row["median"]), str(row["runs"])]
            for row in rows
            if row["case"].split("/")[1] == name
        ]
        if lines:
            yield f"\n{name}: {what}\n" + table(["", "median/worst", "runs"], lines)


def is_ours(row: Row) -> bool:
    """kvferry as it is by default."""
    return row["impl"] == "kvferry" and not row["variant"]


def is_extra(row: Row) -> bool:
    return row["case"].split("/")[1] in EXTRAS


def one_table(rows: Sequence[Row], tail: bool) -> str:
    names = list(dict.fromkeys(label(row) for row in rows))
    lines = []
    for case in dict.fromkeys(row["case"] for row in rows):
        by_name = {label(row): row for row in rows if row["case"] == case}
        ours = by_name.get("kvferry")
        cells = [cell(by_name[name], ours, tail) if name in by_name else "–" for name in names]
        lines.append([case.split("/")[1], *cells])
    return table(["", *names], lines)


@dataclass(frozen=True)
class Goal:
    case: str  # a pattern
    other: str
    least: float

    def __str__(self) -> str:
        return f"{self.least} x {self.other}"


@dataclass(frozen=True)
class Limit:
    name: str
    most: float
    unit: str

    def __str__(self) -> str:
        return f"at most {self.most:g} {self.unit}"


LARGE = "(?!1x)[^/]*"
GOALS = (
    Goal("local/1024x16KiB", "nixl", 2.0),
    Goal("local/(?!1024x16KiB)[^/]*", "nixl", 1.0),
    Goal("local/[^/]*", "readv x2", 0.95),
    Goal("tcp/1x4KiB", "nixl", 1.0),
    Goal(f"tcp/{LARGE}", "nixl", 2.5),
    Goal(f"tcp/{LARGE}", "mooncake", 1.5),
    Goal("tcp/[^/]*", "streams x2", 0.9),
    Goal("ucx/[^/]*", "ucx", 0.95),
)
LIMITS = (
    Limit("kill", 50, MS),
    Limit("stop", 1500, MS),
    Limit("partition", 1500, MS),
    Limit("idle", 0.5, PERCENT),
    Limit("fence", 3, OF_LOAD),
)


def judge_limits(rows: Sequence[Row]) -> list[tuple[Limit, str, float]]:
    """`local` needs nothing of a producer that stands still."""
    return [
        (limit, row["case"], row["median"])
        for limit in LIMITS
        for row in rows
        if is_ours(row) and row["case"].split("/")[1] == limit.name and row["case"] != "local/stop"
    ]


def judge(rows: Sequence[Row]) -> list[tuple[Goal, str, float]]:
    """Each goal, the case, and the ratio that was reached."""
    speeds = [row for row in rows if row["case"].count("/") == 1 and not is_extra(row)]
    ours = {row["case"]: row for row in speeds if is_ours(row)}
    return [
        (goal, row["case"], ratio(ours[row["case"]], row))
        for goal in GOALS
        for row in speeds
        if label(row) == goal.other and row["case"] in ours and re.fullmatch(goal.case, row["case"])
    ]


def goals_table(rows: Sequence[Row]) -> str:
    ratios = [(case, goal, reached, reached >= goal.least) for goal, case, reached in judge(rows)]
    limits = [(case, limit, reached, reached <= limit.most) for limit, case, reached in judge_limits(rows)]
    judged = [*ratios, *limits]
    lines = [[case, str(goal), number(reached)] for case, goal, reached, good in judged if not good]
    if not lines:
        return f"All {len(judged)} goals are met."
    return f"{len(judged) - len(lines)} of {len(judged)} goals are met; not:\n" + table(["", "goal", "reached"], lines)
