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


def has_failed(case: ET.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def failures(report: Path) -> list[str]:
    """Of a JUnit file: the name of each test that failed, and the end of what it said."""
    if not report.exists():
        return [f"{report} was not written"]
    shown = []
    for case in ET.parse(report).getroot().iter("testcase"):
        if has_failed(case):
            said = "\n".join(part.text or "" for part in case if part.tag != "properties")
            lines = [line for line in said.splitlines() if line.strip()][-SHOWN_LINES:]
            shown.append("\n".join([f"{case.get('classname')} {case.get('name')}", *(f"    {line}" for line in lines)]))
    return shown


def count_reports(reports: list[Path]) -> Count:
    """Test cases of JUnit files, as Meson and pytest write them. One that is not there counts as a failure."""
    there = [report for report in reports if report.exists()]
    cases = [case for report in there for case in ET.parse(report).getroot().iter("testcase")]
    failed = len(reports) - len(there)
    failed += sum(1 for case in cases if has_failed(case))
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    return Count(len(cases) + len(reports) - len(there) - failed - skipped, failed, skipped)


def count_step(code: int, report: str) -> Count:
    """A step that failed counts at least one failure, also when it wrote no report."""
    if report == "-":
        return Count(int(code == 0), int(code != 0), 0)
    counted = count_reports([Path(each) for each in report.split()])
    return counted if code == 0 or counted.failed else counted._replace(failed=1)


def main(steps: Path) -> int:
    totals = Count(0, 0, 0)
    ran = [line.split("\t") for line in steps.read_text().splitlines()]
    for name, _, report, _ in ran:
        for failure in [each for path in report.split() if path != "-" for each in failures(Path(path))]:
            print(f"\n=== {name}: FAILED {failure}")
    print()
    for name, code, report, seconds in ran:
        count = count_step(int(code), report)
        totals = Count(*(a + b for a, b in zip(totals, count)))
        print(f"{count.passed:5} passed {count.failed:4} failed {count.skipped:4} skipped  {seconds:>4} s  {name}")
    print(f"{totals.passed} passed, {totals.failed} failed")
    return 1 if totals.failed else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
