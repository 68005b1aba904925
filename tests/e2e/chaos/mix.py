"""Runs ./dev chaos or ./dev soak, and looks what is left of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

TOOLS = str(Path(__file__).resolve().parents[3] / "tools" / "dev")
SHARED_MEMORY = Path("/dev/shm")
SOCKETS = "pd-*"
MARK = "KVFERRY_TEST_RUN"
LIMIT_S = 900.0


def marked_processes(mark: str) -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def files() -> set[str]:
    """Shared memory and sockets."""
    shared = {str(path) for path in SHARED_MEMORY.rglob("*")
              if path.is_file() and re.search("kvferry|psm_|sem.mp-", str(path))}
    return shared | {str(path) for path in Path(tempfile.gettempdir()).glob(SOCKETS)}


@contextmanager
def started(mix: str, folder: Path, *options: str, **popen: Any) -> Iterator[subprocess.Popen[str]]:
    path = os.pathsep.join([TOOLS, *filter(None, [os.environ.get("PYTHONPATH")])])
    argv = [sys.executable, "-m", "chaos.main", mix, "--json", str(folder / "run.json"), *options]
    with subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": path, MARK: str(folder)}, text=True, **popen) as process:
        try:
            yield process
        finally:
            process.terminate()


def run(mix: str, folder: Path, minutes: float, seed: int) -> dict[str, Any]:
    before = files()
    with started(mix, folder, "--minutes", str(minutes), "--seed", str(seed)) as process:
        status = process.wait(LIMIT_S)
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    assert found["good"] == (status == 0)
    return {**found, "left": [*marked_processes(str(folder)), *(files() - before)]}
