"""Two and a half minutes of ./dev soak, and one that is interrupted."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path
from typing import Any

import mix
import pytest
from chaos.handed import Habit

SEED = 7497
MINUTES = 2.5
SOME = 20
UNDER_WAY = "killed and started anew: D"
"""What is said when an engine is being replaced, a folder of sockets and shared memory left by the dead one."""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return mix.run("soak", tmp_path_factory.mktemp("soak"), MINUTES, SEED)


def test_every_request_is_answered_and_none_is_wrong(result: dict[str, Any]) -> None:
    assert result["right"] > result["requests"] / 2
    assert (result["wrong"], result["hung"], result["other_errors"]) == (0, 0, 0), result["not_right"]


def test_every_block_comes_back_and_engines_live(result: dict[str, Any]) -> None:
    assert result["held"] == {}
    assert result["restarts_why"] == result["problems"] == []
    assert result["good"]


def test_half_of_what_can_be_loaded_is(result: dict[str, Any]) -> None:
    assert result["possible_blocks"] >= 50 * SOME
    assert result["loaded_percent"] >= 50


def test_all_that_makes_it_hard_was_there(result: dict[str, Any]) -> None:
    """Else none of these tests could fail."""
    titles = {fault["title"] for fault in result["faults"]}
    assert titles >= {"killed and started anew", "stopped for longer than a lease", "new weights",
                      "new weights by a worker's extension"}
    assert any(fault["engine"] == "D" and fault["title"] == "killed and started anew" for fault in result["faults"])
    assert result["preemptions"] > 0
    assert result["given_back"] > 0, "no loaded prompt has waited while weights changed"
    assert any("raises" in call for call in result["injected"])
    assert set(result["habits"]) >= {habit.value for habit in Habit if habit is not Habit.NEVER}


def test_nothing_is_left(result: dict[str, Any]) -> None:
    assert result["left"] == []


def test_nothing_is_left_when_it_is_interrupted(tmp_path: Path) -> None:
    before = mix.files()
    with mix.started("soak", tmp_path, "--seed", str(SEED), stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert any(UNDER_WAY in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=mix.LIMIT_S)
    assert process.returncode == 128 + signal.SIGINT
    assert mix.marked_processes(str(tmp_path)) == []
    assert mix.files() - before == set()
