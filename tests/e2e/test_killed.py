"""P is killed, and started anew on the same ports."""

from __future__ import annotations

import pytest
from pd import faults, trial
from pd.client import Reply, Ticket
from pd.faults import Fault
from pd.progress import wait_until
from pd.rig import Rig

import expect
import typed
from typed import COMPLETIONS, ask, ticket_for

GONE_REASONS = ("peer_down", "peer_restarted", "lease_unknown", "transfer_failed", "handshake_timeout")


NOTICED_LIMIT_S = 30.0


def test_killed(rig: Rig, fail_rig: Rig) -> None:
    """With the policy that fails, the client is told that P is gone, and then that it is not the one that it was."""
    peer = f"127.0.0.1:{rig.producer.connector_port}"
    tickets: list[Ticket] = []
    for each in (fail_rig, rig):
        each.warm_up()

    def killed(rig: Rig) -> Reply:
        tickets.extend(ticket_for(fail_rig, COMPLETIONS) for _ in range(2))
        reply = faults.killed(rig)
        typed.expect(ask(fail_rig, COMPLETIONS, tickets[0]), 500, "peer_down", peer)
        return reply

    expect.recomputed(trial.run(rig, Fault("c", "P killed", killed, faults.start_anew)), *GONE_REASONS)

    def is_noticed() -> bool:
        """Behind a breaker P counts as down until the next probe."""
        answer = ask(fail_rig, COMPLETIONS, tickets[1])
        if answer.body["error"]["reason"] == "peer_down":
            return False
        typed.expect(answer, 500, "peer_restarted", peer)
        return True
    wait_until("P's new life is noticed", is_noticed, NOTICED_LIMIT_S)


def test_loads_from_the_next_life(rig: Rig) -> None:
    rig.warm_up()


@pytest.mark.deep
def test_started_anew_over_tcp(tcp_rig: Rig) -> None:
    tcp_rig.warm_up()
    expect.recomputed(trial.run(tcp_rig, faults.RESTARTED), *GONE_REASONS)
