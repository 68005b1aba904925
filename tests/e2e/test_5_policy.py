"""Policy fail: the client gets an error, soon, and D goes on."""

from __future__ import annotations

import pytest
from pd import faults, trial
from pd.rig import Rig

import expect

STALL_S = 1.0
MARGIN_S = 1.5


@pytest.mark.parametrize("fault", [faults.STALE, faults.STOPPED, faults.ALTERED, faults.SWAPPED], ids=lambda f: f.title)
def test_fails(fail_rig: Rig, fault: faults.Fault) -> None:
    fail_rig.warm_up()
    outcome = trial.run(fail_rig, fault)
    expect.failed(outcome, within_s=STALL_S + 1.0 + MARGIN_S)
    assert outcome.recomputed == 0
    assert outcome.reasons
