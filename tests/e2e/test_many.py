"""Several decode engines load from several prefill engines at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pd import metrics
from pd.engine import Engine
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.rig import RECOMPUTED, Rig
from pd.trial import FAILURES, LOADED

pytestmark = pytest.mark.deep

DECODERS = ("D", "D-tcp", "D-fail", "D-servers")
SILENT = 1
"""D-servers counts nothing."""
PROMPT_TOKENS = 150
FIRST_PROMPT = 100
PROMPTS = 3
AT_ONCE = 4
LOADED_AT_LEAST = (len(DECODERS) - SILENT) * PROMPTS * (PROMPT_TOKENS - 1)
"""Every prompt is asked of each twice: the second time some or all of it may be in its own cache."""
BACK_LIMIT_S = 10.0


@pytest.fixture
def pairs(rig_for: Callable[[str], Rig], other_prefill: Engine) -> Iterator[list[Rig]]:
    """Each decode engine with each prefill engine."""
    yield [rig for decoder in DECODERS for rig in (rig_for(decoder), replace(rig_for(decoder), source=other_prefill))]


def sums(pairs: list[Rig], name: str) -> float:
    return sum(metrics.total(rig.counters(), name) for rig in pairs[::2])


def test_each_loads_from_each(pairs: list[Rig], other_prefill: Engine) -> None:
    prompts = [numbered_prompt(FIRST_PROMPT + number, PROMPT_TOKENS) for number in range(PROMPTS)]
    expected = [pairs[0].expected(prompt) for prompt in prompts]
    for rig in pairs:
        rig.warm_up()
    pairs[0].settle()
    before = {name: sums(pairs, name) for name in (RECOMPUTED, FAILURES, LOADED)}

    def ask(number: int) -> list[int]:
        rig, prompt = pairs[number % len(pairs)], prompts[number // len(pairs)]
        reply = rig.decode(prompt, rig.ticket(prompt))
        assert reply.ok, reply.in_short(200)
        return reply.tokens

    with ThreadPoolExecutor(AT_ONCE) as clients:
        answers = list(clients.map(ask, range(len(pairs) * PROMPTS)))
    assert answers == [expected[number // len(pairs)] for number in range(len(answers))]
    assert sums(pairs, RECOMPUTED) == before[RECOMPUTED]
    assert sums(pairs, FAILURES) == before[FAILURES]
    assert sums(pairs, LOADED) - before[LOADED] >= LOADED_AT_LEAST
    pairs[0].stack.wait_idle()
    wait_until("waiting for P2's blocks to come back", lambda: other_prefill.usage() == 0.0, BACK_LIMIT_S)
