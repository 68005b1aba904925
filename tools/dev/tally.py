"""Sums up the steps of a test run, says again what failed in them; the last line is 'N passed, N failed'."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import NamedTuple

SHOWN_LINES = 20  # of what a failed test said: its last


class Count(NamedTuple):
    passed: int
    failed: int
    skipped: int


def show(case: ET.Element) -> str:
    said = "\n".join(part.text or "" for part in case if part.tag != "properties")
    lines = [line for line in said.splitlines() if line.strip()][-SHOWN_LINES:]
    return "\n".join([f"{case.get('classname')} {case.get('name')}", *(f"    {line}" for line in lines)])


def read(report: Path) -> tuple[Count, list[str]]:
    """Test cases of a JUnit file, as Meson and pytest write them, and what the failed ones said. One that is not there counts
    as a failure."""
    if not report.exists():
        return Count(0, 1, 0), [f"{report} was not written"]
    cases = list(ET.parse(report).getroot().iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases)
    return Count(len(cases) - len(failed) - skipped, len(failed), skipped), [show(case) for case in failed]


def read_step(code: int, reports: str) -> tuple[Count, list[str]]:
    """A step that failed counts at least one failure, also when it wrote no report."""
    if reports == "-":
        return Count(int(code == 0), int(code != 0), 0), []
    if code != 0 and not any(Path(each).exists() for each in reports.split()):
        return Count(0, 1, 0), ["before any test ran: the build, or the set-up, as its own output says further up"]
    counts, failures = zip(*(read(Path(each)) for each in reports.split()))
    counted = Count(*map(sum, zip(*counts)))
    return counted if code == 0 or counted.failed else counted._replace(failed=1), sum(failures, [])


def main(steps: Path) -> int:
    ran = [line.split("\t") for line in steps.read_text().splitlines()]
    found = [read_step(int(code), reports) for _, code, reports, _ in ran]
    for (name, *_), (_, failures) in zip(ran, found):
        for failure in failures:
            print(f"\n=== {name}: FAILED {failure}")
    print()
    for (name, *_, seconds), (count, _) in zip(ran, found):
        print(f"{count.passed:5} passed {count.failed:4} failed {count.skipped:4} skipped  {seconds:>4} s  {name}")
    passed, failed = (sum(count[place] for count, _ in found) for place in (0, 1))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
