"""A ticket that D must not use: altered, of another prompt, of strangers, of another model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import faults, metrics, trial
from pd.client import Reply, Ticket
from pd.rig import Rig

import expect
import typed
from typed import COMPLETIONS, ask, ticket_for

DIALS = "kvferry_peer_dials_total"


@pytest.mark.parametrize("decoder", ["D", "D-tcp"])
def test_altered(rig_for: Callable[[str], Rig], decoder: str) -> None:
    outcome = trial.run(rig_for(decoder), faults.ALTERED)
    expect.recomputed(outcome, "bad_ticket")
    assert outcome.dials == 0


@pytest.mark.parametrize("decoder", ["D", "D-tcp"])
def test_of_another_prompt(rig_for: Callable[[str], Rig], decoder: str) -> None:
    outcome = trial.run(rig_for(decoder), faults.SWAPPED)
    expect.recomputed(outcome, "bad_ticket")
    assert outcome.dials == 0


def with_ticket_text(text: str) -> Callable[[Rig], Reply]:
    def inject(rig: Rig) -> Reply:
        ticket: Ticket = {**rig.ticket(rig.question), "kvferry_ticket": text}
        return rig.decode(rig.question, ticket)
    return inject


@pytest.mark.parametrize("text", ["", "garbage", "\u00e9\u0000\u4e2d", "A" * 300_000], ids=["empty", "garbage", "odd", "long"])
def test_garbage(rig: Rig, connector: str, text: str) -> None:
    if connector != "kvferry":
        pytest.skip("a ticket of kvferry")
    expect.recomputed(trial.run(rig, faults.Fault("f", "garbage", with_ticket_text(text))), "bad_ticket")


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
