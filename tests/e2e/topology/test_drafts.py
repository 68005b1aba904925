"""Speculative decoding: what the draft model keeps of the prompt comes with the load, or is left out, and the tokens are
right either way. The draft is the target itself, so that all of its tokens are accepted if it knows the prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from pd import client, faults, metrics, trial
from pd.engine import EngineSpec
from pd.paths import FAST
from pd.prompts import numbered_prompt
from pd.rig import Rig

import expect
from shapes import engine

pytestmark = pytest.mark.deep

LAYERS = 4
AHEAD = 3
DRAFT = ("--speculative-config", json.dumps({"method": "draft_model", "model": str(FAST), "num_speculative_tokens": AHEAD}))
NOT_CARRIED = "kvferry_draft_layers_not_carried"
LOUD = f"the KV of {LAYERS} draft layers is NOT carried"
DRAFTED, ACCEPTED = "vllm:spec_decode_num_draft_tokens_total", "vllm:spec_decode_num_accepted_tokens_total"
BLOCKS = 48
OTHERS = 100
"""Number of the first prompt that nobody else asks about."""


def drafting(name: str, **options: object) -> EngineSpec:
    return replace(engine(name, blocks=BLOCKS, **options), args=DRAFT)


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str, str], Rig]:
    return start([drafting("P"), drafting("D"), engine("P-plain"), drafting("D-target", carry_drafts=False)])


def accepted(rig: Rig) -> float:
    """The share of the draft's tokens, of one answer to a loaded prompt. Whatever D's blocks may still hold of that prompt
    has been overwritten."""
    for number in range(OTHERS, OTHERS + BLOCKS // 4):
        assert client.complete(rig.decoder.url, numbered_prompt(number, len(rig.question)), 1).ok
    rig.settle()
    ticket = rig.ticket(rig.question)
    before = rig.counters()
    assert rig.decode(rig.question, ticket).ok
    after = rig.counters()
    assert trial.grown(before, after, trial.LOADED) >= len(rig.question) - 1
    return trial.grown(before, after, ACCEPTED) / trial.grown(before, after, DRAFTED)


def test_drafts_are_carried(rig_of: Callable[[str, str], Rig]) -> None:
    rig = rig_of("P", "D")
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
    assert metrics.total(rig.counters(), NOT_CARRIED) == 0
    assert LOUD not in rig.decoder.process.log.read_text()


def test_drafts_that_are_left_out(rig_of: Callable[[str, str], Rig]) -> None:
    """P has no draft model at all."""
    rig = rig_of("P-plain", "D-target")
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
    assert metrics.total(rig.counters(), NOT_CARRIED) == LAYERS
    assert rig.decoder.process.log.read_text().count(LOUD) == 1


def test_what_is_carried_is_accepted(rig_of: Callable[[str, str], Rig]) -> None:
    """A draft that knows nothing of the prompt is accepted less."""
    assert accepted(rig_of("P", "D")) > accepted(rig_of("P-plain", "D-target"))


def test_only_one_side_drafts(rig_of: Callable[[str, str], Rig]) -> None:
    expect.recomputed(trial.run(rig_of("P-plain", "D"), faults.HEALTHY), "incompatible")
