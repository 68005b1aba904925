"""Runs gpu_bench, and NIXL beside it where that is asked for and installed; shows tables. Each row is a line of JSON in a file as
soon as there is one, whatever becomes of this program. tools/gpu/README.md says what the rows are. The exit status is 1 if
bytes were wrong, a case failed, or nothing was measured."""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parents[1] / "tools/dev")]

from peers.report import Row, number  # noqa: E402
from peers.report import ratio as better  # noqa: E402

PROGRAM = Path("build-release/bench/gpu/gpu_bench")
LIBRARY = "KVFERRY_TEST_CUDA_LIBRARY"
NIXL_PIECES_MAX = 65536
RUN_S, NIXL_S = 180, 45
WITHIN, COMPUTING, MATRIX = "local", "P-computing", "gather"
STAGED = ("gpu-to-host", "host-to-gpu", "tcp")
REST = ("first", "calls", "beside")
BATCHES = ("batch", "batch-2048")
PINNED = ("pinned-to-host", "pinned-to-device")
ONE_GOALS = ((262144, 0.85), (65536, 0.75), (16384, 0.65))
"""Of the one-piece copy, from so many bytes a piece on."""
GOAL_BYTES = 64 << 20
"""Of a load: smaller ones are a matter of latency."""
LAUNCH_GOAL, HOST_GOAL = 0.95, 0.9
MORE_THREADS, LESS_A_CHUNK, MORE_BLOCKS = "copy_threads=4", f"device_chunk_bytes={8 << 20}", "device_gather_blocks=64"
SWITCHES = (("device_gather_bytes=1",), (MORE_BLOCKS,), ("device_gather_blocks=128",), (MORE_THREADS,), (LESS_A_CHUNK,),
            (f"device_chunk_bytes={64 << 20}",), (MORE_THREADS, MORE_BLOCKS), (MORE_THREADS, MORE_BLOCKS, LESS_A_CHUNK))  # fmt: skip
"""Options of kvferry's with which it is measured once more."""
SWITCHED = ("gather/Llama-3-70B:80x64x64KiB", "gather/16384x16KiB")
SWITCH_S = 3
SWITCHES_S = SWITCH_S * len(SWITCHES) * len(SWITCHED)


# ---- running ----


def rows_since(file: Path, begin: int) -> list[Row]:
    """A line that is not whole has been cut off with its program."""
    with file.open("rb") as text:
        text.seek(begin)
        return [json.loads(line) for line in text if line.startswith(b"{") and line.endswith(b"}\n")]


def add(file: Path, **row: Any) -> None:
    with file.open("a") as rows:
        rows.write(json.dumps(row) + "\n")


def run(command: Sequence[str | Path], file: Path, limit_s: float, errors: IO[bytes] | None = None) -> int | None:
    """Its standard output is the file itself. None: it was not over in time."""
    with file.open("ab") as rows:
        try:
            return subprocess.run(command, stdout=rows, stderr=errors, timeout=limit_s, check=False).returncode
        except subprocess.TimeoutExpired:
            return None


def run_bench(options: argparse.Namespace, case: str, seconds: float, file: Path, switch: Sequence[str] = ()) -> None:
    words = [options.program, "--seconds", f"{seconds:.0f}", "--case", case, *(["--quick"] if options.quick else []),
             *(["--without", options.without] if options.without else []), *(word for text in switch for word in ("--set", text))]
    begin = file.stat().st_size
    status = run(words, file, seconds + 5)
    if status != 0 and not any("failed" in row for row in rows_since(file, begin)):
        add(file, case=options.program.name, failed="it was not over in time" if status is None else f"it ended with status {status}")


def run_switches(options: argparse.Namespace, until: float, file: Path) -> None:
    for switch, case in itertools.product(SWITCHES, SWITCHED):
        left_s = until - time.monotonic()
        if left_s < SWITCH_S:
            add(file, case=case, impl=" ".join(switch), note="no time was left")
        else:
            run_bench(options, case, left_s, file, switch)


def run_nixl(rows: Sequence[Row], seconds: float, file: Path) -> None:
    shapes = [row for row in rows if "layers" in row and is_within(row["case"]) and row["pieces"] <= NIXL_PIECES_MAX]
    with tempfile.TemporaryFile() as errors:
        status = run([sys.executable, HERE / "nixl_gpu.py", json.dumps(shapes), f"{seconds - 5:.0f}"], file, seconds, errors)
        errors.seek(0)
        said = errors.read().decode(errors="replace").strip().splitlines()
    if status != 0:
        why = "it was not over in time" if status is None else (said or [f"it ended with status {status}"])[-1]
        add(file, case="nixl", impl="nixl", note=f"not all measured: {why}")


# ---- reading ----


def path_of(case: str) -> str:
    return case.split("/")[0]


def is_within(case: str) -> bool:
    return path_of(case) == WITHIN and "+checksums" not in case


def piece_bytes(shape: Row) -> int:
    return min(size for size in shape["block_bytes"] if size)


