"""A model with two KV groups: blocks that slid out of the window are not loaded, and a failed load is computed anew as a
whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import faults, trial
from pd.paths import FAST_HYBRID
from pd.rig import Rig

import expect
from shapes import engine

BLOCKS = 64
DECODERS = ["D", pytest.param("D-tcp", marks=pytest.mark.deep)]


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str], Rig]:
    of_model = {"model": FAST_HYBRID, "blocks": BLOCKS}
    rig = start([engine("P", **of_model), engine("D", **of_model), engine("D-tcp", transports=["tcp"], **of_model)])
    return lambda decoder: rig("P", decoder)


@pytest.mark.parametrize("decoder", DECODERS)
def test_loads(rig_of: Callable[[str], Rig], decoder: str) -> None:
    rig = rig_of(decoder)
    assert rig.expected(rig.question) != rig.expected(rig.other_question)
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))


@pytest.mark.parametrize("decoder", DECODERS)
def test_recomputes_all_of_it(rig_of: Callable[[str], Rig], decoder: str) -> None:
    rig = rig_of(decoder)
    rig.warm_up()
    outcome = trial.run(rig, faults.STALE)
    expect.recomputed(outcome, "lease_expired", "lease_unknown")
    assert outcome.recomputed == len(rig.question)


@pytest.mark.deep
def test_a_stopped_producer(rig_of: Callable[[str], Rig]) -> None:
    rig = rig_of("D-tcp")
    rig.warm_up()
    outcome = trial.run(rig, faults.STOPPED)
    expect.recomputed(outcome, "transfer_stalled", "peer_down", "handshake_timeout")
    assert outcome.recomputed == len(rig.question)
