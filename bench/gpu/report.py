"""Runs gpu_bench, and NIXL beside it where that is installed; shows tables, writes one JSON list. docs/gpu.md says what
the rows are. The exit status is 1 if bytes were wrong, a case failed, or nothing was measured."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
HERE = Path(__file__).parent
PROGRAM = Path("build-release/bench/gpu/gpu_bench")
LIBRARY = "KVFERRY_TEST_CUDA_LIBRARY"
NIXL_PIECES_MAX = 65536
NIXL_LIMIT_S = 30
WITHIN = "local"
STAGED = ("gpu-to-host", "host-to-gpu", "tcp")
BATCHES = ("batch", "batch-2048")
PINNED = ("pinned-to-host", "pinned-to-device")
BATCH_GOAL, BATCH_GOAL_BYTES = 0.9, 65536
PINNED_GOAL = 0.8


# ---- running ----


def lines_of(command: Sequence[str | Path]) -> Iterator[Row]:
    """Its rows as they come, and one more if it has failed and has not said so."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        told = False
        for line in process.stdout:
            row = json.loads(line)
            told = told or "failed" in row
            yield row
        status = process.wait()
    if status != 0 and not told:
        yield {"case": Path(command[0]).name, "failed": f"it ended with status {status}"}


def run(options: argparse.Namespace) -> list[Row]:
    command = [options.program, *(["--quick"] if options.quick else []), options.case]
    rows = []
    for row in lines_of(command):
        rows.append(row)
        if sys.stderr.isatty():
            print(f"\r\033[K{row['case']}", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr)
    return rows


