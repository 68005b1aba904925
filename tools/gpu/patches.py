"""Applies a unified diff, as `patch -p1 --fuzz=0` does: a machine with a GPU may have no patch(1)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HUNK = re.compile(r"@@ -\d+(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


class PatchError(Exception):
    """The text says which file does not have what the patch changes."""


class Hunk(NamedTuple):
    file: str
    first: int  # its line, the hunks before it applied
    old: list[str]
    new: list[str]


def hunks(text: str) -> Iterator[Hunk]:
    lines, name = iter(text.splitlines()), ""
    for line in lines:
        if line.startswith("+++ b/"):
            name = line.removeprefix("+++ b/")
        elif head := HUNK.match(line):
            old_count, new_count = int(head[1] or 1), int(head[3] or 1)
            hunk = Hunk(name, int(head[2]), [], [])
            while len(hunk.old) < old_count or len(hunk.new) < new_count:
                line = next(lines) or " "
                if line[0] in " -":
                    hunk.old.append(line[1:])
                if line[0] in " +":
                    hunk.new.append(line[1:])
            yield hunk


def place(lines: list[str], hunk: Hunk) -> int:
    """Nearest to where the patch has it: other changes may have moved it."""
    places = [at for at in range(len(lines) - len(hunk.old) + 1) if lines[at : at + len(hunk.old)] == hunk.old]
    if not places:
        raise PatchError(f"{hunk.file}: nothing there is as at line {hunk.first} of the patch")
    return min(places, key=lambda at: abs(at - hunk.first + 1))


def apply(patch: Path, folder: Path) -> None:
    """All of it or nothing."""
    files: dict[str, list[str]] = {}
    for hunk in hunks(patch.read_text()):
        lines = files.setdefault(hunk.file, (folder / hunk.file).read_text().split("\n"))
        at = place(lines, hunk)
        lines[at : at + len(hunk.old)] = hunk.new
    if not files:
        raise PatchError(f"{patch.name}: it changes no file")
    for name, lines in files.items():
        (folder / name).write_text("\n".join(lines))
