"""The tests of the boundary can fail: where it swallows an exception and stops nothing, wrong tokens come with HTTP 200."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pd import client, metrics
from pd.rig import RECOMPUTED, Rig

from planted import arm, has_raised, lost_ticket, raising

pytestmark = pytest.mark.deep

LEASE_MS = 60_000
"""Longer than it takes to overwrite all blocks."""


@pytest.mark.parametrize("prefill", ["P", "P-swallows"])
def test_stale_where_the_end_of_leases_is_swallowed(start: Callable[..., Callable[[str, str], Rig]], prefill: str,
                                                    tmp_path_factory: pytest.TempPathFactory) -> None:
    """Blocks of a request that is given up are free with the next step, which ends its lease. Nobody has its ticket, but for
    this test."""
    folder = tmp_path_factory.getbasetemp()
    rig = start([raising(folder, "P", lease_ttl_ms=LEASE_MS),
                 raising(folder, "P-swallows", mutant="boundary_swallows", lease_ttl_ms=LEASE_MS),
                 raising(folder, "D", blocks=64)])(prefill, "D")
    rig.warm_up()
    expected = rig.expected(rig.question)
    rig.settle()
    before = metrics.total(rig.counters(), RECOMPUTED)
    arm(rig.producer, "Scheduler.finish", "ticket")
    arm(rig.producer, "Worker.before_forward", "ends")
    assert client.complete(rig.producer.url, rig.question, 1, client.ASK_FOR_TICKET).ticket is None
    ticket = lost_ticket(rig.producer)
    rig.overwrite_prefill_blocks()
    assert has_raised(rig.producer, "Worker.before_forward")
    reply = rig.decode(rig.question, ticket)
    assert reply.ok, reply
    swallowed = prefill == "P-swallows"
    assert (reply.tokens != expected) == swallowed
    assert (metrics.total(rig.counters(), RECOMPUTED) == before) == swallowed