def run_nixl(rows: Sequence[Row]) -> list[Row]:
    shapes = [row for row in rows if "layers" in row and is_within(row["case"]) and row["pieces"] <= NIXL_PIECES_MAX]
    command = [sys.executable, str(HERE / "nixl_side.py"), json.dumps(shapes)]
    why = ""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=NIXL_LIMIT_S)
        text = done.stdout
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or [f"it ended with status {done.returncode}"])[-1]
    except subprocess.TimeoutExpired as late:
        text, why = (late.stdout or b"").decode(), f"it was not over after {NIXL_LIMIT_S} s"
    found = [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return [*found, {"case": "nixl", "impl": "nixl", "note": f"not all measured: {why}"}] if why else found


# ---- reading ----


def is_within(case: str) -> bool:
    return case.split("/")[0] == WITHIN and "+checksums" not in case


class Rows:
    def __init__(self, rows: Sequence[Row]):
        self.shapes = {row["case"]: row for row in rows if "layers" in row}
        self.measured = {(row["case"], row["impl"]): row for row in rows if "median" in row}
        self.notes = [row for row in rows if "note" in row]
        self.failed = [row for row in rows if "failed" in row]
        self.machine = next((row for row in rows if row["case"] == "machine"), None)

    def cases(self, *paths: str) -> list[str]:
        return [case for case in self.shapes if case.split("/")[0] in paths]

    def get(self, case: str, impl: str) -> Row | None:
        return self.measured.get((case, impl))

    def value(self, case: str, impl: str) -> str:
        row = self.get(case, impl)
        return "–" if row is None else number(row["median"])

    def ratio(self, case: str, others: Sequence[str]) -> float | None:
        """kvferry's median as a multiple of the best of theirs: above 1 is better, whatever the unit."""
        ours = self.get(case, "kvferry")
        ratios = [better(ours, theirs) for other in others if ours and (theirs := self.get(case, other))]
        return min(ratios, default=None)


def better(ours: Row, theirs: Row) -> float:
    more, less = (ours, theirs) if ours["unit"] == "GB/s" else (theirs, ours)
    return more["median"] / less["median"] if less["median"] else float("inf")


def number(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [list(head), *map(list, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]) for row in rows)


# ---- tables ----


def name_of(rows: Rows, case: str) -> str:
    return case + (" CUT" if rows.shapes[case].get("cut") else "")


def within_table(rows: Rows) -> str:
    impls = ["kvferry", *BATCHES, "loop", "one", "nixl"]
    head = ["within the GPU: GB/s (one piece: us)", *impls, "/batch", "/one", "/nixl"]
    return table(head, ([name_of(rows, case), *(rows.value(case, impl) for impl in impls), share(rows.ratio(case, BATCHES)),
                         share(rows.ratio(case, ["one"])), share(rows.ratio(case, ["nixl"]))]
                        for case in rows.cases(WITHIN)))  # fmt: skip


def posting_table(rows: Rows) -> str:
    head = ["posting, us a load", "kvferry", *BATCHES, "loop", "kvferry's copying", "pieces", "chunks"]
    return table(head, ([case, *(rows.value(f"{case}/posting", impl) for impl in ("kvferry", *BATCHES, "loop")),
                         *(rows.value(f"{case}/{what}", "kvferry") for what in ("copying", "pieces", "chunks"))]
                        for case in rows.cases(WITHIN)))  # fmt: skip


def staged_table(rows: Rows) -> str:
    head = ["through host memory: GB/s", "kvferry", *PINNED, "/ the slower"]
    return table(head, ([name_of(rows, case), *(rows.value(case, impl) for impl in ("kvferry", *PINNED)),
                         share(pinned_share(rows, case))] for case in rows.cases(*STAGED)))  # fmt: skip


def pinned_share(rows: Rows, case: str) -> float | None:
    ours = rows.get(case, "kvferry")
    ratios = [better(ours, theirs) for other in PINNED if ours and (theirs := rows.get(case, other))]
    return max(ratios, default=None)


def cpu_table(rows: Rows) -> str:
    head = ["CPU of all threads, us a load", "D", "P"]
    return table(head, ([case, *(rows.value(f"{case}/{what}", "kvferry") for what in ("cpu-consumer", "cpu-producer"))]
                        for case in rows.cases(WITHIN, *STAGED)))  # fmt: skip


def extras_table(rows: Rows) -> str:
    extra = [row for (case, _), row in rows.measured.items() if case.split("/")[0] in ("first", "calls", "multiply")]
    return table(["the rest", "", "median", "p99", "unit", "runs"],
                 ([row["case"], row["impl"], number(row["median"]), number(row["p99"]), row["unit"], str(row["runs"])]
                  for row in extra))  # fmt: skip


def goals(rows: Rows) -> Iterator[tuple[str, str, float, float]]:
    for case in rows.cases(WITHIN):
        ratio = rows.ratio(case, BATCHES)
        if ratio is not None and is_within(case) and min(size for size in rows.shapes[case]["block_bytes"] if size) >= BATCH_GOAL_BYTES:
            yield case, "kvferry/batch", ratio, BATCH_GOAL
    for case in rows.cases("gpu-to-host", "host-to-gpu"):
        ratio = pinned_share(rows, case)
        if ratio is not None:
            yield case, "kvferry/pinned", ratio, PINNED_GOAL


def goals_text(rows: Rows) -> str:
    judged = list(goals(rows))
    missed = [[case, what, share(ratio), f"at least {least}"] for case, what, ratio, least in judged if ratio < least]
    head = f"{len(judged) - len(missed)} of {len(judged)} goals are met"
    return f"{head}; not:\n" + table(["", "", "reached", "goal"], missed) if missed else head + "."


def failures_text(rows: Rows) -> str:
    """A reason that many have is said once."""
    by_reason: dict[str, list[str]] = {}
    for row in rows.failed:
        by_reason.setdefault(row["failed"], []).append(row["case"])
    return "\n".join(f"FAILED: {', '.join(cases) if len(cases) < 4 else f'{len(cases)} cases'}: {why}"
                     for why, cases in by_reason.items())  # fmt: skip


def texts(rows: Rows) -> Iterator[str]:
    if rows.machine:
        major, minor = divmod(rows.machine["cuda"], 1000)
        yield f"{rows.machine['device']}, CUDA {major}.{minor // 10}, {rows.machine['free_bytes'] / 1e9:.1f} GB free"
        if rows.machine["fake"]:
            yield "A FAKE OF THE DRIVER: that all of it runs is shown, and no figure means anything."
    yield "A column with a slash: how many times as fast kvferry is (/batch: beside the faster of the two)."
    for made in (within_table, staged_table, posting_table, cpu_table, extras_table):
        yield "\n" + made(rows)
    yield ""
    yield from (f"cut: {case}: {row['cut']}" for case, row in rows.shapes.items() if row.get("cut"))
    yield from (f"note: {row['case']}, {row['impl']}: {row['note']}" for row in rows.notes)
    if rows.machine and not rows.machine["fake"]:
        yield goals_text(rows)
    if rows.failed:
        yield failures_text(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, nargs="?", default=PROGRAM, help=f"gpu_bench ({PROGRAM})")
    parser.add_argument("--quick", action="store_true", help="a few rounds of small sizes: whether it runs at all")
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases whose name has this: local/, multiply/")
    parser.add_argument("--library", metavar="FILE", help="the driver, or a fake of it (libcuda.so.1 as the system finds it)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as a JSON list")
    options = parser.parse_args()
    if options.library:
        os.environ[LIBRARY] = options.library
    options.program = options.program.absolute()
    rows = run(options)
    if any(row.get("fake") is False for row in rows):
        rows += run_nixl(rows)
    found = Rows(rows)
    print("\n".join(texts(found) if found.shapes else [failures_text(found)]))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if found.failed or not found.measured else 0


if __name__ == "__main__":
    sys.exit(main())
