"""Two prefill engines compute a prompt, and the router joins their tickets: what becomes of one of them costs nothing."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from pd import client, faults, metrics, trial
from pd.client import Prompt, Reply, Ticket
from pd.engine import Engine
from pd.faults import Fault
from pd.progress import wait_until
from pd.rig import Rig

import expect

pytestmark = pytest.mark.deep

TICKET = "kvferry_ticket"
SWITCHES = "kvferry_source_switches_total"
BACK_LIMIT_S = 10.0


def joined(first: Ticket, *others: Ticket) -> Ticket:
    """As a router does it: without the key."""
    return {**first, TICKET: ",".join(ticket[TICKET] for ticket in (first, *others))}


def offer(engine: Engine, prompt: Prompt) -> Ticket:
    return client.prefill(engine.url, prompt)


def handed(rig: Rig, other: Engine, between: Callable[[Rig], None]) -> Callable[[Rig], Reply]:
    """P's ticket and, after something has happened, the other engine's."""
    return faults.handed(between, lambda first: joined(first, offer(other, rig.question)))


def run(rig: Rig, fault: Fault, other: Engine, switches: int) -> None:
    """Loaded whole; the second engine gets its blocks back, too."""
    rig.warm_up()
    before = metrics.total(rig.counters(), SWITCHES)
    expect.loaded(trial.run(rig, fault), len(rig.question))
    assert metrics.total(rig.counters(), SWITCHES) - before == switches
    wait_until("waiting for P2's blocks to come back", lambda: other.usage() == 0.0, BACK_LIMIT_S)


def test_the_first_is_stopped_over_tcp(tcp_rig: Rig, other_prefill: Engine) -> None:
    stopped = handed(tcp_rig, other_prefill, faults.stop)
    run(tcp_rig, Fault("b", "P stopped, P2 has it too", stopped, faults.let_go_on), other_prefill, switches=1)


def test_the_first_has_taken_its_blocks_back(rig: Rig, other_prefill: Engine) -> None:
    stale = handed(rig, other_prefill, faults.take_back)
    run(rig, Fault("a", "P's lease ran out, P2 has it too", stale), other_prefill, switches=1)


def test_the_first_is_of_another_prompt(rig: Rig, other_prefill: Engine) -> None:
    """A router's mistake: that source is left out."""
    def swapped(rig: Rig) -> Reply:
        return rig.decode(rig.question, joined(rig.ticket(rig.other_question), offer(other_prefill, rig.question)))

    run(rig, Fault("g", "P's ticket of another prompt, P2's of this one", swapped), other_prefill, switches=0)


def test_nothing_is_wrong(rig: Rig, other_prefill: Engine) -> None:
    """P5: the engine that nobody read from gets its blocks back with the other, not when its lease runs out."""
    def healthy(rig: Rig) -> Reply:
        second = offer(other_prefill, rig.question)
        reply = rig.decode(rig.question, joined(rig.ticket(rig.question), second))
        answered_s = time.monotonic()
        wait_until("waiting for P2's blocks to come back", lambda: other_prefill.usage() == 0.0, BACK_LIMIT_S)
        assert time.monotonic() - answered_s < rig.lease_s
        return reply

    run(rig, Fault("-", "two sources", healthy), other_prefill, switches=0)


def test_the_first_is_killed(rig: Rig, other_prefill: Engine) -> None:
    killed = handed(rig, other_prefill, faults.kill)
    run(rig, Fault("c", "P killed, P2 has it too", killed, faults.start_anew), other_prefill, switches=1)
