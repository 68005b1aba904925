"""A minute of ./dev chaos. By itself: its engines would share the machine with those of the other files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[3]
TOOLS = str(ROOT / "tools" / "dev")
SHARED_MEMORY = Path("/dev/shm")
SEED = 841
MINUTES = 1.34
LIMIT_S = 900.0
VARIABLE = "KVFERRY_CHAOS_FILE"


def processes_under_chaos() -> list[str]:
    found = []
    for process in psutil.process_iter():
        try:
            if VARIABLE in process.environ():
                found.append(" ".join(process.cmdline()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def shared_memory() -> set[str]:
    return {str(path) for folder, _, files in os.walk(SHARED_MEMORY) for path in (Path(folder, file) for file in files)
            if re.search("kvferry|psm_|sem.mp-", str(path))}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("chaos")
    before = shared_memory()
    subprocess.run(
        [sys.executable, "-m", "chaos.main", "--minutes", str(MINUTES), "--seed", str(SEED),
         "--json", folder / "run.json"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([TOOLS, *filter(None, [os.environ.get("PYTHONPATH")])])},
        timeout=LIMIT_S, check=False)
    found = json.loads((folder / "run.json").read_text())
    found["processes_left"] = processes_under_chaos()
    found["memory_left"] = shared_memory() - before
    yield found


def test_no_answer_is_wrong(result: dict[str, Any]) -> None:
    assert result["requests"] >= 30
    assert result["right"] > result["requests"] / 2
    assert result["wrong"] == 0, result["not_right"]


def test_every_request_is_answered(result: dict[str, Any]) -> None:
    assert result["hung"] == 0, result["not_right"]
    assert result["other_errors"] == 0, result["others"]


def test_every_block_comes_back(result: dict[str, Any]) -> None:
    assert result["leaked_blocks"] == 0


def test_the_decode_engine_lives(result: dict[str, Any]) -> None:
    assert result["d_restarts"] == 0


def test_faults_of_several_kinds_were_there(result: dict[str, Any]) -> None:
    """Else none of these tests could fail."""
    kinds = {name.split()[1] for name in result["injected"]}
    assert len(kinds) >= 2, result["injected"]
    assert result["injected_total"] >= 20
    titles = {fault["title"] for fault in result["faults"]}
    assert len(titles) >= 8
    assert "killed and started anew" in titles and "stopped for longer than a lease" in titles


def test_requests_are_right_again_after_each_fault(result: dict[str, Any]) -> None:
    assert all(fault["recovery_s"] is not None for fault in result["faults"])


def test_nothing_is_left(result: dict[str, Any]) -> None:
    assert result["processes_left"] == []
    assert result["memory_left"] == set()
