"""A ticket that D must not use: altered, of another prompt, of strangers, of another model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import faults, metrics, trial
from pd.rig import Rig

import expect
import typed
from typed import COMPLETIONS, ask, ticket_for

DIALS = "kvferry_peer_dials_total"


@pytest.mark.parametrize("fault", [faults.ALTERED, faults.SWAPPED], ids=lambda fault: fault.title)
def test_altered_or_of_another_prompt(each_rig: Rig, fault: faults.Fault) -> None:
    outcome = trial.run(each_rig, fault)
    expect.recomputed(outcome, "bad_ticket")
    assert outcome.dials == 0


@pytest.mark.parametrize("text", ["", "garbage", "\u00e9\u0000\u4e2d", "A" * 300_000], ids=["empty", "garbage", "odd", "long"])
def test_garbage(rig: Rig, connector: str, text: str) -> None:
    if connector != "kvferry":
        pytest.skip("a ticket of kvferry")
    garbage = faults.handed(change=lambda ticket: {**ticket, "kvferry_ticket": text})
    expect.recomputed(trial.run(rig, faults.Fault("f", "garbage", garbage)), "bad_ticket")


@pytest.mark.deep
def test_wrong_key(rig_for: Callable[[str], Rig]) -> None:
    """An engine with another key takes no ticket, so it never has a reason to connect to anybody."""
    stranger = rig_for("D-key")
    expect.recomputed(trial.run(stranger, faults.HEALTHY), "other_key")
    assert metrics.total(stranger.counters(), DIALS) == 0


@pytest.mark.deep
def test_incompatible_model(rig_for: Callable[[str], Rig]) -> None:
    rig = rig_for("D-model")
    expect.recomputed(trial.run(rig, faults.HEALTHY), "incompatible")
    ticket = {**ticket_for(rig, COMPLETIONS), "kvferry_options": {"policy": "fail"}}
    typed.expect(ask(rig, COMPLETIONS, ticket), 500, "incompatible", None)
