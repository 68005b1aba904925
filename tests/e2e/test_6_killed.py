"""P is killed, and started anew on the same ports."""

from __future__ import annotations

from pd import faults, trial
from pd.rig import Rig

import expect

GONE_REASONS = ("peer_down", "peer_restarted", "lease_unknown", "transfer_failed", "handshake_timeout")


def test_killed(rig: Rig) -> None:
    rig.warm_up()
    expect.recomputed(trial.run(rig, faults.KILLED), *GONE_REASONS)


def test_loads_from_the_next_life(rig: Rig) -> None:
    rig.warm_up()


def test_started_anew_over_tcp(tcp_rig: Rig) -> None:
    tcp_rig.warm_up()
    expect.recomputed(trial.run(tcp_rig, faults.RESTARTED), *GONE_REASONS)
