"""What happens to a request whose blocks cannot be loaded: by its engine's policy, and by its own."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from pd import faults, trial
from pd.client import Reply
from pd.faults import Fault
from pd.rig import Rig

import expect
from shapes import BUDGET_TOKENS_PER_S

STALL_S = 1.0
MARGIN_S = 1.5


def of_request(fault: Fault, **options: Any) -> Fault:
    """The same fault, and a request that differs from its decode engine."""
    def inject(rig: Rig) -> Reply | None:
        return fault.inject(rig.with_options(**options))
    return replace(fault, inject=inject)


@pytest.mark.parametrize("fault", [faults.STALE, faults.STOPPED, faults.ALTERED, faults.SWAPPED], ids=lambda f: f.title)
def test_fails(fail_rig: Rig, fault: Fault) -> None:
    fail_rig.warm_up()
    outcome = trial.run(fail_rig, fault)
    expect.failed(outcome, within_s=STALL_S + 1.0 + MARGIN_S)
    assert outcome.recomputed == 0
    assert outcome.reply is not None
    assert outcome.reasons.keys() == {outcome.reply.reason}


def test_a_request_that_fails_on_an_engine_that_recomputes(rig: Rig) -> None:
    rig.warm_up()
    outcome = trial.run(rig, of_request(faults.STALE, policy="fail"))
    expect.failed(outcome, within_s=MARGIN_S)
    assert outcome.recomputed == 0


def test_a_request_that_recomputes_on_an_engine_that_fails(fail_rig: Rig) -> None:
    fail_rig.warm_up()
    outcome = trial.run(fail_rig, of_request(faults.STALE, policy="recompute"))
    expect.recomputed(outcome, "lease_expired", "lease_unknown")


def test_auto_recomputes_up_to_its_threshold(rig: Rig) -> None:
    tokens = len(rig.question)
    rig.warm_up()
    few = trial.run(rig, of_request(faults.STALE, policy="auto", auto_max_recompute_tokens=tokens - 1))
    expect.failed(few, within_s=MARGIN_S)
    enough = trial.run(rig, of_request(faults.STALE, policy="auto", auto_max_recompute_tokens=tokens))
    expect.recomputed(enough, "lease_expired", "lease_unknown")


def test_a_budget_bounds_what_is_recomputed(fail_rig: Rig) -> None:
    """A prompt takes the budget of some seconds: the next one is told to come back when they are over."""
    fail_rig.warm_up()
    expected = fail_rig.expected(fail_rig.question)
    own_s = len(fail_rig.question) / BUDGET_TOKENS_PER_S
    asking = fail_rig.with_options(policy="recompute")
    time.sleep(own_s)
    asking.settle()
    began = time.monotonic()
    assert faults.altered(asking).tokens == expected
    too_soon = faults.altered(asking)
    assert too_soon.status == 500, too_soon.in_short(200)
    wait_s = int(too_soon.headers["retry-after-ms"]) / 1000
    assert own_s - (time.monotonic() - began) < wait_s < own_s + 2.0
    time.sleep(wait_s)
    assert faults.altered(asking).tokens == expected


@pytest.mark.parametrize("options, said", [
    ({"policy": "maybe"}, 'policy = "maybe" is not allowed: it must be fail, recompute or auto'),
    ({"load_timeout_ms": 10**9}, "load_timeout_ms"),
    ({"listen": "0.0.0.0"}, '"listen" is not an option of a request'),
])
def test_bad_options_are_named(fail_rig: Rig, options: dict[str, Any], said: str) -> None:
    reply = faults.healthy(fail_rig.with_options(**options))
    assert reply.status == 400 and said in reply.error, reply.in_short(300)
    assert fail_rig.probe().ok
    fail_rig.settle()
