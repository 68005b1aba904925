"""A few engines for each file. Run this folder by itself: engines that are up share the machine's memory."""

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
    """Starts engines, and gives the rig of two of them, by name: prefill, decode."""
    stacks = []

    def up(specs: list[EngineSpec]) -> Callable[[str, str], Rig]:
        stack = Stack(specs, log_folder(request.module.__name__), with_router=False)
        stacks.append(stack.__enter__())
        engines = {engine.name: engine for engine in stack.engines}
        prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]

        def rig(prefill: str, decode: str) -> Rig:
            return Rig(stack, "kvferry", prompts, LEASE_S, client_limit_s=60.0, source=engines[prefill],
                       consumer=engines[decode])
        return rig
    yield up
    for stack in stacks:
        stack.stop()
