"""The tests' programs, case by case: each case's result is a row as soon as it is known, and a case that ends its program, or
breaks the device's context, takes no other along."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

SAID = re.compile(r"^\[ *(RUN|OK|FAILED|SKIPPED) *\] (\w+)$")
RESULTS = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}
ENDS = {0: "", 124: "not over in time"}
SAID_CHARACTERS = 2000
"""Of what a case has said, in its row."""
CASE_S = 45
NO_RESULT = "no result"

Command = Callable[[list[str], float, str, Callable[[str], None]], int]
"""Runs the words, with a limit, into the log of that name; each line is given to the function. Returns the status."""


class Case(NamedTuple):
    name: str
    result: str  # one of RESULTS, or NO_RESULT
    seconds: float
    alone: bool
    said: str

    @property
    def is_good(self) -> bool:
        return self.result in ("passed", "skipped")


class Program(NamedTuple):
    name: str
    cases: dict[str, Case]
    status: int
    said: str
    seconds: float

    @property
    def passed(self) -> int:
        return sum(case.result == "passed" for case in self.cases.values())

    @property
    def not_passed(self) -> list[str]:
        return [case.name for case in self.cases.values() if not case.is_good]

    @property
    def is_good(self) -> bool:
        return bool(self.cases) and not self.not_passed

    @property
    def why(self) -> str:
        return ENDS.get(self.status, f"ended with status {self.status}")


class Reader:
    """What a program says, as it says it."""

    def __init__(self, alone: bool, tell: Callable[[Case], None]):
        self.alone, self.tell = alone, tell
        self.cases: dict[str, Case] = {}
        self.lines: list[str] = []
        self.begun = ""
        self.since = time.monotonic()

    def line(self, line: str) -> None:
        self.lines.append(line)
        found = SAID.match(line)
        if found and found[1] == "RUN":
            self.begun, self.since, self.lines = found[2], time.monotonic(), []
        elif found and found[2] == self.begun:  # at the end they are named once more
            self.end(found[2], RESULTS[found[1]])

    def end(self, name: str, result: str) -> None:
        case = Case(name, result, round(time.monotonic() - self.since, 2), self.alone, "\n".join(self.lines)[-SAID_CHARACTERS:])
        self.cases[name] = case._replace(said="") if case.is_good else case
        self.begun = ""
        self.tell(self.cases[name])


def once(command: Command, program: Path, which: str, limit_s: float, log: str, tell: Callable[[Case], None]) -> Program:
    begin = time.monotonic()
    reader = Reader(bool(which), tell)
    status = command([str(program), *([f"={which}"] if which else [])], limit_s, log, reader.line)
    if reader.begun:
        reader.end(reader.begun, NO_RESULT)
    said = "\n".join(reader.lines)[-SAID_CHARACTERS:]
    return Program(program.name, reader.cases, status, said, time.monotonic() - begin)


def names(command: Command, program: Path, log: str) -> list[str]:
    found: list[str] = []
    command([str(program), "--list"], CASE_S, log, found.append)
    return [name for name in found if re.fullmatch(r"\w+", name)]


def run(command: Command, program: Path, limit_s: float, log: str, tell: Callable[[Case], None]) -> Program:
    """All of the program's cases in one process; where that has failed, those that have not passed in one each."""
    until = time.monotonic() + limit_s
    whole = once(command, program, "", limit_s, log, tell)
    if whole.status == 0:
        return whole
    cases = dict(whole.cases)
    for name in names(command, program, f"{log}-names"):
        if cases.get(name) is None:
            cases[name] = Case(name, NO_RESULT, 0, False, "")
        left_s = until - time.monotonic()
        if not cases[name].is_good and left_s > 1:
            alone = once(command, program, name, min(CASE_S, left_s), f"{log}-{name}", tell)
            cases |= alone.cases
    return whole._replace(cases=cases, seconds=limit_s - (until - time.monotonic()))
