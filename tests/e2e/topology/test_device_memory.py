"""Engines whose pools pass for a GPU's (tests/fake_cuda): they use them by pointers, kvferry by the driver's calls alone."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from pd import faults, metrics, trial
from pd.client import Reply
from pd.engine import BLOCK_TOKENS, EngineSpec
from pd.faults import Fault
from pd.paths import FAKE_CUDA
from pd.progress import wait_until
from pd.rig import Rig
from pd.trial import Outcome

import expect
from shapes import engine

pytestmark = pytest.mark.deep

SLOW = {"KVFERRY_FAKE_CUDA_DELAY_NS": str(1_000_000_000)}
"""All work on the device begins up to so much later than it could: a load takes long enough for P to be killed in it."""
READS = "kvferry_peer_reads_in_flight"
STARTED_LIMIT_S = 20.0
GONE_REASONS = ("peer_down", "transfer_failed")
LEASE_REASONS = ("lease_expired", "lease_unknown")


def with_gpu(name: str, **options: Any) -> EngineSpec:
    spec = engine(name, **options)
    return replace(spec, connector=spec.connector.on_fake_gpu())


def host_of_slow_gpu(name: str) -> EngineSpec:
    """Its pool is the host's, and a GPU reads P's for it."""
    spec = engine(name, cuda_library=str(FAKE_CUDA))
    return replace(spec, connector=replace(spec.connector, env={**spec.connector.env, **SLOW}))


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str], Rig]:
    rigs = start([with_gpu("P"), with_gpu("D"), with_gpu("D-tcp", transports=["tcp"]), host_of_slow_gpu("D-host")])

    def find(name: str) -> Rig:
        rig = rigs("P", name)
        assert has_device_pool(rig, "P") and has_device_pool(rig, name) == (name != "D-host")
        rig.warm_up()
        return rig
    return find


def has_device_pool(rig: Rig, name: str) -> bool:
    log = next(engine for engine in rig.stack.engines if engine.name == name).process.log.read_text(errors="replace")
    assert "Fake GPU" in log
    return "has adopted the pool" in log


def expect_loaded(rig: Rig, outcome: Outcome) -> None:
    expect.loaded(outcome, len(rig.question))
    assert outcome.loaded_blocks >= len(rig.question) // BLOCK_TOKENS


@pytest.mark.parametrize("decoder", ["D", "D-tcp", "D-host"])
def test_blocks_are_loaded(rig_of: Callable[[str], Rig], decoder: str) -> None:
    rig = rig_of(decoder)
    expect_loaded(rig, trial.run(rig, faults.HEALTHY))


def test_a_stopped_process_is_read(rig_of: Callable[[str], Rig]) -> None:
    """By its handle, over local: nothing else could."""
    rig = rig_of("D")
    expect_loaded(rig, trial.run(rig, faults.STOPPED))


def test_stale(rig_of: Callable[[str], Rig]) -> None:
    rig = rig_of("D")
    expect.recomputed(trial.run(rig, faults.STALE), *LEASE_REASONS)


def killed_while_read(rig: Rig) -> Reply:
    ticket = rig.ticket(rig.question)
    with ThreadPoolExecutor() as clients:
        reply = clients.submit(rig.decode, rig.question, ticket)
        wait_until("waiting for the read", lambda: metrics.total(rig.counters(), READS) > 0, STARTED_LIMIT_S, every_s=0.02)
        rig.producer.process.kill()
        return reply.result()


def test_killed_while_it_is_read(rig_of: Callable[[str], Rig]) -> None:
    """What is then read is poison."""
    rig = rig_of("D-host")
    expect.recomputed(trial.run(rig, Fault("c", "P killed", killed_while_read, faults.start_anew)), *GONE_REASONS)
    rig.warm_up()
    expect_loaded(rig, trial.run(rig, faults.HEALTHY))
