"""Says what a run of build-coverage has reached of the pure layers that decide: lines, branches, and failures by name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

LAYERS = ("core", "find", "plan", "recovery", "wire")
BRANCHES_PERCENT_MIN = 95.0

# uthash's macros are another project's code on a line of ours: hashing by length, growing of tables. What we decide on
# their result has lines of its own, and is counted.
NOT_OURS = r"\s*HASH_(ADD|FIND|DELETE|CLEAR|ITER)\("

# What a failure branch does: return a failure that it names, or give a peer or a session up.
FAILURE = r"\s*(return ({statuses});|(kvf_peer_fail|refuse|on_protocol_error|give_up)\()"


def run_gcovr(report: Path) -> int:
    """Prints the table; the exit status says whether the branches are enough."""
    command = [sys.executable, "-m", "gcovr", "--root", ".", "-j", str(os.cpu_count() or 1), "--json", str(report)]
    command += ["--txt", "-", "--txt-metric", "branch", "--fail-under-branch", str(BRANCHES_PERCENT_MIN)]
    command += ["--exclude-branches-by-pattern", NOT_OURS, "--filter", rf"src/({'|'.join(LAYERS)})/"]
    command += [str(report.parent / "src" / layer) for layer in LAYERS]
    return subprocess.run(command, check=False).returncode


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
    report = folder / "coverage.json"
    status = run_gcovr(report)
    unreached = failures_not_run(json.loads(report.read_text())["files"])
    for line in unreached:
        print(f"FAILED: not reached: {line}")
    return int(status != 0 or bool(unreached))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
