"""A few engines for each file, started when a test asks for them. Run this folder by itself: engines that are up share
the machine's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from pd.engine import EngineSpec
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.stack import Stack, log_folder

from shapes import LEASE_S

PROMPT_TOKENS = 150
PROMPTS = 9


@pytest.fixture(scope="module")
def start(request: pytest.FixtureRequest) -> Iterator[Callable[[list[EngineSpec]], Callable[[str, str], Rig]]]:
    """Gives the rig of two of some engines, by name: prefill, decode."""
    prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    stacks: list[Stack] = []

    def of(specs: list[EngineSpec]) -> Callable[[str, str], Rig]:
        known = {spec.name: spec for spec in specs}

        def rig(prefill: str, decode: str) -> Rig:
            if not stacks:
                stacks.append(Stack([known[prefill], known[decode]], log_folder(request.module.__name__), with_router=False))
                stacks[0].__enter__()
            engines = {engine.name: engine for engine in stacks[0].engines}
            source, consumer = (engines.get(name) or stacks[0].add(known[name]) for name in (prefill, decode))
            return Rig(stacks[0], "kvferry", prompts, LEASE_S, client_limit_s=60.0, source=source, consumer=consumer)
        return rig
    yield of
    for stack in stacks:
        stack.stop()
