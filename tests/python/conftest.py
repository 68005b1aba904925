from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from engines import Engine, Log
from kvferry.engine import boundary
from kvferry.engine.log import logger


@pytest.fixture(autouse=True)
def internal_errors(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The hooks in which kvferry has spared an engine an exception. A test that wants some clears the list."""
    hooks: list[str] = []
    report = boundary._report

    def note(side: Any, hook: str, what_follows: str) -> None:
        hooks.append(hook)
        report(side, hook, what_follows)
    monkeypatch.setattr(boundary, "_report", note)
    yield hooks
    assert hooks == []


@pytest.fixture(autouse=True)
def told_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may have engines that are told where to listen."""
    for name in ("KVFERRY_LISTEN", "KVFERRY_ADVERTISE", "KVFERRY_KEY_FILE", "VLLM_NIXL_SIDE_CHANNEL_HOST"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def engine() -> Iterator[Callable[..., Engine]]:
    """Makes engines that are closed with the test."""
    made: list[Engine] = []

    def make(seed: int = 1, **arguments: object) -> Engine:
        made.append(Engine(seed, **arguments))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def log() -> Iterator[Log]:
    heard = Log()
    level = logger.level
    logger.addHandler(heard)
    logger.setLevel("DEBUG")
    yield heard
    logger.setLevel(level)
    logger.removeHandler(heard)
