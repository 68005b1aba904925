"""A minute of ./dev chaos. By itself: its engines would share the machine with those of the other files."""

from __future__ import annotations

from typing import Any

import mix
import pytest

SEED = 841
MINUTES = 1.34


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return mix.run("chaos", tmp_path_factory.mktemp("chaos"), MINUTES, SEED)


def test_no_answer_is_wrong(result: dict[str, Any]) -> None:
    assert result["requests"] >= 30
    assert result["right"] > result["requests"] / 2
    assert result["wrong"] == 0, result["not_right"]


def test_every_request_is_answered(result: dict[str, Any]) -> None:
    assert result["hung"] == 0, result["not_right"]
    assert result["other_errors"] == 0, result["others"]


def test_every_block_comes_back(result: dict[str, Any]) -> None:
    assert result["held"] == {}


def test_engines_live(result: dict[str, Any]) -> None:
    assert result["restarts_why"] == []
    assert result["good"], result["problems"]


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
    assert result["left"] == []
