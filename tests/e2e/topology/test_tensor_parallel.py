"""Engines of one and of two ranks: each loads from the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from pd import faults, trial
from pd.rig import Rig

import expect
from shapes import engine

pytestmark = pytest.mark.deep

LEASE_S = 10.0
"""Five processes of two engines share two cores with a third engine's: they have kept a renewal waiting for five seconds."""

EACH_WAY = [("one", "two"), ("two", "one")]
OVER_TCP = [("two", "two-tcp"), ("one", "two-tcp")]


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str, str], Rig]:
    lease = {"lease_ttl_ms": int(LEASE_S * 1000)}
    found = start([engine("one", **lease), engine("two", ranks=2, **lease),
                   engine("two-tcp", ranks=2, transports=["tcp"], **lease)])
    return lambda prefill, decode: replace(found(prefill, decode), lease_s=LEASE_S)


@pytest.mark.parametrize("prefill, decode", [*EACH_WAY, *OVER_TCP])
def test_loads(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    rig = rig_of(prefill, decode)
    rig.warm_up()
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))


@pytest.mark.parametrize("prefill, decode", EACH_WAY)
def test_recomputes(rig_of: Callable[[str, str], Rig], prefill: str, decode: str) -> None:
    rig = rig_of(prefill, decode)
    rig.warm_up()
    expect.recomputed(trial.run(rig, faults.STALE), "lease_expired", "lease_unknown")


def test_one_rank_fails_and_its_sibling_does_not(rig_of: Callable[[str, str], Rig]) -> None:
    rig = rig_of("two", "two-tcp")
    rig.warm_up()
    expect.recomputed(trial.run(rig, faults.RANK_LOST), "transfer_stalled", "peer_down", "handshake_timeout")
    rig.warm_up()
