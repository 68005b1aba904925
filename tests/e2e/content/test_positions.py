"""Rope whose factors follow from max_model_len, in which prefill and decode engines often differ."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pd import faults, trial
from pd.engine import EngineSpec
from pd.models import build_random
from pd.rig import Rig

import expect
from shapes import engine

pytestmark = pytest.mark.deep

BLOCKS = 40
THRESHOLD = 512
"""Tokens of max_model_len above which vLLM takes the long factors, for every position."""
ROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "original_max_position_embeddings": THRESHOLD,
        "short_factor": [1.0] * 16, "long_factor": [4.0] * 16, "factor": 4.0}


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Rig]:
    model: Path = tmp_path_factory.mktemp("models") / "long-rope"
    build_random(model, 5, num_hidden_layers=4, tie_word_embeddings=False, rope_parameters=ROPE)

    def limited(name: str, tokens: int) -> EngineSpec:
        return replace(engine(name, model=model, blocks=BLOCKS), max_tokens=tokens)
    rig = start([limited("P", 256), limited("D-long", 1024), limited("D-short", 500)])
    return lambda decoder: rig("P", decoder)


def test_other_factors_are_incompatible(rig_of: Callable[[str], Rig]) -> None:
    expect.recomputed(trial.run(rig_of("D-long"), faults.HEALTHY), "incompatible")


def test_other_limits_with_equal_factors_load(rig_of: Callable[[str], Rig]) -> None:
    rig = rig_of("D-short")
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
