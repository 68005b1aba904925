"""Faults while D loads. P stands still from before, so that the load is under way when something happens."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from pd import metrics
from pd.client import Reply
from pd.faults import Fault, let_go_on
from pd.progress import wait_until
from pd.rig import Rig

LOADING = "kvferry_loads_open"
LOADING_LIMIT_S = 10.0

NETWORK = ("transfer_stalled", "transfer_failed", "peer_down", "handshake_timeout")
LEASE = ("lease_expired", "lease_unknown", *NETWORK)
GONE = ("peer_restarted", "lease_unknown", *NETWORK)


def while_it_loads(rig: Rig, stop: Callable[[], None], act: Callable[[], None]) -> Reply:
    ticket = rig.ticket(rig.question)
    stop()
    with ThreadPoolExecutor(1) as client:
        reply = client.submit(rig.decode, rig.question, ticket)
        wait_until("D loads", lambda: metrics.total(rig.counters(), LOADING) > 0, LOADING_LIMIT_S, every_s=0.05)
        act()
        return reply.result()


def lease_ends(rig: Rig) -> Reply:
    def outlast() -> None:
        rig.outlast_lease()
        rig.producer.process.resume()
    return while_it_loads(rig, rig.producer.process.pause, outlast)


def killed(rig: Rig) -> Reply:
    return while_it_loads(rig, rig.producer.process.pause, rig.producer.process.kill)


def leave_out(rig: Rig) -> None:
    """Nobody asks P any more. It is there only if it was not killed."""
    rig.producer.stop()
    rig.stack.engines.remove(rig.producer)


LEASE_ENDS = Fault("-", "the lease ends during the load", lease_ends, let_go_on)
KILLED = Fault("-", "P is killed during the load", killed, leave_out)
