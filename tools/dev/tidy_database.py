"""Writes FOLDER/compile_commands.json of BUILD again with one command for each source and set of macros.

A test's helper is compiled for every program that has it, some of them nineteen times, and clang-tidy looks at a file
once for each command. A command without assertions is left out: clang-tidy takes from them facts about the code."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

NAME = "compile_commands.json"


def main(build: Path, folder: Path) -> None:
    distinct = {}
    for entry in json.loads((build / NAME).read_text()):
        macros = tuple(word for word in shlex.split(entry["command"]) if word.startswith("-D"))
        if "-DNDEBUG" not in macros:
            distinct.setdefault((entry["file"], macros), entry)
    folder.mkdir(exist_ok=True)
    (folder / NAME).write_text(json.dumps(list(distinct.values()), indent=1))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
