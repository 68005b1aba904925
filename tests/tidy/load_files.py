#!/usr/bin/env python3
"""Counts the files of src/core, src/transport, src/runtime and src/memory that a warm load over `local` runs through."""

import argparse
import json
import pathlib
import subprocess
import sys

FILES_MAX = 15
FOLDERS = ("src/core/", "src/transport/", "src/runtime/", "src/memory/")
# The threads of the nodes that look at the clock may run while the load does; of several runs, that with the fewest
# files is the load alone.
RUNS = 3


def files_run(program, objects, gcov, root):
    """The files with lines that one run of the program has executed, and how many lines."""
    for old in objects.rglob("*.gcda"):
        old.unlink()
    subprocess.run([program], check=True, timeout=60)
    counts = sorted(str(path) for path in objects.rglob("*.gcda"))
    reports = subprocess.run([gcov, "-t", "-j", *counts], check=True, capture_output=True, text=True, cwd=objects).stdout
    lines = {}
    for report in map(json.loads, reports.splitlines()):
        for file in report["files"]:
            path = pathlib.Path(report["current_working_directory"], file["file"]).resolve()
            name = str(path.relative_to(root)) if path.is_relative_to(root) else ""
            if name.startswith(FOLDERS):
                run = {line["line_number"] for line in file["lines"] if line["count"] > 0}
                lines.setdefault(name, set()).update(run)
    return {name: len(run) for name, run in lines.items() if run}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=pathlib.Path, required=True, help="the root of the sources")
    parser.add_argument("--program", required=True, help="warm_load")
    parser.add_argument("--objects", type=pathlib.Path, required=True, help="where it was compiled")
    parser.add_argument("--gcov", default="gcov")
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    runs = (files_run(arguments.program, arguments.objects, arguments.gcov, root) for _ in range(RUNS))
    found = min(runs, key=len)
    for name, count in sorted(found.items()):
        print(f"{count:4} {name}")
    print(f"{len(found)} files, at most {FILES_MAX}")
    return int(not 0 < len(found) <= FILES_MAX)


if __name__ == "__main__":
    sys.exit(main())
