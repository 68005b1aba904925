"""Several decode engines with one ticket: each loads, and who gives up or is cancelled leaves the others the lease."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from pd import client, metrics
from pd.client import Reply, Ticket
from pd.progress import wait_until
from pd.relay import HOST, Relay
from pd.rig import Rig

from shapes import LEASE_S, engine

pytestmark = pytest.mark.deep

GIVES_UP = {"policy": "fail", "load_timeout_ms": 300}
LOADED_BLOCKS = "kvferry_loaded_blocks_total"
GONE = ("lease_expired", "lease_unknown")
MARGIN_S = 2.0
SOON_S = 1.0
LONG_TOKENS = 200
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def rigs(start: Callable[..., Callable[[str, str], Rig]], relay: Relay) -> tuple[Rig, Rig, Rig]:
    """The same producer with each decoder: the first one reads through the relay, the others its memory."""
    first = engine("D1", transports=["tcp"], load_timeout_ms=60000, stall_timeout_ms=20000)
    rig = start([engine("P", advertise=HOST), first, engine("D2"), engine("D3")])
    return rig("P", "D1"), rig("P", "D2"), rig("P", "D3")


@pytest.fixture
def ticket(rigs: tuple[Rig, Rig, Rig], relay: Relay) -> Iterator[Ticket]:
    """Of which the first decoder cannot load."""
    first, second, _ = rigs
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


def wait_for_load(rig: Rig) -> None:
    """Under way."""
    wait_until("waiting for the load", lambda: metrics.total(rig.decoder.samples(), "kvferry_loads_open") == 1, LIMIT_S)


def wait_for_blocks(rig: Rig, limit_s: float) -> None:
    wait_until("waiting for P's blocks", lambda: rig.producer.usage() == 0.0, limit_s, every_s=0.05)


def give_up(rig: Rig, ticket: Ticket) -> None:
    answer = rig.decode(rig.question, {**ticket, "kvferry_options": GIVES_UP})
    assert answer.status == 500 and answer.reason == "deadline" and "retry-after" in answer.headers, answer


def test_an_error_leaves_the_lease_to_the_next(rigs: tuple[Rig, Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    first, second, _ = rigs
    give_up(first, ticket)
    relay.let_go()
    expect_loaded(second, ticket)
    wait_for_blocks(second, MARGIN_S)


def test_nobody_comes(rigs: tuple[Rig, Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    """The blocks are back within the lease's life, and who comes after it is told so."""
    first, second, _ = rigs
    give_up(first, ticket)
    relay.let_go()
    assert first.producer.usage() > 0.0
    wait_for_blocks(first, LEASE_S + MARGIN_S)
    reply, blocks = load(second, {**ticket, "kvferry_options": {"policy": "fail"}})
    assert reply.status == 500 and reply.reason in GONE and blocks == 0, reply


def test_three_have_one_ticket(rigs: tuple[Rig, Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    """The slowest of them keeps the lease for itself."""
    first, second, third = rigs
    with ThreadPoolExecutor() as pool:
        slowest = pool.submit(expect_loaded, first, ticket)
        wait_for_load(first)
        for other in [pool.submit(expect_loaded, rig, ticket) for rig in (second, third)]:
            other.result()
        assert first.producer.usage() > 0.0
        relay.let_go()
        slowest.result()
    wait_for_blocks(first, SOON_S)


@pytest.mark.parametrize("when", ["while it loads", "when it has loaded"])
def test_the_slower_of_two_is_cancelled(rigs: tuple[Rig, Rig, Rig], relay: Relay, ticket: Ticket, when: str) -> None:
    """Both were asked, and the client takes the first answer."""
    first, second, _ = rigs
    before = metrics.total(first.decoder.samples(), LOADED_BLOCKS)
    slower = client.ask(first.decoder.url, first.question, LONG_TOKENS, ticket)
    wait_for_load(first)
    expect_loaded(second, ticket)
    assert first.producer.usage() > 0.0
    if when == "when it has loaded":
        relay.let_go()
        wait_until("waiting for its blocks",
                   lambda: metrics.total(first.decoder.samples(), LOADED_BLOCKS) > before, LIMIT_S, every_s=0.02)
    slower.close()
    wait_for_blocks(first, SOON_S)
    wait_until("waiting for D's blocks", lambda: first.decoder.usage() == 0.0, LIMIT_S)


def test_a_killed_one_leaves_the_lease_to_the_next(rigs: tuple[Rig, Rig, Rig], relay: Relay, ticket: Ticket) -> None:
    first, second, _ = rigs
    with ThreadPoolExecutor() as pool:
        pool.submit(first.decode, first.question, ticket)
        wait_for_load(first)
        first.decoder.process.kill()
    relay.let_go()
    expect_loaded(second, ticket)
    wait_for_blocks(second, LEASE_S + MARGIN_S)
