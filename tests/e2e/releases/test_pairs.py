"""P and D of different releases of vLLM: what one has computed, the other loads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from kvferry.vllm.versions import kv_format
from pd import faults, trial
from pd.connector import kvferry
from pd.engine import NO_SPINNING, EngineSpec
from pd.paths import FAST
from pd.prompts import numbered_prompt
from pd.releases import RELEASES, missing, on
from pd.rig import Rig
from pd.stack import Stack, log_folder

import expect
from need import need

BLOCKS = 24
LEASE_S = 3.0
PROMPT_TOKENS = 150
PROMPTS = 9
BESIDE = [*pairwise(RELEASES), (RELEASES[0], RELEASES[-1])]
PAIRS = [*BESIDE, *(pair[::-1] for pair in BESIDE)]


def one_format(prefill: str, decode: str) -> bool:
    return kv_format(prefill) == kv_format(decode)


@pytest.fixture(scope="module")
def rig_of() -> Iterator[Callable[[str, str], Rig]]:
    """An engine of each release, which prefills and decodes."""
    base = replace(kvferry(LEASE_S), env=NO_SPINNING)
    specs = [EngineSpec(version, FAST, on(base, version), "nobind", BLOCKS) for version in RELEASES if not missing(version)]
    prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    with Stack(specs, log_folder("releases"), with_router=False) as stack:
        engines = {engine.name: engine for engine in stack.engines}

        def find(prefill: str, decode: str) -> Rig:
            need(prefill)
            need(decode)
            rig = Rig(stack, "kvferry", prompts, LEASE_S, source=engines[prefill], consumer=engines[decode])
            if one_format(prefill, decode):
                rig.warm_up()
            return rig
        yield find


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_loads(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    rig = rig_of(prefill, decode)
    outcome = trial.run(rig, faults.HEALTHY)
    if one_format(prefill, decode):
        expect.loaded(outcome, len(rig.question))
    else:
        expect.recomputed(outcome, "incompatible")


@pytest.mark.parametrize("prefill, decode", [pair for pair in PAIRS if one_format(*pair)])
def test_recomputes(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    expect.recomputed(trial.run(rig_of(prefill, decode), faults.STALE), "lease_expired", "lease_unknown")


@pytest.mark.parametrize("prefill, decode", [pair for pair in PAIRS if one_format(*pair)])
def test_a_client_that_hangs_up(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    expect.lives(trial.run(rig_of(prefill, decode), faults.HUNG_UP))
