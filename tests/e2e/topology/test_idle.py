"""A prefill engine that has nothing to do but to keep leases: what it costs, and how soon blocks come back."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import pytest
from pd import client, metrics, web
from pd.progress import wait_until
from pd.prompts import numbered_prompt
from pd.rig import Rig

from shapes import engine

pytestmark = pytest.mark.deep

LEASES = 100
LONG_S = 300
SPAN_S = 4.0
MORE_MAX = 0.02
"""Of a core, with leases out."""
BACK_S = 0.05
LOOK_S = 0.05
"""What it takes vLLM's server to hand out its metrics."""
SPIN_S = 5.0
"""So long vLLM's workers wait for the next step without sleeping."""
LIMIT_S = 30.0


@pytest.fixture(scope="module")
def rig_of(start: Callable[..., Callable[[str, str], Rig]]) -> Callable[[str, str], Rig]:
    own = {"lease_ttl_ms": LONG_S * 1000, "blocks": 4 * LEASES}
    return start([engine("one", **own), engine("two", ranks=2, **own), engine("D", policy="fail")])


def cores_used(rig: Rig) -> float:
    """By P's processes."""
    def used_s() -> float:
        return sum(sum(process.cpu_times()[:2]) for process in rig.producer.process.family())
    before_s = used_s()
    time.sleep(SPAN_S)
    return (used_s() - before_s) / SPAN_S


def leases(rig: Rig) -> int:
    return int(metrics.total(rig.producer.samples(), "kvferry_leases"))


def end_one(rig: Rig, ticket: client.Ticket) -> float:
    """D refuses the request: how long until P's blocks are back."""
    before = leases(rig)
    body = client.completion_body(rig.question, 16, ticket) | {"temperature": -1}
    assert web.post_json(rig.decoder.url + "/v1/completions", body, LIMIT_S).status == 400
    start_s = time.monotonic()
    wait_until("waiting for the blocks", lambda: leases(rig) < before, LIMIT_S, every_s=0.005)
    return time.monotonic() - start_s


@pytest.mark.parametrize("name", ["one", "two"])
def test_leases_cost_an_idle_engine_nothing(rig_of: Callable[[str, str], Rig], name: str) -> None:
    rig = rig_of(name, "D")
    time.sleep(SPIN_S)
    idle = statistics.median(cores_used(rig) for _ in range(3))
    tickets = [client.prefill(rig.producer.url, numbered_prompt(i, 40)) for i in range(LEASES)]
    wait_until("waiting for the gauges", lambda: leases(rig) == LEASES, LIMIT_S)
    time.sleep(SPIN_S)
    lent = statistics.median(cores_used(rig) for _ in range(3))
    assert lent - idle <= MORE_MAX, (idle, lent)
    back_s = [end_one(rig, ticket) for ticket in tickets[:7]]
    assert statistics.median(back_s) < BACK_S + LOOK_S, back_s
    assert leases(rig) == LEASES - len(back_s)
