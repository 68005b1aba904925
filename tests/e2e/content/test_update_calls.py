"""Weights that change by calls of a user's own, or were made up at first: nothing is carried before they have a name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from pd import faults, trial
from pd.engine import EngineSpec
from pd.progress import wait_until
from pd.rig import Rig

import expect
from shapes import engine
from test_updates import ENDED, LIMIT_S, call, folders, gives_tickets, reload, reset, rpc  # noqa: F401

pytestmark = pytest.mark.deep

def extended(name: str) -> EngineSpec:
    made = engine(name, rpcs_that_keep_weights=["count_params"])
    return replace(made, connector=made.connector.with_these_tools(),
                   args=("--worker-extension-cls", "pd.worker_extension.Extension"))


@pytest.fixture(scope="module")
def rig(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    return start([extended("P"), extended("D")])("P", "D")


def test_weights_written_by_a_worker_s_extension(rig: Rig) -> None:
    expect.loaded(trial.run(rig, faults.HEALTHY), len(rig.question))
    old = rig.expected(rig.question)
    rig.settle()
    ticket = rig.ticket(rig.question)
    rpc(rig.producer, "update_named_params", factor=-1.0)
    assert not gives_tickets(rig.producer, rig)
    expect.recomputed(trial.run(rig, faults.Fault("-", "with the old ticket", lambda rig: rig.decode(rig.question, ticket))), *ENDED)
    call(rig.producer, "/update_weight_version", {"new_version": "step 1"})
    assert gives_tickets(rig.producer, rig)
    expect.recomputed(trial.run(rig, faults.HEALTHY), "incompatible")
    rpc(rig.decoder, "update_named_params", factor=-1.0)
    call(rig.decoder, "/update_weight_version", {"new_version": "step 1"})
    reset(rig.decoder)
    updated = replace(rig)  # with other answers
    assert updated.expected(rig.question) != old
    expect.loaded(trial.run(updated, faults.HEALTHY), len(rig.question))


def test_one_update_in_many_calls(rig: Rig) -> None:
    for at, factor in enumerate((2.0, 0.5, -1.0)):
        for one in (rig.producer, rig.decoder):
            rpc(one, "update_named_params", factor=factor, **({"weights_id": "step 2"} if at == 2 else {}))
            assert gives_tickets(one, rig) == (at == 2)
    updated = replace(rig)
    expect.loaded(trial.run(updated, faults.HEALTHY), len(rig.question))


def test_a_call_that_is_known_to_change_nothing(rig: Rig) -> None:
    for one in (rig.producer, rig.decoder):
        rpc(one, "count_params")
        rpc(one, "check_health")
    expect.loaded(trial.run(replace(rig), faults.HEALTHY), len(rig.question))


@pytest.fixture(scope="module")
def made_up(start: Callable[..., Callable[[str, str], Rig]]) -> Rig:
    return start([replace(engine(name), args=("--load-format", "dummy")) for name in "PD"])("P", "D")


def test_weights_that_were_made_up_load(made_up: Rig) -> None:
    expect.loaded(trial.run(made_up, faults.HEALTHY), len(made_up.question))


def test_made_up_and_then_read_from_files(made_up: Rig, folders: Path) -> None:  # noqa: F811
    for one, folder in ((made_up.producer, "new"), (made_up.decoder, "old")):
        rpc(one, "update_config", {"load_config": {"load_format": "auto"}})
        assert not gives_tickets(one, made_up)
        reload(one, folders / folder)
        wait_until("waiting for the weights' digest", lambda one=one: gives_tickets(one, made_up), LIMIT_S)
    expect.recomputed(trial.run(replace(made_up), faults.HEALTHY), "incompatible")
    reload(made_up.producer, folders / "old")
    wait_until("waiting for the weights' digest", lambda: gives_tickets(made_up.producer, made_up), LIMIT_S)
    expect.loaded(trial.run(replace(made_up), faults.HEALTHY), len(made_up.question))
