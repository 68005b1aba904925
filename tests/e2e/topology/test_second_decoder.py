"""A decode engine that gives up for reasons of its own leaves the lease to the next one, which has the same ticket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from pd import metrics
from pd.client import Reply, Ticket
from pd.progress import wait_until
from pd.relay import HOST, Relay
from pd.rig import Rig

from shapes import LEASE_S, engine

pytestmark = pytest.mark.deep

MIDDLEWARE = ("--middleware", "kvferry.vllm.KVErrors")
GIVES_UP = {"policy": "fail", "load_timeout_ms": 300}
LOADED_BLOCKS = "kvferry_loaded_blocks_total"
GONE = ("lease_expired", "lease_unknown")
MARGIN_S = 2.0
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def relay() -> Iterator[Relay]:
    with Relay() as running:
        yield running


@pytest.fixture(scope="module")
def rigs(start: Callable[..., Callable[[str, str], Rig]], relay: Relay) -> tuple[Rig, Rig]:
    """The same producer with either decoder: the first one's way to it goes through the relay."""
    first = replace(engine("D1", transports=["tcp"], load_timeout_ms=60000, stall_timeout_ms=20000), args=MIDDLEWARE)
    second = replace(engine("D2", transports=["tcp"]), args=MIDDLEWARE)
    rig = start([engine("P", advertise=HOST), first, second])
    return rig("P", "D1"), rig("P", "D2")


@pytest.fixture
def ticket(rigs: tuple[Rig, Rig], relay: Relay) -> Iterator[Ticket]:
    """Of which the first decoder cannot load."""
    first, second = rigs
    relay.serve(first.producer.process.listening_ports())
    for rig in rigs:
        rig.expected(rig.question)
        rig.warm_up()
    second.settle()
    made = first.ticket(first.question)
    relay.hold(but=first.producer.connector_port)
    yield made
    relay.let_go()


def load(rig: Rig, ticket: Ticket) -> tuple[Reply, int]:
    """And how many blocks were loaded."""
    before = metrics.total(rig.decoder.samples(), LOADED_BLOCKS)
    reply = rig.decode(rig.question, ticket)
    return reply, int(metrics.total(rig.decoder.samples(), LOADED_BLOCKS) - before)


def expect_loaded(rig: Rig, ticket: Ticket) -> None:
    reply, blocks = load(rig, ticket)
    assert reply.ok and reply.tokens == rig.expected(rig.question), reply
    assert blocks >= len(rig.question) // 32


def wait_for_blocks(rig: Rig, limit_s: float) -> None:
    wait_until("waiting for P's blocks", lambda: rig.producer.usage() == 0.0, limit_s, every_s=0.05)


def give_up(rig: Rig, ticket: Ticket) -> None:
    answer = rig.decode(rig.question, {**ticket, "kvferry_options": GIVES_UP})
    assert answer.status == 500 and answer.reason == "deadline" and "retry-after" in answer.headers, answer


def test_an_error_leaves_the_lease_to_the_next(rigs: tuple[Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    first, second = rigs
    give_up(first, ticket)
    relay.let_go()
    expect_loaded(second, ticket)
    wait_for_blocks(second, MARGIN_S)


def test_nobody_comes(rigs: tuple[Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    """The blocks are back within the lease's life, and who comes after it is told so."""
    first, second = rigs
    give_up(first, ticket)
    relay.let_go()
    assert first.producer.usage() > 0.0
    wait_for_blocks(first, LEASE_S + MARGIN_S)
    reply, blocks = load(second, {**ticket, "kvferry_options": {"policy": "fail"}})
    assert reply.status == 500 and reply.reason in GONE and blocks == 0, reply


def test_a_killed_one_leaves_the_lease_to_the_next(rigs: tuple[Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    first, second = rigs
    with ThreadPoolExecutor() as pool:
        pool.submit(first.decode, first.question, ticket)
        wait_until("waiting for the load", lambda: metrics.total(first.decoder.samples(), "kvferry_loads_open") == 1, LIMIT_S)
        first.decoder.process.kill()
    relay.let_go()
    expect_loaded(second, ticket)
    wait_for_blocks(second, LEASE_S + MARGIN_S)
