"""P is stopped after its prefill, or the client leaves while it is."""

from __future__ import annotations

import time

from pd import faults, trial
from pd.rig import Rig

import expect
import typed
from typed import COMPLETIONS, ask, ticket_for

STALL_REASONS = ("transfer_stalled", "peer_down", "transfer_failed")
STALL_S = 1.0
MARGIN_S = 1.5


def test_local_reads_a_stopped_process(rig: Rig) -> None:
    rig.warm_up()
    expect.loaded(trial.run(rig, faults.STOPPED), len(rig.question))


def test_tcp_notices_the_stall(tcp_rig: Rig) -> None:
    tcp_rig.warm_up()
    outcome = trial.run(tcp_rig, faults.STOPPED)
    expect.recomputed(outcome, *STALL_REASONS)
    assert outcome.reply is not None
    assert outcome.reply.seconds < STALL_S + 1.0 + MARGIN_S


def test_the_client_is_told(fail_rig: Rig) -> None:
    fail_rig.warm_up()
    fail_rig.settle()
    ticket = ticket_for(fail_rig, COMPLETIONS)
    try:
        fail_rig.producer.process.pause()
        start_s = time.monotonic()
        answer = ask(fail_rig, COMPLETIONS, ticket)
        assert time.monotonic() - start_s < STALL_S + 1.0 + MARGIN_S
        typed.expect(answer, 500, "transfer_stalled", f"127.0.0.1:{fail_rig.producer.connector_port}")
    finally:
        fail_rig.producer.process.resume()


def test_client_hangs_up(each_rig: Rig) -> None:
    each_rig.warm_up()
    expect.lives(trial.run(each_rig, faults.HUNG_UP))


def test_loads_go_through_again(tcp_rig: Rig) -> None:
    tcp_rig.warm_up()
