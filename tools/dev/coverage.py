"""Says what a run of build-coverage has reached: lines, branches and failures of src/core and src/wire."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

LAYERS = ("core", "wire")
BRANCHES_PERCENT_MIN = 95.0

# uthash's macros are another project's code on a line of ours: hashing by length, growing of tables. What we decide on
# their result has lines of its own, and is counted.
NOT_OURS = r"\s*HASH_(ADD|FIND|DELETE|CLEAR|ITER)\("

# What a failure branch does: return a failure that it names, or give a peer or a session up.
FAILURE = r"\s*(return ({statuses});|(kvf_peer_fail|refuse|on_protocol_error|give_up)\()"


class Count(NamedTuple):
    total: int
    taken: int

    def __add__(self, other: Count) -> Count:  # type: ignore[override]
        return Count(self.total + other.total, self.taken + other.taken)

    def percent(self) -> float:
        return 100.0 * self.taken / self.total if self.total else 100.0


class File(NamedTuple):
    name: str
    lines: Count
    branches: Count
    missing: list[int]


def run_gcovr(folder: Path) -> list[dict]:
    report = folder / "coverage.json"
    command = [sys.executable, "-m", "gcovr", "--root", ".", "-j", str(os.cpu_count() or 1), "--json", str(report)]
    command += ["--exclude-branches-by-pattern", NOT_OURS, "--filter", rf"src/({'|'.join(LAYERS)})/"]
    command += [str(folder / "src" / layer) for layer in LAYERS]
    subprocess.run(command, check=True)
    return json.loads(report.read_text())["files"]


def count_file(file: dict) -> File:
    lines = [line for line in file["lines"] if not line.get("gcovr/noncode") and not line.get("gcovr/excluded")]
    branches = Count(0, 0)
    missing = set()
    for line in lines:
        taken = [branch["count"] > 0 for branch in line["branches"] if not branch.get("gcovr/excluded")]
        branches += Count(len(taken), sum(taken))
        if not all(taken) or line["count"] == 0:
            missing.add(line["line_number"])
    return File(file["file"], Count(len(lines), sum(line["count"] > 0 for line in lines)), branches, sorted(missing))


def print_table(files: list[File]) -> Count:
    print(f"\n{'':34}{'lines':>15}{'branches':>15}   lines not run, or with a branch not taken")
    lines, branches = Count(0, 0), Count(0, 0)
    for file in sorted(files):
        lines += file.lines
        branches += file.branches
        print_row(file.name, file.lines, file.branches, ",".join(map(str, file.missing)))
    print_row("all", lines, branches, "")
    return branches


def print_row(name: str, lines: Count, branches: Count, missing: str) -> None:
    cells = [f"{count.taken}/{count.total} {count.percent():4.0f}%" for count in (lines, branches)]
    print(f"{name:34}{cells[0]:>15}{cells[1]:>15}   {missing}".rstrip())


def failures_not_run(files: list[dict]) -> list[str]:
    """Lines that report a failure, and that nothing has reached."""
    statuses = re.findall(r"^  (KVF_\w+) = -", Path("include/kvferry/status.h").read_text(), re.M)
    failure = re.compile(FAILURE.format(statuses="|".join(statuses)))
    found = []
    for file in files:
        text = Path(file["file"]).read_text().splitlines()
        for line in file["lines"]:
            content = text[line["line_number"] - 1]
            if line["count"] == 0 and not line.get("gcovr/noncode") and failure.match(content):
                found.append(f"{file['file']}:{line['line_number']}: {content.strip()}")
    return found


def main(folder: Path) -> int:
    files = run_gcovr(folder)
    branches = print_table([count_file(file) for file in files])
    unreached = failures_not_run(files)
    for line in unreached:
        print(f"not reached: {line}")
    failures = []
    if branches.percent() < BRANCHES_PERCENT_MIN:
        failures.append(f"{branches.percent():.2f} % of the branches were taken, and {BRANCHES_PERCENT_MIN} % must be")
    if unreached:
        failures.append(f"{len(unreached)} failures were not reached")
    print("\n".join(f"FAILED: {failure}" for failure in failures) or f"ok: {branches.percent():.2f} % of the branches")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
