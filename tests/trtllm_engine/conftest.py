"""Engines with toy connectors, which share blocks by files in the test's directory."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from .engine import Engine

TOKENS = 5
SIZE = 4
"""Tokens of a block."""
BLOCKS = 64
Make = Callable[..., Engine]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with ExitStack() as engines:
        def made(name: str, flags: str = "", **arguments: Any) -> Engine:
            arguments = {"connector_module": "trtllm_engine.toys"} | arguments
            return engines.enter_context(closing(Engine(name, model=f"{name}:{flags}:{tmp_path}", **arguments)))

        yield made


def prompt(seed: int, tokens: int = 18) -> list[int]:
    return random.Random(seed).choices(range(1000), k=tokens)


def ask(engine: Engine, tokens: list[int], answer: int = TOKENS, **identity: Any) -> list[int]:
    asked = engine.submit(tokens, answer, **identity)
    engine.run()
    assert engine.finished[asked] == "length"
    return engine.answers[asked]


def drain(engine: Engine) -> None:
    """Until nothing is pinned any more, of which a loop that waits for requests learns nothing by itself."""
    for _ in range(50):
        if not engine.pinned:
            return
        engine.nudge()
        engine.step()
    raise AssertionError(f"still pinned: {engine.pinned}")


def all_is_back(engine: Engine) -> None:
    drain(engine)
    assert engine.free_blocks == engine.spec.blocks