class Rows:
    def __init__(self, rows: Sequence[Row]):
        self.shapes = {row["case"]: row for row in rows if "layers" in row}
        self.measured = {(row["case"], row["impl"]): row for row in rows if "median" in row}
        self.notes = [row for row in rows if "note" in row]
        self.failed = [row for row in rows if "failed" in row]
        self.clocks = [row for row in rows if "sm_mhz" in row]
        self.machine = next((row for row in rows if row["case"] == "machine"), None)

    def cases(self, *paths: str) -> list[str]:
        return [case for case in self.shapes if path_of(case) in paths]

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

    def is_large(self, case: str) -> bool:
        return self.shapes[case]["pieces"] > 1 and self.shapes[case]["bytes"] >= GOAL_BYTES

    def cpu(self, case: str, impl: str) -> float | None:
        """us a load, of both sides."""
        sides = [self.get(f"{case}/cpu-{side}", impl) for side in ("consumer", "producer")]
        return sum(side["median"] for side in sides if side) if all(sides) else None


def share(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    rows = [list(head), *map(list, lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    return "\n".join("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]) for row in rows)


# ---- tables ----


def name_of(rows: Rows, case: str) -> str:
    return case + (" CUT" if rows.shapes[case].get("cut") else "")


def within_table(rows: Rows, path: str, title: str) -> str:
    impls = ["kvferry", *BATCHES, "gather", "loop", "one", "nixl", "nixl-write"]
    head = [title, *impls, "/batch", "/gather", "/nixl", "/one", "goal"]
    return table(head, ([name_of(rows, case), *(rows.value(case, impl) for impl in impls), share(rows.ratio(case, BATCHES)),
                         *(share(rows.ratio(case, [impl])) for impl in ("gather", "nixl", "one")), share(one_goal(rows, case))]
                        for case in rows.cases(path)))  # fmt: skip


def matrix_table(rows: Rows) -> str:
    cases = sorted(rows.cases(MATRIX), key=lambda case: rows.shapes[case]["block_bytes"][0])
    impls = list(dict.fromkeys(impl for case, impl in rows.measured if case in cases))
    best = [max((row["median"], impl) for (of, impl), row in rows.measured.items() if of == case)[1]
            if any(of == case for of, _ in rows.measured) else "–" for case in cases]  # fmt: skip
    return table(["gather, batches: GB/s", *(name_of(rows, case).removeprefix(f"{MATRIX}/") for case in cases)],
                 [*([impl, *(rows.value(case, impl) for case in cases)] for impl in impls), ["the fastest", *best]])


def posting_table(rows: Rows) -> str:
    impls = ("kvferry", *BATCHES, "gather", "loop")
    head = ["posting, us a load", *impls, "kvferry's copying", "pieces", "chunks"]
    return table(head, ([case, *(rows.value(f"{case}/posting", impl) for impl in impls),
                         *(rows.value(f"{case}/{what}", "kvferry") for what in ("copying", "pieces", "chunks"))]
                        for case in rows.cases(WITHIN)))  # fmt: skip


def staged_table(rows: Rows) -> str:
    head = ["through host memory: GB/s", "kvferry", *PINNED, "/ the slower", "batch-2048", "/batch", "goal"]
    return table(head, ([name_of(rows, case), *(rows.value(case, impl) for impl in ("kvferry", *PINNED)),
                         share(pinned_share(rows, case)), rows.value(case, "batch-2048"), share(rows.ratio(case, ["batch-2048"])),
                         share(HOST_GOAL if rows.get(case, "batch-2048") else None)]
                        for case in rows.cases(*STAGED)))  # fmt: skip


def pinned_share(rows: Rows, case: str) -> float | None:
    ours = rows.get(case, "kvferry")
    ratios = [better(ours, theirs) for other in PINNED if ours and (theirs := rows.get(case, other))]
    return max(ratios, default=None)


def cpu_table(rows: Rows) -> str:
    sides = ("cpu-consumer", "cpu-producer")
    head = ["CPU of all threads, us a load", "D", "P", "D, NIXL", "P, NIXL"]
    return table(head, ([case, *(rows.value(f"{case}/{side}", impl) for impl in ("kvferry", "nixl") for side in sides)]
                        for case in rows.cases(WITHIN, COMPUTING, *STAGED)))  # fmt: skip


def rest_table(rows: Rows) -> str:
    found = [row for (case, _), row in rows.measured.items() if path_of(case) in REST]
    return table(["the rest", "", "median", "p99", "unit", "runs"],
                 ([row["case"], row["impl"], number(row["median"]), number(row["p99"]), row["unit"], str(row["runs"])]
                  for row in found))  # fmt: skip


def one_goal(rows: Rows, case: str) -> float | None:
    goals = [goal for least, goal in ONE_GOALS if piece_bytes(rows.shapes[case]) >= least]
    return goals[0] if goals and rows.is_large(case) else None


def goals(rows: Rows) -> Iterator[tuple[str, str, float | None, float]]:
    """A ratio that is missing is none that was reached."""
    for case in filter(is_within, rows.cases(WITHIN)):
        if (goal := one_goal(rows, case)) is not None:
            yield case, "kvferry/one", rows.ratio(case, ["one"]), goal
        if rows.is_large(case):
            yield case, "kvferry/gather", rows.ratio(case, ["gather"]), LAUNCH_GOAL
        if (theirs := rows.cpu(case, "nixl")) is not None:
            ours = rows.cpu(case, "kvferry")
            yield case, "CPU, NIXL's/kvferry's", theirs / ours if ours else None, 1
    for case in rows.cases("gpu-to-host", "host-to-gpu"):
        yield case, "kvferry/batch-2048", rows.ratio(case, ["batch-2048"]), HOST_GOAL


def goals_text(rows: Rows) -> str:
    judged = list(goals(rows))
    missed = [[case, what, share(ratio), f"at least {least}"] for case, what, ratio, least in judged if ratio is None or ratio < least]
    head = f"{len(judged) - len(missed)} of {len(judged)} goals are met"
    return f"{head}; not:\n" + table(["", "", "reached", "goal"], missed) if missed else head + "."


def clocks_text(rows: Rows) -> str:
    """Of all cases: the slowest and the fastest that were seen while the card worked."""
    found = [(row["sm_mhz"], row["memory_mhz"]) for row in rows.clocks]
    spans = [f"{what} {min(seen)} to {max(seen)} MHz" for what, which in (("SM", 0), ("memory", 1))
             if (seen := [clock[which][when] for clock in found for when in ("warm", "end") if clock[which][when]])]  # fmt: skip
    return "clocks at work: " + (", ".join(spans) or "nobody says")


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
        if rows.machine["kernels"] != "taken":
            yield f"ITS DRIVER DOES NOT TAKE KVFERRY'S KERNELS: {rows.machine['kernels']}"
        if rows.machine["fake"]:
            yield "A FAKE OF THE DRIVER: that all of it runs is shown, and no figure means anything."
    yield clocks_text(rows)
    yield "A column with a slash: how many times as fast kvferry is (/batch: beside the faster of the two)."
    if rows.cases(MATRIX):
        yield "\n" + matrix_table(rows)
    for path, title in ((WITHIN, "within the GPU, P idle: GB/s (one piece: us)"), (COMPUTING, "within the GPU, P computing: GB/s")):
        if rows.cases(path):
            yield "\n" + within_table(rows, path, title)
    if rows.cases(WITHIN, COMPUTING, *STAGED, *REST):
        yield from ("\n" + made(rows) for made in (staged_table, posting_table, cpu_table, rest_table))
    yield ""
    yield from (f"cut: {case}: {row['cut']}" for case, row in rows.shapes.items() if row.get("cut"))
    yield from dict.fromkeys(f"note: {row['case']}, {row['impl']}: {row['note']}" for row in rows.notes)
    if rows.machine and not rows.machine["fake"] and rows.cases(WITHIN, *STAGED):
        yield goals_text(rows)
    if rows.failed:
        yield failures_text(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=Path, nargs="?", default=PROGRAM, help=f"gpu_bench ({PROGRAM})")
    parser.add_argument("--quick", action="store_true", help="a few rounds of small sizes: whether it runs at all")
    parser.add_argument("--case", default="", metavar="TEXT", help="only cases whose name has this: local/, gather/")
    parser.add_argument("--without", metavar="TEXT", help="but for those with this")
    parser.add_argument("--seconds", type=float, default=RUN_S, help=f"for all of it ({RUN_S})")
    parser.add_argument("--switches", action="store_true", help="kvferry once more, with the gather kernel never and always")
    parser.add_argument("--nixl", action="store_true", help="NIXL beside it, on a real driver")
    parser.add_argument("--library", metavar="FILE", help="the driver, or a fake of it (libcuda.so.1 as the system finds it)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="for the rows, behind those that are there: a line each")
    options = parser.parse_args()
    if options.library:
        os.environ[LIBRARY] = options.library
    options.program = options.program.absolute()
    with tempfile.TemporaryDirectory() as folder:
        return report(options, options.json or Path(folder) / "rows.jsonl")


def report(options: argparse.Namespace, file: Path) -> int:
    until = time.monotonic() + options.seconds
    file.touch()
    begin = file.stat().st_size
    later_s = (NIXL_S if options.nixl and not options.quick else 0) + (SWITCHES_S if options.switches else 0)
    run_bench(options, options.case, options.seconds - later_s, file)
    if options.switches:
        run_switches(options, until, file)
    rows = rows_since(file, begin)
    if options.nixl and any(row.get("fake") is False for row in rows):
        run_nixl(rows, until - time.monotonic(), file)
        rows = rows_since(file, begin)
    found = Rows(rows)
    print("\n".join(texts(found) if found.shapes else [failures_text(found)]))
    return 1 if found.failed or not found.measured else 0


if __name__ == "__main__":
    sys.exit(main())
